"""Re-expression of NDCG: every relevant document against every document of a lower grade.

A gain is a staircase over the grades, so DCG is a sum over levels: at level l, documents of grade l
or more are positives, all others negatives, and a place r contributes 1 / log2(1 + r + n_(r)) times
the height of the step. Each level is a metric of lost comparisons (`pairs.py`), so more comparisons
won are never worse, and flip gains add up over the levels that lie between the two grades.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.pairs import FAR
from metricgrad.metrics.reexpression import Reexpression


@dataclass(frozen=True)
class GradedPairs(Reexpression):
    """Every relevant document against every document of a lower grade.

    Attributes:
        high: `[..., R]`, places of the relevant documents.
        high_live: `[..., R]`, False on padding.
        high_level: `[..., R]`, how many levels a document's grade reaches.
        low_level: `[..., N]`, the same for all documents; L + 1 where a document does not count.
        steps: `[L]`, heights of the levels' steps.
        ideal: `[...]`, DCG of the ideal order.
        k: the last rank that counts; None counts all.
    """

    high: Tensor
    high_live: Tensor
    high_level: Tensor
    low_level: Tensor
    steps: Tensor
    ideal: Tensor
    k: int | None

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

    def from_bits(self, bits: Tensor) -> Tensor:
        """The levels' discounts, weighted by their steps, over the ideal."""
        lost, relevant = self._lost(bits)
        ordered = lost.masked_fill(~relevant, FAR).sort(-1).values
        places = torch.arange(1, ordered.shape[-1] + 1, device=bits.device)
        discounts = torch.where(ordered < FAR, self._discount(places + ordered), 0.0).sum(-1)
        return ops.divide((discounts * self.steps).sum(-1), self.ideal)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """Losses and wins of the relevant document, summed over the levels between the two grades."""
        lost, relevant = self._lost(bits)
        lost = lost.masked_fill(~relevant, FAR)
        ordered = lost.sort(-1).values
        first = torch.searchsorted(ordered, lost, right=False) + 1
        last = torch.searchsorted(ordered, lost, right=True)
        loss = self._discount(last + lost) - self._discount(last + lost + 1)
        win = self._discount(first + lost - 1) - self._discount(first + lost)
        loss, win = (
            self._between(torch.where(relevant, gain, 0.0) * self.steps.unsqueeze(-1))
            for gain in (loss, win)
        )
        gains = torch.where(bits.unflatten(-1, self._live().shape[-2:]), loss, win)
        return ops.divide(
            torch.where(self._live(), gains, 0.0).flatten(-2), self.ideal.unsqueeze(-1)
        )

    def _between(self, gains: Tensor) -> Tensor:
        """Gains `[A, ..., L, R]` summed over the levels above the other document's, `[A, ..., R, N]`."""
        above = torch.nn.functional.pad(gains.flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 2)).mT
        index = self.low_level.unsqueeze(-2).expand(*above.shape[:-1], -1)
        return above.gather(-1, index)

    def _lost(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """Lost comparisons with documents below each level, and who is at or above it: both `[A, ..., L, R]`."""
        lost = (~bits.unflatten(-1, self._live().shape[-2:]) & self._live()).to(self.ideal.dtype)
        levels = torch.arange(len(self.steps), device=bits.device)
        below = (self.low_level.unsqueeze(-1) <= levels).to(lost.dtype)
        counts = (lost @ below).mT.to(torch.int64)
        relevant = (
            self.high_level.unsqueeze(-2) > levels.unsqueeze(-1)
        ) & self.high_live.unsqueeze(-2)
        return counts, relevant.expand_as(counts)

    def _live(self) -> Tensor:
        return (
            self.high_level.unsqueeze(-1) > self.low_level.unsqueeze(-2)
        ) & self.high_live.unsqueeze(-1)

    def _discount(self, ranks: Tensor) -> Tensor:
        ranks = ranks.to(self.ideal.dtype)
        discount = 1 / torch.log2(1 + ranks.clamp(min=1))
        return discount if self.k is None else torch.where(ranks <= self.k, discount, 0.0)
