"""Metrics of maps: label maps (segmentation) and heatmaps (pose).

Segmentation counts the pixels of all images of a set together. A pixel is a multi-class item, so
these metrics are the macro averages of Jaccard and F1 over pixels (`confusion.py`). Classes that
appear neither in the target nor in the predictions are left out of the mean. With `per_image=True`
each image has a value of its own, and the set the mean of them (`parts.py`). Maps of one score a
pixel are those of two classes whose first score is 0: above 0 a pixel is of class 1.

PCK counts the joints of a pose whose predicted position, the highest pixel of the heatmap, lies
within a radius of the true one. The radius is the same for all joints (in map pixels), or a
fraction of a size that each joint brings along: half the head's length gives PCKh@0.5 (UniLoss,
Sec. 4.1).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, JointSize, Layout
from metricgrad.metrics.checks import class_indices, expand_where, one_of, real_scores, zero_one
from metricgrad.metrics.checks import shape as shown
from metricgrad.metrics.confusion import PairsOption, dice_of, jaccard_of, label_decisions
from metricgrad.metrics.counts import Counts, Pooling, averaged, class_counts, occurring, share
from metricgrad.metrics.decisions import ItemDecisions
from metricgrad.metrics.margins import best_pixel_margin, soft_pixel_margin
from metricgrad.metrics.parts import MeanOfParts
from metricgrad.metrics.pixel_pairs import PixelPairs, as_pixels
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression


@dataclass(frozen=True, kw_only=True)
class SegmentationMetric(ComparisonMetric):
    """A mean over the classes of label maps.

    Args:
        ignore_index: Pixels with this target do not count, as in cross-entropy; if it is a class,
            the mean leaves that class out, too.
        pairs: How a surrogate sees a pixel's decision: `"best"` compares a class with the best
            other one, `"all"` with each of them.
        per_image: Whether every image has a value, over the classes that occur in it, and a set
            their mean; otherwise the pixels of all images are counted together. Images without a
            pixel that counts are left out.
    """

    families = ("segmentation",)
    decided_by = "thresholds"
    ties = "first"
    undefined = "0 where no class occurs"

    ignore_index: int | None = None
    pairs: PairsOption = "best"
    per_image: bool = False

    def __post_init__(self) -> None:
        one_of("pairs", self.pairs, get_args(PairsOption))

    @property
    def layout(self) -> Layout:
        """Label maps."""
        return "maps"

    @abstractmethod
    def of_counts(self, counts: Counts) -> Tensor:
        """The formula of each class, `[..., C]`."""

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores `[..., N, C, H, W]` and class indices `[..., N, H, W]`, ignored pixels masked.

        One score a pixel becomes two, the first of which is 0.
        """
        fits = scores.dim() >= 4 and scores.shape[:-3] + scores.shape[-2:] == target.shape
        if not fits or not scores.shape[-3]:
            raise ValueError(
                f"{self.name} takes scores [..., N, C, H, W] with target [..., N, H, W] (C classes;"
                f" 1 for two of them); got scores {shown(scores)} and target {shown(target)}"
            )
        where = expand_where(where, target.shape, target.dim() - 2)
        if self.ignore_index is not None:
            kept = target != self.ignore_index
            where = kept if where is None else where & kept
        scores = real_scores(scores, None if where is None else where.unsqueeze(-3))
        if scores.shape[-3] > 1:
            return Inputs(scores, class_indices(target, scores.shape[-3], where), where)
        both = torch.cat([torch.zeros_like(scores), scores], -3)
        return Inputs(both, zero_one("target", target, where).long(), where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the classes that occur, of all images or of each."""
        first = self._first_dim
        where = None if where is None else where.flatten(first)
        predicted = scores.argmax(-3).flatten(first)
        counts = class_counts(
            predicted, target.flatten(first), scores.shape[-3], where, scores.dtype
        )
        values = self.pooling()(counts)
        if not self.per_image:
            return values
        return ops.masked_mean(values, None if where is None else where.any(-1))

    @property
    def _first_dim(self) -> int:
        """The first dimension of a target whose pixels are counted together."""
        return -2 if self.per_image else -3

    def pooling(self) -> Pooling:
        """The mean over the classes that occur, without the ignored one."""

        def takes_part(counts: Counts) -> Tensor:
            if self.ignore_index is None:
                return occurring(counts)
            classes = torch.arange(counts.tp.shape[-1], device=counts.tp.device)
            return occurring(counts) & (classes != self.ignore_index)

        return averaged(self.of_counts, "macro", takes_part)

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each pixel and class, or for each pixel and pair of classes."""
        first = self._first_dim
        where = None if where is None else where.flatten(first)
        pixels = label_decisions(
            shape[-3],
            target.flatten(first),
            where,
            self.pooling(),
            self.pairs,
            dtype,
            items=lambda maps: maps.movedim(-3, -1).flatten(first - 1, -2),
        )
        if not self.per_image:
            return pixels
        live = torch.ones_like(target[..., 0, 0], dtype=torch.bool)
        classes = shape[-3] ** (2 if self.pairs == "all" else 1)
        return MeanOfParts(
            pixels,
            live=live if where is None else where.any(-1),
            size=shape[-2] * shape[-1] * classes,
        )


@dataclass(frozen=True, kw_only=True)
class MeanIou(SegmentationMetric):
    """Mean over the classes of intersection over union: tp / (tp + fp + fn).

    Example:
        >>> scores = torch.tensor([[[[2.0, 0.0]], [[1.0, 1.0]]]])  # one image, 2 classes, 1 x 2
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

    Example:
        >>> scores = torch.tensor([[[[2.0, 0.0]], [[1.0, 1.0]]]])  # one image, 2 classes, 1 x 2
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


@dataclass(frozen=True, kw_only=True)
class Pck(ComparisonMetric):
    """Percentage of correct keypoints, 0 to 1: joints with ||highest pixel - joint|| <= radius.

    Scores are heatmaps `[..., N, K, H, W]`, target the joints `[..., N, K, 3]` as (x, y, size) in
    map pixels, or `[..., N, K, 2]` without the sizes if a radius is given.

    Args:
        fraction: The largest distance that counts as correct, as a fraction of a joint's size (0.5
            of the head: PCKh).
        radius: The largest distance in map pixels, for all joints; replaces `fraction`.
        pairs: How a surrogate sees a joint's decision: `"best"` compares the best pixel within the
            radius with the best one outside, `"all"` each pixel within with each outside (UniLoss,
            Sec. 4.3).

    Example:
        >>> heatmap = torch.zeros(1, 1, 4, 4)
        >>> heatmap[..., 2, 3] = 1.0  # the highest pixel is at x = 3, y = 2
        >>> Pck(radius=1.0)(heatmap, torch.tensor([[[2.0, 2.0]]]))
        tensor(1.)
        >>> Pck()(heatmap, torch.tensor([[[2.0, 2.0, 1.6]]]))
        tensor(0.)

    Reference:
        UniLoss, Sec. 4.1 and 4.3; a loop over joints.
    """

    name = "pck"
    families = ("pose",)
    decided_by = "thresholds"
    ties = "first"
    undefined = "0 where no joint counts"
    reference = "a loop over joints"

    fraction: float = 0.5
    radius: float | None = None
    pairs: PairsOption = "best"

    @property
    def layout(self) -> Layout:
        """Heatmaps and joints."""
        return "heatmaps"

    @property
    def joint_size(self) -> JointSize | None:
        """The length that the radius is a fraction of."""
        return "length" if self.radius is None else None

    def __post_init__(self) -> None:
        for option, value in (("fraction", self.fraction), ("radius", self.radius)):
            if value is not None and not value >= 0:
                raise ValueError(f"{option} must be 0 or more; got {value}")
        one_of("pairs", self.pairs, get_args(PairsOption))

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Heatmaps `[..., N, K, H, W]` and joints `[..., N, K, 3]`, or 2 if there is a radius."""
        columns = 3 if self.radius is None else 2
        takes = (
            f"pck takes heatmaps [..., N, K, H, W] and joints [..., N, K, {columns}], "
            f"(x, y{', size' * (columns == 3)}) in map pixels, with radius={self.radius}"
        )
        return heatmap_inputs(scores, target, where, columns, takes, "sizes")

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Share of the joints that count whose highest pixel is near enough."""
        highest = scores.flatten(-2).argmax(-1, keepdim=True)
        correct = self.within(scores.shape, target).flatten(-2).gather(-1, highest).squeeze(-1)
        where = None if where is None else where.flatten(-2)
        return ops.masked_mean(correct.flatten(-2).to(scores.dtype), where)

    def within(self, shape: Sequence[int], joints: Tensor) -> Tensor:
        """Pixels near enough to their joint: bool `[..., N, K, H, W]`."""
        radius = self.fraction * joints[..., 2, None, None] if self.radius is None else self.radius
        return distances(shape, joints) <= radius

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each joint, or for each pair of a pixel within the radius and one outside."""
        near = as_pixels(self.within(shape, target))
        counted = torch.ones_like(near[..., 0]) if where is None else where.flatten(-2)

        def soften(maps: Tensor, slope: float) -> Tensor:
            return soft_pixel_margin(as_pixels(maps), near, slope)

        joints = ItemDecisions(
            compare=lambda maps: best_pixel_margin(as_pixels(maps), near),
            target=torch.zeros_like(counted, dtype=torch.int64),
            live=counted,
            classes=1,
            pooling=share(lambda counts: counts.tp),
            dtype=dtype,
            always=near.all(-1),
            never=~near.any(-1),
            soften=soften,
        )
        return PixelPairs(near, joints) if self.pairs == "all" else joints


