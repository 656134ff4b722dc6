"""A user's own function as a metric that comparisons decide: what watched functions and black boxes have in common.

What a function compares is found by running it on a set, so each set of a batch is looked at on its
own: a `DecidedSet` holds its comparisons, and gives its value for other bits. `DecidedSets` puts
the sets of a batch side by side.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import to_tensor
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.metrics.watching.interception import Decision, Origin

_ENTRIES = 1 << 22  # of the tensors of a function that flips of bits may take in a step
_SHOWN_BITS = 64


class DecidedSet(ABC):
    """One set of a user's function.

    Args:
        value: 0-dim, what the function gave.
        decisions: its comparisons.
        scores: the set's.

    Attributes:
        values: `[D]`, comparisons, differentiable if the scores are.
        bits: `[D]`, how they turned out.
        live: `[D]`, False for comparisons with something infinite.
        largest: entries of the largest tensor that a configuration takes.
    """

    def __init__(
        self, value: Tensor, decisions: list[Decision], scores: Tensor, largest: int = 1
    ) -> None:
        self.value, self.decisions = value, decisions
        none = scores.reshape(-1)[:0]  # attached to the scores, should there be no comparisons
        self.values = torch.cat([none, *(each.values for each in decisions)])
        self.values = self.values if scores.requires_grad else self.values.detach()
        self.bits = torch.cat([none.bool(), *(each.bits for each in decisions)])
        self.live = torch.cat([none.bool(), *(each.live for each in decisions)])
        self.largest = largest

    @abstractmethod
    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` turned in each: the bit at `which`, `[A]`."""
        flipped = bits.repeat(len(which), 1)
        flipped[torch.arange(len(which), device=bits.device), which] ^= True
        return self.of_bits(flipped)

    def representatives(self, bits: Tensor) -> Tensor:
        """For each of the bits `[D]`, one whose flip does the same to the value: `[D]`."""
        return torch.arange(len(bits), device=bits.device)

    def direct(self) -> Tensor | None:
        """The value at these bits as a smooth function of the scores; None where only bits decide."""
        return None

    def flip_gains(self, bits: Tensor, most: int, generator: torch.Generator | None) -> Tensor:
        """What each bit adds to the value, `[D]`, at the bits `[D]`; with more than `most` to try, an estimate.

        The flips to try are then drawn at random and count for more, so that the mean over draws is
        the exact gain. A function of large tensors has fewer of them tried.
        """
        same = self.representatives(bits)
        most = min(most, max(1, _ENTRIES // max(1, self.largest)))
        tried, share = same[self.live].unique(), 1.0
        if len(tried) > most:
            share = most / len(tried)
            tried = tried[
                torch.randperm(len(tried), generator=generator, device=tried.device)[:most]
            ]
        base = self.of_bits(bits.unsqueeze(0))
        gains = torch.zeros(len(bits), dtype=base.dtype, device=bits.device)
        if len(tried):
            change = self.of_flips(bits, tried) - base
            gains[tried] = torch.where(bits[tried], -change, change) / share
        return torch.where(self.live, gains[same].nan_to_num(0.0, 0.0, 0.0), 0.0)


class Found(NamedTuple):
    """What was found in a set: where and how many comparisons, their bits, the value; to be told, and no graph."""

    decisions: list[tuple[Origin, int]]
    bits: Tensor
    value: float


@dataclass(frozen=True, kw_only=True)
class DecidedMetric(FunctionMetric, ComparisonMetric):
    """A user's function, re-expressed by looking at it run; `reexpress` makes it and describes the fields."""

    flips: int
    generator: torch.Generator | None
    last: "list[Found]" = field(default_factory=list, init=False, repr=False, compare=False)

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """A function is taken to be defined wherever there is anything: to ask it costs a run."""
        return otherwise

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores, as floats; one flag per item."""
        return super().check(scores.to(ops.float_dtype(scores)), target, where)

    @abstractmethod
    def look(self, scores: Tensor, target: Tensor) -> DecidedSet:
        """The function, run on one set."""

    @abstractmethod
    def manner(self) -> str:
        """How values of other bits are found, in words."""

    @property
    @abstractmethod
    def runs(self) -> int:
        """How often the function has run: many configurations at once count as one."""

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """The re-expression for a target: nothing is looked at before it sees scores."""
        return DecidedSets(self, tuple(shape), target, where, dtype)

    def ideal_bits(
        self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """The best configuration that is known: that of scores made from the target."""
        plan = self._plan(target, where, shape)
        assert isinstance(plan, DecidedSets)
        return plan.best_bits(plan.bits())

    def explain(self, scores: Any = None, target: Any = None) -> str:
        """What the function compares, line by line.

        Args:
            scores: sets, of which the first is explained; without them, the set that was looked at
                last.
            target: their target.

        Returns:
            A table: line, operation, comparisons; then how values of other bits are found, and a
            small set's bits.
        """
        if scores is not None:
            inputs = self.check(to_tensor("scores", scores), to_tensor("target", target), None)
            plan = DecidedSets(
                self, tuple(inputs.scores.shape), inputs.target, None, inputs.scores.dtype
            )
            plan.comparisons(inputs.scores)
            plan.from_bits(~plan.bits().unsqueeze(0))  # to see how that is done
        if not self.last:
            raise ValueError(
                f"{self.name} has not been run on a set yet; pass one: explain(scores, target)"
            )
        decisions, bits, value = self.last[0]
        rows = [("where", "operation", "comparisons", "code")]
        for where, number in decisions:
            rows.append(
                (
                    f"line {where.line}" if where.line else "outside",
                    where.operation,
                    str(number),
                    where.code,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{where:<{widths[0]}}  {operation:<{widths[1]}}  {number:>{widths[2]}}  {code}"[
                :118
            ].rstrip()
            for where, operation, number, code in rows
        ]
        lines.append(f"{self.name} = {value:.6g} from {len(bits)} comparisons; {self.manner()}")
        return "\n".join(
            lines
            + (
                ["bits " + "".join(map(str, bits.int().tolist()))]
                if len(bits) <= _SHOWN_BITS
                else []
            )
        )


class DecidedSets(Reexpression):
    """The sets of a batch, side by side, padded to the one with most comparisons.

    Args:
        metric: the metric.
        shape: of the scores.
        target: checked.
        where: items that count.
        dtype: of the scores.
    """

    def __init__(
        self,
        metric: DecidedMetric,
        shape: tuple[int, ...],
        target: Tensor,
        where: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self._metric, self._shape, self._target, self._where, self._dtype = (
            metric,
            shape,
            target,
            where,
            dtype,
        )
        self._sets: list[DecidedSet] = []
        self._lead = shape[: metric.set_dimensions(torch.empty(shape, device="meta"), target)]

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the function makes."""
        self._sets = [self._metric.look(*each) for each in self._each(scores)]
        self._metric.last[:] = [
            Found(
                [(found.origin, len(found.values)) for found in each.decisions],
                each.bits,
                float(each.value),
            )
            for each in self._sets
        ]
        if not self._sets:
            nothing = scores.reshape(-1)[:0].reshape(*self._lead, 0)
            return nothing, nothing.bool()
        return self._padded([each.values for each in self._sets]), self._padded(
            [each.live for each in self._sets]
        )

    def bits(self) -> Tensor:
        """How the comparisons turned out, `[..., D]`."""
        self._look()
        return self._padded([each.bits for each in self._sets])

    def from_bits(self, bits: Tensor) -> Tensor:
        """The function's values of every configuration."""
        self._look()
        if not self._sets:
            return torch.zeros(bits.shape[:-1], dtype=self._dtype, device=bits.device)
        rows = self._rows(bits)
        values = [each.of_bits(rows[:, at, : len(each.bits)]) for at, each in enumerate(self._sets)]
        return (
            torch.stack(values, -1)
            .reshape(bits.shape[:-1])
            .nan_to_num(0.0, 0.0, 0.0)
            .to(self._dtype)
        )

    def flip_gains(self, bits: Tensor) -> Tensor:
        """By trying flips; of more than the metric's `flips`, so many are drawn at random."""
        self._look()
        rows = self._rows(bits)
        gains = torch.zeros(rows.shape, dtype=self._dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            for row in range(len(rows)):
                found = each.flip_gains(
                    rows[row, at, : len(each.bits)], self._metric.flips, self._metric.generator
                )
                gains[row, at, : len(each.bits)] = found
        return gains.reshape(bits.shape)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of scores with noise; the current ones where such scores are compared otherwise."""
        recorded, bits = self._sets, self.bits()
        drawn = []
        for noisy in ops.add_gumbel_noise(scores.detach(), slope, number, generator):
            found = [self._metric.look(*each).bits for each in self._each(noisy)]
            pairs = zip(recorded, found, strict=True)
            drawn.append(
                self._padded(
                    [some if some.shape == own.bits.shape else own.bits for own, some in pairs]
                )
            )
        return torch.stack(drawn) if drawn else bits.unsqueeze(0)[:0]

    def defined(self) -> Tensor:
        """Sets of which the function gives a number."""
        self._look()
        return self._stack([each.value.isfinite() for each in self._sets]).bool()

    def direct(self) -> Tensor | None:
        """What the value owes to scores directly, not through bits: `[...]`, differentiable; None if nothing."""
        found = [each.direct() for each in self._sets]
        if all(each is None for each in found):
            return None
        parts = zip(self._sets, found, strict=True)
        return self._stack(
            [each.value if part is None else part for each, part in parts]
        ).nan_to_num(0.0, 0.0, 0.0)

    def best_bits(self, bits: Tensor) -> Tensor:
        """The best of the current bits and those of scores made from the target, either way around."""
        self._look()
        best = bits.clone().reshape(len(self._sets), bits.shape[-1])
        for at, (each, candidates) in enumerate(zip(self._sets, self._candidates(), strict=True)):
            values = each.of_bits(candidates)
            values = values if self._metric.higher_is_better else -values
            chosen = values.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax()
            best[at, : len(each.bits)] = candidates[chosen]
        return best.reshape(bits.shape)

    def scale(self) -> Tensor | None:
        """The range of an unbounded metric on each set, `[...]`; None for a bounded one."""
        if math.isfinite(self._metric.best):
            return None
        spans = []
        for each, candidates in zip(self._sets, self._candidates(), strict=True):
            values = each.of_bits(candidates)
            values = values[values.isfinite()]
            spans.append(values.max() - values.min() if len(values) else torch.zeros(()))
        range_of_each = self._stack(spans).to(self._dtype)
        return torch.where(range_of_each > 0, range_of_each, 1.0)

    def _candidates(self) -> list[Tensor]:
        """Configurations `[A, D]` of each set: the current one, its reverse, that of ideal scores and its opposite."""
        found = []
        for each, (scores, target) in zip(self._sets, self._each(self._random()), strict=True):
            wished = _ideal_scores(scores, target)
            tried = (
                []
                if wished is None
                else [self._metric.look(some, target).bits for some in (wished, -wished)]
            )
            tried = [bits for bits in tried if bits.shape == each.bits.shape]
            found.append(torch.stack([each.bits, ~each.bits, *tried]))
        return found

    def _look(self) -> None:
        """Without scores so far, random ones show what is compared."""
        if not self._sets:
            self.comparisons(self._random())

    def _random(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self._shape, generator=generator, dtype=self._dtype).to(
            self._target.device
        )

    def _each(self, scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scores and target of every set, without what does not count."""
        lead = len(self._lead)
        sets = math.prod(self._lead)
        flat = (
            scores.reshape(sets, *scores.shape[lead:]),
            self._target.reshape(sets, *self._target.shape[lead:]),
        )
        if self._where is None:
            return list(zip(*(each.unbind(0) for each in flat), strict=True))
        flags = self._where.reshape(len(flat[0]), -1)
        return [(one[some], truth[some]) for one, truth, some in zip(*flat, flags, strict=True)]

    def _rows(self, bits: Tensor) -> Tensor:
        """Bits `[A, sets, D]`, whatever their leading dimensions."""
        ahead = bits.shape[: bits.dim() - 1 - len(self._lead)].numel()
        return bits.reshape(ahead, len(self._sets), bits.shape[-1])

    def _padded(self, rows: list[Tensor]) -> Tensor:
        longest = max((len(row) for row in rows), default=0)
        return self._stack([pad(row, (0, longest - len(row))) for row in rows])

    def _stack(self, values: list[Tensor]) -> Tensor:
        if not values:
            return torch.zeros(self._lead, dtype=self._dtype, device=self._target.device)
        stacked = torch.stack(values)
        return stacked.reshape((*self._lead, *stacked.shape[1:]))


def _ideal_scores(scores: Tensor, target: Tensor) -> Tensor | None:
    """Scores that say what the target says; None where shapes do not tell how."""
    if target.shape == scores.shape and target.numel():
        middle = (target.double().amin() + target.double().amax()) / 2
        return (2 * (target.double() - middle)).to(scores.dtype)
    if target.shape == scores.shape[:-1] and not target.is_floating_point() and target.numel():
        inside = (target >= 0) & (target < scores.shape[-1])
        return (2.0 * one_hot(torch.where(inside, target, 0), scores.shape[-1]) - 1).to(
            scores.dtype
        )
    return None
