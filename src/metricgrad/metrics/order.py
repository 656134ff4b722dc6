"""Re-expression of order: each positive against each negative, and how many of these it lost.

A bit says that a positive stands above a negative. All that a metric of order needs is n_i, the
number of comparisons that positive i lost. Put the positives in the order of their n: the one at
place r has r - 1 positives and n_(r) negatives above it, so its rank is r + n_(r). This also
defines the metric for bits that no scores produce. Most metrics are

    sum over places r of term_r(n_(r)), or the maximum of such terms.

A flip changes one n by one. Among positives with equal n it makes no difference which one changes:
an increase is taken by the last of them, a decrease by the first, so the order stays. Hence every
flip gain of a positive is one of two numbers, its `loss` (one more comparison lost) or its `win`
(one less), and all gains together cost one sort of the positives.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.reexpression import Compare, Reexpression, tried_flip_gains

PlacePool = Literal["sum", "max", "envelope"]
Cycles = Literal["count", "zero"]
FAR = 1 << 30  # stands for the lost comparisons of padding: sorts last, exact in int32 and float32


class PlaceRule(NamedTuple):
    """A metric of the comparisons that the positives lost: sign * pool(terms) + offset.

    A term is what a place contributes, from r, n and the numbers of positives and negatives (at
    least 1; plain numbers, or floats to broadcast where sets differ in size). `"sum"` adds the
    terms up, `"max"` takes the largest, `"envelope"` adds up, for every place, the largest term
    from there on.
    """

    term: Callable[[Tensor, Tensor, Tensor | int, Tensor | int], Tensor]
    pool: PlacePool = "sum"
    sign: float = 1.0
    offset: float = 0.0
    cycles: Cycles = "count"  # "zero": bits that fit no order are worth 0
    needs_negatives: bool = False  # whether a set without negatives is worth 0
    by_place: bool = True  # whether the terms depend on r


@dataclass(frozen=True)
class Pairs(Reexpression):
    """Every positive against every negative, of every set or of every class of every set.

    Sets differ in size, so they are padded; in one set nothing is, and both `live` are None. The
    weights of the classes' values add up to 1 (to 0 where no class has a value). Levels are classes
    that share their scores.
    """

    ranked: Compare  # scores -> those that are compared, [..., N], or [..., C, N] for classes
    high: Tensor  # [..., P], indices of the positives among the items
    low: Tensor  # [..., M], indices of the negatives
    high_live: Tensor | None  # [..., P], False on padding
    low_live: Tensor | None  # [..., M], the same for the negatives
    rule: PlaceRule
    weight: Tensor | None  # [..., C]; None where there are no classes
    dtype: torch.dtype  # of the values
    levels: bool = False  # whether the classes have one order, so that ranked scores are [..., N]

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Positive minus negative, `[..., P * M]` or `[..., C * P * M]`."""
        high, low = self.compared(self.ranked(scores))
        difference = high.unsqueeze(-1) - low.unsqueeze(-2)
        live = self.live
        live = torch.ones_like(difference, dtype=torch.bool) if live is None else live
        return self._flat(difference), self._flat(live)

    def compared(self, ranked: Tensor) -> tuple[Tensor, Tensor]:
        """Ranked scores of the positives `[..., P]` and of the negatives `[..., M]`."""
        if self.levels:
            ranked = ranked.unsqueeze(-2).expand(*self.high.shape[:-1], -1)
        return ranked.gather(-1, self.high), ranked.gather(-1, self.low)

    def spread(self, to_high: Tensor, to_low: Tensor, ranked: Tensor) -> Tensor:
        """The converse of `compared`: what positives and negatives receive, put where they were."""
        spread = ranked.new_zeros(*self.high.shape[:-1], ranked.shape[-1])
        spread.scatter_add_(-1, self.high, to_high).scatter_add_(-1, self.low, to_low)
        return spread.sum(-2) if self.levels else spread

    def part(self, sets: slice) -> "Pairs":
        """Those of some of the sets, which are counted along the first dimension."""
        names = ("high", "low", "high_live", "low_live", "weight")
        every = {name: getattr(self, name) for name in names}
        cut = {name: tensor[sets] for name, tensor in every.items() if tensor is not None}
        return replace(self, **cut)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of orders drawn around the scores' own."""
        ranked = ops.add_gumbel_noise(self.ranked(scores), slope, number, generator)
        high = ranked.gather(-1, self.high.expand(number, *self.high.shape))
        low = ranked.gather(-1, self.low.expand(number, *self.low.shape))
        return self._flat(high.unsqueeze(-1) > low.unsqueeze(-2))

    def pairwise(self) -> "Pairs | None":
        """Itself, unless bits that fit no order have a value of their own."""
        return self if self.rule.cycles == "count" else None

    def defined(self) -> Tensor:
        """Sets with positives (and negatives, where they are needed), in one class at least."""
        if self.weight is not None:
            return (self.weight > 0).any(-1)
        defined = self._defined
        if isinstance(defined, Tensor):
            return defined
        return torch.full((), defined, dtype=torch.bool, device=self.high.device)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The rule's value of the comparisons that the positives lost."""
        lost = self._lost(bits)
        ordered = self._padded(_count(lost)).sort(-1).values
        values = self.scaled(self._pool(self._terms(ordered)))
        if self.rule.cycles == "zero":
            values = torch.where(self._cyclic(lost), 0.0, values)
        return values if self.weight is None else (self.weight * values).sum(-1)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The positive's `loss` where its comparison is won, its `win` where it is lost."""
        if self.rule.cycles == "zero":
            return tried_flip_gains(self, bits)
        lost = self._lost(bits)
        _, loss, win = self.item_gains(_count(lost))
        gains = torch.where(lost, win.unsqueeze(-1), loss.unsqueeze(-1))
        live = self.live
        return self._flat(gains if live is None else torch.where(live, gains, 0.0))

    def item_gains(self, lost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value `[A, ...]`, and the `loss` and `win` of each positive, both `[A, ..., P]`.

        Lost comparisons are `[A, ..., P]`; losses and wins are weighted by class.
        """
        lost = self._padded(lost)
        ordered = lost.sort(-1).values
        first = torch.searchsorted(ordered, lost, right=False)
        last = torch.searchsorted(ordered, lost, right=True) - 1
        step = torch.arange(-1, 2, dtype=self.dtype, device=ordered.device)
        around = ordered + step.reshape(3, *[1] * ordered.dim())
        # A positive that lost no comparison has nothing to win.
        fewer, terms, more = self._terms(around.clamp_(min=0)).unbind()
        pooled = self._pool(terms)
        if self.rule.pool == "sum":
            loss = terms - more
            win = fewer - terms
        else:
            before = pooled.unsqueeze(-1)
            loss = before - self._with_one_changed(terms, more)
            win = self._with_one_changed(terms, fewer) - before
        loss = loss.gather(-1, last)
        win = win.gather(-1, first)
        if self.high_live is not None:
            loss = torch.where(self.high_live, loss, 0.0)
            win = torch.where(self.high_live, win, 0.0)
        scale = self.share()
        if isinstance(scale, Tensor) or scale != 1:
            loss = loss * scale
            win = win * scale
        return self.scaled(pooled), loss, win

    def share(self) -> Tensor | float:
        """What a change of the terms is worth, `[..., 1]`; one number where all sets are alike."""
        share = self._defined if self.weight is None else self.weight * self._defined
        return self.rule.sign * (share.unsqueeze(-1) if isinstance(share, Tensor) else share)

    def term(self, places: Tensor, lost: Tensor) -> Tensor:
        """What a positive at a place contributes, from the comparisons that it lost."""
        positives = self._size(self.high, self.high_live)
        negatives = self._size(self.low, self.low_live)
        return self.rule.term(places.to(self.dtype), lost.to(self.dtype), positives, negatives)

    def scaled(self, pooled: Tensor) -> Tensor:
        """The metric of the pooled terms; 0 where it is not defined."""
        if (self.rule.sign, self.rule.offset) != (1, 0):
            pooled = self.rule.sign * pooled + self.rule.offset
        defined = self._defined
        if isinstance(defined, Tensor):
            return torch.where(defined, pooled, 0.0)
        return pooled if defined else torch.zeros_like(pooled)

    def _padded(self, lost: Tensor) -> Tensor:
        """Lost comparisons with padding sorted last."""
        return lost if self.high_live is None else lost.masked_fill(~self.high_live, FAR)

    def _with_one_changed(self, terms: Tensor, changed: Tensor) -> Tensor:
        """The pooled value after the term at place r alone changes, for every r: `[A, ..., P]`."""
        if self.rule.pool == "max":
            top, at = terms.topk(min(2, terms.shape[-1]), dim=-1)
            second = top[..., 1:] if top.shape[-1] > 1 else torch.full_like(top, -torch.inf)
            highest = torch.arange(terms.shape[-1], device=terms.device) == at[..., :1]
            return torch.maximum(torch.where(highest, second, top[..., :1]), changed)
        every = torch.eye(terms.shape[-1], dtype=torch.bool, device=terms.device)
        return self._pool(torch.where(every, changed.unsqueeze(-2), terms.unsqueeze(-2)))

    def _terms(self, ordered: Tensor) -> Tensor:
        """What each place contributes, `[A, ..., P]`, from lost comparisons in order."""
        places = torch.arange(1, self.high.shape[-1] + 1, dtype=self.dtype, device=self.high.device)
        values = self.term(places, ordered)
        if self.high_live is None:
            return values
        nothing = -torch.inf if self.rule.pool == "max" else 0.0
        return torch.where(places <= self._size(self.high, self.high_live), values, nothing)

    def _pool(self, terms: Tensor) -> Tensor:
        """The terms of all places as one number, `[A, ...]`."""
        if self.rule.pool == "sum" or not terms.shape[-1]:
            return terms.sum(-1)
        if self.rule.pool == "max":
            return terms.amax(-1)
        return terms.flip(-1).cummax(-1).values.sum(-1)

    def _size(self, places: Tensor, live: Tensor | None) -> Tensor | int:
        """Number of items, at least 1: `[..., 1]`, or one number where nothing is padding."""
        if live is None:
            return max(places.shape[-1], 1)
        return live.sum(-1, keepdim=True).clamp(min=1).to(self.dtype)

    @property
    def _defined(self) -> Tensor | bool:
        """Sets (or classes) with a value, `[...]`; a bool speaks for all of them."""
        if self.high_live is None or self.low_live is None:
            enough = self.low.shape[-1] > 0 or not self.rule.needs_negatives
            return self.high.shape[-1] > 0 and enough
        positives = self.high_live.any(-1)
        return positives & self.low_live.any(-1) if self.rule.needs_negatives else positives

    @property
    def live(self) -> Tensor | None:
        """Pairs without padding, `[..., P, M]`; None where nothing is padding."""
        if self.high_live is None or self.low_live is None:
            return None
        return self.high_live.unsqueeze(-1) & self.low_live.unsqueeze(-2)

    def _flat(self, table: Tensor) -> Tensor:
        """A table `[..., P, M]` or `[..., C, P, M]` as `[..., D]`."""
        return table.flatten(-2) if self.weight is None else table.flatten(-3)

    def _lost(self, bits: Tensor) -> Tensor:
        """Lost comparisons `[A, ..., P, M]`, bool."""
        shape = self.high.shape[-1:] + self.low.shape[-1:]
        shape = shape if self.weight is None else self.high.shape[-2:-1] + shape
        lost = ~bits.unflatten(-1, shape)
        live = self.live
        return lost if live is None else lost & live

    def _cyclic(self, lost: Tensor) -> Tensor:
        """Sets whose bits fit no order.

        In an order, every positive loses to whatever a positive with fewer losses lost to.
        """
        lost = lost if self.high_live is None else lost | ~self.high_live.unsqueeze(-1)
        order = lost.sum(-1).argsort(-1)
        ordered = lost.gather(-2, order.unsqueeze(-1).expand_as(lost))
        return (ordered[..., :-1, :] & ~ordered[..., 1:, :]).flatten(-2).any(-1)


def make_pairs(
    ranked: Compare,
    positive: Tensor,
    where: Tensor | None,
    rule: PlaceRule,
    dtype: torch.dtype,
    weight: Tensor | None = None,
    levels: bool = False,
) -> Pairs:
    """The pairs of positives with all other items that count."""
    negative = ~positive if where is None else ~positive & where
    if positive.dim() == 1:  # one set needs no padding
        high = positive.nonzero().squeeze(-1)
        low = negative.nonzero().squeeze(-1)
        return Pairs(ranked, high, low, None, None, rule, weight, dtype)
    high, high_live = padded_places(positive)
    low, low_live = padded_places(negative)
    return Pairs(ranked, high, low, high_live, low_live, rule, weight, dtype, levels)


def _count(lost: Tensor) -> Tensor:
    """Lost comparisons of each positive, `[..., P]` from `[..., P, M]`."""
    return lost.view(torch.uint8).sum(-1, dtype=torch.int32)  # bytes add up faster than bools


def padded_places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Indices `[..., L]` of the chosen items `[..., N]` of each set, and False for padding."""
    sizes = chosen.sum(-1, keepdim=True)
    longest = int(sizes.max()) if sizes.numel() else 0
    live = torch.arange(longest, device=chosen.device) < sizes
    places = torch.zeros(live.shape, dtype=torch.int64, device=chosen.device)
    return places.masked_scatter_(live, chosen.nonzero()[:, -1]), live
