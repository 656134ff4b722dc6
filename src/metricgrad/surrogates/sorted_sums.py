r"""Sums over all pairs of items in O(N log N), as running sums over sorted scores.

A relaxation gives a pair of items a number that depends on c, the slope times the difference of
their scores. With x = exp(-abs(c)), the derivative of a step of the q family is, on either side of
0, a power of x times a smooth function of x between 0 and 1:

.. math:: h'(c) = x \, (1 + x)^{-1-q} \; (c > 0), \qquad h'(c) = x^q \, (1 + x)^{-1-q} \; (c < 0)

A polynomial of 10 terms is this function to 7e-7, one of 20 terms to 5e-14, because its nearest
singularity is at x = -1. And along the order of the scores, a power of x is a running sum:

.. math:: \sum_{j < i} u_j \, e^{-m (c_j - c_i)} = e^{m c_i} \sum_{j < i} u_j \, e^{-m c_j}

**Blocks.** These exponentials would overflow, so running sums go from block to block, as
logarithms. Each block first adds up its items at its edge, where no exponential exceeds 1. Pairs
within a block are computed one by one, without an approximation.

The squared hinge is a polynomial of c, cut off at c = 1, for which running sums of the powers of c
suffice.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.surrogates.interpolation import Relaxation

_BLOCK = 32  # items: a larger block has more pairs in it, and leaves fewer running sums
_HELD = 1 << 18  # pairs of items of the same block that are held at once, to fit a core's cache
_TERMS = {torch.float32: 10, torch.float64: 20}
_FAR = 60.0  # e^-60 is nothing beside the weights of nearer items, so no gap has to be wider


class PairWeights(NamedTuple):
    """What pairs weigh, as a sum over channels; all are `[..., C, N]`, in the order of the scores.

    The pair of an item i and an item j that it is compared with weighs sum_c loss_ci low_cj if i is
    above j, and sum_c win_ci low_cj if not. No weight is negative.
    """

    loss: Tensor
    win: Tensor
    low: Tensor


def sorted_slopes(position: Tensor, weights: PairWeights, step: Relaxation) -> Tensor:
    """The derivative of sum_ij w_ij h(c_i - c_j) by every c, `[..., N]`.

    Args:
        position: c of each item, `[..., N]`, float64, from the highest to the lowest. Of equal
            ones, those that are compared with come first, because a tie is lost.
        weights: What the pairs weigh; their dtype decides how exact the sums are.
        step: The relaxation; the positions already contain its slope.
    """
    if step.kind == "squared_hinge":
        return _hinge_slopes(position, weights)
    blocks = _Blocks.of(position, weights)
    won, lost = blocks.slopes_of(step)
    return blocks.summed(won, lost, step, -1.0)[..., : position.shape[-1]]


def sorted_curvature(
    position: Tensor, weights: PairWeights, step: Relaxation
) -> tuple[Tensor, Tensor]:
    """`sorted_slopes` of the q family, and sum_ij w_ij sigma'(c_i - c_j) by every c.

    The second sum is over the pairs that an item is in, on whichever side. Its powers of x are
    those of the pairs that are won, whose exponentials it shares.
    """
    blocks = _Blocks.of(position, weights)
    won, lost = blocks.slopes_of(step)
    sigmoid = step._replace(q=1.0)
    curved = won._replace(coefficients=won.coefficients.new_tensor(_slope_terms(1.0, weights)))
    first = blocks.summed(won, lost, step, -1.0)
    second = blocks.summed(curved, curved, sigmoid, 1.0)
    return first[..., : position.shape[-1]], second[..., : position.shape[-1]]


def _slope_terms(q: float, weights: PairWeights) -> list[float]:
    """The polynomial of (1 + x)^(-1-q)."""
    return _polynomial(lambda x: (1 + x) ** (-1 - q), _TERMS[weights.low.dtype])


def sorted_change(position: Tensor, weights: PairWeights, step: Relaxation) -> Tensor:
    r"""The sum over all pairs of w_ij (h(c_i - c_j) - b_ij), `[...]`; arguments as above.

    With v(x) = (1 - (1 + x)^-q) / (q x), h - b is -x v(x) for a pair that is won, and
    1 - (1 - x^q) / q - x^(1+q) v(x) for one that is lost.
    """
    if step.kind == "squared_hinge":
        return _hinge_change(position, weights)
    q = step.q
    blocks = _Blocks.of(position, weights)
    loss, win, low = (each.double() for each in blocks.weights)
    polynomial = _polynomial(lambda x: _mean_slope(x, q), _TERMS[weights.low.dtype])
    below = blocks.running(q, 1.0, polynomial).from_below(low)
    lost = blocks.running(q, 1.0 + q, polynomial).from_above(low)
    if q == 0:
        above = blocks.distances_from_above(low)  # (1 - x^q) / q tends to abs(c)
    else:
        above = blocks.running(q, q, [-1 / q]).from_above(low)
        above += blocks.running(q, 0.0, [1 / q]).from_above(low)
    number = blocks.running(q, 0.0, [1.0]).from_above(low)
    far = win * (number - above - lost) - loss * below
    return blocks.near_change(step._replace(slope=1.0)) + far.sum((-1, -2, -3)).to(low.dtype)


def _mean_slope(x: np.ndarray, q: float) -> np.ndarray:
    """(1 - (1 + x)^-q) / (q x), which tends to log(1 + x) / x for q = 0."""
    logs = np.log1p(x)
    return (logs if q == 0 else -np.expm1(-q * logs) / q) / x


def _polynomial(function: Callable[[np.ndarray], np.ndarray], terms: int) -> list[float]:
    """Coefficients of the polynomial through a function of x at the Chebyshev points of [0, 1]."""
    chebyshev = np.polynomial.Chebyshev.interpolate(function, terms - 1, domain=[0, 1])
    return chebyshev.convert(kind=np.polynomial.Polynomial).coef.tolist()


class _Blocks(NamedTuple):
    """Items in blocks, `[..., B, L]`; the last block is filled up with items of no weight."""

    position: Tensor
    weights: PairWeights  # `[..., C, B, L]`

    @classmethod
    def of(cls, position: Tensor, weights: PairWeights) -> "_Blocks":
        """Sorted items in blocks."""
        missing = -position.shape[-1] % _BLOCK
        last = position[..., -1:].expand(*position.shape[:-1], missing)
        blocks = torch.cat([position, last], -1).unflatten(-1, (-1, _BLOCK))
        padded = (F.pad(each, (0, missing)).unflatten(-1, (-1, _BLOCK)) for each in weights)
        return cls(blocks, PairWeights(*padded))

    def slopes_of(self, step: Relaxation) -> "tuple[_Running, _Running]":
        """Running sums of the step's derivative, for pairs that are won and for those lost."""
        polynomial = _slope_terms(step.q, self.weights)
        won = self.running(step.q, 1.0, polynomial)
        return won, won if step.q == 1 else self.running(step.q, step.q, polynomial)

    def summed(self, won: "_Running", lost: "_Running", step: Relaxation, of_low: float) -> Tensor:
        """What every item gets from its pairs; `of_low` is the sign of c_j in the differences."""
        loss, win, low = (each.double() for each in self.weights)
        far = loss * won.from_below(low) + win * lost.from_above(low)
        far += of_low * low * (won.from_above(loss) + lost.from_below(win))
        near = self.near_slopes(step._replace(slope=1.0), of_low)
        return (near + far.sum(-3).to(near.dtype)).flatten(-2)

    def running(self, q: float, power: float, polynomial: list[float]) -> "_Running":
        """Running sums of x^power times a polynomial of x."""
        flat = self.position.flatten(-2)
        gaps = flat.diff(dim=-1, prepend=flat[..., :1])
        bounded = gaps.clamp_(min=-_FAR / (q or 1.0)).cumsum(-1).view_as(self.position)
        coefficients = bounded.new_tensor(polynomial)
        rates = power + torch.arange(len(polynomial), dtype=bounded.dtype, device=bounded.device)
        return _Running(
            top=bounded[..., :1] * rates,
            bottom=bounded[..., -1:] * rates,
            to_top=((bounded - bounded[..., :1]).unsqueeze(-1) * rates).exp_(),
            to_bottom=((bounded[..., -1:] - bounded).unsqueeze(-1) * rates).exp_(),
            coefficients=coefficients,
        )

    def distances_from_above(self, sources: Tensor) -> Tensor:
        """The sources in all blocks above an item's own, times their distances from the item."""
        position = self.position.unsqueeze(-3)
        number = _exclusive(sources.sum(-1, keepdim=True).cumsum(-2), -2, 0.0)
        moment = _exclusive((sources * position).sum(-1, keepdim=True).cumsum(-2), -2, 0.0)
        return moment - number * position

    def near_slopes(self, step: Relaxation, of_low: float) -> Tensor:
        """The derivative by every c of the sum over the pairs within blocks, `[..., B, L]`."""
        parts = []
        for comparisons, weight in self._near():
            slope = step.weighted_slope(comparisons, weight)
            parts.append(slope.sum(-1) + of_low * slope.sum(-2))
        return torch.cat(parts).view(self.position.shape)

    def near_change(self, step: Relaxation) -> Tensor:
        """The sum of w (h(c) - b) over the pairs within blocks, `[...]`."""
        parts = []
        for comparisons, weight in self._near():
            bits = (comparisons > 0).to(weight.dtype)
            parts.append((weight * (step.soft(comparisons) - bits)).sum((-1, -2)))
        return torch.cat(parts).view(self.position.shape[:-1]).sum(-1)

    def _near(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Comparisons and weights `[rows, L, L]` of the pairs of some blocks at a time."""
        weights = (each.transpose(-3, -2).flatten(0, -3) for each in self.weights)
        rows = _HELD // _BLOCK**2
        parts = (each.split(rows) for each in (self.position.flatten(0, -2), *weights))
        for c, loss, win, low in zip(*parts, strict=True):
            comparisons = (c.unsqueeze(-1) - c.unsqueeze(-2)).to(low.dtype)
            yield comparisons, torch.where(comparisons > 0, loss.mT @ low, win.mT @ low)


class _Running(NamedTuple):
    """Exponentials of the distances to the edges of blocks, at K rates."""

    top: Tensor  # `[..., B, K]`, rate times c
    bottom: Tensor
    to_top: Tensor  # `[..., B, L, K]`, exp(-rate * distance)
    to_bottom: Tensor
    coefficients: Tensor  # `[K]`

    def from_above(self, sources: Tensor) -> Tensor:
        """What items get from the sources of all blocks above their own, both `[..., C, B, L]`."""
        leaving = (sources.transpose(-3, -2) @ self.to_bottom).log() - self.bottom.unsqueeze(-2)
        entering = _exclusive(leaving.logcumsumexp(-3), -3, -torch.inf) + self.top.unsqueeze(-2)
        return ((entering.exp() * self.coefficients) @ self.to_top.mT).transpose(-3, -2)

    def from_below(self, sources: Tensor) -> Tensor:
        """The same for the blocks below."""
        leaving = (sources.transpose(-3, -2) @ self.to_top).log() + self.top.unsqueeze(-2)
        carried = leaving.flip(-3).logcumsumexp(-3)
        entering = _exclusive(carried, -3, -torch.inf).flip(-3) - self.bottom.unsqueeze(-2)
        return ((entering.exp() * self.coefficients) @ self.to_bottom.mT).transpose(-3, -2)


def _exclusive(running: Tensor, dim: int, first: float) -> Tensor:
    """Running sums without the last addend: moved on by one place, with `first` in front."""
    start = torch.full_like(running.narrow(dim, 0, 1), first)
    return torch.cat([start, running.narrow(dim, 0, running.shape[dim] - 1)], dim)


class _Hinge(NamedTuple):
    """The pairs with c < 1 of items in order: the others have no slope in the squared hinge."""

    position: Tensor  # c, `[..., 1, N]`, from its mean, as sums of large numbers lose digits
    place: Tensor  # `[..., 1, N]`
    last: Tensor  # where the items end that are less than 1 below, exclusive
    first: Tensor  # where the items begin that are less than 1 above

    @classmethod
    def of(cls, position: Tensor) -> "_Hinge":
        """Sorted positions `[..., N]`, and how far the pairs of each item reach."""
        position = (position - position.mean(-1, keepdim=True)).unsqueeze(-2)
        rising = -position
        place = torch.arange(position.shape[-1], device=position.device).expand_as(position)
        last = torch.searchsorted(rising, rising + 1, right=False)
        first = torch.searchsorted(rising, rising - 1, right=True)
        return cls(position, place, torch.maximum(last, place + 1), torch.minimum(first, place))

    def moments(self, sources: Tensor, start: Tensor, end: Tensor, number: int) -> list[Tensor]:
        """Sums of source * c^m over the places from start to end, for m below `number`."""
        found = []
        for power in range(number):
            running = F.pad((sources * self.position**power).cumsum(-1), (1, 0))
            ends = running.gather(-1, end.expand_as(sources))
            found.append(ends - running.gather(-1, start.expand_as(sources)))
        return found


def _hinge_slopes(position: Tensor, weights: PairWeights) -> Tensor:
    """`sorted_slopes` with h'(c) = 2 max(1 - c, 0)."""
    pairs = _Hinge.of(position)
    c, place, last, first = pairs
    start = torch.zeros_like(place)
    end = torch.full_like(place, place.shape[-1])
    loss, win, low = (each.double() for each in weights)
    slope = torch.zeros_like(c)
    for weight, ends in ((loss, (place + 1, last)), (win, (start, place))):
        number, sums = pairs.moments(low, *ends, 2)
        slope = slope + weight * ((1 - c) * number + sums)
    for weight, ends in ((loss, (first, place)), (win, (place + 1, end))):
        number, sums = pairs.moments(weight, *ends, 2)
        slope = slope - low * ((1 + c) * number - sums)
    return 2 * slope.sum(-2).to(weights.low.dtype)


def _hinge_change(position: Tensor, weights: PairWeights) -> Tensor:
    """`sorted_change` with h(c) = 1 - max(1 - c, 0)^2."""
    pairs = _Hinge.of(position)
    c, place, last, _ = pairs
    loss, win, low = (each.double() for each in weights)
    below, below_sums, below_squares = pairs.moments(low, place + 1, last, 3)
    above, above_sums, above_squares = pairs.moments(low, torch.zeros_like(place), place, 3)
    won = (1 - c) ** 2 * below + 2 * (1 - c) * below_sums + below_squares
    lost = (1 - c) ** 2 * above + 2 * (1 - c) * above_sums + above_squares
    return (win * (above - lost) - loss * won).sum((-1, -2)).to(weights.low.dtype)
