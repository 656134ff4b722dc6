"""Metrics of ranked lists: a set is a query, its items are the documents, its target their grades.

A grade above 0 is relevant. Documents are ordered by score, highest first; a metric with `k` looks
at the first k. The metrics here only ask whether a document is relevant and count a tie as lost, so
that a model that scores everything alike never looks good; NDCG, which weighs the grades, is in
`ndcg.py`. Sets may also come flat, with query ids as `groups=`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Layout
from metricgrad.metrics.checks import expand_where, grades, real_scores, shape, whole
from metricgrad.metrics.counts import Curve, walk_down
from metricgrad.metrics.order import Pairs, PlaceRule, make_pairs
from metricgrad.metrics.reexpression import ComparisonMetric, itself


@dataclass(frozen=True, kw_only=True)
class RankingMetric(ComparisonMetric):
    """A metric of scores and grades `[..., N]`."""

    families = ("ranking",)
    decided_by = "order"
    undefined = "0 where nothing is relevant"

    k: int | None = None

    @property
    def layout(self) -> Layout:
        """Grades; binary scores for metrics that classifiers report, too."""
        return "binary" if "binary" in self.families else "grades"

    @property
    def scale_free(self) -> bool:
        """The scale of the scores does not change their order."""
        return True

    def __post_init__(self) -> None:
        if self.k is not None:
            whole("k", self.k, 1)

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores `[..., N]`, finite, and grades of the same shape, 0 or more."""
        if scores.shape != target.shape:
            raise ValueError(
                f"{self.name} takes scores [..., N] and a target of the same shape; "
                f"got scores {shape(scores)} and target {shape(target)}"
            )
        where = expand_where(where, scores.shape, scores.dim())
        scores = real_scores(scores, where)
        return Inputs(scores, grades(target, where, scores.dtype), where)


