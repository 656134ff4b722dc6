"""Metrics of ranked lists: a set is a query, its items are the documents, its target their grades.

A grade above 0 is relevant. Documents are ordered by score, highest first; a metric with `k` looks at the first k.
What equal scores do is stated for each: NDCG averages over their orders, the others count a tie as lost, so that a
model that scores everything alike never looks good. A ranking set may also come flat, with `groups=` query ids.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Metric, same_shape
from metricgrad.metrics.checks import expand_where, grades, real_scores
from metricgrad.metrics.curves import Curve, walk_down


@dataclass(frozen=True, kw_only=True)
class RankingMetric(Metric):
    """A metric of scores and grades `[..., N]`."""

    families = ("ranking",)
    undefined = "0 where nothing is relevant"

    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k must be 1 or more; got {self.k}")

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores `[..., N]`, finite, and grades of the same shape, 0 or more."""
        same_shape(self, scores, target)
        where = expand_where(where, scores.shape, scores.dim())
        scores = real_scores(scores, where)
        return Inputs(scores, grades(target, where, scores.dtype), where)


@dataclass(frozen=True, kw_only=True)
class RelevanceMetric(RankingMetric):
    """A ranking metric that sees only whether a document is relevant."""

    @abstractmethod
    def of_curve(self, curve: Curve) -> Tensor:
        """The value `[...]`, from the relevant (tp) and irrelevant (fp) documents on the way down."""

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The value of every query."""
        return self.of_curve(walk_down(scores, target > 0, where))


@dataclass(frozen=True, kw_only=True)
class Ndcg(RankingMetric):
    """Normalised discounted cumulative gain: sum of gain_i / log2(1 + rank_i), over that of the ideal order.

    Args:
        k: only the first k ranks count; None counts all.
        gain: `"linear"` (the grade itself) or `"exponential"` (2^grade - 1).

    Example:
        >>> Ndcg()(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.6697)

    Reference:
        `sklearn.metrics.ndcg_score`.
    """

    name = "ndcg"
    ties = "mean"
    reference = "sklearn ndcg_score"

    gain: Literal["linear", "exponential"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gain not in ("linear", "exponential"):
            raise ValueError(f"gain must be 'linear' or 'exponential'; got {self.gain!r}")

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The discounted gains in score order, over those in grade order; what does not count has grade 0."""
        gains = target if self.gain == "linear" else torch.exp2(target) - 1
        ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        discounts = 1 / torch.log2(1 + ranks.to(scores.dtype))
        if self.k is not None:
            discounts = discounts.masked_fill(ranks > self.k, 0.0)
        ordered, order = (scores if where is None else scores.masked_fill(~where, -torch.inf)).sort(-1, descending=True)
        found = gains.gather(-1, order) * _mean_over_ties(discounts, ordered)
        ideal = gains.sort(-1, descending=True).values * discounts
        return ops.divide(found.sum(-1), ideal.sum(-1))


@dataclass(frozen=True, kw_only=True)
class Map(RelevanceMetric):
    """Average precision of a query; its mean over queries is MAP: sum of precision at the relevant ranks / relevant.

    Args:
        k: only the first k ranks count, and the sum is divided by the smaller of k and the relevant documents.

    Example:
        >>> Map()(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5833)

    Reference:
        `sklearn.metrics.label_ranking_average_precision_score`; with k: a loop.
    """

    name = "map"
    ties = "together"
    reference = "sklearn label_ranking_average_precision_score"

    def of_curve(self, curve: Curve) -> Tensor:
        """The precisions at the vertices, as often as relevant documents are passed there."""
        precise = (curve.tp - curve.tp_before).to(curve.dtype) * curve.precision()
        possible = curve.positives.squeeze(-1)
        if self.k is not None:
            precise = precise.masked_fill(curve.tp + curve.fp > self.k, 0.0)
            possible = possible.clamp(max=self.k)
        return ops.divide(curve.sum(precise), possible.to(curve.dtype))


@dataclass(frozen=True, kw_only=True)
class Mrr(RelevanceMetric):
    """Reciprocal rank of the first relevant document; its mean over queries is MRR.

    Args:
        k: 0 unless the first relevant document is among the first k; None counts all.

    Example:
        >>> Mrr()(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_reciprocal_rank`; ties: a loop.
    """

    name = "mrr"
    ties = "lost"
    reference = "torchmetrics retrieval_reciprocal_rank"

    def of_curve(self, curve: Curve) -> Tensor:
        """1 / (1 + irrelevant documents at or above the best relevant one)."""
        none_before = curve.vertex & (curve.tp > 0) & (curve.tp_before == 0)
        if self.k is not None:
            none_before = none_before & (curve.fp < self.k)
        return ops.masked_sum(1 / (1 + curve.fp.to(curve.dtype)), none_before)


@dataclass(frozen=True, kw_only=True)
class PrecisionAtK(RelevanceMetric):
    """Share of the first k ranks that are relevant: hits / k, also where a set has fewer than k items.

    Args:
        k: how many ranks are looked at.

    Example:
        >>> PrecisionAtK(k=2)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_precision`; ties: a loop.
    """

    name = "precision_at_k"
    families = ("binary", "ranking")
    ties = "lost"
    reference = "torchmetrics retrieval_precision"

    k: int = 10

    def of_curve(self, curve: Curve) -> Tensor:
        """Hits / k."""
        return _hits(curve, self.k) / self.k


@dataclass(frozen=True, kw_only=True)
class RecallAtK(RelevanceMetric):
    """Share of the relevant items that are among the first k ranks: hits / relevant.

    Args:
        k: how many ranks are looked at.

    Example:
        >>> RecallAtK(k=2)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_recall`; ties: a loop.
    """

    name = "recall_at_k"
    families = ("binary", "ranking")
    ties = "lost"
    reference = "torchmetrics retrieval_recall"

    k: int = 10

    def of_curve(self, curve: Curve) -> Tensor:
        """Hits / relevant."""
        return ops.divide(_hits(curve, self.k), curve.positives.squeeze(-1).to(curve.dtype))


def _hits(curve: Curve, k: int) -> Tensor:
    """Relevant items among the first k ranks, irrelevant ones first among equal scores."""
    before = curve.tp_before + curve.fp_before
    within = (curve.tp + curve.fp).clamp(max=k) - before
    return curve.sum((within - (curve.fp - curve.fp_before)).clamp(min=0)).to(curve.dtype)


def _mean_over_ties(values: Tensor, ordered: Tensor) -> Tensor:
    """Values `[N]` of the ranks, averaged over the ranks that equal scores share, `[..., N]`."""
    size = ordered.shape[-1]
    if not (ordered[..., 1:] == ordered[..., :-1]).any():
        return values
    first = ops.tie_starts(ordered)
    after = size - ops.tie_starts(ordered.flip(-1)).flip(-1)
    sums = F.pad(values.to(torch.float64).cumsum(-1), (1, 0))
    means = ((sums[after] - sums[first]) / (after - first)).to(values.dtype)
    return torch.where(after - first == 1, values, means)
