r"""Inverse distance weighting, Eqn. 10 of the UniLoss paper, with two gradients.

With anchors a_i at distances d_i from the soft bits, N = sum(g(a_i) / d_i) and S = sum(1 / d_i),
the interpolated value is N / S. Its gradient is `"exact"`: anchors better than the value attract,
worse ones repel.

The paper's code has a wrong sign in the quotient rule. This gradient, `"released"`, is
grad(N S) / S^2 = sum((g(a_i) + N / S) grad(1 / d_i)) / S: every anchor attracts by its value. That
is of use only if good anchors have the larger values, as with AP and accuracy. Where lower is
better, values therefore count from the worst one, so an error rate has the gradient of accuracy;
counted from 0, descending it would flee from every anchor, the best one included.
"""

from typing import Literal

import torch
from torch import Tensor

Gradient = Literal["exact", "released"]
_LEAST = 1e-290  # the smallest squared distance: its inverse is finite, times a value as well


def inverse_distance(
    apart: Tensor,
    differs: Tensor,
    values: Tensor,
    gradient: Gradient = "exact",
    origin: Tensor | float = 0.0,
) -> Tensor:
    """Inverse distance weighting, Eqn. 10: sum_i g(a_i) / d(u, a_i) over sum_i 1 / d(u, a_i).

    The gradient is exact however close the soft bits u are to an anchor, because nothing cancels.
    A bit of an anchor is |u - v| away if it is the hard bit v next to u, and 1 - |u - v| if not, so
    d^2 = sum_d |u - v|^2 + sum over the bits that differ of (1 - 2 |u - v|), without a negative
    term.

    Args:
        apart: |u - v|, `[..., D]` in float64, at most 1/2; 0 for bits that are not used.
        differs: Where the anchors' bits differ from v, `[A, ..., D]`, bool.
        values: The anchors' values g(a_i), `[A, ...]`.
        gradient: `"exact"` for that of Eqn. 10, `"released"` for that of the paper's code.
        origin: The value from which `"released"` counts: a number, or `[...]`.

    Returns:
        The interpolated value, `[...]`.
    """
    # The large table of bits has the values' precision; bytes become floats faster than bools do.
    corners = differs.view(torch.uint8).to(values.dtype)
    longer = (1 - 2 * apart).to(values.dtype)
    if apart.dim() == 1:
        further = corners @ longer
    else:
        further = torch.einsum("a...d,...d->a...", corners, longer)
    close = apart.square().sum(-1)
    # The slope of 1 / d at v itself overflows float32. It is kept from `further`, which is 0 there
    # and has no part in it; where a tie makes it 0, u and v are 1/2 apart.
    squared = torch.where((further == 0) & (close < 0.25), close, close + further.double())
    nearness = squared.clamp(min=_LEAST).log() / -2  # log(1 / d)
    # Near an anchor, the value is the anchor's and a little more; only the latter has a gradient.
    nearest = values.gather(0, squared.argmin(0, keepdim=True))
    found = nearest.squeeze(0) + (nearness.softmax(0) * (values - nearest)).sum(0)
    if gradient == "released":  # grad(N S) / S^2 = grad(N / S) + 2 (N / S) grad(log S)
        pull = nearness.logsumexp(0)
        found = found + 2 * (found.detach() - origin) * (pull - pull.detach())
    return found.to(values.dtype)