@dataclass(frozen=True, kw_only=True)
class RelevanceMetric(RankingMetric):
    """A ranking metric that sees only whether a document is relevant."""

    @abstractmethod
    def of_curve(self, curve: Curve) -> Tensor:
        """The value `[...]` of a curve whose tp are relevant and fp irrelevant documents."""

    @abstractmethod
    def rule(self) -> PlaceRule:
        """The same as a function of the comparisons that the relevant documents lost."""

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The value of every query."""
        return self.of_curve(walk_down(scores, target > 0, where))

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Pairs:
        """Relevant against irrelevant documents."""
        return make_pairs(itself, target > 0, where, self.rule(), dtype)


@dataclass(frozen=True, kw_only=True)
class Map(RelevanceMetric):
    """Average precision of a query, whose mean over queries is MAP.

    The sum of the precisions at the relevant ranks, over the number of relevant documents.

    Args:
        k: Only the first k ranks count, and the sum is divided by at most k.

    Example:
        >>> Map()(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5833)

    Reference:
        `sklearn.metrics.label_ranking_average_precision_score`; with k: a loop.
    """

    name = "map"
    ties = "together"
    reference = "sklearn label_ranking_average_precision_score"

    def rule(self) -> PlaceRule:
        """sum_r r / (r + n_(r)) over the ranks r + n_(r) up to k, / min(P, k)."""
        k = torch.inf if self.k is None else self.k
        return PlaceRule(
            lambda r, n, p, m: (r / (r + n)).masked_fill(r + n > k, 0.0) / _at_most(p, k)
        )

    def of_curve(self, curve: Curve) -> Tensor:
        """The precisions at the vertices, as often as relevant documents are passed there."""
        precise = (curve.tp - curve.tp_before).to(curve.dtype) * curve.precision()
        possible = curve.positives.squeeze(-1)
        if self.k is not None:
            precise = precise.masked_fill(curve.tp + curve.fp > self.k, 0.0)
            possible = possible.clamp(max=self.k)
        return curve.ratio(curve.sum(precise), possible)


@dataclass(frozen=True, kw_only=True)
class Mrr(RelevanceMetric):
    """Reciprocal rank of the first relevant document; its mean over queries is MRR.

    Args:
        k: The value is 0 unless a relevant document is among the first k; None counts all.

    Example:
        >>> Mrr()(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_reciprocal_rank` of scores above 0; it takes
        relevant items with other scores as irrelevant. Ties: a loop.
    """

    name = "mrr"
    ties = "lost"
    reference = "torchmetrics retrieval_reciprocal_rank, of scores above 0"

    def rule(self) -> PlaceRule:
        """1 / (1 + n_(1)), 0 beyond k."""
        k = torch.inf if self.k is None else self.k
        return PlaceRule(lambda r, n, p, m: (1 / (1 + n)).masked_fill((r > 1) | (n >= k), 0.0))

    def of_curve(self, curve: Curve) -> Tensor:
        """1 / (1 + irrelevant documents at or above the best relevant one)."""
        none_before = curve.vertex & (curve.tp > 0) & (curve.tp_before == 0)
        if self.k is not None:
            none_before = none_before & (curve.fp < self.k)
        return ops.masked_sum(1 / (1 + curve.fp.to(curve.dtype)), none_before)


@dataclass(frozen=True, kw_only=True)
class HitsMetric(RelevanceMetric):
    """A share of the relevant items among the first k ranks, for classifiers, too.

    Args:
        k: Number of ranks at the top of the list that count; the items below them are ignored.
    """

    families = ("binary", "ranking")
    ties = "lost"

    k: int = 10

    def __post_init__(self) -> None:
        whole("k", self.k, 1)

    @property
    def least_items(self) -> int:
        """If no item is left out of the first k, their order does not matter."""
        return self.k + 1

    def hits(self, curve: Curve) -> Tensor:
        """Relevant items among the first k ranks, irrelevant ones first among equal scores."""
        before = curve.tp_before + curve.fp_before
        within = (curve.tp + curve.fp).clamp(max=self.k) - before
        return curve.sum((within - (curve.fp - curve.fp_before)).clamp(min=0)).to(curve.dtype)


@dataclass(frozen=True, kw_only=True)
class PrecisionAtK(HitsMetric):
    """Share of the first k ranks that are relevant: hits / k, even if there are fewer items.

    Example:
        >>> PrecisionAtK(k=2)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_precision` of scores above 0; it takes
        relevant items with other scores as irrelevant. Ties: a loop.
    """

    name = "precision_at_k"
    reference = "torchmetrics retrieval_precision, of scores above 0"

    def rule(self) -> PlaceRule:
        """Ranks r + n_(r) up to k, / k."""
        return PlaceRule(lambda r, n, p, m: (r + n <= self.k).to(n.dtype) / self.k)

    def of_curve(self, curve: Curve) -> Tensor:
        """Hits / k."""
        return self.hits(curve) / self.k


@dataclass(frozen=True, kw_only=True)
class RecallAtK(HitsMetric):
    """Share of the relevant items that are among the first k ranks: hits / relevant.

    Example:
        >>> RecallAtK(k=2)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 2, 1]))
        tensor(0.5000)

    Reference:
        `torchmetrics.functional.retrieval.retrieval_recall` of scores above 0; it takes
        relevant items with other scores as irrelevant. Ties: a loop.
    """

    name = "recall_at_k"
    reference = "torchmetrics retrieval_recall, of scores above 0"

    def rule(self) -> PlaceRule:
        """Ranks r + n_(r) up to k, / P."""
        return PlaceRule(lambda r, n, p, m: (r + n <= self.k).to(n.dtype) / p)

    def of_curve(self, curve: Curve) -> Tensor:
        """Hits / relevant."""
        return curve.ratio(self.hits(curve), curve.positives.squeeze(-1))


def _at_most(size: Tensor | int, k: float) -> Tensor | float:
    """The smaller of a size, or of many, and k."""
    return size.clamp(max=k) if isinstance(size, Tensor) else min(size, k)
