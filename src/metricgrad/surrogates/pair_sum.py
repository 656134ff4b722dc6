r"""The multilinear interpolation of a metric of order, without a matrix of all pairs.

A metric of order has two gains per positive, whatever the number of negatives (`metrics/pairs.py`):
`loss` for the comparisons it won and `win` for those it lost. The interpolation is a sum over all
pairs,

.. math:: \sum_{ij} w_{ij} \, (h(s_i - s_j) - b_{ij}), \quad w_{ij} = loss_i \text{ if } b_{ij} \text{ else } win_i

which is taken a block of positives at a time. The derivative by every score is summed on the way,
so the backward pass holds one vector and no pairs: the scores' product with that vector carries the
gradient.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.pairs import Pairs
from metricgrad.surrogates.relaxations import Relaxation

_BLOCK_ENTRIES = 1 << 22


class Interpolated(NamedTuple):
    """An interpolation e~ = g~(h~(f(s))) of a metric, in parts.

    Attributes:
        value: `[...]`, g at the scores' bits.
        change: gives `[...]`, what soft bits add to it; a function, because only who looks at e~
            itself needs it.
        carrier: `[...]`, a function of the scores with the gradient of e~; its value means nothing.
        untied: whether all comparisons are decided, so that the value is the metric's own.
    """

    value: Tensor
    change: Callable[[], Tensor]
    carrier: Tensor
    untied: bool


def pair_sum(plan: Pairs, scores: Tensor, relaxation: Relaxation) -> Interpolated:
    """The metric's multilinear interpolation, expanded at the scores' own bits.

    Args:
        plan: the target's metric.
        scores: the metric's scores, checked.
        relaxation: the smooth step.

    Returns:
        The interpolation.
    """
    ranked = plan.ranked(scores)
    with torch.no_grad():
        high, low = plan.compared(ranked)
        if (
            plan.high_live is not None and plan.low_live is not None
        ):  # padding wins, or is beaten, by far
            high, low = (
                high.masked_fill(~plan.high_live, torch.inf),
                low.masked_fill(~plan.low_live, -torch.inf),
            )
        ordered = low.sort(-1).values
        won = torch.searchsorted(ordered, high, right=False)
        untied = torch.equal(won, torch.searchsorted(ordered, high, right=True))
        value, loss, win = plan.item_gains(low.shape[-1] - won)
        slope_high, slope_low = _slopes(high, low, loss, win, relaxation)
        slope = relaxation.slope * plan.spread(slope_high, slope_low.neg_(), ranked)
    carrier = torch.linalg.vecdot(ranked, slope)
    if plan.weight is None:
        return Interpolated(
            value, lambda: _change(high, low, loss, win, relaxation), carrier, untied
        )
    value, carrier = (plan.weight * value).sum(-1), carrier.sum(-1)
    return Interpolated(
        value, lambda: _change(high, low, loss, win, relaxation).sum(-1), carrier, untied
    )


def _slopes(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor, relaxation: Relaxation
) -> tuple[Tensor, Tensor]:
    """Sums of w h'(s_i - s_j) over the negatives, `[..., P]`, and over the positives, `[..., M]`."""
    sums = []
    for comparisons, weight in _blocks(high, low, loss, win):
        slope = relaxation.weighted_slope(comparisons, weight)
        sums.append((slope.sum(-1), slope.sum(-2)))
    if len(sums) == 1:
        return sums[0]
    slopes_high, slopes_low = zip(*sums, strict=True)
    return torch.cat(slopes_high, -1), torch.stack(slopes_low).sum(0)


def _change(high: Tensor, low: Tensor, loss: Tensor, win: Tensor, relaxation: Relaxation) -> Tensor:
    """The sum of w (h(s_i - s_j) - b) over all pairs, `[...]`."""
    return torch.stack(
        [
            (weight * (relaxation.soft(comparisons) - (comparisons > 0).to(weight.dtype))).sum(
                (-1, -2)
            )
            for comparisons, weight in _blocks(high, low, loss, win)
        ]
    ).sum(0)


def _blocks(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Comparisons and weights w, `[..., rows, M]`, of some positives at a time."""
    rows = max(1, _BLOCK_ENTRIES // max(1, low.numel()))
    whole = high.shape[-1] <= rows
    parts = (
        [(high, loss, win)]
        if whole
        else zip(*(each.split(rows, -1) for each in (high, loss, win)), strict=True)
    )
    for some, lost_by, won_by in parts:
        comparisons = some.unsqueeze(-1) - low.unsqueeze(-2)
        bits = torch.gt(
            comparisons, 0, out=torch.empty_like(comparisons, dtype=win.dtype)
        )  # 0.0 and 1.0
        yield comparisons, torch.lerp(won_by.unsqueeze(-1), lost_by.unsqueeze(-1), bits)
