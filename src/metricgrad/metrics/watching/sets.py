"""A user's own function on sets of scores, whether it is watched or a black box.

Which comparisons a function makes is found by running it on a set, so an `OwnMetric` looks at every
set of a batch separately: a `ComparedSet` holds the comparisons of one set and gives the function's
value for other bits. `OwnSets` is the re-expression of a batch, with its sets side by side.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import to_tensor
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.mistakes import ideal_scores
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.metrics.rows import OneSet
from metricgrad.metrics.watching.comparisons import Comparisons, Origin, flipped

_SHOWN_BITS = 64
_MAX_ELEMENTS = 1 << 22  # of a function's tensors in all flips that one step tries

# What `explain` tells of a set: where how many comparisons are made, their bits, and the value.
_Summary = tuple[list[tuple[Origin, int]], Tensor, float]


class ComparedSet(ABC):
    """One set of a user's function, with the comparisons that decide it."""

    def __init__(
        self, value: Tensor, comparisons: list[Comparisons], scores: Tensor, largest: int = 1
    ) -> None:
        self.value = value  # 0-dim, what the function returned
        self.comparisons = comparisons
        none = scores.reshape(-1)[:0]  # attached to the scores even if nothing is compared
        values = torch.cat([none, *(each.values for each in comparisons)])
        self.values = values if scores.requires_grad else values.detach()  # [D]
        self.bits = torch.cat([none.bool(), *(each.bits for each in comparisons)])  # [D]
        self.live = torch.cat([none.bool(), *(each.live for each in comparisons)])  # [D]
        self.largest = largest  # elements of the largest tensor that a configuration takes

    @abstractmethod
    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` flipped in each: the bit at `which`, `[A]`."""
        return self.of_bits(flipped(bits, which))

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each of the bits `[D]` one whose flip changes the value in the same way."""
        return torch.arange(len(bits), device=bits.device)

    def softened(self, slope: float) -> Tensor:
        """The comparisons that soft bits are made of, `[D]`."""
        return torch.cat([self.values[:0], *(each.softened(slope) for each in self.comparisons)])

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
        share = min(1.0, most / max(1, len(tried)))
        if share < 1:
            order = torch.randperm(len(tried), generator=generator, device=tried.device)
            tried = tried[order[:most]]
        base = self.of_bits(bits.unsqueeze(0))
        gains = torch.zeros(len(bits), dtype=base.dtype, device=bits.device)
        if len(tried):
            change = self.of_flips(bits, tried) - base
            gains[tried] = torch.where(bits[tried], -change, change) / share
        return torch.where(self.live, gains[same].nan_to_num(0.0, 0.0, 0.0), 0.0)


@dataclass(eq=False)
class OwnSets(Reexpression):
    """The sets of a batch, side by side, padded to the one with the most comparisons."""

    metric: "OwnMetric"
    shape: tuple[int, ...]
    target: Tensor
    where: Tensor | None
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Finds the leading dimensions, which are sets."""
        scores = torch.empty(self.shape, device="meta")
        self._lead = self.shape[: self.metric.set_dimensions(scores, self.target)]
        self._seen: list[ComparedSet] = []
        self._tried: list[Tensor] | None = None

    @property
    def _sets(self) -> list[ComparedSet]:
        """The sets with their last scores; with random scores if there were none so far."""
        if not self._seen:
            self.comparisons(self._random())
        return self._seen

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the function makes; it runs once on every set."""
        self._seen = [self.metric.look(each) for each in self._each(scores)]
        self._tried = None
        self.metric.last.clear()
        for each in self._seen[:1]:
            origins = [(found.origin, len(found.bits)) for found in each.comparisons]
            self.metric.last.append((origins, each.bits, float(each.value)))
        if not self._seen:
            nothing = scores.reshape(-1)[:0].reshape(*self._lead, 0)
            return nothing, nothing.bool()
        values = self._padded([each.values for each in self._seen])
        return values, self._padded([each.live for each in self._seen])

    @property
    def among_classes(self) -> bool:
        """Whether the function chooses the highest of several scores, as argmax does."""
        return any(found.soften for each in self._sets for found in each.comparisons)

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """The comparisons of the last scores, for soft bits."""
        return self._padded([each.softened(slope) for each in self._sets])

    def bits(self) -> Tensor:
        """The outcomes of the comparisons, `[..., D]`."""
        return self._padded([each.bits for each in self._sets])

    def from_bits(self, bits: Tensor) -> Tensor:
        """The function's values of every configuration; 0 where it has none."""
        rows = self._rows(bits)
        values = torch.zeros(rows.shape[:-1], dtype=self.dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            found = each.of_bits(rows[:, at, : len(each.bits)])
            values[:, at] = found.nan_to_num(0.0, 0.0, 0.0)
        return values.reshape(bits.shape[:-1])

    def flip_gains(self, bits: Tensor) -> Tensor:
        """By trying flips; if there are more than the metric's `flips`, some drawn at random."""
        rows = self._rows(bits)
        gains = torch.zeros(rows.shape, dtype=self.dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            for own, out in zip(rows[:, at], gains[:, at], strict=True):
                size = len(each.bits)
                out[:size] = each.flip_gains(own[:size], self.metric.flips, self.metric.generator)
        return gains.reshape(bits.shape)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of noisy scores; a set that compares others keeps its bits."""
        drawn = [self.bits().unsqueeze(0)[:0]]
        current = [each.bits for each in self._sets]
        for noisy in ops.add_gumbel_noise(scores.detach(), slope, number, generator):
            found = [self.metric.look(each).bits for each in self._each(noisy)]
            pairs = zip(current, found, strict=True)
            kept = [some if some.shape == own.shape else own for own, some in pairs]
            drawn.append(self._padded(kept).unsqueeze(0))
        return torch.cat(drawn)

    def defined(self) -> Tensor:
        """Sets for which the function returns a finite number."""
        return self._stack([each.value.isfinite() for each in self._sets]).bool()

    def measured(self) -> Tensor:
        """What the function returned; 0 where that is no finite number.

        Bits need not give it, as a function may look at more than the comparisons that were found.
        """
        values = self._stack([each.value for each in self._sets])
        return values.to(self.target.device, self.dtype).nan_to_num(0.0, 0.0, 0.0)

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
        best = bits.clone().reshape(len(self._sets), bits.shape[-1])
        for at, (each, tried) in enumerate(zip(self._sets, self._configurations(), strict=True)):
            values = each.of_bits(tried)
            values = values if self.metric.higher_is_better else -values
            chosen = values.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax()
            best[at, : len(each.bits)] = tried[chosen]
        return best.reshape(bits.shape)

    def scale(self) -> Tensor | None:
        """The range of an unbounded metric on each set, `[...]`; None for a bounded metric.

        A profit in dollars and in cents should train alike, so the gradient of an unbounded metric
        is divided by this: the highest minus the lowest finite value among `_configurations`, or 1
        where these are all equal. It is a constant with respect to the scores.
        """
        if math.isfinite(self.metric.best):
            return None
        ranges = []
        for each, tried in zip(self._sets, self._configurations(), strict=True):
            values = each.of_bits(tried)
            values = values[values.isfinite()]
            ranges.append(values.max() - values.min() if len(values) else torch.zeros(()))
        stacked = self._stack(ranges).to(self.dtype)
        return torch.where(stacked > 0, stacked, 1.0)

    def _configurations(self) -> list[Tensor]:
        """Configurations `[A, D]` of each set that may be good or bad.

        They are the current bits and their opposite, and the bits of scores made from the target
        and of minus these; found only once, as looking may change what is known of the function.
        """
        if self._tried is not None:
            return self._tried
        found = []
        for each, own in zip(self._sets, self._each(self._random()), strict=True):
            ideal = ideal_scores(own.scores, own.target)
            made = [] if ideal is None else [ideal, -ideal]
            others = [self.metric.look(own._replace(scores=some)).bits for some in made]
            others = [bits for bits in others if bits.shape == each.bits.shape]
            found.append(torch.stack([each.bits, ~each.bits, *others]))
        self._tried = found
        return found

    def _random(self) -> Tensor:
        source = torch.Generator().manual_seed(0)
        return torch.randn(self.shape, generator=source, dtype=self.dtype).to(self.target.device)

    def _each(self, scores: Tensor) -> list[OneSet]:
        """The sets without the items that do not count."""
        return list(self.metric.each_set(scores, self.target, self.where))

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
            return torch.zeros(self._lead, dtype=self.dtype, device=self.target.device)
        stacked = torch.stack(values)
        return stacked.reshape((*self._lead, *stacked.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class OwnMetric(FunctionMetric, ComparisonMetric):
    """A user's function, decided by comparisons; `reexpress` makes it and describes the fields."""

    flips: int
    generator: torch.Generator | None
    last: list[_Summary] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, metric: FunctionMetric, **options: Any) -> Self:
        """The same function, with the fields that it has of its own."""
        given = {each.name: getattr(metric, each.name) for each in fields(FunctionMetric)}
        return cls(**{**given, **options})

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """Does not ask the function, because that would cost a run."""
        return otherwise

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores, as floats; one flag per item."""
        return super().check(scores.to(ops.float_dtype(scores)), target, where)

    @abstractmethod
    def look(self, given: OneSet) -> ComparedSet:
        """Runs the function on one set, and finds its comparisons."""

    @abstractmethod
    def manner(self) -> str:
        """How values of other bits are found, in words."""

    @property
    @abstractmethod
    def runs(self) -> int:
        """How often the function has run; many configurations at once count as one run."""

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> OwnSets:
        """The re-expression for a target; the function does not run before scores are there."""
        return OwnSets(self, tuple(shape), target, where, dtype)

    def ideal_bits(
        self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """The best configuration that is known: that of scores made from the target."""
        plan = self._plan(target, where, shape)
        assert isinstance(plan, OwnSets)
        return plan.best_bits(plan.bits())

    def explain(self, scores: Any = None, target: Any = None, **rows: Any) -> str:
        """What the function compares, line by line.

        Args:
            scores: Sets, of which the first is explained. Without scores and target, it is the set
                that the function ran on last.
            target: The target of these sets.
            **rows: What the function takes besides these, by name.

        Returns:
            A table of lines, operations and numbers of comparisons; then how values of other bits
            are found, and the bits if there are at most 64.
        """
        if scores is not None:
            metric = self.with_rows(rows) if rows else self
            inputs = metric.check(to_tensor("scores", scores), to_tensor("target", target), None)
            plan = metric.reexpress(inputs.scores.shape, inputs.target, None, inputs.scores.dtype)
            plan.comparisons(inputs.scores)
            plan.from_bits(~plan.bits().unsqueeze(0))  # a replay shows how replays are done
        if not self.last:
            advice = "pass one: explain(scores, target)"
            raise ValueError(f"{self.name} has not been run on a set yet; {advice}")
        origins, bits, value = self.last[0]
        table = [("where", "operation", "comparisons", "code")]
        for at, number in origins:
            line = f"line {at.line}" if at.line else "outside"
            table.append((line, at.operation, str(number), at.code))
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for line, operation, number, code in table:
            row = f"{line:<{wide[0]}}  {operation:<{wide[1]}}  {number:>{wide[2]}}  {code}"
            lines.append(row[:118].rstrip())
        lines.append(f"{self.name} = {value:.6g} from {len(bits)} comparisons; {self.manner()}")
        if len(bits) <= _SHOWN_BITS:
            lines.append("bits " + "".join(map(str, bits.int().tolist())))
        return "\n".join(lines)
