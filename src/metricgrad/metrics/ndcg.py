"""NDCG: normalised discounted cumulative gain, and its re-expression as comparisons.

A gain is a staircase over the grades, so DCG is a sum over levels: at level l, documents of grade l
or more are the positives and all others the negatives, and a place r contributes
1 / log2(1 + r + n_(r)) times the height of the step. Each level is a metric of lost comparisons
(`order.py`), so winning more of them is never worse, and flip gains add up over the levels between
the two grades.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.order import FAR, Pairs, PlaceRule, make_pairs, padded_places
from metricgrad.metrics.ranking import RankingMetric
from metricgrad.metrics.reexpression import Reexpression, itself

_MOST_LEVELS = 64


@dataclass(frozen=True, kw_only=True)
class Ndcg(RankingMetric):
    """Normalised discounted cumulative gain: sum of gain_i / log2(1 + rank_i), over its ideal.

    Args:
        k: Only the first k ranks count; None counts all.
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
        """The discounted gains in score order, over those in grade order."""
        top = target.amax(-1, keepdim=True) if target.shape[-1] else target
        gains = self._gains(target, top)  # 0 for what does not count, as its grade is 0
        discounts = self._discounts(scores)
        counting = scores if where is None else scores.masked_fill(~where, -torch.inf)
        ordered, order = counting.sort(-1, descending=True)
        found = gains.gather(-1, order) * _mean_over_ties(discounts, ordered)
        ideal = gains.sort(-1, descending=True).values * discounts
        return ops.divide(found.sum(-1), ideal.sum(-1))

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> "GradedPairs":
        """Documents against those of lower grade, level by level."""
        high, high_live = padded_places(target > 0)
        levels = target[target > 0].unique()
        top = levels.amax() if len(levels) else levels.new_ones(())
        gains = self._gains(levels, top)
        level = torch.searchsorted(levels, target, right=True)
        ideal = self._gains(target, top).sort(-1, descending=True).values * self._discounts(target)
        outside = level if where is None else level.masked_fill(~where, len(levels) + 1)
        steps = torch.diff(gains, prepend=gains.new_zeros(1))
        high_level = level.gather(-1, high)
        return GradedPairs(high, high_live, high_level, outside, steps, ideal.sum(-1), self.k)

    def _gains(self, grades: Tensor, top: Tensor) -> Tensor:
        """Gains as shares of (nearly) the highest grade's gain, so that no grade overflows."""
        if self.gain == "linear":
            return ops.divide(grades, top)
        return torch.exp2(grades - top) - torch.exp2(-top)

    def _discounts(self, like: Tensor) -> Tensor:
        """1 / log2(1 + rank) of as many ranks as the items, 0 beyond k."""
        ranks = torch.arange(1, like.shape[-1] + 1, dtype=like.dtype, device=like.device)
        return _discount(ranks, self.k)


def _mean_over_ties(values: Tensor, ordered: Tensor) -> Tensor:
    """Values `[N]` of the ranks, averaged over the ranks that equal scores share, `[..., N]`."""
    if not (ordered[..., 1:] == ordered[..., :-1]).any():
        return values
    first = ops.tie_starts(ordered)
    after = ordered.shape[-1] - ops.tie_starts(ordered.flip(-1)).flip(-1)
    sums = F.pad(values.to(torch.float64).cumsum(-1), (1, 0))
    means = ((sums[after] - sums[first]) / (after - first)).to(values.dtype)
    return torch.where(after - first == 1, values, means)


