"""A recorded run of a metric: its comparisons, and what it would be with other bits.

Bits of all decisions, then of all choices, stand in one row of length D. Configurations are
replayed many at once by `torch.vmap` where the function allows it (no shape may depend on the
bits), one by one where it does not.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.watching.choices import Choice
from metricgrad.metrics.watching.choices import Kind as ChoiceKind
from metricgrad.metrics.watching.indices import Recorder
from metricgrad.metrics.watching.interception import Decision, Given, Replayer, WatchError
from metricgrad.metrics.watching.recorder import Kind
from metricgrad.metrics.watching.sets import DecidedSet

_TRIALS = 8
_ENTRIES = 1 << 23  # of the tensors that are replayed at once

Function = Callable[[Tensor, Tensor], Any]


@dataclass
class Habits:
    """What runs of a function have shown, and the next one can count on.

    Attributes:
        numbers: choices, by number, whose indices are used as numbers.
        inner: choices, by number, of which the order before the cut matters too.
        trusted: for choices, by number, how many runs showed that only the cut matters.
        checked: sequences of operations that were seen to give the function's own value.
        vmaps: whether `torch.vmap` can run it; None before the first try.
        reason: why not.
        runs: how often the function has run.
    """

    numbers: set[int] = field(default_factory=set)
    inner: set[int] = field(default_factory=set)
    trusted: "Counter[int]" = field(default_factory=Counter)
    checked: set[int] = field(default_factory=set)
    vmaps: bool | None = None
    reason: str = ""
    runs: int = 0


class Recording(DecidedSet):
    """One set's run of a function.

    Args:
        fn: `(scores, target) -> 0-dim tensor`.
        scores: the set's; comparisons pass a gradient to them.
        target: the set's.
        habits: what earlier runs have shown; this one adds to it.
    """

    def __init__(self, fn: Function, scores: Tensor, target: Tensor, habits: Habits) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            scores, target = (
                each.clone() if each.is_inference() else each for each in (scores, target)
            )
            watched = scores if scores.requires_grad else scores.detach().requires_grad_()
            self._scores = watched.view_as(watched)
        self._fn, self._target, self._habits = fn, target, habits
        self._run, out = self._record()
        self.value, self._kind = self._single(out).detach(), self._run.kind(out)
        self._actual = Given(
            [each.bits for each in self._run.decisions],
            [choice.given for choice in self._run.choices],
            [choice.place if choice.ranked else torch.empty(0) for choice in self._run.choices],
        )
        self._check()
        decisions: list[Decision] = list(self._run.decisions)
        self._deciding: list[Choice] = []
        for number, choice in enumerate(self._run.choices):
            if (kind := self._deciding_kind(number, choice)) is not None:
                decisions.append(choice.settle(kind))
                self._deciding.append(choice)
        if not decisions and self._kind is Kind.SMOOTH:
            raise WatchError(
                "the function never compares scores, so it has a gradient as it is: use it, or minus it, as the loss"
            )
        self._sizes = [len(each.values) for each in decisions]
        super().__init__(self.value, decisions, scores, self._run.largest)

    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""
        if not len(bits) or not self._sizes or (len(bits) == 1 and torch.equal(bits[0], self.bits)):
            return self.value.expand(len(bits))
        rows = max(1, _ENTRIES // max(self.largest, len(self.bits)))
        return torch.cat([self._replay(self._given(some)) for some in bits.split(rows)])

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` turned in each, by what that changes."""
        rows = max(1, _ENTRIES // self.largest)
        return torch.cat([self._replay(self._turned(bits, some)) for some in which.split(rows)])

    def representatives(self, bits: Tensor) -> Tensor:
        """Flips that do the same to an order."""
        same, start = (
            torch.arange(len(bits), device=bits.device),
            sum(self._sizes[: len(self._run.decisions)]),
        )
        for choice, size in zip(
            self._deciding, self._sizes[len(self._run.decisions) :], strict=True
        ):
            same[start : start + size] = start + choice.representatives(bits[start : start + size])
            start += size
        return same

    def direct(self) -> Tensor | None:
        """The value at these bits as a smooth function of the scores; None where only bits decide."""
        if self._kind not in (Kind.SMOOTH, Kind.MIXED):
            return None
        given = Given(self._actual.bits, self._actual.indices, self._actual.ranks, attached=True)
        return self._follow(given)

    def _record(self) -> tuple[Recorder, Any]:
        while True:
            run = Recorder(self._scores, self._target, frozenset(self._habits.numbers))
            with run:
                out = self._fn(self._scores, self._target.clone())
            self._habits.runs += 1
            both = {
                number for number in run.asked if run.choices[number].used
            } - self._habits.numbers
            if not both:
                return run, out
            self._habits.numbers |= (
                both  # an == of its own and a use as a number: one choice for both
            )

    def _single(self, out: Any) -> Tensor:
        if isinstance(out, (int, float)):
            return torch.tensor(float(out), dtype=self._scores.dtype, device=self._scores.device)
        if not isinstance(out, Tensor) or out.numel() != 1:
            got = (
                f"shape {list(out.shape)}"
                if isinstance(out, Tensor)
                else f"{type(out).__name__} {out!r:.80}"
            )
            raise WatchError(
                f"the function must give a tensor with one number for a set; got {got}"
            )
        return (
            out.reshape(()) if out.is_floating_point() else out.reshape(()).to(self._scores.dtype)
        )

    def _check(self) -> None:
        """Once for every sequence of operations: what was recorded is what the function computes."""
        signature = hash(tuple(name for name, _ in self._run.script))
        if signature in self._habits.checked:
            return
        with torch.no_grad():
            own = self._single(self._fn(self._scores.detach().clone(), self._target.clone()))
            self._habits.runs += 1
            replayed = self._follow(self._actual)
        for found in (self.value, replayed):
            if not torch.allclose(
                found.double(), own.detach().double(), rtol=1e-5, atol=1e-7, equal_nan=True
            ):
                raise WatchError(
                    f"the function gives {float(own):.6g} when it is called and {float(found):.6g} when it is watched: "
                    "it changes a tensor in place and looks at it later, or it is random; "
                    "make new tensors (torch.where, scatter, stack)"
                )
        self._habits.checked.add(signature)

    def _deciding_kind(self, number: int, choice: Choice) -> ChoiceKind | None:
        """What decides a choice, by how it was used."""
        size = choice.scores.shape[-1]
        if (
            size < 2
            or not (choice.used or choice.labels or choice.ranked)
            or not len(choice.scores)
        ):
            return None
        if not choice.ordered:
            return "winner"
        first, last = choice.span or (0, size - 1)
        cut = last + 1 if first == 0 else first
        if 0 < cut < size and (first == 0 or last == size - 1) and not choice.ranked:
            if number not in self._habits.inner and self._only_the_cut_matters(number, choice, cut):
                choice.cut = cut
                return "members"
            self._habits.inner.add(number)
        return "two" if choice.of_two() else "order"

    def _only_the_cut_matters(self, number: int, choice: Choice, cut: int) -> bool:
        """Whether the function gives the same with both sides of the cut turned around, of this order and others.

        The labels of one set may read the same both ways, so other orders are tried too, in the
        first runs.
        """
        if self._habits.trusted[number] == _TRIALS:
            return True
        generator = torch.Generator().manual_seed(self._habits.trusted[number])
        others = [
            torch.rand(choice.order.shape, generator=generator).argsort(-1).to(choice.order.device)
            for _ in "12"
        ]
        for order in (choice.order, *others):
            turned = torch.cat([order[:, :cut].flip(-1), order[:, cut:].flip(-1)], -1)
            one, other = (
                self._with_order(number, some[:, : choice.given.shape[-1]])
                for some in (order, turned)
            )
            if not torch.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True):
                return False
        self._habits.trusted[number] += 1
        return True

    def _with_order(self, number: int, order: Tensor) -> Tensor:
        """The value with other indices for one choice."""
        indices = list(self._actual.indices)
        indices[number] = order
        with torch.no_grad():
            return self._follow(Given(self._actual.bits, indices, self._actual.ranks)).double()

    def _given(self, bits: Tensor) -> Given:
        """Bits `[A, D]` as what a replay decides, for all configurations."""
        parts = list(bits.split(self._sizes, -1))
        number = len(self._run.decisions)
        by_choice = dict(zip(map(id, self._deciding), parts[number:], strict=True))
        nothing = bits[:, :0]
        mine = [by_choice.get(id(choice), nothing) for choice in self._run.choices]
        indices = [
            choice.indices(part) for choice, part in zip(self._run.choices, mine, strict=True)
        ]
        ranks = [
            choice.lost(part)
            if choice.ranked and choice.kind
            else choice.place.expand(len(bits), -1, -1)
            for choice, part in zip(self._run.choices, mine, strict=True)
        ]
        return Given(parts[:number], indices, ranks)

    def _turned(self, bits: Tensor, which: Tensor) -> Given:
        """Bits `[D]` with one turned, as what replays decide."""
        given, start = Given(), 0
        choices = {
            id(choice): (choice.given.expand(len(which), -1, -1), choice.place)
            for choice in self._run.choices
        }
        for at, (size, part) in enumerate(zip(self._sizes, bits.split(self._sizes), strict=True)):
            inside = torch.where((which >= start) & (which < start + size), which - start, -1)
            start += size
            if at < len(self._run.decisions):
                turned = torch.nn.functional.one_hot(inside + 1, size + 1)[:, 1:].bool()
                given.bits.append(part ^ turned)
            else:
                choice = self._deciding[at - len(self._run.decisions)]
                found, ranks = choice.flipped(part, inside)
                choices[id(choice)] = found, choice.place if ranks is None else ranks
        for choice in self._run.choices:
            found, ranks = choices[id(choice)]
            given.indices.append(found)
            given.ranks.append(ranks.expand(len(which), *choice.place.shape))
        return given

    def _replay(self, given: Given) -> Tensor:
        """Values `[A]` of what is given for A configurations."""
        batch, habits = [given.bits, given.indices, given.ranks], self._habits
        with torch.no_grad():
            if habits.vmaps is not False:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter(
                            "ignore"
                        )  # that some operation is slow in vmap: a loop is slower
                        values = torch.vmap(lambda one: self._follow(Given(*one)))(batch)
                except WatchError:
                    raise
                except Exception as error:  # whatever vmap cannot do, a loop can
                    habits.vmaps, habits.reason = False, str(error).strip().split("\n")[0]
                else:
                    habits.vmaps = True
                    return values
            size = len(next(part for parts in batch for part in parts))
            ones = (tuple([part[at] for part in parts] for parts in batch) for at in range(size))
            return torch.stack(
                [
                    self._follow_if_it_can(Given(bits, indices, ranks))
                    for bits, indices, ranks in ones
                ]
            )

    def _follow_if_it_can(self, given: Given) -> Tensor:
        """The same; NaN where the function fails for these bits, as for an item of none."""
        try:
            return self._follow(given)
        except WatchError:
            raise
        except Exception:  # whatever it is, it is the user's function's own
            return torch.full_like(self.value, torch.nan)

    def _follow(self, given: Given) -> Tensor:
        """One more run of the function, with given decisions."""
        self._habits.runs += 1
        with Replayer(self._run.script, self._scores, given):
            out = self._fn(self._scores, self._target.clone())
        return self._single(out)
