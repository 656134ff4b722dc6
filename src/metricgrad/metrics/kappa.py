"""Cohen's kappa: how far decisions agree with the target beyond chance, plain or weighted.

Without weights of confusions it is a formula of counts, like the other metrics of `agreement.py`.
With them a confusion of neighbouring classes counts less than one of distant classes, so the metric
looks at the items: which class was predicted for which.

    kappa = 1 - observed / expected

Both are sums over the items. An item of class t that is predicted as c adds weight[t, c] to the
observed disagreement, and the mean of weight[., c] over all targets to the expected one; both times
its own weight, if items have weights. Bits may
also predict several classes for an item, or none; it then adds the mean over these classes, or over
all classes. The target fixes both tables (`Disagreement`). A flip moves one item, so it changes the
two sums by known amounts, and all flip gains of a set follow from the sums and the tables.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.agreement import JointMetric
from metricgrad.metrics.counts import Counts, Pooling, one_hot, quotient
from metricgrad.metrics.decisions import AllClassPairs, LabelDecisions
from metricgrad.metrics.margins import best_other_margin, soft_other_margin
from metricgrad.metrics.reexpression import Reexpression


@dataclass(frozen=True, kw_only=True)
class Kappa(JointMetric):
    """Cohen's kappa: agreement beyond chance, 1 - observed / expected disagreement.

    Args:
        weights: How much a confusion of classes i and j counts: 1 (None), |i - j| (linear) or
            (i - j)^2 (quadratic).
        average: How the labels' values become one; only with `multilabel=True`.

    Example:
        >>> Kappa()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.4000)

    Reference:
        `sklearn.metrics.cohen_kappa_score` (with `labels=range(C)`).
    """

    name = "kappa"
    worst = -1.0
    undefined = "0 where no disagreement is expected by chance"
    reference = "sklearn cohen_kappa_score"

    weights: Literal["linear", "quadratic"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in (None, "linear", "quadratic"):
            raise ValueError(f"weights must be None, 'linear' or 'quadratic'; got {self.weights!r}")

    @property
    def counts_classes(self) -> bool:
        """With weights it matters which class was predicted for which."""
        return self.weights is None

    def of_counts(self, counts: Counts) -> Tensor:
        """2 (tp tn - fp fn) / ((tp + fp)(fp + tn) + (tp + fn)(fn + tn))."""
        tp, fp, fn, tn = counts
        return ops.divide(2 * (tp * tn - fp * fn), (tp + fp) * (fp + tn) + (tp + fn) * (fn + tn))

    def class_pooling(self) -> Pooling:
        """sum_c (tp tn - fp fn) / sum_c t (n - p)."""

        def terms(counts: Counts) -> Tensor:
            tp, fp, fn, tn = counts
            return torch.stack([tp * tn - fp * fn, (tp + fn) * (fn + tn)], -1)

        return Pooling(terms, quotient)

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The value of the highest-scored classes, their confusions weighted."""
        if self.weights is None:
            return super().multi_class(scores, target, where)
        classes = scores.shape[-1]
        disagreement = self._disagreement(classes, target, where, scores.dtype)
        return disagreement.of_predictions(one_hot(scores.argmax(-1), classes))

    def reexpress_classes(
        self, classes: int, target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """The re-expression of counts, or with weights that of the items."""
        if self.weights is None:
            return super().reexpress_classes(classes, target, where, dtype)
        truth = one_hot(target, classes)
        live = torch.ones_like(truth) if where is None else where.unsqueeze(-1).expand_as(truth)
        disagreement = self._disagreement(classes, target, where, dtype)
        labels = WeightedLabels(
            best_other_margin,
            truth,
            live,
            self.class_pooling(),
            dtype,
            disagreement,
            soften=soft_other_margin,
        )
        return WeightedClassPairs(target, labels) if self.pairs == "all" else labels

    def _disagreement(
        self, classes: int, target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> "Disagreement":
        """What the items of this target add."""
        index = torch.arange(classes, dtype=dtype, device=target.device)
        distance = (index.unsqueeze(-1) - index).abs()
        weight = distance if self.weights == "linear" else distance**2
        live = torch.ones_like(target, dtype=torch.bool) if where is None else where
        mass = self.item_weights(target.shape, where)
        mass = (live.to(dtype) if mass is None else mass).unsqueeze(-1)
        given = torch.where(one_hot(target, classes), mass, 0.0).sum(-2)
        # Written out instead of matmul, which autocast would take to half precision.
        chance = ops.divide((given.unsqueeze(-1) * weight).sum(-2), mass.sum(-2))
        observed = weight[target].to(mass.dtype)
        table = torch.stack([observed, chance.unsqueeze(-2).expand_as(observed)], -1)
        return Disagreement(mass.unsqueeze(-1) * table)


class Disagreement:
    """What the items of a target add to the observed and to the expected disagreement.

    The table `[..., N, C, 2]` says what an item adds to both if it is predicted as a class; it is 0
    where an item does not count.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.none = table.mean(-2)  # what an item without a predicted class adds, [..., N, 2]

    def value(self, sums: Tensor) -> Tensor:
        """1 - observed / expected, `[...]` from `[..., 2]`; 0 where nothing is expected."""
        observed, expected = sums.unbind(-1)
        return torch.where(expected > 0, 1 - ops.divide(observed, expected), 0.0)

    def of_predictions(self, predicted: Tensor) -> Tensor:
        """The value `[A, ...]` of predictions `[A, ..., N, C]`: none, one or several per item."""
        return self.value(self.added(predicted).sum(-2))

    def added(self, predicted: Tensor) -> Tensor:
        """What each item adds, `[A, ..., N, 2]`."""
        return _mean(self._summed(predicted), predicted.sum(-1), self.none)

    def added_after_flips(self, predicted: Tensor) -> Tensor:
        """What each item adds after one of its predictions is flipped, `[A, ..., N, C, 2]`."""
        step = torch.where(predicted, -1, 1)
        changed = self._summed(predicted).unsqueeze(-2) + step.unsqueeze(-1) * self.table
        count = predicted.sum(-1, keepdim=True) + step
        return _mean(changed, count, self.none.unsqueeze(-2))

    def after(self, added: Tensor, instead: Tensor) -> Tensor:
        """The value `[A, ..., N, C]` after one item adds `instead[..., c, :]`, the rest `added`."""
        others = added.sum(-2, keepdim=True) - added
        return self.value(others.unsqueeze(-2) + instead)

    def _summed(self, predicted: Tensor) -> Tensor:
        """The table summed over the predicted classes, `[A, ..., N, 2]`."""
        return torch.where(predicted.unsqueeze(-1), self.table, 0.0).sum(-2)


def _mean(total: Tensor, count: Tensor, none: Tensor) -> Tensor:
    """Sums over predicted classes as means; `none` where there are none."""
    return torch.where(count.unsqueeze(-1) > 0, total / count.clamp(min=1).unsqueeze(-1), none)


@dataclass(frozen=True)
class WeightedLabels(LabelDecisions):
    """A bit per item and class: whether it is predicted where it should be, and only there."""

    disagreement: Disagreement

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the predicted classes."""
        return self.disagreement.of_predictions(self._predicted(bits)).to(self.dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """A flip adds the class to the item's predictions, or takes it away."""
        predicted = self._predicted(bits)
        added = self.disagreement.added(predicted)
        now = self.disagreement.value(added.sum(-2))[..., None, None]
        after = self.disagreement.after(added, self.disagreement.added_after_flips(predicted))
        gains = torch.where(predicted == self.truth, now - after, after - now)
        return torch.where(self.live, gains, 0.0).flatten(-2).to(self.dtype)

    def _predicted(self, bits: Tensor) -> Tensor:
        """Predicted classes, `[A, ..., N, C]`."""
        return bits.unflatten(-1, self.truth.shape[-2:]) == self.truth


@dataclass(frozen=True)
class WeightedClassPairs(AllClassPairs):
    """All pairs of an item's classes: the one that wins all of its comparisons is predicted."""

    labels: WeightedLabels

    def _values(self, predicted: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The values with the first or the second class of a pair ahead.

        Where the one ahead is not predicted, no class is, or a third one that beats both; the gain
        is then 0 either way.
        """
        disagreement = self.labels.disagreement
        added = disagreement.added(predicted)
        one = disagreement.after(added, disagreement.table)
        none = disagreement.after(added, disagreement.none.unsqueeze(-2)).unsqueeze(-1)
        ahead = torch.where(first, one.unsqueeze(-1), none)
        return ahead, torch.where(second, one.unsqueeze(-2), none)
