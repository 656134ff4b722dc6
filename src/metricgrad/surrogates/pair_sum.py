r"""The multilinear interpolation of a metric of order, without a matrix of all pairs.

A metric of order has two gains per positive, whatever the number of negatives (`metrics/pairs.py`): `loss` for the
comparisons it won and `win` for those it lost. The interpolation is a sum over all pairs,

.. math:: \sum_{ij} w_{ij} \, (h(s_i - s_j) - b_{ij}), \quad w_{ij} = loss_i \text{ if } b_{ij} \text{ else } win_i

which is taken a block of positives at a time. The derivative by every score is summed on the way, so the backward pass
holds two vectors and no pairs: the one backward written by hand in this library, because memory demands it.
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.pairs import Pairs
from metricgrad.surrogates.relaxations import Relaxation

_BLOCK_ENTRIES = 1 << 22


def pair_sum(plan: Pairs, scores: Tensor, relaxation: Relaxation) -> tuple[Tensor, Tensor, bool]:
    """The metric's multilinear interpolation, expanded at the scores' own bits.

    Args:
        plan: the target's metric.
        scores: the metric's scores, checked.
        relaxation: the smooth step.

    Returns:
        The value `[...]` at the scores' bits, the change `[...]` that the soft bits make, differentiable, and whether
        no positive ties with a negative, so that the value is the metric's own.
    """
    high, low = plan.compared(scores)
    low = low if plan.full else low.masked_fill(~plan.low_live, -torch.inf)
    with torch.no_grad():
        ordered, queries = low.sort(-1).values, high.detach().contiguous()
        won = torch.searchsorted(ordered, queries, right=False)
        untied = torch.equal(won, torch.searchsorted(ordered, queries, right=True))
        value, loss, win = plan.item_gains(low.shape[-1] - won)
    change = _PairSum.apply(high, low, loss, win, relaxation)
    if plan.weight is None:
        return value, change, untied
    return (plan.weight * value).sum(-1), change.sum(-1), untied


class _PairSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, high: Tensor, low: Tensor, loss: Tensor, win: Tensor, relaxation: Relaxation) -> Tensor:
        total, slopes_high, slopes_low = [], [], []
        rows = max(1, _BLOCK_ENTRIES // max(1, low.numel()))
        for block in range(0, max(high.shape[-1], 1), rows):
            part = slice(block, block + rows)
            comparisons = high[..., part, None] - low[..., None, :]
            won = comparisons > 0
            weight = torch.where(won, loss[..., part, None], win[..., part, None])
            soft, slope = relaxation.soft_and_derivative(comparisons)
            total.append((weight * (soft - won.to(soft.dtype))).sum((-1, -2)))
            slope = weight * slope
            slopes_high.append(slope.sum(-1))
            slopes_low.append(slope.sum(-2))
        if len(total) == 1:
            ctx.save_for_backward(slopes_high[0], slopes_low[0])
            return total[0]
        ctx.save_for_backward(torch.cat(slopes_high, -1), torch.stack(slopes_low).sum(0))
        return torch.stack(total).sum(0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        slope_high, slope_low = ctx.saved_tensors
        gradient = grad_outputs[0].detach().unsqueeze(-1)
        return gradient * slope_high, -gradient * slope_low, None, None, None
