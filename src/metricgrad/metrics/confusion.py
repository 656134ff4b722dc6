"""Metrics of decisions: everything that a confusion matrix decides, F1 to Cohen's kappa.

A binary item is decided by score > threshold, a multi-class one by its highest score (the lowest class index of equal
ones). What remains of a set is four counts: tp, fp, fn, tn. A metric here is a formula of these counts. For many
classes the counts are taken one class against the rest, and the formula's values averaged (`multiclass.py`); those
that have a multi-class form of their own stand in `agreement.py`. Wherever a formula divides 0 by 0 its value is 0, as
in scikit-learn with `zero_division=0`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.multiclass import (
    ClassificationMetric,
    Counts,
    average_classes,
    average_counts,
    binary_counts,
    class_counts,
    pooled,
)


@dataclass(frozen=True, kw_only=True)
class ConfusionMetric(ClassificationMetric):
    """A formula of tp, fp, fn and tn.

    Args:
        threshold: a binary or multi-label score above it is a positive decision; one for all labels, or one per label.
        average: how the classes' values become one; None means macro.
        multilabel: scores and target `[..., N, C]` are items with C labels, not sets of binary scores.
    """

    families = ("binary", "multi-class", "multi-label")
    ties = "negative"
    undefined = "0 where the formula divides 0 by 0"

    threshold: float | Sequence[float] | Tensor = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        values = torch.as_tensor(self.threshold, dtype=torch.float64)
        object.__setattr__(self, "threshold", tuple(values.tolist()) if values.dim() else values.item())
        if values.dim() and not self.multilabel:
            raise ValueError(f"one threshold per label needs multilabel=True; got threshold={self.threshold}")

    @abstractmethod
    def of_counts(self, counts: Counts) -> Tensor:
        """The formula, element by element: `[...]` from counts `[...]`."""

    def decide(self, scores: Tensor) -> Tensor:
        """Positive decisions of binary or multi-label scores, bool."""
        if isinstance(self.threshold, tuple) and len(self.threshold) != scores.shape[-1]:
            raise ValueError(
                f"threshold has {len(self.threshold)} values for the {scores.shape[-1]} labels of scores "
                f"{list(scores.shape)}; pass one number, or one per label"
            )
        return scores > torch.as_tensor(self.threshold, dtype=scores.dtype, device=scores.device)

    def binary(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The formula of each set's counts."""
        return self.of_counts(binary_counts(self.decide(scores), target, where, scores.dtype))

    def multi_label(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The formula of each label's counts, averaged over all labels; micro adds the counts up first."""
        by_label = (None if where is None else where.mT, scores.dtype)
        counts = binary_counts(self.decide(scores).mT, target.mT, *by_label)
        if self.average == "micro":
            return self.of_counts(pooled(counts))
        values = self.of_counts(counts)
        return average_classes(values, counts.tp + counts.fn, torch.ones_like(values, dtype=torch.bool), self.average)


@dataclass(frozen=True, kw_only=True)
class AveragedMetric(ConfusionMetric):
    """A formula of counts that many classes average."""

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The formula of each class's counts, averaged over the classes in target or predictions."""
        return average_counts(self.of_counts, highest_counts(scores, target, where), self.average)


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
        beta: recall counts b^2 times as much as precision.
        threshold: see `ConfusionMetric`.
        average: see `ConfusionMetric`.
        multilabel: see `ConfusionMetric`.

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
        if not self.beta > 0:
            raise ValueError(f"beta must be above 0; got {self.beta}")

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
        return ops.divide(2 * counts.tp, 2 * counts.tp + counts.fn + counts.fp)


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
        return ops.divide(counts.tp, counts.tp + counts.fp + counts.fn)


def highest_counts(scores: Tensor, target: Tensor, where: Tensor | None) -> Counts:
    """One-against-rest counts `[..., C]` of the highest-scored classes; scores `[..., N, C]`, target `[..., N]`."""
    return class_counts(scores.argmax(-1), target, scores.shape[-1], where, scores.dtype)
