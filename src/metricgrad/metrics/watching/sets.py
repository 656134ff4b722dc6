"""A user's own function on sets of scores, whether it is watched or a black box.

Which comparisons a function makes is found by running it on a set, so every set of a batch is
looked at separately: a `ComparedSet` holds the comparisons of one set and gives the function's
value for other bits. `OwnSets` is the re-expression of a batch, with its sets side by side.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from metricgrad import ops
from metricgrad.metrics.reexpression import Reexpression
from metricgrad.metrics.watching.comparisons import Comparisons, Origin

if TYPE_CHECKING:
    from metricgrad.metrics.watching.metric import OwnMetric

_MAX_ELEMENTS = 1 << 22  # of a function's tensors in all flips that one step tries


class ComparedSet(ABC):
    """One set of a user's function, with the comparisons that decide it.

    Attributes:
        value: 0-dim, what the function returned.
        values: `[D]`, comparisons, differentiable if the scores are.
        bits: `[D]`, their outcomes.
        live: `[D]`, False for comparisons with something infinite.
        largest: The number of elements of the largest tensor that a configuration takes.
    """

    def __init__(
        self, value: Tensor, comparisons: list[Comparisons], scores: Tensor, largest: int = 1
    ) -> None:
        self.value = value
        self.comparisons = comparisons
        none = scores.reshape(-1)[:0]  # attached to the scores even if nothing is compared
        values = torch.cat([none, *(each.values for each in comparisons)])
        self.values = values if scores.requires_grad else values.detach()
        self.bits = torch.cat([none.bool(), *(each.bits for each in comparisons)])
        self.live = torch.cat([none.bool(), *(each.live for each in comparisons)])
        self.largest = largest

    @abstractmethod
    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` flipped in each: the bit at `which`, `[A]`."""
        flipped = bits.repeat(len(which), 1)
        flipped[torch.arange(len(which), device=bits.device), which] ^= True
        return self.of_bits(flipped)

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each of the bits `[D]` one whose flip changes the value in the same way."""
        return torch.arange(len(bits), device=bits.device)

    def direct(self) -> Tensor | None:
        """The value at these bits, smooth in the scores; None where only bits decide it."""
        return None

    def flip_gains(self, bits: Tensor, most: int, generator: torch.Generator | None) -> Tensor:
        """What each bit adds to the value, `[D]`; an estimate if more than `most` are to be tried.

        The flips to try are then drawn at random and weighted, so that the mean over draws is the
        exact gain. Fewer flips are tried if the function makes large tensors.
        """
        same = self.representatives(bits)
        most = min(most, max(1, _MAX_ELEMENTS // max(1, self.largest)))
        tried = same[self.live].unique()
        share = 1.0
        if len(tried) > most:
            share = most / len(tried)
            order = torch.randperm(len(tried), generator=generator, device=tried.device)
            tried = tried[order[:most]]
        base = self.of_bits(bits.unsqueeze(0))
        gains = torch.zeros(len(bits), dtype=base.dtype, device=bits.device)
        if len(tried):
            change = self.of_flips(bits, tried) - base
            gains[tried] = torch.where(bits[tried], -change, change) / share
        return torch.where(self.live, gains[same].nan_to_num(0.0, 0.0, 0.0), 0.0)


class SetSummary(NamedTuple):
    """What `explain` tells of a set: where how many comparisons are made, their bits, the value."""

    origins: list[tuple[Origin, int]]
    bits: Tensor
    value: float


class OwnSets(Reexpression):
    """The sets of a batch, side by side, padded to the one with the most comparisons."""

    def __init__(
        self,
        metric: "OwnMetric",
        shape: tuple[int, ...],
        target: Tensor,
        where: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self._metric = metric
        self._shape = shape
        self._target = target
        self._where = where
        self._dtype = dtype
        self._lead = shape[: metric.set_dimensions(torch.empty(shape, device="meta"), target)]
        self._sets: list[ComparedSet] = []
        self._tried: list[Tensor] | None = None

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the function makes; it runs once on every set."""
        self._sets = [self._metric.look(*each) for each in self._each(scores)]
        self._tried = None
        self._metric.last[:] = [
            SetSummary(
                [(found.origin, len(found.values)) for found in each.comparisons],
                each.bits,
                float(each.value),
            )
            for each in self._sets
        ]
        if not self._sets:
            nothing = scores.reshape(-1)[:0].reshape(*self._lead, 0)
            return nothing, nothing.bool()
        values = self._padded([each.values for each in self._sets])
        return values, self._padded([each.live for each in self._sets])

    def bits(self) -> Tensor:
        """The outcomes of the comparisons, `[..., D]`."""
        self._look()
        return self._padded([each.bits for each in self._sets])

    def from_bits(self, bits: Tensor) -> Tensor:
        """The function's values of every configuration; 0 where it has none."""
        self._look()
        if not self._sets:
            return torch.zeros(bits.shape[:-1], dtype=self._dtype, device=bits.device)
        rows = self._rows(bits)
        values = [each.of_bits(rows[:, at, : len(each.bits)]) for at, each in enumerate(self._sets)]
        stacked = torch.stack(values, -1).reshape(bits.shape[:-1])
        return stacked.nan_to_num(0.0, 0.0, 0.0).to(self._dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """By trying flips; if there are more than the metric's `flips`, some drawn at random."""
        self._look()
        rows = self._rows(bits)
        gains = torch.zeros(rows.shape, dtype=self._dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            size = len(each.bits)
            for row in range(len(rows)):
                gains[row, at, :size] = each.flip_gains(
                    rows[row, at, :size], self._metric.flips, self._metric.generator
                )
        return gains.reshape(bits.shape)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of noisy scores; a set that compares others keeps its bits."""
        drawn = [self.bits().unsqueeze(0)[:0]]
        current = [each.bits for each in self._sets]
        for noisy in ops.add_gumbel_noise(scores.detach(), slope, number, generator):
            found = [self._metric.look(*each).bits for each in self._each(noisy)]
            pairs = zip(current, found, strict=True)
            kept = [some if some.shape == own.shape else own for own, some in pairs]
            drawn.append(self._padded(kept).unsqueeze(0))
        return torch.cat(drawn)

    def defined(self) -> Tensor:
        """Sets for which the function returns a finite number."""
        self._look()
        return self._stack([each.value.isfinite() for each in self._sets]).bool()

    def direct(self) -> Tensor | None:
        """The part of the value that is smooth in the scores, `[...]`; None if there is none."""
        found = [each.direct() for each in self._sets]
        if all(each is None for each in found):
            return None
        pairs = zip(self._sets, found, strict=True)
        parts = [each.value if part is None else part for each, part in pairs]
        return self._stack(parts).nan_to_num(0.0, 0.0, 0.0)

    def best_bits(self, bits: Tensor) -> Tensor:
        """The best of the configurations that `_configurations` tries, in the shape of the bits."""
        self._look()
        best = bits.clone().reshape(len(self._sets), bits.shape[-1])
        for at, (each, tried) in enumerate(zip(self._sets, self._configurations(), strict=True)):
            values = each.of_bits(tried)
            values = values if self._metric.higher_is_better else -values
            chosen = values.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax()
            best[at, : len(each.bits)] = tried[chosen]
        return best.reshape(bits.shape)

    def scale(self) -> Tensor | None:
        """The range of an unbounded metric on each set, `[...]`; None for a bounded metric.

        A profit in dollars and in cents should train alike, so the gradient of an unbounded metric
        is divided by this: the highest minus the lowest finite value among the configurations that
        `_configurations` tries, or 1 where these are all equal. It is a constant with respect to
        the scores, and the same however often it is asked for.
        """
        if math.isfinite(self._metric.best):
            return None
        ranges = []
        for each, tried in zip(self._sets, self._configurations(), strict=True):
            values = each.of_bits(tried)
            values = values[values.isfinite()]
            ranges.append(values.max() - values.min() if len(values) else torch.zeros(()))
        stacked = self._stack(ranges).to(self._dtype)
        return torch.where(stacked > 0, stacked, 1.0)

    def _configurations(self) -> list[Tensor]:
        """Configurations `[A, D]` of each set that may be good or bad.

        They are the current bits and their opposite, and the bits of scores made from the target
        and of minus these. Looking at a set may change what is known of the function, so they are
        found only once.
        """
        if self._tried is not None:
            return self._tried
        self._tried = []
        for each, (scores, target) in zip(self._sets, self._each(self._random()), strict=True):
            ideal = _ideal_scores(scores, target)
            made = [] if ideal is None else [ideal, -ideal]
            found = [self._metric.look(some, target).bits for some in made]
            found = [bits for bits in found if bits.shape == each.bits.shape]
            self._tried.append(torch.stack([each.bits, ~each.bits, *found]))
        return self._tried

    def _look(self) -> None:
        """Runs the function on random scores if there were none so far."""
        if not self._sets:
            self.comparisons(self._random())

    def _random(self) -> Tensor:
        source = torch.Generator().manual_seed(0)
        scores = torch.randn(self._shape, generator=source, dtype=self._dtype)
        return scores.to(self._target.device)

    def _each(self, scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scores and target of every set, without the items that do not count."""
        lead = len(self._lead)
        sets = math.prod(self._lead)
        flat = scores.reshape(sets, *scores.shape[lead:])
        target = self._target.reshape(sets, *self._target.shape[lead:])
        if self._where is None:
            return list(zip(flat.unbind(0), target.unbind(0), strict=True))
        flags = self._where.reshape(sets, -1)
        return [(flat[at][counts], target[at][counts]) for at, counts in enumerate(flags)]

    def _rows(self, bits: Tensor) -> Tensor:
        """Bits `[A, sets, D]`, whatever their leading dimensions."""
        ahead = bits.shape[: bits.dim() - 1 - len(self._lead)].numel()
        return bits.reshape(ahead, len(self._sets), bits.shape[-1])

    def _padded(self, rows: list[Tensor]) -> Tensor:
        """Rows of different lengths as one tensor `[..., D]`."""
        longest = max((len(row) for row in rows), default=0)
        return self._stack([pad(row, (0, longest - len(row))) for row in rows])

    def _stack(self, values: list[Tensor]) -> Tensor:
        """One tensor of all sets, with the leading dimensions of the batch."""
        if not values:
            return torch.zeros(self._lead, dtype=self._dtype, device=self._target.device)
        stacked = torch.stack(values)
        return stacked.reshape((*self._lead, *stacked.shape[1:]))


def _ideal_scores(scores: Tensor, target: Tensor) -> Tensor | None:
    """Scores that say what the target says; None where the shapes do not tell how."""
    if not target.numel():
        return None
    if target.shape == scores.shape:
        middle = (target.double().amin() + target.double().amax()) / 2
        return (2 * (target.double() - middle)).to(scores.dtype)
    if target.shape == scores.shape[:-1] and not target.is_floating_point():
        inside = (target >= 0) & (target < scores.shape[-1])
        ideal = 2.0 * one_hot(torch.where(inside, target, 0), scores.shape[-1]) - 1
        return ideal.to(scores.dtype)
    return None
