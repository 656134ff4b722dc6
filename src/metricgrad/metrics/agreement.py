"""Metrics of decisions with a multi-class form of their own: accuracy, MCC and their relatives.

Where F1 asks a question of every class and averages the answers, these ask one question of the
whole confusion matrix: how many items are right, how evenly over the classes, how far beyond
chance. `average` therefore applies only when items have many labels, each of which is a binary
question again. Cohen's kappa has a module of its own, `kappa.py`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import whole
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import Average, Counts, Pooling, averaged, one_hot, share
from metricgrad.metrics.decisions import AllRivals, ItemDecisions
from metricgrad.metrics.margins import own_margin, soft_own_margin
from metricgrad.metrics.reexpression import Reexpression
from metricgrad.metrics.sample_weights import weighted_share


@dataclass(frozen=True, kw_only=True)
class JointMetric(ConfusionMetric):
    """A formula with a multi-class form of its own, to which `average` does not apply."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average is not None and not self.multilabel:
            raise ValueError(
                f"{self.name} has one multi-class form, without average; got "
                f"average={self.average!r}. Leave it out, or pass multilabel=True if the items "
                "have many labels"
            )


@dataclass(frozen=True, kw_only=True)
class RecallMetric(JointMetric):
    """A formula of how many items of each class are right, so one comparison decides an item."""

    k = 1

    @property
    def has_rivals(self) -> bool:
        """With `pairs="all"`, every other class is a rival of the target."""
        return self.pairs == "all"

    def reexpress_classes(
        self, classes: int, target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """The target's score against the k-th best other, or against each other class."""
        live = torch.ones_like(target, dtype=torch.bool) if where is None else where
        pooling = self.class_pooling()
        items = ItemDecisions(
            compare=lambda scores: own_margin(scores, target, self.k),
            target=target,
            live=live,
            classes=classes,
            pooling=pooling,
            dtype=dtype,
            weight=self.item_weights(target.shape, where),
            # The k-th best rival has no soft form.
            soften=partial(soft_own_margin, target=target) if self.k == 1 else None,
        )
        if self.pairs != "all":
            return items
        if self.k > 1:
            raise ValueError(
                "pairs='all' compares the target with every class, which decides k=1 only; "
                f"got k={self.k}"
            )
        return AllRivals(
            compare=lambda scores: scores.gather(-1, target.unsqueeze(-1)) - scores,
            rivals=~one_hot(target, classes),
            items=items,
        )


@dataclass(frozen=True, kw_only=True)
class Accuracy(RecallMetric):
    """Share of correct decisions: (tp + tn) / n, or of classes among the k highest scores.

    Args:
        k: A multi-class item is right if its class is among the k highest scores; of equal scores
            the lower class index wins.
        average: For labels only; macro and micro differ only where single labels are masked.

    Example:
        >>> Accuracy()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.6667)
        >>> Accuracy(k=2)(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2]))
        tensor(0.5000)

    Reference:
        `sklearn.metrics.accuracy_score`, `top_k_accuracy_score`; labels: torchmetrics'
        `multilabel_accuracy`.
    """

    name = "accuracy"
    mean_of_items = True
    reference = "sklearn accuracy_score"

    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("k", self.k, 1)
        if self.k > 1 and self.multilabel:
            wrong = f"got k={self.k} with multilabel=True"
            raise ValueError(f"k is for classes, not for labels; {wrong}")

    @property
    def counts_classes(self) -> bool:
        """The highest class says nothing about the k-th."""
        return self.k == 1

    def of_counts(self, counts: Counts) -> Tensor:
        """(tp + tn) / n."""
        if self.k > 1:
            raise ValueError(
                f"accuracy with k={self.k} needs scores [..., N, C] with more than {self.k} classes"
            )
        return ops.divide(counts.tp + counts.tn, sum(counts, torch.zeros_like(counts.tp)))

    def class_pooling(self) -> Pooling:
        """Right items / items."""
        return share(lambda counts: counts.tp)

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Share of the items whose class has fewer than k classes before it."""
        if self.k == 1:
            return self._share(scores.argmax(-1) == target, where, scores.dtype)
        if self.k >= scores.shape[-1]:
            raise ValueError(
                f"accuracy with k={self.k} is always 1 on the {scores.shape[-1]} classes of scores "
                f"{list(scores.shape)}; pass a k below the number of classes"
            )
        index = target.unsqueeze(-1)
        own = scores.gather(-1, index)
        earlier = torch.arange(scores.shape[-1], device=scores.device) < index
        before = ((scores > own) | ((scores == own) & earlier)).sum(-1)
        return self._share(before < self.k, where, scores.dtype)

    def _share(self, right: Tensor, where: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Right items over all items that count, or their weights."""
        weight = self.item_weights(right.shape, where)
        if weight is not None:
            return weighted_share(right, weight)
        return ops.masked_mean(right.to(dtype), where)


@dataclass(frozen=True, kw_only=True)
class ErrorRate(RecallMetric):
    """Share of wrong decisions: (fp + fn) / n.

    Example:
        >>> ErrorRate()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.3333)

    Reference:
        `sklearn.metrics.zero_one_loss`; labels: `hamming_loss`.
    """

    name = "error_rate"
    higher_is_better = False
    best = 0.0
    worst = 1.0
    mean_of_items = True
    reference = "sklearn zero_one_loss"

    def of_counts(self, counts: Counts) -> Tensor:
        """(fp + fn) / n."""
        return ops.divide(counts.fp + counts.fn, sum(counts, torch.zeros_like(counts.tp)))

    def class_pooling(self) -> Pooling:
        """Wrong items / items."""
        return share(lambda counts: counts.fn)


@dataclass(frozen=True, kw_only=True)
class Hamming(ErrorRate):
    """Share of wrong labels over all items and labels, for multi-label targets: Hamming loss.

    Example:
        >>> Hamming()(torch.tensor([[2.0, -1.0], [0.5, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
        tensor(0.2500)

    Reference:
        `sklearn.metrics.hamming_loss`.
    """

    name = "hamming"
    families = ("multi-label",)
    takes_classes = False
    mean_of_items = False
    reference = "sklearn hamming_loss"

    average: Average | None = "micro"
    multilabel: bool = True


@dataclass(frozen=True, kw_only=True)
class BalancedAccuracy(RecallMetric):
    """Mean recall of the classes that occur in the target.

    Example:
        >>> BalancedAccuracy()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.7500)

    Reference:
        `sklearn.metrics.balanced_accuracy_score`.
    """

    name = "balanced_accuracy"
    undefined = "0 for a set of no items; one class: its recall"
    reference = "sklearn balanced_accuracy_score"

    def of_counts(self, counts: Counts) -> Tensor:
        """(tp / (tp + fn) + tn / (tn + fp)) / 2, or the one of the two whose class occurs."""
        tp, fp, fn, tn = counts
        support = torch.stack([tp + fn, tn + fp], -1)
        recalls = ops.divide(torch.stack([tp, tn], -1), support)
        return ops.masked_mean(recalls, support > 0)

    def class_pooling(self) -> Pooling:
        """Mean recall of the classes that occur."""
        return averaged(
            lambda counts: ops.divide(counts.tp, counts.tp + counts.fn),
            "macro",
            lambda counts: counts.tp + counts.fn > 0,
        )


@dataclass(frozen=True, kw_only=True)
class GMean(RecallMetric):
    """Geometric mean of the recalls of the classes: sqrt(recall * specificity) for two.

    Example:
        >>> GMean()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.7071)

    Reference:
        The square root of the product of `sklearn.metrics.recall_score` for both classes.
    """

    name = "gmean"
    undefined = "0 where a class has no item; many classes: those that occur"
    reference = "root of sklearn recalls"

    def of_counts(self, counts: Counts) -> Tensor:
        """sqrt(tp / (tp + fn) * tn / (tn + fp))."""
        tp, fp, fn, tn = counts
        return (ops.divide(tp, tp + fn) * ops.divide(tn, tn + fp)).sqrt()

    def class_pooling(self) -> Pooling:
        """C-th root of the product of the recalls of the C classes that occur."""

        def terms(counts: Counts) -> Tensor:
            support = counts.tp + counts.fn
            recall = ops.divide(counts.tp, support)
            logs = torch.where(recall > 0, recall, 1.0).log()
            occurs = support > 0
            missed = occurs & (recall <= 0)  # one class without recall makes the product 0
            return torch.stack([logs, missed.to(logs.dtype), occurs.to(logs.dtype)], -1)

        def value(sums: Tensor) -> Tensor:
            logs, missed, occurring = sums.unbind(-1)
            found = (occurring > 0) & (missed < 0.5)
            return torch.where(found, ops.divide(logs, occurring).exp(), 0.0)

        return Pooling(terms, value)


@dataclass(frozen=True, kw_only=True)
class Mcc(JointMetric):
    """Matthews' correlation of target and decisions; for many classes Gorodkin's R_K.

    With p_k decisions for and t_k items of class k, of n in all:
    sum_k (tp_k tn_k - fp_k fn_k) / sqrt(sum_k p_k (n - p_k) * sum_k t_k (n - t_k)).

    Example:
        >>> Mcc()(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
        tensor(0.5000)

    Reference:
        `sklearn.metrics.matthews_corrcoef`.
    """

    name = "mcc"
    worst = -1.0
    undefined = "0 where target or decisions are all of one class"
    reference = "sklearn matthews_corrcoef"

    def of_counts(self, counts: Counts) -> Tensor:
        """(tp tn - fp fn) / sqrt((tp + fp)(fn + tn)(tp + fn)(fp + tn))."""
        return _correlation(_covariances(counts))

    def class_pooling(self) -> Pooling:
        """The correlation of two class assignments."""
        return Pooling(_covariances, _correlation)


def _covariances(counts: Counts) -> Tensor:
    """Covariance, variance of the decisions and of the target, `[..., 3]`.

    Only the covariance subtracts, so the variances suffer no cancellation.
    """
    tp, fp, fn, tn = counts
    return torch.stack([tp * tn - fp * fn, (tp + fp) * (fn + tn), (tp + fn) * (fp + tn)], -1)


def _correlation(sums: Tensor) -> Tensor:
    """Covariance over the root of both variances, `[...]` from `[..., 3]`."""
    covariance, decided, given = sums.unbind(-1)
    spread = decided.clamp(min=0).sqrt() * given.clamp(min=0).sqrt()
    return ops.divide(covariance, spread).clamp(-1, 1)