@dataclass(frozen=True)
class GradedPairs(Reexpression):
    """Every relevant document against every document of a lower grade."""

    high: Tensor  # [..., R], indices of the relevant documents
    high_live: Tensor  # [..., R], False on padding
    high_level: Tensor  # [..., R], how many levels a document's grade reaches
    low_level: Tensor  # [..., N], the same for all documents; L + 1 where one does not count
    steps: Tensor  # [L], heights of the levels' steps
    ideal: Tensor  # [...], DCG of the ideal order
    k: int | None  # the last rank that counts

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Higher minus lower grade, `[..., R * N]`."""
        difference = scores.gather(-1, self.high).unsqueeze(-1) - scores.unsqueeze(-2)
        return difference.flatten(-2), self._live().flatten(-2)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of orders drawn around the scores' own."""
        noisy = ops.add_gumbel_noise(scores, slope, number, generator)
        high = noisy.gather(-1, self.high.expand(number, *self.high.shape))
        return (high.unsqueeze(-1) > noisy.unsqueeze(-2)).flatten(-2)

    def defined(self) -> Tensor:
        """Queries with a relevant document."""
        return self.ideal > 0

    def pairwise(self) -> Pairs | None:
        """The pairs of every level, whose gains are those of the grades when they are added up.

        With very many grades, the levels have more pairs than the documents.
        """
        number = len(self.steps)
        if number > _MOST_LEVELS:
            return None
        reached = self.low_level.unsqueeze(-2)
        counts = reached <= number
        positive = counts & (reached > torch.arange(number, device=reached.device).unsqueeze(-1))
        weight = ops.divide(self.steps, self.ideal.unsqueeze(-1))
        rule = PlaceRule(lambda r, n, p, m: _discount(r + n, self.k))
        where = counts.expand_as(positive)
        return make_pairs(itself, positive, where, rule, self.ideal.dtype, weight, levels=True)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The levels' discounts, weighted by their steps, over the ideal."""
        lost, relevant = self._lost(bits)
        ordered = lost.masked_fill(~relevant, FAR).sort(-1).values
        places = torch.arange(1, ordered.shape[-1] + 1, device=bits.device)
        discounts = _discount((places + ordered).to(self.ideal.dtype), self.k)
        discounts = torch.where(ordered < FAR, discounts, 0.0).sum(-1)
        return ops.divide((discounts * self.steps).sum(-1), self.ideal)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """Losses and wins of the relevant document, summed over the levels between the grades."""
        lost, relevant = self._lost(bits)
        lost = lost.masked_fill(~relevant, FAR)
        ordered = lost.sort(-1).values
        first = torch.searchsorted(ordered, lost, right=False) + 1
        last = torch.searchsorted(ordered, lost, right=True)
        ranks = torch.stack([last + lost, last + lost + 1, first + lost - 1, first + lost])
        kept, worse, better, left = _discount(ranks.to(self.ideal.dtype), self.k)
        loss = self._between(torch.where(relevant, kept - worse, 0.0))
        win = self._between(torch.where(relevant, better - left, 0.0))
        live = self._live()
        gains = torch.where(live, torch.where(bits.unflatten(-1, live.shape[-2:]), loss, win), 0.0)
        return ops.divide(gains.flatten(-2), self.ideal.unsqueeze(-1))

    def _between(self, gains: Tensor) -> Tensor:
        """Gains `[A, ..., L, R]`, summed over the levels between the grades: `[A, ..., R, N]`."""
        steps = gains * self.steps.unsqueeze(-1)
        above = F.pad(steps.flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 2)).mT
        index = self.low_level.unsqueeze(-2).expand(*above.shape[:-1], -1)
        return above.gather(-1, index)

    def _lost(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """Comparisons lost below each level, and who reaches the level, both `[A, ..., L, R]`."""
        lost = (~bits.unflatten(-1, self._live().shape[-2:]) & self._live()).to(self.ideal.dtype)
        levels = torch.arange(len(self.steps), device=bits.device)
        below = (self.low_level.unsqueeze(-1) <= levels).to(lost.dtype)
        counts = (lost @ below).mT.to(torch.int64)
        reached = self.high_level.unsqueeze(-2) > levels.unsqueeze(-1)
        relevant = reached & self.high_live.unsqueeze(-2)
        return counts, relevant.expand_as(counts)

    def _live(self) -> Tensor:
        """Pairs of different grades, `[..., R, N]`."""
        higher = self.high_level.unsqueeze(-1) > self.low_level.unsqueeze(-2)
        return higher & self.high_live.unsqueeze(-1)


def _discount(ranks: Tensor, k: int | None) -> Tensor:
    """1 / log2(1 + rank) of float ranks, 0 beyond k."""
    discounts = 1 / torch.log2(1 + ranks.clamp(min=1))
    return discounts if k is None else discounts.masked_fill(ranks > k, 0.0)
