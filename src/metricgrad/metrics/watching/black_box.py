"""Functions that cannot be watched (NumPy, scikit-learn, a C extension), re-expressed from outside.

A function of ranks and thresholds is decided by comparisons that need not be seen inside it: pairs
of scores whose labels differ, and scores against thresholds; with many classes, each class against
the best other one. From bits, scores with that order are made again and the function is called with
them:

    order    by comparisons lost (`choices.py`)
    sides    how many thresholds a score passes
    scores   evenly spaced, in that order, on those sides

Which comparisons a function looks at is tried out: if scores may be mixed on their sides, order
does not matter; if they may be moved across, thresholds do not; if items of equal labels may change
places, they are alike. A call may be slow, so configurations that look alike from outside share
one, and calls are bounded.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape
from metricgrad.metrics.watching.choices import Choice
from metricgrad.metrics.watching.interception import Decision, Origin, decision
from metricgrad.metrics.watching.sets import DecidedSet

_REMEMBERED = 1 << 14
_TRIALS, _SETS = 4, 8  # how often a function is tried out on a set, and on how many sets
_OUTSIDE = Origin("", 0, "", "pairs of scores")


class NotDecidedError(ValueError):
    """A function whose value does not follow from the comparisons that can be seen from outside."""


@dataclass
class Seen:
    """What calls have shown of a function.

    Attributes:
        order: whether the order of scores matters.
        sides: whether thresholds do.
        alike: whether items with equal labels may stand in for each other.
        checked: how many sets showed that comparisons decide the value.
        tried: on how many sets it was tried out what the function looks at.
        values: of configurations, by what tells them apart.
        calls: how often the function was called.
    """

    order: bool = False
    sides: bool = False
    alike: bool = True
    checked: int = 0
    tried: int = 0
    values: "OrderedDict[bytes, float]" = field(default_factory=OrderedDict)
    calls: int = 0

    def value(self, key: bytes, call: Callable[[], float]) -> float:
        """The value of a configuration: remembered, or by a call."""
        if key not in self.values:
            self.values[key] = call()
            if len(self.values) > _REMEMBERED:
                self.values.popitem(last=False)
        else:
            self.values.move_to_end(key)
        return self.values[key]


class Columns(DecidedSet):
    """A set of scores that are ranked, or compared with thresholds: one column, or one for each label.

    Args:
        scores: `[N]` or `[N, C]`, differentiable.
        target: the same shape.
        thresholds: T of them, ascending.
        call: the function, from scores of this shape to its value.
        seen: what is known of the function; trying it out adds to that.
    """

    def __init__(
        self,
        scores: Tensor,
        target: Tensor,
        thresholds: Sequence[float],
        call: Callable[[Tensor], float],
        seen: Seen,
    ) -> None:
        self._shape, self._call, self._seen, self._device = scores.shape, call, seen, scores.device
        self._columns = (
            scores.reshape(len(scores), -1).T if scores.dim() > 1 else scores.reshape(1, -1)
        )
        labels = target.reshape(len(target), -1).T if target.dim() > 1 else target.reshape(1, -1)
        self._level = ops.dense_rank(labels.double())
        self._borders = torch.tensor(sorted(thresholds), dtype=scores.dtype, device=scores.device)
        order = self._columns.detach().argsort(dim=-1, descending=True, stable=True)
        self._choice = Choice(_OUTSIDE, self._columns, order, ordered=True, labels=[labels])
        self._above = self._columns.unsqueeze(-1) - self._borders
        self._side = (self._above.detach() > 0).sum(-1)
        self._target = target.cpu().contiguous()
        self._stamp = f"{shape(scores)} {target.unique().tolist()}".encode()
        self._own = call(scores.detach())
        self._try_out()
        self._by_order, self._by_sides = (
            seen.order,
            seen.sides,
        )  # as this set is taken apart, whatever others show
        super().__init__(torch.tensor(self._own, dtype=torch.float64), self._decide(), scores)

    def of_bits(self, bits: Tensor) -> Tensor:
        """Values `[A]` of configurations `[A, D]`."""
        given, rest = bits, None
        side = torch.zeros_like(self._side).expand(len(bits), *self._side.shape)
        if self._by_sides:
            given, rest = bits.split(
                [bits.shape[-1] - self._above.numel(), self._above.numel()], -1
            )
            side = rest.unflatten(-1, self._above.shape).sum(-1)
        place = self._choice.place.expand(len(bits), -1, -1)
        if self._by_order and self._choice.kind is not None:
            place = self._places(self._choice.indices(given), side)
        return torch.tensor(
            [self._value(*each) for each in zip(place, side, strict=True)], dtype=torch.float64
        )

    def representatives(self, bits: Tensor) -> Tensor:
        """For each of the bits `[D]`, one whose flip does the same to the value: `[D]`."""
        same, start = self._arange(len(bits)), 0
        if self._by_order and self._choice.kind is not None:
            start = len(self.decisions[0].values)
            same[:start] = self._choice.representatives(bits[:start])
        if self._by_sides and not self._by_order and self._seen.alike:
            column = self._arange(len(self._columns)).unsqueeze(-1)
            kind = (column * (int(self._level.max()) + 1) + self._level) * (
                len(self._borders) + 1
            ) + self._side
            key = kind.unsqueeze(-1) * len(self._borders) + self._arange(len(self._borders))
            same[start:] = start + ops.first_alike(key.flatten() * 2 + bits[start:].long())
        return same

    def _decide(self) -> list[Decision]:
        found = []
        if self._by_order:
            self._choice.used = not self._seen.alike
            found.append(self._choice.settle("two" if self._choice.of_two() else "order"))
        if self._by_sides:
            where = Origin(
                "",
                0,
                "",
                f"scores against {', '.join(f'{each:g}' for each in self._borders.tolist())}",
            )
            found.append(decision(where, self._above, self._above.detach() > 0))
        return found

    def _try_out(self) -> None:
        """Finds out what the function looks at; what has been seen once is not tried again.

        One try may change nothing by chance, so there are a few, with orders and sides drawn at
        random.
        """
        place, side, seen = self._choice.place, self._side, self._seen
        tied = self._columns.detach().sort(-1).values.diff().eq(0).any() or (self._above == 0).any()
        if seen.checked < _SETS and not tied:
            if not _close(found := self._called(place, side), self._own):
                raise NotDecidedError(
                    f"the function gave {self._own:.6g}, and {found:.6g} when scores were moved without changing their "
                    f"order or their sides of {self._borders.tolist()}: comparisons do not decide it, or other "
                    "thresholds do (mg.reexpress(fn, watch=False, thresholds=...)). A learned surrogate, ReLoss or "
                    "BilevelLoss, takes any function"
                )
            seen.checked += 1
        source = torch.Generator().manual_seed(seen.tried)

        def drawn() -> tuple[Tensor, Tensor]:
            order = torch.rand(place.shape, generator=source).argsort(-1).to(self._device)
            sides = torch.randint(0, len(self._borders) + 1, side.shape, generator=source).to(
                self._device
            )
            kept = (
                torch.rand(side.shape, generator=source).to(self._device) < 0.7
            )  # else hardly any item is right
            return order, torch.where(kept, (self._level > 0) * len(self._borders), sides)

        for trial in range(_TRIALS if seen.tried < _SETS else 0):
            (one, some), (other, others) = drawn(), drawn()
            value = self._called(one, some) if seen.alike else None
            if not seen.order:
                together = torch.zeros_like(some) if trial % 2 == 0 else some
                seen.order = not _close(self._called(one, together), self._called(other, together))
            if not seen.sides:
                in_order = (
                    each.sort(-1, descending=True).values.gather(-1, one) for each in (some, others)
                )
                seen.sides = not _close(*(self._called(one, each) for each in in_order))
            if seen.alike and not _close(value, self._called(one, some, self._exchange(other))):
                seen.alike = False
                seen.values.clear()
        seen.tried += 1

    def _exchange(self, mixed: Tensor) -> Tensor:
        """Who takes whose score, `[K, N]`, when the items of each label are mixed."""
        size = self._level.shape[-1]
        by_level = (self._level * size + self._arange(size)).argsort(-1)
        return torch.empty_like(by_level).scatter_(
            -1, by_level, (self._level * size + mixed).argsort(-1)
        )

    def _places(self, indices: Tensor, side: Tensor) -> Tensor:
        """Where each item stands, `[A, K, N]`, from the entries `[A, K, N]` that a choice gives for each place.

        Of two kinds only the kind at each place is known: its items take these places by side, in
        their own order.
        """
        size = indices.shape[-1]
        ranks = self._arange(size)
        if self._choice.kind == "order":
            return indices.argsort(-1)
        found = self._level.expand(len(indices), -1, -1).gather(-1, indices)
        places = (found * size + ranks).argsort(-1)
        sides = len(self._borders) + 1
        within = (sides - 1 - side) * size + self._choice.place
        items = (self._level * size * sides + within).argsort(-1).expand_as(places)
        return torch.empty_like(places).scatter_(-1, items, places)

    def _make(self, place: Tensor, side: Tensor) -> Tensor:
        """Scores `[K, N]` in the order of places within their sides, evenly spaced there."""
        size = place.shape[-1]
        order = ((len(self._borders) - side) * size + place).argsort(-1)
        rank = order.argsort(-1)
        low = torch.cat([self._borders[:1] - 1, self._borders])[side]
        high = torch.cat([self._borders, self._borders[-1:] + 1])[side]
        return low + (high - low) * ((size - rank) / (size + 1)).to(low.dtype)

    def _value(self, place: Tensor, side: Tensor) -> float:
        """The value of one configuration."""
        size, alike = place.shape[-1], self._seen.alike
        within = place if self._by_order else self._level * size + place
        what = self._level if alike else self._arange(size).expand_as(self._level)
        order = ((len(self._borders) - side) * size * size + within).argsort(-1)
        key = torch.stack([what.gather(-1, order), side.gather(-1, order)]).to(torch.int32)
        stamp = self._stamp if alike else self._stamp + self._target.numpy().tobytes()
        return self._seen.value(
            stamp + key.cpu().numpy().tobytes(), lambda: self._called(place, side)
        )

    def _called(self, place: Tensor, side: Tensor, exchange: Tensor | None = None) -> float:
        """The function of scores with this order and these sides; with an exchange, of others' scores."""
        made = self._make(place, side)
        return self._call(self._back(made if exchange is None else made.gather(-1, exchange)))

    def _arange(self, size: int) -> Tensor:
        return torch.arange(size, device=self._device)

    def _back(self, columns: Tensor) -> Tensor:
        return columns.T.reshape(self._shape)