def heatmap_inputs(
    scores: Tensor, target: Tensor, where: Tensor | None, columns: int, takes: str, third: str
) -> Inputs:
    """Heatmaps `[..., N, K, H, W]` and joints with so many columns, as floats.

    `takes` is how the error for other shapes begins, and `third` what the third column holds.
    """
    fits = scores.dim() >= 4 and target.shape == (*scores.shape[:-2], columns)
    if not fits or not scores.shape[-2:].numel():
        raise ValueError(f"{takes}; got scores {shown(scores)} and target {shown(target)}")
    where = expand_where(where, target.shape[:-1], target.dim() - 2)
    scores = real_scores(scores, None if where is None else where[..., None, None])
    joints = target.to(scores.dtype)
    if where is not None:
        joints = joints.masked_fill(~where.unsqueeze(-1), 0.0)
    if not joints.isfinite().all() or (joints[..., 2:3] < 0).any():
        raise ValueError(
            f"target must hold finite joints{f' and {third} of 0 or more' * (columns > 2)} "
            f"(shape {shown(target)}); mask the joints that are not visible with where"
        )
    return Inputs(scores, joints, where)


def distances(shape: Sequence[int], joints: Tensor) -> Tensor:
    """How far the pixels of maps `[..., N, K, H, W]` are from their joints `[..., N, K, 2]`."""
    height, width = shape[-2:]
    y = torch.arange(height, dtype=joints.dtype, device=joints.device).unsqueeze(-1)
    x = torch.arange(width, dtype=joints.dtype, device=joints.device)
    away_x = x - joints[..., 0, None, None]
    away_y = y - joints[..., 1, None, None]
    return torch.hypot(*torch.broadcast_tensors(away_x, away_y))
