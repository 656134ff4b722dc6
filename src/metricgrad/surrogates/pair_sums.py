r"""The multilinear interpolation of a metric of order, as sums over pairs.

Such a metric has two gains per positive, whatever the number of negatives (`metrics/order.py`):
`loss` for the comparisons it won and `win` for those it lost. The interpolation adds

.. math:: \sum_{ij} w_{ij} \, (h(s_i - s_j) - b_{ij}),
    \quad w_{ij} = loss_i \text{ if } b_{ij} \text{ else } win_i

to the metric's value. Its derivative by every score is summed in the forward pass, so that the
backward pass holds one vector and no pairs. Small sets are summed pair by pair, large ones along
their order (`sorted_sums.py`); both give the same numbers, to the precision of the scores.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.order import Pairs, padded_places
from metricgrad.metrics.swaps import swap_gains
from metricgrad.surrogates.interpolation import Interpolated, Relaxation
from metricgrad.surrogates.sorted_sums import (
    PairWeights,
    sorted_change,
    sorted_curvature,
    sorted_slopes,
)

# Up to so many pairs, and so many for every item, going through all of them takes less time than
# sums along the order, which cost 2 ms and half a microsecond an item (a pair: 9 nanoseconds).
_MOST_PAIRS = 1 << 18
_PAIRS_PER_ITEM = 48
# Where sets can be taken a few at a time, so that their pairs fit a core's cache, a pair costs 3
# nanoseconds, slope and curvature together.
_HELD_PAIRS = 1 << 18
_FAST_PAIRS_PER_ITEM = 300
_MOST_SWAPS = 1 << 26  # pairs of one set; swaps take no other way than through all of them


def pair_sum(plan: Pairs, scores: Tensor, relaxation: Relaxation) -> Interpolated:
    """The multilinear interpolation of a metric of order, expanded at the scores' own bits."""
    ranked = plan.ranked(scores)
    pairs = plan.high.numel() * plan.low.shape[-1]
    few = pairs <= _MOST_PAIRS + _PAIRS_PER_ITEM * ranked.numel()
    with torch.no_grad():
        gains = (_EveryPair if few else _SortedItems).of(plan, ranked, relaxation)
        slope = gains.slope()
    carrier = _WithSlope.apply(ranked, slope)
    value = gains.value
    if plan.weight is not None:
        value = (plan.weight * value).sum(-1)
        carrier = carrier if plan.levels else carrier.sum(-1)

    def relaxed() -> Tensor:
        with torch.no_grad():
            change = gains.change()
        return value + (change if plan.weight is None or plan.levels else change.sum(-1))

    return Interpolated(value, relaxed, carrier, gains.untied)


