r"""Isotonic regression, and soft ranks as projections onto all rankings (Blondel et al., 2020).

The rankings of N items, as points, span a polytope, the permutahedron. The ranks of values v are
its point that is farthest along v, which jumps as v changes. The nearest point of it to k v does
not jump, and is the ranks themselves where the slope k is large:

.. math:: r(v) = \arg\min_{r \in P} \| r - k v \|^2, \quad
    P = conv \{ (\pi_1, \dots, \pi_N) : \pi \text{ a permutation of } 1 \dots N \}

With z = sort(k v), r is z minus the increasing sequence u that is nearest to z - (1, ..., N): its
isotonic regression. That is a mean over each of some blocks in a row. Where the blocks are single
items, r is 1, 2, 3, ...; within a longer block, r follows v with the slope k.

The blocks are found by merging: of two neighbouring halves with increasing fits, the end of the
left one and the start of the right one become one block, where they overlap. Which part that is,
two bisections tell. So N values take log N merges of all halves at once, and the bisections of one
merge take log N steps for each pair of halves: O(N log N) in all, and never a loop over items.
Rows of up to 32 values are quicker by the formula of isotonic regression, of all means.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

_SHORT = 32  # values that are fitted by all means of neighbours at once


def projected_rank(values: Tensor, slope: float = 1.0, where: Tensor | None = None) -> Tensor:
    r"""Soft ascending ranks: the point of the permutahedron that is nearest to slope * values.

    .. math:: r(v) = \arg\min_{r \in P} \| r - slope \, v \|^2

    They are exact ranks where values are at least 1 / slope apart, and always add up to 1 + ... +
    N. Entries that do not count have rank 0. O(N log N) time and O(N) memory.

    Args:
        values: `[..., N]`.
        slope: How far values are stretched before they are projected: 1 / epsilon.
        where: True for what counts, in the shape of the values.

    Example:
        >>> projected_rank(torch.tensor([10.0, 30.0, 20.0, 20.0]))
        tensor([1.0000, 4.0000, 2.5000, 2.5000])
        >>> projected_rank(torch.tensor([0.0, 0.2, 0.4]))
        tensor([1.8000, 2.0000, 2.2000])

    Reference:
        Blondel et al., Fast Differentiable Sorting and Ranking, 2020, Sec. 3 to 5.
    """
    if not values.shape[-1]:
        return values
    stretched = slope * values
    if where is None:
        return _ranked(stretched, None)
    hidden = (~where).to(torch.int8).argsort(dim=-1, stable=True)
    shown = torch.where(where, stretched, 0.0).gather(-1, hidden)
    ranks = _ranked(shown, where.sum(-1, keepdim=True))
    return torch.where(where, torch.zeros_like(ranks).scatter(-1, hidden, ranks), 0.0)


def _ranked(stretched: Tensor, number: Tensor | None) -> Tensor:
    """Soft ranks of the first so many values of rows, or of all; the others may be anything."""
    places = torch.arange(
        1, stretched.shape[-1] + 1, dtype=stretched.dtype, device=stretched.device
    )
    rest = None if number is None else places > number
    keys = stretched if rest is None else stretched.masked_fill(rest, torch.inf)
    order = keys.argsort(dim=-1, stable=True)
    ordered = stretched.gather(-1, order)
    gaps = ordered - places
    if rest is not None:
        # What does not count stands last, and is far above, so that no block has any of it.
        far = 2 * gaps.detach().abs().amax(-1, keepdim=True) + places
        gaps = torch.where(rest, far, gaps)
    # A value on its own is at its place exactly, whatever rounding leaves of a steep slope.
    ranks = places + (gaps - isotonic(gaps))
    return torch.zeros_like(ordered).scatter(-1, order, ranks)


def isotonic(values: Tensor) -> Tensor:
    r"""The increasing sequence that is nearest to values `[..., N]`, with a gradient.

    .. math:: u = \arg\min_{u_1 \le \dots \le u_N} \sum_i (u_i - v_i)^2

    Example:
        >>> isotonic(torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor([1.0000, 2.5000, 2.5000, 4.0000])

    Reference:
        `sklearn.isotonic.isotonic_regression`.
    """
    starts = _block_starts(values.detach().to(torch.float64))
    block = starts.long().cumsum(-1) - 1
    sums = torch.zeros_like(values).scatter_add(-1, block, values)
    sizes = torch.zeros_like(values).scatter_add(-1, block, torch.ones_like(values))
    return (sums / sizes.clamp(min=1)).gather(-1, block)


def _block_starts(values: Tensor) -> Tensor:
    """Where a block of the isotonic regression of `[..., N]` begins, bool `[..., N]`."""
    number = values.shape[-1]
    size = 1 << max(0, (number - 1).bit_length())
    rows = values.reshape(-1, number)
    # Padding above all values is in no block with them.
    top = rows.amax(-1, keepdim=True) + 1
    fit = torch.cat([rows, top.expand(-1, size - number)], -1)
    half = min(size, _SHORT)
    fit = _of_short(fit.reshape(-1, half))
    new = fit[:, 1:] > fit[:, :-1]
    starts = pad(new, (1, 0), value=True)
    while half < size:
        fit, starts = _merged(fit.reshape(-1, 2 * half), starts.reshape(-1, 2 * half), half)
        half *= 2
    return starts.reshape(len(rows), size)[:, :number].reshape(values.shape)


def _of_short(values: Tensor) -> Tensor:
    """Isotonic regression of short rows: the max over a <= i of the min over b >= i of means."""
    sums = pad(values.cumsum(-1), (1, 0))
    places = torch.arange(values.shape[-1], device=values.device)
    sizes = places - places.unsqueeze(-1) + 1
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / sizes.clamp(min=1)
    least = means.masked_fill(sizes < 1, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    return least.masked_fill(sizes < 1, -torch.inf).amax(-2)


def _merged(fit: Tensor, starts: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Fits and block starts of rows `[P, 2 * half]`, from those of both halves."""
    left, right = (part.contiguous() for part in fit.split(half, -1))
    left_sums = pad(left.cumsum(-1), (1, 0))
    right_sums = pad(right.cumsum(-1), (1, 0))

    def after(place: Tensor) -> Tensor:
        """The sum of the left half from there on."""
        return left_sums[:, -1:] - left_sums.gather(-1, place)

    def begins(place: Tensor) -> Tensor:
        """Whether a value of the left half is above the mean of what would join it."""
        value = left.gather(-1, place)
        below = torch.searchsorted(right, value)
        joining = half - 1 - place + below
        return value * joining > after(place + 1) + right_sums.gather(-1, below)

    begin = _first(begins, half, fit)
    size = half - begin
    total = after(begin)

    def ends(place: Tensor) -> Tensor:
        """Whether a value of the right half is not below the mean of what comes before it."""
        return right.gather(-1, place) * (size + place) >= total + right_sums.gather(-1, place)

    end = half + _first(ends, half, fit)
    # Rounding may put an end among the equal values of a block, which belong together.
    places = torch.arange(2 * half, device=fit.device)
    begun = torch.where(starts, places, 0).cummax(-1).values
    begin = begun.gather(-1, begin)
    over = torch.where(
        pad(starts, (0, 1), value=True), pad(places, (0, 1), value=2 * half), 2 * half
    )
    end = over.flip(-1).cummin(-1).values.flip(-1).gather(-1, end)
    inside = (places >= begin) & (places < end)
    mean = torch.where(inside, fit, 0.0).sum(-1, keepdim=True) / (end - begin).clamp(min=1)
    return torch.where(inside, mean, fit), (starts & ~inside) | (places == begin)


def _first(holds: Callable[[Tensor], Tensor], number: int, like: Tensor) -> Tensor:
    """For each row, the first of so many places where something holds from there on, `[P, 1]`."""
    low = torch.zeros((len(like), 1), dtype=torch.int64, device=like.device)
    high = torch.full_like(low, number)
    for _ in range(number.bit_length()):
        middle = (low + high) // 2
        found = holds(middle.clamp(max=number - 1)) | (middle >= number)
        high = torch.where(found, middle, high)
        low = torch.where(found, low, torch.minimum(middle + 1, high))
    return high