class Classes(DecidedSet):
    """A set of scores of which the highest class counts: each class against the best other one.

    Args:
        scores: `[N, C]`, differentiable.
        target: `[N]`.
        call: the function, from scores of this shape to its value.
        seen: what is known of the function.
    """

    def __init__(
        self, scores: Tensor, target: Tensor, call: Callable[[Tensor], float], seen: Seen
    ) -> None:
        self._scores, self._call, self._seen = scores.detach(), call, seen
        self._stamp = target.to(torch.int64).cpu().numpy().tobytes()
        own = call(self._scores)
        winner = self._scores.argmax(-1, keepdim=True)
        if seen.checked < _SETS:
            alone = torch.zeros_like(self._scores).scatter_(-1, winner, 1.0)
            if not _close(found := call(alone), own):
                raise NotDecidedError(
                    f"the function gave {own:.6g}, and {found:.6g} for other scores with the same highest classes: "
                    "it looks at more than these. Write it in plain torch for mg.reexpress, or take a learned "
                    "surrogate, ReLoss or BilevelLoss"
                )
            seen.checked += 1
        self._choice = Choice(
            _OUTSIDE._replace(operation="highest class"), scores, winner, ordered=False, used=True
        )
        several = scores.shape[-1] > 1 and len(scores)
        super().__init__(
            torch.tensor(own, dtype=torch.float64),
            [self._choice.settle("winner")] if several else [],
            scores,
        )

    def of_bits(self, bits: Tensor) -> Tensor:
        """Values `[A]` of configurations `[A, D]`."""
        if not self.decisions:
            return self.value.expand(len(bits))
        return torch.tensor(
            [self._value(each) for each in self._choice.indices(bits)], dtype=torch.float64
        )

    def _value(self, winner: Tensor) -> float:
        """The function with another class on top of each item: it and the highest one change places."""
        top = self._scores.argmax(-1, keepdim=True)
        swapped = self._scores.scatter(-1, top, self._scores.gather(-1, winner))
        swapped = swapped.scatter(-1, winner, self._scores.gather(-1, top))
        return self._seen.value(
            self._stamp + winner.cpu().numpy().tobytes(), lambda: self._call(swapped)
        )


def _close(one: float | None, other: float) -> bool:
    assert one is not None
    return (
        one == other
        or abs(one - other) <= 1e-6 * max(abs(one), abs(other))
        or (one != one and other != other)
    )
