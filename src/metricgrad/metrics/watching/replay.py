"""Replaying a recorded function: what it would have returned had its comparisons gone otherwise.

A `WatchedSet` records the function on one set of scores. The bits of all recorded operations, then
those of all choices, form one row of length D. For other bits the function is run again: a
`Replayer` takes each step from the tape, so smooth results are those of the recording, and
decisions and indices follow the bits. Many configurations are replayed at once by `torch.vmap`
where the function allows that (no shape may depend on the bits), one after another where not.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode

from metricgrad.metrics.watching.comparisons import Choice, ChoiceRule
from metricgrad.metrics.watching.recorder import Recorder, input_first
from metricgrad.metrics.watching.sets import ComparedSet
from metricgrad.metrics.watching.tape import (
    Constant,
    Dependence,
    Outcomes,
    Step,
    WatchError,
    call_function,
    refusal,
    tensors_in,
)

_CHECKED_RUNS = 8  # that must agree before it is believed that only the cut of an order matters
_MAX_ELEMENTS = 1 << 23  # of the tensors that are replayed at once

Function = Callable[[Tensor, Tensor], Any]


class Replayer(TorchFunctionMode):
    """Runs a recorded function on the recorded scores, with given outcomes."""

    def __init__(self, steps: list[tuple[str, Step]], scores: Tensor, outcomes: Outcomes) -> None:
        super().__init__()
        self._steps = iter(steps)
        self._outcomes = outcomes
        self._kept = {id(scores): scores}  # what depends on the scores; held, so ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, by the tape if it depends on the scores."""
        kwargs = kwargs or {}
        if not any(id(tensor) in self._kept for tensor in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        name, step = next(self._steps, ("", None))
        if step is None or name != func.__name__:
            raise refusal(
                "takes another path for other bits: its path depends on how many items the scores "
                "have picked",
                "keep all items, and use torch.where, a product with the mask, or clamp(min=1) for "
                "a zero denominator",
            )
        out = step(self._outcomes, *input_first(args, kwargs))
        if not isinstance(step, Constant):
            self._kept.update((id(tensor), tensor) for tensor in tensors_in(out))
        return out


@dataclass
class Habits:
    """What earlier runs of a function have shown, which later runs rely on.

    Attributes:
        numbers: The choices whose indices are used as numbers.
        inner: The choices whose order matters before the cut too.
        trusted: For each choice, how many runs showed that only the cut matters.
        checked: The sequences of operations that gave the function's own value.
        vmaps: Whether `torch.vmap` can run the function; None before the first try.
        reason: Why `torch.vmap` cannot run it.
        runs: How often the function has run.
    """

    numbers: set[int] = field(default_factory=set)
    inner: set[int] = field(default_factory=set)
    trusted: "Counter[int]" = field(default_factory=Counter)
    checked: set[int] = field(default_factory=set)
    vmaps: bool | None = None
    reason: str = ""
    runs: int = 0


class WatchedSet(ComparedSet):
    """One set on which a function was watched; comparisons pass a gradient to its scores."""

    def __init__(self, fn: Function, scores: Tensor, target: Tensor, habits: Habits) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            scores = scores.clone() if scores.is_inference() else scores
            target = target.clone() if target.is_inference() else target
            watched = scores if scores.requires_grad else scores.detach().requires_grad_()
            self._scores = watched.view_as(watched)
        self._fn = fn
        self._target = target
        self._habits = habits
        run, out = self._record()
        self._tape = run.tape
        self._choices = run.indices.choices
        self._dependence = self._tape.dependence(out)
        self.value = self._single(out).detach()
        self._actual = Outcomes(
            self._tape.outcomes.bits,
            [choice.given for choice in self._choices],
            [choice.position if choice.ranked else torch.empty(0) for choice in self._choices],
        )
        self._check()
        comparisons = list(self._tape.comparisons)
        self._deciding: list[Choice] = []
        for number, choice in enumerate(self._choices):
            if (rule := self._rule(number, choice)) is not None:
                comparisons.append(choice.compare(rule))
                self._deciding.append(choice)
        if not comparisons and self._dependence is Dependence.SMOOTH:
            raise WatchError(
                "the function never compares scores, so it has a gradient already: use it, or "
                "minus it, as the loss"
            )
        self._sizes = [len(each.values) for each in comparisons]
        super().__init__(self.value, comparisons, scores, self._tape.largest)

    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""
        own = len(bits) == 1 and torch.equal(bits[0], self.bits)
        if not len(bits) or not self._sizes or own:
            return self.value.expand(len(bits))
        rows = max(1, _MAX_ELEMENTS // max(self.largest, len(self.bits)))
        return torch.cat([self._replay(self._outcomes(some)) for some in bits.split(rows)])

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` flipped in each, without writing all bits out."""
        rows = max(1, _MAX_ELEMENTS // self.largest)
        return torch.cat([self._replay(self._flipped(bits, some)) for some in which.split(rows)])

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each bit one whose flip does the same to a choice."""
        same = torch.arange(len(bits), device=bits.device)
        direct = len(self._tape.comparisons)
        start = sum(self._sizes[:direct])
        for choice, size in zip(self._deciding, self._sizes[direct:], strict=True):
            same[start : start + size] = start + choice.representatives(bits[start : start + size])
            start += size
        return same

    def direct(self) -> Tensor | None:
        """The value at these bits, smooth in the scores; None where only bits decide it."""
        if self._dependence not in (Dependence.SMOOTH, Dependence.MIXED):
            return None
        actual = self._actual
        return self._run(Outcomes(actual.bits, actual.indices, actual.ranks, attached=True))

    def _record(self) -> tuple[Recorder, Any]:
        """Watches the function; again if a choice turns out to be used in two ways."""
        while True:
            run = Recorder(self._scores, self._target, frozenset(self._habits.numbers))
            with run:
                out = call_function(self._fn, self._scores, self._target.clone())
            self._habits.runs += 1
            choices = run.indices.choices
            both = {number for number in run.indices.asked if choices[number].as_numbers}
            if both <= self._habits.numbers:
                return run, out
            # Comparisons of the == and of the number could contradict each other: one choice
            # decides both.
            self._habits.numbers |= both

    def _single(self, out: Any) -> Tensor:
        """What the function returned, as a 0-dim float tensor."""
        if isinstance(out, (int, float)):
            return torch.tensor(float(out), dtype=self._scores.dtype, device=self._scores.device)
        if isinstance(out, Tensor) and out.numel() == 1:
            value = out.reshape(())
            return value if value.is_floating_point() else value.to(self._scores.dtype)
        tensor = isinstance(out, Tensor)
        got = f"shape {list(out.shape)}" if tensor else f"{type(out).__name__} {out!r:.80}"
        raise WatchError(f"the function must return a tensor with one number for a set; got {got}")

    def _check(self) -> None:
        """Checks, once for a sequence of operations, that it gives what the function computes."""
        signature = hash(tuple(name for name, _ in self._tape.steps))
        if signature in self._habits.checked:
            return
        with torch.no_grad():
            own = self._single(self._fn(self._scores.detach().clone(), self._target.clone()))
            self._habits.runs += 1
            replayed = self._run(self._actual)
        expected = own.detach().double()
        for found in (self.value, replayed):
            if not torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-7, equal_nan=True):
                raise WatchError(
                    f"the function gives {float(own):.6g} when it is called and {float(found):.6g} "
                    "when it is watched: it changes a tensor in place and uses it later, or it is "
                    "random; make new tensors (torch.where, scatter, stack)"
                )
        self._habits.checked.add(signature)

    def _rule(self, number: int, choice: Choice) -> ChoiceRule | None:
        """What decides a choice, by how its indices were used."""
        size = choice.scores.shape[-1]
        used = choice.as_numbers or choice.labels or choice.ranked
        if size < 2 or not used or not len(choice.scores):
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
        return "two" if choice.has_two_labels() else "order"

    def _only_the_cut_matters(self, number: int, choice: Choice, cut: int) -> bool:
        """Whether the value stays the same when the order on each side of the cut is reversed.

        The labels of one set may read the same both ways, so the first runs try random orders too.
        """
        trusted = self._habits.trusted
        if trusted[number] == _CHECKED_RUNS:
            return True
        source = torch.Generator().manual_seed(trusted[number])
        orders = [choice.order]
        for _ in range(2):
            drawn = torch.rand(choice.order.shape, generator=source).argsort(-1)
            orders.append(drawn.to(choice.order.device))
        for order in orders:
            reverse = torch.cat([order[:, :cut].flip(-1), order[:, cut:].flip(-1)], -1)
            one = self._with_order(number, order)
            other = self._with_order(number, reverse)
            if not torch.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True):
                return False
        trusted[number] += 1
        return True

    def _with_order(self, number: int, order: Tensor) -> Tensor:
        """The value with another order `[R, n]` for one choice."""
        indices = list(self._actual.indices)
        indices[number] = order[:, : indices[number].shape[-1]]
        with torch.no_grad():
            return self._run(Outcomes(self._actual.bits, indices, self._actual.ranks)).double()

    def _outcomes(self, bits: Tensor) -> Outcomes:
        """What A replays decide, from bits `[A, D]`."""
        parts = list(bits.split(self._sizes, -1))
        direct = len(self._tape.comparisons)
        of_choice = dict(zip(map(id, self._deciding), parts[direct:], strict=True))
        found = Outcomes(parts[:direct])
        for choice in self._choices:
            part = of_choice.get(id(choice), bits[:, :0])
            as_recorded = choice.position.expand(len(bits), -1, -1)
            found.indices.append(choice.indices(part))
            ranks = choice.ranks(part) if choice.ranked and choice.rule else as_recorded
            found.ranks.append(ranks)
        return found

    def _flipped(self, bits: Tensor, which: Tensor) -> Outcomes:
        """What A replays decide, from bits `[D]` of which the one at `which` `[A]` is flipped."""
        found = Outcomes()
        of_choice: dict[int, tuple[Tensor, Tensor | None]] = {}
        start = 0
        for at, part in enumerate(bits.split(self._sizes)):
            size = len(part)
            inside = torch.where((which >= start) & (which < start + size), which - start, -1)
            start += size
            if at < len(self._tape.comparisons):
                flips = one_hot(inside + 1, size + 1)[:, 1:].bool()
                found.bits.append(part ^ flips)
            else:
                choice = self._deciding[at - len(self._tape.comparisons)]
                of_choice[id(choice)] = choice.flipped(part, inside)
        for choice in self._choices:
            as_recorded = choice.given.expand(len(which), -1, -1)
            indices, ranks = of_choice.get(id(choice), (as_recorded, None))
            ranks = choice.position if ranks is None else ranks
            found.indices.append(indices)
            found.ranks.append(ranks.expand(len(which), *choice.position.shape))
        return found

    def _replay(self, outcomes: Outcomes) -> Tensor:
        """Values `[A]` of the outcomes of A configurations."""
        batch = (outcomes.bits, outcomes.indices, outcomes.ranks)
        habits = self._habits
        with torch.no_grad():
            if habits.vmaps is not False:
                try:
                    with warnings.catch_warnings():
                        # vmap warns where it is slow, but running one by one is slower still.
                        warnings.simplefilter("ignore")
                        values = torch.vmap(lambda one: self._run(Outcomes(*one)))(batch)
                except WatchError:
                    raise
                except Exception as error:  # what vmap cannot do, running one by one can
                    habits.vmaps = False
                    habits.reason = str(error).strip().split("\n")[0]
                else:
                    habits.vmaps = True
                    return values
            number = len(next(part for parts in batch for part in parts))
            rows = (tuple([part[at] for part in parts] for parts in batch) for at in range(number))
            found = [
                self._run_or_nan(Outcomes(bits, indices, ranks)) for bits, indices, ranks in rows
            ]
            return torch.stack(found)

    def _run_or_nan(self, outcomes: Outcomes) -> Tensor:
        """The value; NaN where the function fails for these bits, as on an empty selection."""
        try:
            return self._run(outcomes)
        except WatchError:
            raise
        except Exception:  # it comes from the user's function, so it may be anything
            return torch.full_like(self.value, torch.nan)

    def _run(self, outcomes: Outcomes) -> Tensor:
        """Runs the function once more, with given outcomes."""
        self._habits.runs += 1
        with Replayer(self._tape.steps, self._scores, outcomes):
            out = call_function(self._fn, self._scores, self._target.clone())
        return self._single(out)