@torch.no_grad()
def pair_slopes(
    plan: Pairs, ranked: Tensor, relaxation: Relaxation, swap: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Slope and curvature of a metric of order by every ranked score, in one pass over the pairs.

    .. math:: k \sum_{ij} w_{ij} \, h'(k (s_i - s_j)), \qquad
        k^2 \sum_{ij} |w_{ij}| \, \sigma'(k (s_i - s_j))

    The sums are over the pairs that an item is in. The curvature is the second derivative of the
    logistic loss of all pairs, with the weights as they are.

    Args:
        plan: Pairs of at least one dimension of sets.
        ranked: `[S, N]`, or `[S, C, N]` for classes: what `plan.ranked` makes of the scores.
        relaxation: The smooth step, of the q family.
        swap: Whether pairs weigh what swapping the two items changes (`metrics/swaps.py`).
    """
    pairs = plan.high.numel() * plan.low.shape[-1]
    if not swap and pairs > _MOST_PAIRS + _FAST_PAIRS_PER_ITEM * ranked.numel():
        return _SortedItems.of(plan, ranked, relaxation).slopes()
    if swap and pairs > _MOST_SWAPS * len(ranked):
        raise ValueError(
            f"swap gains hold all pairs of a set, and {pairs // len(ranked):,} are too many; pass "
            "smaller sets, as set_size=1024, or gains='flip'"
        )
    size = max(1, _HELD_PAIRS * len(ranked) // max(1, pairs))
    parts = [slice(start, start + size) for start in range(0, len(ranked), size)]
    return _slopes_in_parts(plan, ranked, relaxation, swap, parts)


def _slopes_in_parts(
    plan: Pairs, ranked: Tensor, relaxation: Relaxation, swap: bool, parts: list[slice]
) -> tuple[Tensor, Tensor]:
    """`pair_slopes` from all pairs of some sets at a time."""
    k = relaxation.slope
    high, low = _compared(plan, k * ranked)
    over = high.unsqueeze(-1)
    under = low.unsqueeze(-2)
    # Memory that is used again is in the cache already.
    shape = torch.broadcast_shapes(over[parts[0]].shape, under[parts[0]].shape)
    held = over.new_empty(shape)
    bits = over.new_empty(shape, dtype=plan.dtype)
    won = [torch.gt(over[part], under[part], out=bits[: len(over[part])]).sum(-1) for part in parts]
    _, loss, win = plan.item_gains(low.shape[-1] - torch.cat(won))
    ahead = (loss - win).unsqueeze(-1)
    win = win.unsqueeze(-1)
    to_high = high.new_empty(2, *high.shape)
    to_low = low.new_empty(2, *low.shape)
    for part in parts:
        number = len(over[part])
        c = torch.sub(over[part], under[part], out=held[:number])
        if swap:
            weight = swap_gains(plan.part(part), high[part], low[part])
        else:  # the win where the bit is 0, the loss where it is 1
            weight = torch.gt(c, 0, out=bits[:number]).mul_(ahead[part]).add_(win[part])
        for kind, each in enumerate(relaxation.weighted_slopes(c, weight)):
            torch.sum(each, -1, out=to_high[kind][part])
            torch.sum(each, -2, out=to_low[kind][part])
    first = plan.spread(to_high[0], to_low[0].neg_(), ranked)
    second = plan.spread(to_high[1], to_low[1], ranked)
    return k * first, k**2 * second.abs_()  # all gains have one sign


class _WithSlope(torch.autograd.Function):
    """0 for every set, with a given derivative by the ranked scores `[..., N]`."""

    @staticmethod
    def forward(ctx: Any, ranked: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return ranked.new_zeros(ranked.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a metric of order has no second derivative: its slope is summed once, without a "
                "graph. Call .backward() or torch.autograd.grad without create_graph=True"
            )
        (slope,) = ctx.saved_tensors
        return gradients[0].unsqueeze(-1) * slope, None


class _EveryPair(NamedTuple):
    """A metric's pairs, all of them at once."""

    plan: Pairs
    step: Relaxation
    like: Tensor  # ranked scores
    comparisons: Tensor  # `[..., P, M]`
    weight: Tensor  # `[..., P, M]`
    value: Tensor  # `[...]`, of each class where there are classes
    untied: bool

    @classmethod
    def of(cls, plan: Pairs, ranked: Tensor, step: Relaxation) -> "_EveryPair":
        """The pairs' comparisons and weights."""
        high, low = _compared(plan, ranked)
        comparisons = high.unsqueeze(-1) - low.unsqueeze(-2)
        bits = _bits(comparisons, 0, plan.dtype)
        value, loss, win = plan.item_gains(low.shape[-1] - bits.sum(-1))
        weight = torch.lerp(win.unsqueeze(-1), loss.unsqueeze(-1), bits)
        untied = bool(comparisons.all())
        return cls(plan, step, ranked, comparisons, weight, value, untied)

    def slope(self) -> Tensor:
        """The derivative by each ranked score, `[..., N]`."""
        slope = self.step.weighted_slope(self.comparisons, self.weight)
        to_high = slope.sum(-1)
        return self.step.slope * self.plan.spread(to_high, slope.sum(-2).neg_(), self.like)

    def change(self) -> Tensor:
        """What soft bits add to the value, `[...]`, of all levels together."""
        bits = (self.comparisons > 0).to(self.weight.dtype)
        change = (self.weight * (self.step.soft(self.comparisons) - bits)).sum((-1, -2))
        return change.sum(-1) if self.plan.levels else change


def _compared(plan: Pairs, ranked: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the positives and of the negatives; padding wins, or is beaten, by far."""
    high, low = plan.compared(ranked)
    if plan.high_live is not None and plan.low_live is not None:
        high = high.masked_fill(~plan.high_live, torch.inf)
        low = low.masked_fill(~plan.low_live, -torch.inf)
    return high, low


def _bits(high: Tensor, low: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Whether one is above the other, as 0.0 and 1.0, without a tensor of bools in between."""
    return torch.gt(high, low, out=high.new_empty(0, dtype=dtype))


class _SortedItems(NamedTuple):
    """A metric's items in the order of their scores, highest first."""

    step: Relaxation
    order: Tensor  # `[..., N]`, indices of the ranked scores
    position: Tensor  # `[..., N]`, slope times score
    weights: PairWeights
    sign: float  # of all gains
    value: Tensor  # `[...]`, of each class where there are classes
    untied: bool

    @classmethod
    def of(cls, plan: Pairs, ranked: Tensor, step: Relaxation) -> "_SortedItems":
        """The items' order and what their pairs weigh."""
        high = _marked(plan.high, plan.high_live, ranked)
        low = _marked(plan.low, plan.low_live, ranked)
        if not plan.levels:
            high = high.unsqueeze(-2)
            low = low.unsqueeze(-2)
        # A tie is lost, so of equal scores the lower level comes first, and before it what does not
        # count at all.
        level = (high + (high | low).amax(-2, keepdim=True)).sum(-2, dtype=torch.int16)
        by_level = level.argsort(dim=-1, stable=True)
        ordered, order = ranked.gather(-1, by_level).sort(dim=-1, descending=True, stable=True)
        order = by_level.gather(-1, order)
        index = order.unsqueeze(-2).expand_as(high)
        high = high.gather(-1, index)
        low = low.gather(-1, index)
        places, _ = padded_places(high.bool())
        lost = low.cumsum(-1, dtype=torch.int32).gather(-1, places)
        value, *gains = plan.item_gains(lost if plan.levels else lost.squeeze(-2))
        sign = -1.0 if plan.rule.sign < 0 else 1.0
        loss, win = (_put(each, places, low, sign) for each in gains)
        weights = PairWeights(loss, win, low.to(loss.dtype))
        same = (ordered[..., 1:] == ordered[..., :-1]).unsqueeze(-2)
        untied = not (same & low[..., :-1].bool() & high[..., 1:].bool()).any()
        position = step.slope * ordered.double()
        return cls(step, order, position, weights, sign, value, untied)

    def slope(self) -> Tensor:
        """The derivative by each ranked score, `[..., N]`."""
        slope = sorted_slopes(self.position, self.weights, self.step)
        slope *= self.sign * self.step.slope
        return torch.empty_like(slope).scatter_(-1, self.order, slope)

    def slopes(self) -> tuple[Tensor, Tensor]:
        """The derivative by each ranked score, and the curvature, both `[..., N]`."""
        first, second = sorted_curvature(self.position, self.weights, self.step)
        first *= self.sign * self.step.slope
        second *= self.step.slope**2
        return (
            torch.empty_like(first).scatter_(-1, self.order, first),
            torch.empty_like(second).scatter_(-1, self.order, second),
        )

    def change(self) -> Tensor:
        """What soft bits add to the value, `[...]`, of all levels together."""
        return self.sign * sorted_change(self.position, self.weights, self.step)


def _marked(index: Tensor, live: Tensor | None, ranked: Tensor) -> Tensor:
    """1 for the items with an index, 0 for the others, `[..., N]`, uint8."""
    marks = ranked.new_zeros(*index.shape[:-1], ranked.shape[-1], dtype=torch.uint8)
    ones = torch.ones_like(index, dtype=torch.uint8) if live is None else live.to(torch.uint8)
    return marks.scatter_add_(-1, index, ones)  # padding adds 0 to the first item


def _put(gains: Tensor, places: Tensor, like: Tensor, sign: float) -> Tensor:
    """Gains of the positives `[..., P]` at their places `[..., C, P]` among all items.

    Rounding may leave a gain of nothing with the wrong sign.
    """
    gains = (sign * gains).clamp(min=0).view(places.shape)
    return torch.zeros(like.shape, dtype=gains.dtype, device=like.device).scatter_add_(
        -1, places, gains
    )
