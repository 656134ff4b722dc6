"""Metrics of decisions: formulas of a confusion matrix, such as precision, recall and F1.

A binary item is decided by score > threshold, a multi-class one by its highest score (the lowest
class index of equal ones). What remains of a set is four counts: tp, fp, fn, tn. A metric here is a
formula of these counts. For many classes each class is counted against the rest, and the values
are averaged (`counts.py`); metrics with a multi-class form of their own are in `agreement.py`.
Wherever a formula divides 0 by 0 its value is 0, as in scikit-learn with `zero_division=0`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Metric
from metricgrad.metrics.checks import one_of
from metricgrad.metrics.counts import (
    ClassificationMetric,
    Counts,
    Pooling,
    averaged,
    binary_counts,
    class_counts,
    occurring,
    one_hot,
    pooled,
)
from metricgrad.metrics.decisions import AllClassPairs, LabelDecisions
from metricgrad.metrics.margins import best_other_margin, soft_other_margin
from metricgrad.metrics.reexpression import Compare, Reexpression, itself

PairsOption = Literal["best", "all"]


@dataclass(frozen=True, kw_only=True)
class ConfusionMetric(ClassificationMetric):
    """A formula of tp, fp, fn and tn.

    Args:
        threshold: A binary or multi-label score above it is a positive decision; one number for all
            labels, or one per label.
        average: How the values of the classes become one; None means macro.
        multilabel: Whether scores and target `[..., N, C]` are items with C labels, not sets of
            binary scores.
        pairs: How a surrogate sees a multi-class decision: `"best"` compares a class with the best
            other one, `"all"` with each of them (UniLoss, Eqn. 8).
    """

    families = ("binary", "multi-class", "multi-label")
    decided_by = "thresholds"
    ties = "negative"
    undefined = "0 where the formula divides 0 by 0"

    threshold: float | Sequence[float] | Tensor = 0.0
    pairs: PairsOption = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        values = torch.as_tensor(self.threshold, dtype=torch.float64)
        plain = tuple(values.tolist()) if values.dim() else values.item()
        object.__setattr__(self, "threshold", plain)  # a tensor can be neither compared nor hashed
        if values.isnan().any():
            raise ValueError(f"threshold must be a number; got {self.threshold}")
        if values.dim() and not self.multilabel:
            raise ValueError(
                f"one threshold per label needs multilabel=True; got threshold={self.threshold}"
            )
        one_of("pairs", self.pairs, get_args(PairsOption))

    @property
    def has_threshold(self) -> bool:
        """Binary scores and labels are decided at a threshold."""
        return True

    @property
    def scale_free(self) -> bool:
        """The scale of the scores changes no decision at 0, but those at other thresholds."""
        return not self.threshold

    @property
    def counts_classes(self) -> bool:
        """Whether the counts of the highest classes decide a multi-class value."""
        return True

    @property
    def decides_at_zero(self) -> bool:
        """Unless another threshold is given."""
        return not self.threshold

    def at_threshold(self, threshold: Tensor | None, scores: Tensor) -> tuple[Metric, Tensor]:
        """The metric with this threshold and the scores as they are; scores moved for classes."""
        if threshold is None or (threshold.dim() and not self.multilabel):
            return super().at_threshold(threshold, scores)
        return replace(self, threshold=threshold).with_rows(self.rows), scores

    @abstractmethod
    def of_counts(self, counts: Counts) -> Tensor:
        """The formula, element by element: `[...]` from counts `[...]`."""

    @abstractmethod
    def class_pooling(self) -> Pooling:
        """How the counts of many classes make one value."""

    def label_pooling(self) -> Pooling:
        """How the counts of many labels make one value: the average over all labels."""
        return averaged(self.of_counts, self.average, lambda counts: torch.ones_like(counts.tp))

    def margin(self, scores: Tensor) -> Tensor:
        """Binary or multi-label scores minus the threshold: above 0 is a positive decision."""
        if isinstance(self.threshold, tuple) and len(self.threshold) != scores.shape[-1]:
            raise ValueError(
                f"threshold has {len(self.threshold)} values for the {scores.shape[-1]} labels of "
                f"scores {list(scores.shape)}; pass one number, or one per label"
            )
        return scores - torch.as_tensor(self.threshold, dtype=scores.dtype, device=scores.device)

    def binary(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The formula of each set's counts."""
        weight = self.item_weights(target.shape, where)
        decisions = self.margin(scores) > 0
        return self.of_counts(binary_counts(decisions, target, where, scores.dtype, weight))

    def multi_label(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The formula of each label's counts, averaged; micro adds the counts up first."""
        weight = self.item_weights(target.shape, where)
        where, weight = (None if each is None else each.mT for each in (where, weight))
        counts = binary_counts(self.margin(scores).mT > 0, target.mT, where, scores.dtype, weight)
        return self.label_pooling()(counts)

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The value of the highest-scored classes' counts."""
        weight = self.item_weights(target.shape, where)
        predicted = scores.argmax(-1)
        counts = class_counts(predicted, target, scores.shape[-1], where, scores.dtype, weight)
        return self.class_pooling()(counts)

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each item (binary), item and label, or item and class."""
        task = self.task(shape, target.shape)
        if task == "multiclass":
            return self.reexpress_classes(shape[-1], target, where, dtype)
        live = torch.ones_like(target) if where is None else where
        weight = self.item_weights(target.shape, where)
        if task == "multilabel":
            pooling = self.label_pooling()
            return LabelDecisions(self.margin, target, live, pooling, dtype, weight=weight)
        return LabelDecisions(
            compare=lambda scores: self.margin(scores).unsqueeze(-1),
            truth=target.unsqueeze(-1),
            live=live.unsqueeze(-1),
            pooling=pooled(self.of_counts),
            dtype=dtype,
            weight=None if weight is None else weight.unsqueeze(-1),
        )

    def reexpress_classes(
        self, classes: int, target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each item and class, or for each pair of classes."""
        weight = self.item_weights(target.shape, where)
        pooling = self.class_pooling()
        return label_decisions(classes, target, where, pooling, self.pairs, dtype, weight=weight)


@dataclass(frozen=True, kw_only=True)
class AveragedMetric(ConfusionMetric):
    """A formula of counts that many classes average."""

    def class_pooling(self) -> Pooling:
        """The formula's average over the classes that occur in target or predictions."""
        return averaged(self.of_counts, self.average, occurring)


def dice_of(counts: Counts) -> Tensor:
    """2 tp / (2 tp + fn + fp): F1 of decisions, Dice of maps."""
    return ops.divide(2 * counts.tp, 2 * counts.tp + counts.fn + counts.fp)


def jaccard_of(counts: Counts) -> Tensor:
    """tp / (tp + fp + fn): Jaccard of decisions, IoU of maps."""
    return ops.divide(counts.tp, counts.tp + counts.fp + counts.fn)


def label_decisions(
    classes: int,
    target: Tensor,
    where: Tensor | None,
    pooling: Pooling,
    pairs: PairsOption,
    dtype: torch.dtype,
    items: Compare = itself,
    weight: Tensor | None = None,
) -> Reexpression:
    """Bits for each item and class, as `PairsOption` says.

    `items` turns the metric's scores into those of the items' classes, `[..., N, C]`. Weights are
    those of the items, `[..., N]`.
    """
    truth = one_hot(target, classes)
    live = torch.ones_like(truth) if where is None else where.unsqueeze(-1).expand_as(truth)
    weight = None if weight is None else weight.unsqueeze(-1)

    def soften(scores: Tensor, slope: float) -> Tensor:
        return soft_other_margin(items(scores), slope)

    labels = LabelDecisions(
        lambda scores: best_other_margin(items(scores)),
        truth,
        live,
        pooling,
        dtype,
        weight=weight,
        soften=soften,
    )
    return AllClassPairs(target, labels, items) if pairs == "all" else labels


@dataclass(frozen=True, kw_only=True)
class Precision(AveragedMetric):
    """Share of the positive decisions that are right: tp / (tp + fp).

    Example:
        >>> Precision()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.5000)

    Reference:
        `sklearn.metrics.precision_score`.
    """

    name = "precision"
    reference = "sklearn precision_score"

    def of_counts(self, counts: Counts) -> Tensor:
        """tp / (tp + fp)."""
        return ops.divide(counts.tp, counts.tp + counts.fp)


@dataclass(frozen=True, kw_only=True)
class Recall(AveragedMetric):
    """Share of the positives that are found: tp / (tp + fn).

    Example:
        >>> Recall()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 1, 0]))
        tensor(0.5000)

    Reference:
        `sklearn.metrics.recall_score`.
    """

    name = "recall"
    reference = "sklearn recall_score"

    def of_counts(self, counts: Counts) -> Tensor:
        """tp / (tp + fn)."""
        return ops.divide(counts.tp, counts.tp + counts.fn)


@dataclass(frozen=True, kw_only=True)
class FBeta(AveragedMetric):
    """Weighted harmonic mean of precision and recall: (1 + b^2) tp / ((1 + b^2) tp + b^2 fn + fp).

    Args:
        beta: Recall counts b^2 times as much as precision.

    Example:
        >>> FBeta(beta=2)(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.8333)

    Reference:
        `sklearn.metrics.fbeta_score`.
    """

    name = "fbeta"
    reference = "sklearn fbeta_score"

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta < torch.inf:
            raise ValueError(f"beta must be above 0 and finite; got {self.beta}")

    def of_counts(self, counts: Counts) -> Tensor:
        """(1 + b^2) tp / ((1 + b^2) tp + b^2 fn + fp)."""
        square = self.beta**2
        hits = (1 + square) * counts.tp
        return ops.divide(hits, hits + square * counts.fn + counts.fp)


@dataclass(frozen=True, kw_only=True)
class F1(AveragedMetric):
    """Harmonic mean of precision and recall: 2 tp / (2 tp + fn + fp).

    Example:
        >>> F1()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.6667)

    Reference:
        `sklearn.metrics.f1_score`.
    """

    name = "f1"
    reference = "sklearn f1_score"

    def of_counts(self, counts: Counts) -> Tensor:
        """2 tp / (2 tp + fn + fp)."""
        return dice_of(counts)


@dataclass(frozen=True, kw_only=True)
class Jaccard(AveragedMetric):
    """Intersection over union of positives and positive decisions: tp / (tp + fp + fn).

    Example:
        >>> Jaccard()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.5000)

    Reference:
        `sklearn.metrics.jaccard_score`.
    """

    name = "jaccard"
    reference = "sklearn jaccard_score"

    def of_counts(self, counts: Counts) -> Tensor:
        """tp / (tp + fp + fn)."""
        return jaccard_of(counts)
