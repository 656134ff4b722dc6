"""Cohen's kappa: how far decisions agree with the target beyond what chance would give, plain or weighted.

Without weights it is a formula of counts, like the other metrics of `agreement.py`. With weights a confusion of near
classes counts less than one of far classes, so it looks at the items: which class was predicted for which.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.agreement import JointMetric
from metricgrad.metrics.confusion import label_decisions
from metricgrad.metrics.decisions import Pooling
from metricgrad.metrics.multiclass import Counts, one_hot
from metricgrad.metrics.reexpression import Reexpression


@dataclass(frozen=True, kw_only=True)
class Kappa(JointMetric):
    """Cohen's kappa: agreement beyond chance, 1 - observed / expected disagreement.

    Args:
        weights: how much a confusion of classes i and j counts: 1 (None), |i - j| (linear) or (i - j)^2 (quadratic).
        threshold: see `ConfusionMetric`.
        average: for labels only.
        multilabel: see `ConfusionMetric`.

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

    def of_counts(self, counts: Counts) -> Tensor:
        """2 (tp tn - fp fn) / ((tp + fp)(fp + tn) + (tp + fn)(fn + tn))."""
        tp, fp, fn, tn = counts
        return ops.divide(2 * (tp * tn - fp * fn), (tp + fp) * (fp + tn) + (tp + fn) * (fn + tn))

    def class_pooling(self) -> Pooling:
        """sum_c (tp tn - fp fn) / sum_c t (n - p): agreement beyond chance over all that is possible."""

        def terms(counts: Counts) -> Tensor:
            tp, fp, fn, tn = counts
            return torch.stack([tp * tn - fp * fn, (tp + fn) * (fn + tn)], -1)

        return Pooling(terms, lambda sums: ops.divide(sums[..., 0], sums[..., 1]))

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The value of the highest-scored classes, their confusions weighted."""
        if self.weights is None:
            return super().multi_class(scores, target, where)
        predicted = one_hot(scores.argmax(-1), scores.shape[-1])
        live = torch.ones_like(target, dtype=torch.bool) if where is None else where
        return self.of_predictions(predicted & live.unsqueeze(-1), target, live, scores.dtype)

    def of_predictions(self, predicted: Tensor, target: Tensor, live: Tensor, dtype: torch.dtype) -> Tensor:
        """1 - (sum of the items' weights) / (the same sum expected from the marginal counts).

        Args:
            predicted: `[A, ..., N, C]`, bool; an item spreads evenly over the classes predicted for it, or over all of
                them where none is.
            target: `[..., N]`, class indices.
            live: `[..., N]`, bool, items that count.
            dtype: float dtype of the value.

        Returns:
            `[A, ...]`.
        """
        classes = predicted.shape[-1]
        weight = self._confusion_weights(classes, dtype, predicted.device)
        predicted = predicted | ~predicted.any(-1, keepdim=True)
        spread = (predicted & live.unsqueeze(-1)).to(dtype) / predicted.sum(-1, keepdim=True)
        given = (one_hot(target, classes) & live.unsqueeze(-1)).sum(-2).to(dtype)
        observed = (spread * weight[target]).sum((-1, -2))
        # Written out instead of matmul, which autocast would take to half precision.
        chance = (given.unsqueeze(-1) * weight).sum(-2)
        expected = ops.divide((chance * spread.sum(-2)).sum(-1), live.sum(-1).to(dtype))
        return torch.where(expected > 0, 1 - ops.divide(observed, expected), 0.0)

    def reexpress_classes(self, classes: int, target: Tensor, where: Tensor | None, dtype: torch.dtype) -> Reexpression:
        """As for other metrics of classes; but weights look at items, not at counts."""
        live = torch.ones_like(target, dtype=torch.bool) if where is None else where
        weighted = None if self.weights is None else lambda found: self.of_predictions(found, target, live, dtype)
        return label_decisions(classes, target, where, self.class_pooling(), self.pairs, dtype, weighted)

    def _confusion_weights(self, classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        index = torch.arange(classes, dtype=dtype, device=device)
        distance = (index.unsqueeze(-1) - index).abs()
        match self.weights:
            case None:
                return distance.sign()
            case "linear":
                return distance
            case "quadratic":
                return distance**2
