"""Re-expression of order: comparisons of each positive with each negative, and the counts of those it lost.

A bit says that a positive stands above a negative. All that a metric of order needs is n_i, how many comparisons the
positive i lost. Put the positives in the order of their n: the one at place r has r - 1 positives and n_(r) negatives
above it, so its rank is r + n_(r). This also defines the metric for bits that no scores produce. Most metrics are

    sum over places r of term_r(n_(r)), or the maximum of such terms.

A flip changes one n by one. Among positives with equal n it makes no difference which one changes: an increase is
taken by the last of them, a decrease by the first, so the order stays. Hence every flip gain of a positive is one of
two numbers, its `loss` (one more comparison lost) or its `win` (one less), and all gains cost a sort of the positives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.reexpression import Reexpression, tried_flip_gains

Pool = Literal["sum", "max", "envelope"]
Cycles = Literal["count", "zero"]
FAR = 1 << 40  # lost comparisons of a place that holds no positive: after all others, and exact in float64


class PlaceRule(NamedTuple):
    """A metric as a function of the comparisons that the positives lost.

    Attributes:
        term: from place r, lost n, positives P and negatives N (float, broadcastable, P and N at least 1) to what the
            place contributes.
        pool: `"sum"` adds the terms up, `"max"` takes the largest, `"envelope"` adds up, for every place, the largest
            term from there on.
        sign: the metric is sign * pool(terms) + offset.
        offset: see sign.
        cycles: `"zero"` gives bits that fit no order the value 0, as the UniLoss paper's code does.
        needs_negatives: a set without negatives has no value; 0 stands in.
    """

    term: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    pool: Pool = "sum"
    sign: float = 1.0
    offset: float = 0.0
    cycles: Cycles = "count"
    needs_negatives: bool = False


@dataclass(frozen=True)
class Pairs(Reexpression):
    """Every positive against every negative, of every set or of every class of every set.

    Attributes:
        ranked: from the metric's scores to those that are compared, `[..., N]`, or `[..., C, N]` for classes.
        high: `[..., P]`, places of the positives among the items; padded where sets differ.
        low: `[..., M]`, places of the negatives.
        high_live: `[..., P]`, False on padding.
        low_live: `[..., M]`, False on padding.
        rule: from lost comparisons to the value.
        weight: `[..., C]`, weights of the classes' values, adding up to 1 (or 0 where no class has a value); None
            where there are no classes.
        dtype: float dtype of the values.
    """

    ranked: Callable[[Tensor], Tensor]
    high: Tensor
    low: Tensor
    high_live: Tensor
    low_live: Tensor
    rule: PlaceRule
    weight: Tensor | None
    dtype: torch.dtype

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Positive minus negative, `[..., P * M]` or `[..., C * P * M]`."""
        high, low = self.compared(scores)
        return self._flat(high.unsqueeze(-1) - low.unsqueeze(-2)), self._flat(self._live)

    def compared(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the positives `[..., P]` and of the negatives `[..., M]`."""
        scores = self.ranked(scores)
        return scores.gather(-1, self.high), scores.gather(-1, self.low)

    def defined(self) -> Tensor:
        """Sets with positives (and negatives, where they are needed), in one class at least."""
        return self._defined if self.weight is None else (self.weight > 0).any(-1)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The rule's value of the comparisons that the positives lost."""
        lost = self._lost(bits)
        values = self.of_lost(lost.sum(-1))
        if self.rule.cycles == "zero":
            values = torch.where(self._cyclic(lost), 0.0, values)
        return values if self.weight is None else (self.weight * values).sum(-1)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The positive's `loss` where its comparison is won, its `win` where it is lost."""
        if self.rule.cycles == "zero":
            return tried_flip_gains(self, bits)
        lost = self._lost(bits)
        _, loss, win = self.item_gains(lost.sum(-1))
        return self._flat(torch.where(self._live, torch.where(lost, win.unsqueeze(-1), loss.unsqueeze(-1)), 0.0))

    def of_lost(self, lost: Tensor) -> Tensor:
        """The value of each set or class, `[A, ...]`, from lost comparisons `[A, ..., P]`."""
        return self._scaled(self._pool(self._terms(self._places, self._padded(lost).sort(-1).values)))

    def item_gains(self, lost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value, and what one more (`loss`) and one less (`win`) lost comparison of each positive changes.

        Args:
            lost: `[A, ..., P]`, lost comparisons.

        Returns:
            value `[A, ...]`, of each set or class; loss and win `[A, ..., P]`, weighted by class.
        """
        lost = self._padded(lost)
        ordered = lost.sort(-1).values
        first = torch.searchsorted(ordered, lost, right=False) + 1
        last = torch.searchsorted(ordered, lost, right=True)
        if self.rule.pool == "sum":
            places = torch.stack([last, last, first, first, self._places.expand_as(last)])
            after = torch.stack([lost, lost + 1, lost - 1, lost, ordered])
            terms = self._terms(places, after)
            loss, win, pooled = terms[0] - terms[1], terms[2] - terms[3], terms[4].sum(-1)
        else:
            pooled = self._pool(self._terms(self._places, ordered))
            loss = pooled.unsqueeze(-1) - self._with_one_changed(ordered, 1).gather(-1, (last - 1).clamp(min=0))
            win = self._with_one_changed(ordered, -1).gather(-1, (first - 1).clamp(min=0)) - pooled.unsqueeze(-1)
        if not self.full:
            loss, win = (torch.where(self.high_live, gain, 0.0) for gain in (loss, win))
        return self._scaled(pooled), loss * self._scale, win * self._scale

    def _scaled(self, pooled: Tensor) -> Tensor:
        return torch.where(self._defined, self.rule.sign * pooled + self.rule.offset, 0.0)

    def _padded(self, lost: Tensor) -> Tensor:
        return lost if self.full else lost.masked_fill(~self.high_live, FAR)

    def _with_one_changed(self, ordered: Tensor, step: int) -> Tensor:
        """The pooled value after the place r alone changes by `step`, for every r: `[A, ..., P]`."""
        terms, changed = self._terms(self._places, ordered), self._terms(self._places, ordered + step)
        if self.rule.pool == "max":
            top, at = terms.topk(min(2, terms.shape[-1]), dim=-1)
            second = top[..., 1:] if top.shape[-1] > 1 else torch.full_like(top, -torch.inf)
            others = torch.where(
                torch.arange(terms.shape[-1], device=terms.device) == at[..., :1], second, top[..., :1]
            )
            return torch.maximum(others, changed)
        every = torch.eye(terms.shape[-1], dtype=torch.bool, device=terms.device)
        return self._pool(torch.where(every, changed.unsqueeze(-2), terms.unsqueeze(-2)))

    def _terms(self, places: Tensor, lost: Tensor) -> Tensor:
        positives, negatives = self._sizes
        places, lost = places.to(self.dtype), lost.to(self.dtype)
        values = self.rule.term(places, lost, positives.clamp(min=1), negatives.clamp(min=1))
        if self.full:
            return values
        return torch.where(places <= positives, values, -torch.inf if self.rule.pool == "max" else 0.0)

    def _pool(self, terms: Tensor) -> Tensor:
        if self.rule.pool == "sum" or not terms.shape[-1]:
            return terms.sum(-1)
        return terms.amax(-1) if self.rule.pool == "max" else terms.flip(-1).cummax(-1).values.sum(-1)

    @cached_property
    def full(self) -> bool:
        """One set, or sets of one size: nothing is padding."""
        return self.high_live.dim() == 1

    @cached_property
    def _places(self) -> Tensor:
        return torch.arange(1, self.high.shape[-1] + 1, device=self.high.device)

    @cached_property
    def _sizes(self) -> tuple[Tensor, Tensor]:
        """Positives and negatives, `[..., 1]`."""
        if self.full:
            sizes = torch.tensor(
                [[self.high.shape[-1]], [self.low.shape[-1]]], dtype=self.dtype, device=self.high.device
            )
            return sizes[0], sizes[1]
        positives, negatives = (live.sum(-1, keepdim=True).to(self.dtype) for live in (self.high_live, self.low_live))
        return positives, negatives

    @cached_property
    def _defined(self) -> Tensor:
        if self.full:
            enough = self.high.numel() > 0 and (self.low.numel() > 0 or not self.rule.needs_negatives)
            return torch.tensor(enough, device=self.high.device)
        positives, negatives = self._sizes
        enough = positives > 0
        return (enough & (negatives > 0) if self.rule.needs_negatives else enough).squeeze(-1)

    @cached_property
    def _scale(self) -> Tensor:
        """What turns a pooled term into a share of the value, `[..., 1]`."""
        scale = self.rule.sign * self._defined.to(self.dtype)
        return (scale if self.weight is None else scale * self.weight).unsqueeze(-1)

    @cached_property
    def _live(self) -> Tensor:
        return self.high_live.unsqueeze(-1) & self.low_live.unsqueeze(-2)

    def _flat(self, table: Tensor) -> Tensor:
        return table.flatten(-2) if self.weight is None else table.flatten(-3)

    def _lost(self, bits: Tensor) -> Tensor:
        """Lost comparisons `[A, ..., P, M]`, bool."""
        shape = self.high.shape[-1:] + self.low.shape[-1:]
        shape = shape if self.weight is None else self.high.shape[-2:-1] + shape
        return ~bits.unflatten(-1, shape) & self._live

    def _cyclic(self, lost: Tensor) -> Tensor:
        """Bits fit an order if what a positive lost to, the next one in the order of lost counts lost to as well."""
        lost = lost | ~self.high_live.unsqueeze(-1)
        order = lost.sum(-1).argsort(-1)
        ordered = lost.gather(-2, order.unsqueeze(-1).expand_as(lost))
        return (ordered[..., :-1, :] & ~ordered[..., 1:, :]).flatten(-2).any(-1)


def padded_places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the chosen items of each set, in order, and which of them are padding.

    Args:
        chosen: `[..., N]`, bool.

    Returns:
        places `[..., L]`, int64, L being the largest number chosen in a set; live `[..., L]`, False on padding.
    """
    if chosen.dim() == 1:
        places = chosen.nonzero().squeeze(-1)
        return places, torch.ones_like(places, dtype=torch.bool)
    sizes = chosen.sum(-1, keepdim=True)
    longest = int(sizes.max()) if sizes.numel() else 0
    places = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :longest]
    return places, torch.arange(longest, device=chosen.device) < sizes


@dataclass(frozen=True)
class GradedPairs(Reexpression):
    """NDCG: every relevant document against every document of a lower grade.

    A gain is a staircase over the grades, so DCG is a sum over levels: at level l, documents of grade l or more are
    positives, all others negatives, and a place r contributes 1 / log2(1 + r + n_(r)) times the height of the step.
    Each level is a metric of lost comparisons, so more comparisons won are never worse, and flip gains add up over
    the levels that lie between the two grades.

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
        loss, win = (self._between(torch.where(relevant, gain, 0.0) * self.steps.unsqueeze(-1)) for gain in (loss, win))
        gains = torch.where(bits.unflatten(-1, self._live().shape[-2:]), loss, win)
        return ops.divide(torch.where(self._live(), gains, 0.0).flatten(-2), self.ideal.unsqueeze(-1))

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
        relevant = (self.high_level.unsqueeze(-2) > levels.unsqueeze(-1)) & self.high_live.unsqueeze(-2)
        return counts, relevant.expand_as(counts)

    def _live(self) -> Tensor:
        return (self.high_level.unsqueeze(-1) > self.low_level.unsqueeze(-2)) & self.high_live.unsqueeze(-1)

    def _discount(self, ranks: Tensor) -> Tensor:
        ranks = ranks.to(self.ideal.dtype)
        discount = 1 / torch.log2(1 + ranks.clamp(min=1))
        return discount if self.k is None else torch.where(ranks <= self.k, discount, 0.0)
