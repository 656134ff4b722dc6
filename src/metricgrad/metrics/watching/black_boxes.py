"""Functions that cannot be watched (NumPy, scikit-learn, a C extension), re-expressed from outside.

The comparisons that decide a function of ranks and thresholds are known without looking inside:
pairs of scores whose labels differ, and scores against thresholds; with many classes, each class
against the best other one. To get the value for other bits, scores that fit these bits are made and
the function is called with them:

    order     by comparisons lost (`comparisons.py`)
    sides     how many thresholds a score passes
    scores    evenly spaced, in that order, on those sides

Which comparisons matter to a function is tried out. If scores may be shuffled on their sides, order
does not matter; if they may be moved to other sides, thresholds do not; if items with equal labels
may be exchanged, they are alike. A call may be slow, so calls are bounded, and configurations that
the function cannot tell apart share one call.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape
from metricgrad.metrics.rows import OneSet
from metricgrad.metrics.watching.comparisons import Choice, Comparisons, Origin, compared
from metricgrad.metrics.watching.sets import ComparedSet, OwnMetric

_MAX_VALUES = 1 << 14  # that are remembered
_TRIED_SETS = 8  # sets on which a function is tried out and checked
_TRIES = 4  # how often it is tried out on a set: one try may change nothing by chance

ScoreCall = Callable[[Tensor], float]  # the function, on scores in the shape of the set


class NotDecidedError(ValueError):
    """A function whose value does not follow from comparisons that are known from outside."""


@dataclass
class Knowledge:
    """What calls of a function have shown."""

    order: bool = False  # whether the order of scores matters
    sides: bool = False  # whether the thresholds matter
    alike: bool = True  # whether items with equal labels may be exchanged
    checked: int = 0  # sets that showed that comparisons decide the value
    tried: int = 0  # sets on which it was tried out what matters
    values: "OrderedDict[bytes, float]" = field(default_factory=OrderedDict)  # of configurations
    calls: int = 0  # how often the function was called

    def value(self, key: bytes, call: Callable[[], float]) -> float:
        """The value of a configuration, remembered or by a call."""
        if key not in self.values:
            self.values[key] = call()
        self.values.move_to_end(key)
        if len(self.values) > _MAX_VALUES:
            self.values.popitem(last=False)
        return self.values[key]


class ColumnSet(ComparedSet):
    """A set whose scores are ranked or compared with thresholds: `[N]`, or K labels, `[N, K]`."""

    def __init__(
        self,
        scores: Tensor,
        target: Tensor,
        thresholds: Tensor,
        call: ScoreCall,
        known: Knowledge,
        data: bytes = b"",  # further data of the items, which tells sets apart
    ) -> None:
        self._shape = scores.shape
        self._thresholds = thresholds
        self._call = call
        self._known = known
        self._device = scores.device
        self._columns = scores.reshape(len(scores), -1).T if scores.dim() > 1 else scores[None]
        labels = target.reshape(len(target), -1).T if target.dim() > 1 else target[None]
        self._level = ops.dense_rank(labels.double())
        order = self._columns.detach().argsort(dim=-1, descending=True, stable=True)
        pairs = Origin("pairs of scores")
        self._choice = Choice(pairs, self._columns, order, ordered=True, labels=[labels])
        self._above = self._columns.unsqueeze(-1) - thresholds
        self._side = (self._above.detach() > 0).sum(-1)
        self._target = target.cpu().contiguous()
        self._stamp = f"{shape(scores)} {target.unique().tolist()}".encode() + data
        self._own = call(scores.detach())
        self._check()
        self._try_out()
        # This set stays as it is taken apart now, whatever later sets show of the function.
        self._by_order = known.order
        self._by_sides = known.sides
        super().__init__(torch.tensor(self._own, dtype=torch.float64), self._compare(), scores)

    def of_bits(self, bits: Tensor) -> Tensor:
        """Values `[A]` of configurations `[A, D]`."""
        if not self.comparisons:  # a small set may not show what matters
            return self.value.expand(len(bits))
        side = torch.zeros_like(self._side).expand(len(bits), *self._side.shape)
        if self._by_sides:
            at_thresholds = self._above.numel()
            bits, rest = bits.split([bits.shape[-1] - at_thresholds, at_thresholds], -1)
            side = rest.unflatten(-1, self._above.shape).sum(-1)
        position = self._choice.position.expand(len(bits), -1, -1)
        if self._by_order:
            position = self._positions(self._choice.decide(bits)[0], side)
        values = [self._value(*each) for each in zip(position, side, strict=True)]
        return torch.tensor(values, dtype=torch.float64)

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each of the bits `[D]` one whose flip changes the value in the same way."""
        same = self._arange(len(bits))
        if self._by_order:
            pairs = len(self.comparisons[0].values)
            same[:pairs] = self._choice.representatives(bits[:pairs])
        elif self._by_sides and self._known.alike:
            number = len(self._thresholds)
            column = self._arange(len(self._columns)).unsqueeze(-1)
            label = column * self._level.shape[-1] + self._level
            item = label * (number + 1) + self._side
            key = item.unsqueeze(-1) * number + self._arange(number)
            same = ops.first_alike(key.flatten() * 2 + bits.long())
        return same

    def _compare(self) -> list[Comparisons]:
        """Pairs of scores, and scores against thresholds, as far as they matter."""
        found = []
        if self._by_order:
            self._choice.as_numbers = not self._known.alike
            found.append(self._choice.compare(self._choice.pairs_rule()))
        if self._by_sides:
            thresholds = ", ".join(f"{each:g}" for each in self._thresholds.tolist())
            against = Origin(f"scores against {thresholds}")
            found.append(compared(against, self._above, self._above.detach() > 0))
        return found

    def _check(self) -> None:
        """Checks that other scores with the same order and sides have the same value."""
        if self._known.checked >= _TRIED_SETS or self._tied():
            return
        position = self._choice.position
        # Evenly spaced scores, then scores close to the thresholds: another threshold tells.
        tried = [self._called(position, self._side, power=power) for power in (1, 8)]
        found = next((each for each in tried if not _close(each, self._own)), self._own)
        if not _close(found, self._own):
            raise NotDecidedError(
                f"the function gave {self._own:.6g}, and {found:.6g} when scores were moved "
                "without changing their order or their sides of "
                f"{self._thresholds.tolist()}: comparisons do not decide it, or other thresholds "
                "do (mg.reexpress(fn, watch=False, thresholds=...)). A learned surrogate, ReLoss "
                "or BilevelLoss, takes any function"
            )
        self._known.checked += 1

    def _tied(self) -> bool:
        """Whether scores are equal, or at a threshold."""
        within = self._columns.detach().sort(-1).values.diff().eq(0)
        return bool(within.any() or (self._above == 0).any())

    def _try_out(self) -> None:
        """Tries out what matters to the function; what was found to matter is not tried again."""
        known = self._known
        source = torch.Generator().manual_seed(known.tried)
        for trial in range(_TRIES if known.tried < _TRIED_SETS else 0):
            one, some = self._drawn(source)
            other, others = self._drawn(source)
            value = self._called(one, some) if known.alike else math.nan
            if not known.order:
                side = torch.zeros_like(some) if trial % 2 == 0 else some
                known.order = not _close(self._called(one, side), self._called(other, side))
            if not known.sides:
                first = some.sort(-1, descending=True).values.gather(-1, one)
                second = others.sort(-1, descending=True).values.gather(-1, one)
                known.sides = not _close(self._called(one, first), self._called(one, second))
            if known.alike and not _close(value, self._called(one, some, self._exchange(other))):
                known.alike = False
                known.values.clear()
        if not known.sides and known.tried < _TRIED_SETS and not self._tied():
            # The set's own value must be found again.
            flat = self._called(self._choice.position, torch.zeros_like(self._side))
            known.sides = not _close(flat, self._own)
        known.tried += 1

    def _drawn(self, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random positions and sides, `[K, N]`."""
        top = len(self._thresholds)
        order = torch.rand(self._side.shape, generator=source).argsort(-1).to(self._device)
        sides = torch.randint(0, top + 1, self._side.shape, generator=source).to(self._device)
        # Most items are on the side of their label: else hardly any would be right.
        right = torch.rand(self._side.shape, generator=source).to(self._device) < 0.7
        return order, torch.where(right, (self._level > 0) * top, sides)

    def _exchange(self, mixed: Tensor) -> Tensor:
        """`[K, N]`, which item's score each item takes when the items of each label are mixed."""
        size = self._level.shape[-1]
        by_level = (self._level * size + self._arange(size)).argsort(-1)
        by_level_mixed = (self._level * size + mixed).argsort(-1)
        return torch.empty_like(by_level).scatter_(-1, by_level, by_level_mixed)

    def _positions(self, indices: Tensor, side: Tensor) -> Tensor:
        """Positions of all items, `[A, K, N]`, from the items that a choice puts at each position.

        If only labels of two kinds are known at the positions, the items with each label take these
        by side, in their own order.
        """
        if self._choice.rule == "order":
            return indices.argsort(-1)
        size = indices.shape[-1]
        label = self._level.expand(len(indices), -1, -1).gather(-1, indices)
        positions = (label * size + self._arange(size)).argsort(-1)
        sides = len(self._thresholds) + 1
        within = (sides - 1 - side) * size + self._choice.position
        items = (self._level * size * sides + within).argsort(-1).expand_as(positions)
        return torch.empty_like(positions).scatter_(-1, items, positions)

    def _value(self, position: Tensor, side: Tensor) -> float:
        """The value of one configuration; a call only if the function could tell it apart."""
        size = position.shape[-1]
        alike = self._known.alike
        within = position if self._by_order else self._level * size + position
        item = self._level if alike else self._arange(size).expand_as(self._level)
        order = ((len(self._thresholds) - side) * size * size + within).argsort(-1)
        told_apart = torch.stack([item.gather(-1, order), side.gather(-1, order)]).to(torch.int32)
        stamp = self._stamp if alike else self._stamp + self._target.numpy().tobytes()
        key = stamp + told_apart.cpu().numpy().tobytes()
        return self._known.value(key, lambda: self._called(position, side))

    def _called(
        self, position: Tensor, side: Tensor, exchange: Tensor | None = None, power: int = 1
    ) -> float:
        """Calls the function with scores `[K, N]` in this order on these sides, or exchanged.

        The scores are evenly spaced; a higher power moves them toward the threshold below.
        """
        size = position.shape[-1]
        order = ((len(self._thresholds) - side) * size + position).argsort(-1)
        rank = order.argsort(-1)
        low = torch.cat([self._thresholds[:1] - 1, self._thresholds])[side]
        high = torch.cat([self._thresholds, self._thresholds[-1:] + 1])[side]
        share = ((size - rank) / (size + 1)) ** power
        made = low + (high - low) * share.to(low.dtype)
        made = made if exchange is None else made.gather(-1, exchange)
        return self._call(made.T.reshape(self._shape))

    def _arange(self, size: int) -> Tensor:
        return torch.arange(size, device=self._device)


class ClassSet(ComparedSet):
    """A set whose highest class counts: scores `[N, C]` and class indices `[N]`."""

    def __init__(
        self,
        scores: Tensor,
        target: Tensor,
        call: ScoreCall,
        known: Knowledge,
        data: bytes = b"",  # further data of the items, which tells sets apart
    ) -> None:
        self._scores = scores.detach()
        self._call = call
        self._known = known
        self._stamp = target.to(torch.int64).cpu().numpy().tobytes() + data
        self._top = self._scores.argmax(-1, keepdim=True)
        own = call(self._scores)
        if known.checked < _TRIED_SETS:
            found = call(torch.zeros_like(self._scores).scatter_(-1, self._top, 1.0))
            if not _close(found, own):
                raise NotDecidedError(
                    f"the function gave {own:.6g}, and {found:.6g} for other scores with the same "
                    "highest classes: it looks at more than these. Write it in plain torch for "
                    "mg.reexpress, or take a learned surrogate, ReLoss or BilevelLoss"
                )
            known.checked += 1
        highest = Origin("highest class")
        self._choice = Choice(highest, scores, self._top, ordered=False, as_numbers=True)
        several = scores.shape[-1] > 1 and len(scores)
        comparisons = [self._choice.compare("winner")] if several else []
        super().__init__(torch.tensor(own, dtype=torch.float64), comparisons, scores)

    def of_bits(self, bits: Tensor) -> Tensor:
        """Values `[A]` of configurations `[A, D]`."""
        if not self.comparisons:
            return self.value.expand(len(bits))
        values = [self._value(each) for each in self._choice.decide(bits)[0]]
        return torch.tensor(values, dtype=torch.float64)

    def _value(self, winner: Tensor) -> float:
        """The value if each item's winner and its highest class exchange their scores."""
        swapped = self._scores.scatter(-1, self._top, self._scores.gather(-1, winner))
        swapped = swapped.scatter(-1, winner, self._scores.gather(-1, self._top))
        key = self._stamp + winner.cpu().numpy().tobytes()
        return self._known.value(key, lambda: self._call(swapped))


@dataclass(frozen=True, kw_only=True)
class BlackBoxMetric(OwnMetric):
    """A function that order and thresholds decide, whatever it is made of."""

    thresholds: tuple[float, ...] = (0.0,)
    known: Knowledge = field(default_factory=Knowledge, init=False, repr=False, compare=False)

    def look(self, given: OneSet) -> ComparedSet:
        """Calls the function for one set."""
        scores, target, rows = given

        def call(values: Tensor) -> float:
            self.known.calls += 1
            made = given._replace(scores=values)
            return self._one(made, self.arrays, "a set made from bits")[0]

        if rows:  # items with equal labels may have different amounts
            self.known.alike = False
        data = b"".join(row.cpu().contiguous().numpy().tobytes() for row in rows.values())
        if target.shape == scores.shape:
            thresholds = torch.tensor(self.thresholds, dtype=scores.dtype, device=scores.device)
            return ColumnSet(scores, target, thresholds, call, self.known, data)
        if target.shape == scores.shape[:-1]:
            return ClassSet(scores, target, call, self.known, data)
        raise ValueError(
            f"{self.name} cannot be watched, and as a black box it takes scores and target of one "
            f"shape, or classes; got scores {list(scores.shape)} and target {list(target.shape)}: "
            "write it in plain torch"
        )

    @property
    def runs(self) -> int:
        """The number of calls."""
        return self.known.calls

    def manner(self) -> str:
        """How often it was called."""
        return f"a black box, called {self.runs} times so far"


def _close(one: float, other: float) -> bool:
    """Whether two values are equal up to rounding; NaN equals NaN."""
    both_nan = math.isnan(one) and math.isnan(other)
    return one == other or both_nan or abs(one - other) <= 1e-6 * max(abs(one), abs(other))
