"""Replaying a recorded function: what it would have returned had its comparisons gone otherwise.

A `WatchedMetric` (`watched.py`) watches its function on every set, as a `WatchedSet`. The bits of
all recorded operations, then those of all choices, form one row of length D. For other bits the
function is run again: a `Replayer` takes each step from the tape, so smooth results are those of
the recording, and decisions and indices follow the bits. Many configurations are replayed at once
by `torch.vmap` where the function allows that (no shape may depend on the bits), one after another
where not.
"""

import logging
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metricgrad.metrics.adapters import ScoreFunction
from metricgrad.metrics.mistakes import ideal_scores
from metricgrad.metrics.watching.comparisons import (
    Choice,
    ChoiceRule,
    WatchError,
    call_function,
    flipped,
    watch_error,
)
from metricgrad.metrics.watching.recorder import Recorder, input_first
from metricgrad.metrics.watching.sets import ComparedSet
from metricgrad.metrics.watching.tape import Dependence, Outcomes, Tape, tensors_in

_LOG = logging.getLogger("metricgrad")
_CHECKED_RUNS = 8  # that must agree before it is believed that only the cut of an order matters
_MAX_ELEMENTS = 1 << 23  # of the tensors that are replayed at once


class Replayer(TorchFunctionMode):
    """Runs a recorded function on the recorded scores, with given outcomes."""

    def __init__(self, tape: Tape, scores: Tensor, outcomes: Outcomes) -> None:
        super().__init__()
        self._steps = iter(tape.steps)
        self._outcomes = outcomes
        self._kept = {id(scores): scores}  # what depends on the scores; held, so ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, by the tape if it depends on the scores."""
        kwargs = kwargs or {}
        if not any(id(tensor) in self._kept for tensor in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        name, step, depends = next(self._steps, ("", None, False))
        if step is None or name != func.__name__:
            raise watch_error(
                "takes another path for other bits: its path depends on how many items the scores "
                "have picked",
                "keep all items, and use torch.where, a product with the mask, or clamp(min=1) for "
                "a zero denominator",
            )
        out = step(self._outcomes, *input_first(args, kwargs))
        if depends:
            self._kept.update((id(tensor), tensor) for tensor in tensors_in(out))
        return out


@dataclass
class Habits:
    """What earlier runs of a function have shown, which later runs rely on."""

    numbers: set[int] = field(default_factory=set)  # choices whose indices are used as numbers
    inner: set[int] = field(default_factory=set)  # choices whose order before the cut matters too
    trusted: "Counter[int]" = field(default_factory=Counter)  # runs in which only the cut mattered
    checked: set[int] = field(default_factory=set)  # operations that gave the function's own value
    vmaps: bool | None = None  # whether torch.vmap can run the function; None before the first try
    reason: str = ""  # why it cannot
    runs: int = 0  # how often the function has run
    timed: bool = False  # whether it was found out if it loops over items


class WatchedSet(ComparedSet):
    """One set on which a function was watched; comparisons pass a gradient to its scores."""

    def __init__(self, fn: ScoreFunction, scores: Tensor, target: Tensor, habits: Habits) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            scores = scores.clone() if scores.is_inference() else scores
            self._target = target.clone() if target.is_inference() else target
            watched = scores if scores.requires_grad else scores.detach().requires_grad_()
            self._scores = watched.view_as(watched)
        self._fn = fn
        self._habits = habits
        run, out = self._record()
        self._tape = run.tape
        self._choices = run.indices.choices
        self._dependence = self._tape.dependence(out)
        self.value = self._single(out).detach()
        self._check()
        comparisons = list(self._tape.comparisons)
        self._sizes = [len(each.values) for each in comparisons]  # of these, then of all choices
        for number, choice in enumerate(self._choices):
            rule = self._rule(number, choice)
            if rule is not None:
                comparisons.append(choice.compare(rule))
            self._sizes.append(len(comparisons[-1].values) if rule else 0)
        smooth = not comparisons and self._dependence is Dependence.SMOOTH
        if (smooth or self._dependence is None) and not self._constant():
            raise _compares_nothing() if smooth else _escaped()
        super().__init__(self.value, comparisons, scores, self._tape.largest)

    def of_bits(self, bits: Tensor) -> Tensor:
        """The function's values `[A]` of configurations `[A, D]`."""
        own = len(bits) == 1 and torch.equal(bits[0], self.bits)
        if not len(bits) or not self.comparisons or own:
            return self.value.expand(len(bits))
        rows = max(1, _MAX_ELEMENTS // max(self.largest, len(self.bits)))
        return torch.cat([self._replay(self._outcomes(some)) for some in bits.split(rows)])

    def of_flips(self, bits: Tensor, which: Tensor) -> Tensor:
        """Values `[A]` with one of the bits `[D]` flipped in each, without writing all bits out."""
        own = bits.unsqueeze(0)
        rows = max(1, _MAX_ELEMENTS // self.largest)
        return torch.cat([self._replay(self._outcomes(own, some)) for some in which.split(rows)])

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each bit one whose flip does the same to a choice."""
        same = torch.arange(len(bits), device=bits.device)
        parts = zip(same.split(self._sizes), bits.split(self._sizes), strict=True)
        of_choices = islice(parts, len(self._tape.comparisons), None)
        for choice, (own, part) in zip(self._choices, of_choices, strict=True):
            own.copy_(own[choice.representatives(part)])
        return same

    def direct(self) -> Tensor | None:
        """The value at these bits, smooth in the scores; None where only bits decide it."""
        if self._dependence not in (Dependence.SMOOTH, Dependence.MIXED):
            return None
        return self._run(replace(self._tape.outcomes, attached=True))

    def _record(self) -> tuple[Recorder, Any]:
        """Watches the function; again if a choice turns out to be used in two ways."""
        while True:
            run = Recorder(self._scores, self._target, self._habits.numbers)
            out = self._call(run)
            self._habits.runs += 1
            choices = run.indices.choices
            both = {number for number in run.indices.asked if choices[number].as_numbers}
            if both <= self._habits.numbers:
                return run, out
            # Comparisons of the == and of the number could contradict each other.
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
        signature = hash(tuple(name for name, *_ in self._tape.steps))
        if signature in self._habits.checked:
            return
        with torch.no_grad():
            own = self._single(self._fn(self._scores.detach().clone(), self._target.clone()))
            self._habits.runs += 1
            replayed = self._run(self._tape.outcomes)
        expected = own.detach().double()
        for found in (self.value, replayed):
            if not torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-7, equal_nan=True):
                raise WatchError(
                    f"the function gives {float(own):.6g} when it is called and {float(found):.6g} "
                    "when it is watched: it changes a tensor in place and uses it later, or it is "
                    "random; make new tensors (torch.where, scatter, stack)"
                )
        self._habits.checked.add(signature)

    def _constant(self) -> bool:
        """Whether the value does not depend on the scores, as on a set without a positive.

        Opposite scores may have the same value by chance or by symmetry, so others are tried too.
        """
        own = self._scores.detach()
        ideal = ideal_scores(own, self._target)
        source = torch.Generator().manual_seed(0)
        drawn = torch.randn((3, *own.shape), generator=source, dtype=own.dtype).to(own.device)
        scaled = [each * scale for each, scale in zip(drawn, (0.1, 1.0, 10.0), strict=True)]
        others = [-own, *([] if ideal is None else [ideal, -ideal]), *scaled]
        return all(self._has_own_value(each) for each in others)

    def _has_own_value(self, scores: Tensor) -> bool:
        """Whether other scores have the same value, or none because the function refuses them."""
        with torch.no_grad():
            try:
                found = self._fn(scores, self._target.clone())
            except Exception:  # made-up scores may be none that the function takes
                return True
        return torch.allclose(self._single(found).double(), self.value.double(), equal_nan=True)

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
        return choice.pairs_rule()

    def _only_the_cut_matters(self, number: int, choice: Choice, cut: int) -> bool:
        """Whether the value stays the same when the order on each side of the cut is reversed.

        The labels of one set may read the same both ways, so the first runs try random orders too.
        """
        trusted = self._habits.trusted
        if trusted[number] == _CHECKED_RUNS:
            return True
        source = torch.Generator().manual_seed(trusted[number])
        drawn = [torch.rand(choice.order.shape, generator=source).argsort(-1) for _ in range(2)]
        for order in (choice.order, *(each.to(choice.order.device) for each in drawn)):
            reverse = torch.cat([order[:, :cut].flip(-1), order[:, cut:].flip(-1)], -1)
            one = self._with_order(number, order)
            other = self._with_order(number, reverse)
            if not torch.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True):
                return False
        trusted[number] += 1
        return True

    def _with_order(self, number: int, order: Tensor) -> Tensor:
        """The value with another order `[R, n]` for one choice."""
        indices = list(self._tape.outcomes.indices)
        indices[number] = order[:, : indices[number].shape[-1]]
        with torch.no_grad():
            return self._run(replace(self._tape.outcomes, indices=indices)).double()

    def _outcomes(self, bits: Tensor, which: Tensor | None = None) -> Outcomes:
        """What A replays decide, from bits `[A, D]`, or `[1, D]` flipped at `which` `[A]`."""
        found = Outcomes()
        direct = len(self._tape.comparisons)
        start = 0
        for at, part in enumerate(bits.split(self._sizes, -1)):
            here = None if which is None else which - start
            start += part.shape[-1]
            if at < direct:
                found.bits.append(part if here is None else flipped(part, here))
            else:
                indices, ranks = self._choices[at - direct].decide(part, here)
                found.indices.append(indices)
                found.ranks.append(ranks)
        return found

    def _replay(self, outcomes: Outcomes) -> Tensor:
        """Values `[A]` of the outcomes of A configurations; NaN where the function fails."""
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
            found = []
            for at in range(len(next(part for parts in batch for part in parts))):
                bits, indices, ranks = ([part[at] for part in parts] for parts in batch)
                try:
                    found.append(self._run(Outcomes(bits, indices, ranks)))
                except WatchError:
                    raise
                except Exception:  # the function may raise anything, as on an empty selection
                    found.append(torch.full_like(self.value, torch.nan))
            return torch.stack(found)

    def _run(self, outcomes: Outcomes) -> Tensor:
        """Runs the function once more, with given outcomes."""
        self._habits.runs += 1
        return self._single(self._call(Replayer(self._tape, self._scores, outcomes)))

    def _call(self, mode: TorchFunctionMode) -> Any:
        with mode:
            return call_function(self._fn, self._scores, self._target.clone())


def _compares_nothing() -> WatchError:
    """The error for a function with a useful gradient of its own."""
    what = "never compares scores"
    way_out = "so it has a gradient already: use it, or minus it, as the loss"
    return WatchError(f"the function {what}, {way_out}", what)


def _escaped() -> WatchError:
    """The error for a function whose scores escape the watching, to come back as a value."""
    what = "uses the scores where they cannot be watched, as in a scripted function"
    way_out = "write it in plain torch, without torch.jit and extensions"
    return WatchError(f"the function {what}; {way_out}", what)
