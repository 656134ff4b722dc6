r"""What swapping two items changes, for metrics that are a sum over places (`order.py`).

LambdaMART weighs a pair by what would change if its two items swapped their ranks. A flip only
decides their comparison, and all other comparisons stay as they are. In a swap, positive i takes
the rank of negative j, and the positives in between exchange a positive above them for a negative,
or the other way round. Let t_r(n) be the term of place r, a_j and b_j the positives and negatives
above j, and r and n the place of i and the negatives above it. If j is above i, a swap gains

.. math:: t_{a_j + 1}(b_j) - t_r(n) + \sum_{a_j < q < r} \left( t_{q+1}(n_q - 1) - t_q(n_q) \right)

If j is below i, a swap loses in the same way. The sums in between are differences of running sums,
so that a pair costs little more than with flips.

Reference:
    Burges (2010), From RankNet to LambdaRank to LambdaMART: An Overview, Sec. 4 and 6.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics.order import Pairs


def swap_gains(plan: Pairs, high: Tensor, low: Tensor) -> Tensor:
    """The metric with the positive in the higher place of a pair minus that with the negative.

    Args:
        plan: The pairs of a metric that is a sum over places.
        high: `[..., P]`, scores of the positives; infinite for padding.
        low: `[..., M]`, scores of the negatives; minus infinity for padding.

    Returns:
        `[..., P, M]`, weighted by class.
    """
    if plan.rule.pool != "sum":
        raise ValueError(
            "swap gains are for metrics that add up over the ranks, such as ndcg, map, mrr, "
            "average_precision or auc; pass gains='flip'"
        )
    falling_high, order = high.sort(-1, descending=True)
    falling_low, order_low = low.sort(-1, descending=True)
    padding = torch.zeros_like(high[..., :1], dtype=torch.int64)
    if plan.high_live is not None:  # padding comes first, as it is infinite
        padding = (~plan.high_live).sum(-1, keepdim=True)
    # A tie is lost: the negative stands above the positive.
    lost = torch.searchsorted(-falling_low, -falling_high, right=True).to(plan.dtype)
    above = torch.searchsorted(-falling_high, -falling_low, right=False).to(plan.dtype) - padding
    place = torch.arange(1, high.shape[-1] + 1, device=high.device) - padding
    beaten = torch.arange(low.shape[-1], device=low.device, dtype=plan.dtype).expand_as(above)

    term = plan.term
    now = term(place, lost)
    real = place >= 1
    up = _running(term(place + 1, lost - 1) - now, real & (lost > 0))
    down = _running(term(place - 1, lost + 1) - now, real & (place > 1))
    at_low = (above + padding).to(torch.int64)  # places in the running sums, padding included
    rise = term(above + 1, beaten) - up.gather(-1, at_low)
    fall = term(above.clamp(min=1), beaten + 1) + down.gather(-1, at_low)
    to_rise = _back(up[..., :-1] - now, order).unsqueeze(-1)
    to_fall = _back(down[..., 1:] + now, order).unsqueeze(-1)
    rise = _back(rise, order_low).unsqueeze(-2)
    fall = _back(fall, order_low).unsqueeze(-2)
    won = high.unsqueeze(-1) > low.unsqueeze(-2)
    share = plan.share()
    gains = torch.where(won, to_fall - fall, to_rise + rise)
    gains *= share.unsqueeze(-1) if isinstance(share, Tensor) else share
    return gains if plan.live is None else torch.where(plan.live, gains, 0.0)


def _running(values: Tensor, real: Tensor) -> Tensor:
    """Sums of the first 0 to P values, `[..., P + 1]`."""
    return F.pad(torch.where(real, values, 0.0).cumsum(-1), (1, 0))


def _back(values: Tensor, order: Tensor) -> Tensor:
    """Values along an order, put where they were."""
    return torch.empty_like(values).scatter_(-1, order, values)
