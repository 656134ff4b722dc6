"""A user's own function as a metric that comparisons decide: what watched functions and black boxes have in common.

What a function compares is found by running it on a set, so each set of a batch is looked at on its own: a `DecidedSet`
holds its comparisons, and gives its value for other bits. `DecidedSets` puts the sets of a batch side by side.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from metricgrad import ops
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.metrics.watch import Decision

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

    def __init__(self, value: Tensor, decisions: list[Decision], scores: Tensor, largest: int = 1) -> None:
        self.value, self.decisions = value, decisions
        none = scores.new_zeros(0)
        self.values = torch.cat([none, *(each.values for each in decisions)])
        self.values = self.values if scores.requires_grad else self.values.detach()
        self.bits = torch.cat([none.bool(), *(each.bits for each in decisions)])
        self.live = torch.cat([none.bool(), *(each.live for each in decisions)])
        self.largest = max(largest, len(self.bits))

    @abstractmethod
    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""

    def representatives(self, bits: Tensor) -> Tensor:
        """For each of the bits `[D]`, one whose flip does the same to the value: `[D]`."""
        return torch.arange(len(bits), device=bits.device)

    def direct(self) -> Tensor | None:
        """The value at these bits as a smooth function of the scores; None where only bits decide."""
        return None

    def flip_gains(self, bits: Tensor, most: int, generator: torch.Generator | None) -> Tensor:
        """What each bit adds to the value, `[D]`, at the bits `[D]`; with more than `most` to try, an estimate.

        The flips to try are then drawn at random and count for more, so that the mean over draws is the exact gain. A
        function of large tensors has fewer of them tried.
        """
        same = self.representatives(bits)
        most = min(most, max(1, _ENTRIES // max(1, self.largest)))
        tried, share = same[self.live].unique(), 1.0
        if len(tried) > most:
            share = most / len(tried)
            tried = tried[torch.randperm(len(tried), generator=generator, device=tried.device)[:most]]
        base = self.of_bits(bits.unsqueeze(0))
        gains = torch.zeros(len(bits), dtype=base.dtype, device=bits.device)
        flipped = bits.repeat(len(tried), 1)
        flipped[torch.arange(len(tried), device=bits.device), tried] ^= True
        change = self.of_bits(flipped) - base
        gains[tried] = torch.where(bits[tried], -change, change) / share
        return torch.where(self.live, gains[same].nan_to_num(0.0, 0.0, 0.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class DecidedMetric(FunctionMetric, ComparisonMetric):
    """A user's function, re-expressed by looking at it run; `reexpress` makes it and describes the fields."""

    flips: int
    generator: torch.Generator | None
    last: list[DecidedSet] = field(default_factory=list, init=False, repr=False, compare=False)

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

    def reexpress(self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype) -> Reexpression:
        """The re-expression for a target: nothing is looked at before it sees scores."""
        return DecidedSets(self, tuple(shape), target, where, dtype)

    def ideal_bits(self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None) -> Tensor:
        """The best configuration that is known: that of scores made from the target."""
        plan = self._plan(target, where, shape)
        assert isinstance(plan, DecidedSets)
        return plan.best_bits(plan.bits())

    def explain(self, scores: Any = None, target: Any = None) -> str:
        """What the function compares, line by line.

        Args:
            scores: sets, of which the first is explained; without them, the set that was looked at last.
            target: their target.

        Returns:
            A table: line, operation, comparisons; then how values of other bits are found, and a small set's bits.
        """
        if scores is not None:
            self.comparisons(scores, target)
        if not self.last:
            raise ValueError(f"{self.name} has not been run on a set yet; pass one: explain(scores, target)")
        rows = [("where", "operation", "comparisons", "code")]
        for where, values, _, _ in self.last[0].decisions:
            rows.append(
                (f"line {where.line}" if where.line else "outside", where.operation, str(len(values)), where.code)
            )
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{where:<{widths[0]}}  {operation:<{widths[1]}}  {number:>{widths[2]}}  {code}"[:118].rstrip()
            for where, operation, number, code in rows
        ]
        bits, value = self.last[0].bits, float(self.last[0].value)
        lines.append(f"{self.name} = {value:.6g} from {len(bits)} comparisons; {self.manner()}")
        return "\n".join(
            lines + (["bits " + "".join(map(str, bits.int().tolist()))] if len(bits) <= _SHOWN_BITS else [])
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
        self, metric: DecidedMetric, shape: tuple[int, ...], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> None:
        self._metric, self._shape, self._target, self._where, self._dtype = metric, shape, target, where, dtype
        self._sets: list[DecidedSet] = []
        self._lead = shape[: metric.set_dimensions(torch.empty(shape, device="meta"), target)]

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the function makes."""
        self._sets = [self._metric.look(*each) for each in self._each(scores)]
        self._metric.last[:] = self._sets
        if not self._sets:
            return scores.new_zeros(*self._lead, 0), scores.new_zeros(*self._lead, 0).bool()
        return self._padded([each.values for each in self._sets]), self._padded([each.live for each in self._sets])

    def bits(self) -> Tensor:
        """How the comparisons turned out, `[..., D]`."""
        self._look()
        return self._padded([each.bits for each in self._sets])

    def from_bits(self, bits: Tensor) -> Tensor:
        """The function's values of every configuration."""
        self._look()
        rows = bits.reshape(-1, len(self._sets), bits.shape[-1])
        values = [each.of_bits(rows[:, at, : len(each.bits)]).nan_to_num(0.0) for at, each in enumerate(self._sets)]
        return torch.stack(values, -1).reshape(bits.shape[:-1]).to(self._dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """By trying flips; of more than the metric's `flips`, so many are drawn at random."""
        self._look()
        rows = bits.reshape(-1, len(self._sets), bits.shape[-1])
        gains = torch.zeros(rows.shape, dtype=self._dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            for row in range(len(rows)):
                found = each.flip_gains(rows[row, at, : len(each.bits)], self._metric.flips, self._metric.generator)
                gains[row, at, : len(each.bits)] = found
        return gains.reshape(bits.shape)

    def draw(self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None) -> Tensor:
        """Bits `[number, ..., D]` of scores with noise; the current ones where such scores are compared otherwise."""
        recorded, bits = self._sets, self.bits()
        drawn = []
        for noisy in ops.add_gumbel_noise(scores.detach(), slope, number, generator):
            found = [self._metric.look(*each).bits for each in self._each(noisy)]
            pairs = zip(recorded, found, strict=True)
            drawn.append(self._padded([some if some.shape == own.bits.shape else own.bits for own, some in pairs]))
        return torch.stack(drawn) if drawn else bits.unsqueeze(0)[:0]

    def defined(self) -> Tensor:
        """Sets of which the function gives a number."""
        self._look()
        return self._stack([~each.value.isnan() for each in self._sets])

    def direct(self) -> Tensor | None:
        """What the value owes to scores directly, not through bits: `[...]`, differentiable; None if nothing."""
        found = [each.direct() for each in self._sets]
        if all(each is None for each in found):
            return None
        parts = zip(self._sets, found, strict=True)
        return self._stack([each.value if part is None else part for each, part in parts]).nan_to_num(0.0)

    def best_bits(self, bits: Tensor) -> Tensor:
        """The best of the current bits and those of scores made from the target, either way around."""
        self._look()
        best = bits.clone().reshape(len(self._sets), -1)
        for at, (each, candidates) in enumerate(zip(self._sets, self._candidates(), strict=True)):
            values = each.of_bits(candidates)
            chosen = values.argmax() if self._metric.higher_is_better else values.argmin()
            best[at, : len(each.bits)] = candidates[chosen]
        return best.reshape(bits.shape)

    def scale(self) -> Tensor | None:
        """The range of an unbounded metric on each set, `[...]`; None for a bounded one."""
        if math.isfinite(self._metric.best):
            return None
        values = [each.of_bits(candidates) for each, candidates in zip(self._sets, self._candidates(), strict=True)]
        spans = self._stack([each.max() - each.min() for each in values]).to(self._dtype)
        return torch.where(spans > 0, spans, 1.0)

    def _candidates(self) -> list[Tensor]:
        """Configurations `[A, D]` of each set: the current one, that of ideal scores, that of their opposite."""
        found = []
        for each, (scores, target) in zip(self._sets, self._each(self._random()), strict=True):
            wished = _ideal_scores(scores, target)
            tried = [] if wished is None else [self._metric.look(some, target).bits for some in (wished, -wished)]
            found.append(torch.stack([each.bits, *(bits for bits in tried if bits.shape == each.bits.shape)]))
        return found

    def _look(self) -> None:
        """Without scores so far, random ones show what is compared."""
        if not self._sets:
            self.comparisons(self._random())

    def _random(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self._shape, generator=generator, dtype=self._dtype).to(self._target.device)

    def _each(self, scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scores and target of every set, without what does not count."""
        lead = len(self._lead)
        flat = scores.reshape(-1, *scores.shape[lead:]), self._target.reshape(-1, *self._target.shape[lead:])
        if self._where is None:
            return list(zip(*(each.unbind(0) for each in flat), strict=True))
        flags = self._where.reshape(len(flat[0]), -1)
        return [(one[some], truth[some]) for one, truth, some in zip(*flat, flags, strict=True)]

    def _padded(self, rows: list[Tensor]) -> Tensor:
        longest = max((len(row) for row in rows), default=0)
        return self._stack([pad(row, (0, longest - len(row))) for row in rows])

    def _stack(self, values: list[Tensor]) -> Tensor:
        stacked = torch.stack(values)
        return stacked.reshape((*self._lead, *stacked.shape[1:]))


def _ideal_scores(scores: Tensor, target: Tensor) -> Tensor | None:
    """Scores that say what the target says; None where shapes do not tell how."""
    if target.shape == scores.shape and target.numel():
        middle = (target.double().amin() + target.double().amax()) / 2
        return (2 * (target.double() - middle)).to(scores.dtype)
    if target.shape == scores.shape[:-1] and not target.is_floating_point() and target.numel():
        inside = (target >= 0) & (target < scores.shape[-1])
        return (2.0 * one_hot(torch.where(inside, target, 0), scores.shape[-1]) - 1).to(scores.dtype)
    return None
