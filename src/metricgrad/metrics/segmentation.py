"""Metrics of label maps: the pixels of all images of a set in one pot, a confusion matrix, a mean over classes.

A pixel is a multi-class item, so these are the macro averages of Jaccard and F1 over pixels
(`confusion.py`). Classes that appear neither in the target nor in the predictions are left out of
the mean.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import class_indices, expand_where, real_scores, shape
from metricgrad.metrics.confusion import (
    PairsOption,
    averaged,
    dice_of,
    jaccard_of,
    label_decisions,
    occurring,
)
from metricgrad.metrics.decisions import Pooling
from metricgrad.metrics.multiclass import Counts, class_counts
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression


@dataclass(frozen=True, kw_only=True)
class SegmentationMetric(ComparisonMetric):
    """A mean over the classes of label maps.

    Args:
        ignore_index: pixels with this target do not count, as in cross-entropy; if it is a class,
            the mean leaves that class out too.
        pairs: how a surrogate sees a pixel's decision: `"best"` compares a class with the best
            other one, `"all"` with each of them.
    """

    families = ("segmentation",)
    ties = "first"
    undefined = "0 where no class occurs"

    ignore_index: int | None = None
    pairs: PairsOption = "best"

    @abstractmethod
    def of_counts(self, counts: Counts) -> Tensor:
        """The formula of each class, `[..., C]`."""

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores `[..., N, C, H, W]` and class indices `[..., N, H, W]`; ignored pixels do not count."""
        fits = scores.dim() >= 4 and scores.shape[:-3] + scores.shape[-2:] == target.shape
        if not fits or scores.shape[-3] < 2:
            raise ValueError(
                f"{self.name} takes scores [..., N, C, H, W] with target [..., N, H, W] (C classes, 2 or more); "
                f"got scores {shape(scores)} and target {shape(target)}"
            )
        where = expand_where(where, target.shape, target.dim() - 2)
        if self.ignore_index is not None:
            kept = target != self.ignore_index
            where = kept if where is None else where & kept
        scores = real_scores(scores, None if where is None else where.unsqueeze(-3))
        return Inputs(scores, class_indices(target, scores.shape[-3], where), where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the classes that occur."""
        predicted = scores.argmax(-3).flatten(-3)
        where = None if where is None else where.flatten(-3)
        counts = class_counts(predicted, target.flatten(-3), scores.shape[-3], where, scores.dtype)
        return self.pooling()(counts)

    def pooling(self) -> Pooling:
        """The mean over the classes that occur, without the ignored one."""

        def takes_part(counts: Counts) -> Tensor:
            classes = torch.arange(counts.tp.shape[-1], device=counts.tp.device)
            return occurring(counts) & (
                classes != (-1 if self.ignore_index is None else self.ignore_index)
            )

        return averaged(self.of_counts, "macro", takes_part)

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each pixel and class, or for each pixel and pair of classes."""
        where = None if where is None else where.flatten(-3)
        pixels = label_decisions(
            shape[-3], target.flatten(-3), where, self.pooling(), self.pairs, dtype
        )
        return PixelDecisions(pixels)


@dataclass(frozen=True)
class PixelDecisions(Reexpression):
    """Decisions about the pixels of all images, which are multi-class items once the maps are unrolled."""

    items: Reexpression

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Comparisons of scores `[..., N, C, H, W]`."""
        return self.items.comparisons(scores.movedim(-3, -1).flatten(-4, -2))

    def defined(self) -> Tensor:
        """Sets on which the decisions make a difference."""
        return self.items.defined()

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the pixels' bits."""
        return self.items.from_bits(bits)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The gains of the pixels' bits."""
        return self.items.flip_gains(bits)


@dataclass(frozen=True, kw_only=True)
class MeanIou(SegmentationMetric):
    """Mean over the classes of intersection over union: tp / (tp + fp + fn).

    Args:
        ignore_index: see `SegmentationMetric`.

    Example:
        >>> scores = torch.tensor([[[[2.0, 0.0]], [[1.0, 1.0]]]])  # one image, two classes, 1 x 2 pixels
        >>> MeanIou()(scores, torch.tensor([[[0, 0]]]))
        tensor(0.2500)

    Reference:
        `sklearn.metrics.jaccard_score(average="macro")` over pixels.
    """

    name = "mean_iou"
    reference = "sklearn jaccard_score over pixels"

    def of_counts(self, counts: Counts) -> Tensor:
        """tp / (tp + fp + fn)."""
        return jaccard_of(counts)


@dataclass(frozen=True, kw_only=True)
class Dice(SegmentationMetric):
    """Mean over the classes of the Dice coefficient: 2 tp / (2 tp + fp + fn).

    Args:
        ignore_index: see `SegmentationMetric`.

    Example:
        >>> scores = torch.tensor([[[[2.0, 0.0]], [[1.0, 1.0]]]])  # one image, two classes, 1 x 2 pixels
        >>> Dice()(scores, torch.tensor([[[0, 0]]]))
        tensor(0.3333)

    Reference:
        `sklearn.metrics.f1_score(average="macro")` over pixels.
    """

    name = "dice"
    reference = "sklearn f1_score over pixels"

    def of_counts(self, counts: Counts) -> Tensor:
        """2 tp / (2 tp + fp + fn)."""
        return dice_of(counts)
