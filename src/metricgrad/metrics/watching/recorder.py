"""Recording a metric's run: every operation on the scores becomes a step, every discrete one comparisons (`watch.py`).

Values are of four kinds: SMOOTH ones depend on the scores with a gradient, DECIDED ones through
bits only, MIXED ones both ways; OPAQUE ones, such as the indices of a median, must not be used.
Discrete operations on DECIDED values need no comparisons: they are simply run again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.watching.interception import (
    Constant,
    Decision,
    Given,
    Step,
    Watch,
    WatchError,
    decision,
    origin,
    positional,
    refusal,
    tensors_in,
)
from metricgrad.metrics.watching.operations import (
    CHOOSES,
    COMPARE,
    DISCRETE,
    DIVISIONS,
    JUMPING,
    LIMITS,
    ROUNDS,
    VALUE_FREE,
    bind,
    is_mask,
    out_of_place,
    picks,
)

_MAX_STEPS = 16  # classes that rounding may tell apart; beyond that an entry is compared with its two nearest steps

Read = Callable[[Given], Tensor]


class Kind(Enum):
    """How a value depends on the scores."""

    SMOOTH = "smooth"
    MIXED = "mixed"
    DECIDED = "decided"
    OPAQUE = "opaque"


class StepRecorder(Watch, ABC):
    """Runs a function and records what it compares; indices are for the `Recorder` in `indices.py`.

    Args:
        scores: what is watched; a tensor with a gradient.
        target: the ground truth, whose range says how far rounding to classes goes.
    """

    def __init__(self, scores: Tensor, target: Tensor) -> None:
        super().__init__()
        self.script: list[tuple[str, Step]] = []
        self.decisions: list[Decision] = []
        self.largest = scores.numel()  # entries of the largest tensor on the way
        self._scores, self._target, self._actual = scores, target, Given()
        self._same: dict[tuple[int, float], list[int]] = {}
        self._changed: dict[int, tuple[Tensor, WatchError]] = {}
        self._name = ""
        self._kinds: dict[int, Kind] = {}
        self._ragged: set[int] = set()
        self._mark(scores, Kind.SMOOTH)

    def kind(self, value: Any) -> Kind | None:
        """How a value depends on the scores; None if it does not."""
        return self._kinds.get(id(value))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation: recorded if it depends on the scores."""
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        self._refuse_changed(tensors)
        kinds = {self.kind(tensor) for tensor in tensors} - {None}
        if not kinds:
            return func(*args, **kwargs)
        self._name = func.__name__
        plain, name = out_of_place(func, kwargs)
        args, kwargs = positional(args, kwargs)
        if plain is not func:
            self._changed[id(args[0])] = (
                args[0],
                refusal(
                    "changes a tensor in place that is looked at later",
                    "make a new one: torch.where, scatter, stack or cat",
                ),
            )
        if Kind.OPAQUE in kinds:
            raise refusal(
                "uses indices of an operation that is not taken apart",
                "use the values, or the indices of argmax, sort or topk",
            )
        with _recording():
            return self._record(name, plain, args, kwargs, tensors, kinds)

    def _record(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        kinds: set[Kind | None],
    ) -> Any:
        if (found := self._with_indices(tensors, name, func, args, kwargs)) is not None:
            return found
        if kinds != {Kind.DECIDED}:
            if name in DISCRETE and any(id(tensor) in self._ragged for tensor in tensors):
                raise refusal(
                    "compares scores that another comparison of scores has picked",
                    "keep all items, and use torch.where or a product with the mask instead of indexing by it",
                )
            if (found := self._discrete(name, func, args, kwargs)) is not None:
                return found
            if name in LIMITS and kinds == {Kind.SMOOTH}:
                return self._limit(func, args, kwargs)
        return self._pass(name, func, args, kwargs)

    def _refuse_changed(self, tensors: list[Tensor]) -> None:
        """A change in place gave a new tensor here, so the old one must not be looked at."""
        for tensor in tensors if self._changed else ():
            if id(tensor) in self._changed:
                raise self._changed[id(tensor)][1]

    @abstractmethod
    def _with_indices(
        self,
        tensors: list[Tensor],
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """An operation on indices that a choice gave; None for any other."""

    @abstractmethod
    def _choose(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """argmax, argmin, max, min, sort, argsort, topk."""

    def _discrete(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A discrete operation on scores, taken apart; None for any other."""
        values = args[0] if args else kwargs["input"]
        if name in COMPARE:
            other = args[1] if len(args) > 1 else kwargs["other"]
            return self._emit(self._compare(COMPARE[name], values, other))
        if name in ("sign", "sgn"):
            up, untied, dtype = (
                self._decide(values, values > 0, name),
                (values != 0).detach(),
                values.dtype,
            )
            return self._emit(
                lambda given: torch.where(untied, 2 * up(given).to(dtype) - 1, up(given).to(dtype))
            )
        if name == "heaviside":
            up, same, at_zero = (
                self._compare(">", values, 0),
                self._compare("==", values, 0),
                args[1],
            )
            return self._emit(
                lambda given: torch.where(same(given), at_zero, up(given).to(at_zero.dtype))
            )
        if name in CHOOSES and not (
            name in ("max", "min") and not isinstance(bind(name, args, kwargs)["dim"], int)
        ):
            return self._choose(name, func, args, kwargs)
        if name in ("bucketize", "searchsorted"):
            return self._buckets(name, func, args, kwargs)
        if name == "bool":
            return self._emit(self._compare("!=", values, 0))
        if name in DIVISIONS and (kwargs.get("rounding_mode") is not None or "floor" in name):
            result = func(
                *(each.detach() if isinstance(each, Tensor) else each for each in args), **kwargs
            )
            return self._emit(
                self._steps(kwargs.get("rounding_mode") or "floor", result, args[0] / args[1])
            )
        if name in ROUNDS or (
            name in ("to", "type") and not func(*args, **kwargs).is_floating_point()
        ):
            return self._emit(self._rounded(name, func, values, args[1:], kwargs))
        if name in JUMPING:
            raise refusal(
                f"uses scores in torch.{name}, which jumps and is not an operation that is taken apart",
                "use comparisons, floor, round or bucketize",
            )
        return None

    def _rounded(
        self, name: str, func: Any, values: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Read:
        """A rounded value; to decimals, that of as many times the value."""
        decimals = kwargs.get("decimals", 0) if name == "round" else 0
        if not decimals:
            return self._steps(name, func(values, *rest, **kwargs), values)
        scaled = values * 10**decimals
        read = self._steps(name, scaled.round(), scaled)
        return lambda given: read(given) / 10**decimals

    def _compare(self, sign: str, left: Any, right: Any) -> Read:
        if sign in (">", ">="):
            return self._decide(left - right, left > right if sign == ">" else left >= right, sign)
        if sign in ("<", "<="):
            return self._decide(right - left, left < right if sign == "<" else left <= right, sign)
        above, below = (
            self._decide(left - right, left > right, sign),
            self._decide(right - left, left < right, sign),
        )
        if sign == "!=":
            return lambda given: above(given) | below(given)
        return lambda given: ~(above(given) | below(given))

    def _decide(
        self, values: Tensor, outcome: Tensor, operation: str, *, turned: bool = True
    ) -> Read:
        """Notes comparisons, and how they turned out; gives what reads their bits.

        Equal ones share theirs, and so do opposite ones without ties, if `turned` allows it.
        """
        shape, found = values.shape, decision(origin(operation), values, outcome)
        values = found.values
        same = self._same.setdefault((values.numel(), abs(float(values.detach().sum()))), [])
        for index in same:
            old = self.decisions[index].values
            if torch.equal(old, values) and self._same_slope(old, values):
                return lambda given: given.bits[index].reshape(shape)
            if (
                turned
                and torch.equal(old, -values)
                and not (values == 0).any()
                and self._same_slope(old, -values)
            ):
                return lambda given: ~given.bits[index].reshape(shape)
        number = len(self.decisions)
        same.append(number)
        self.decisions.append(found)
        self._actual.bits.append(found.bits)
        return lambda given: given.bits[number].reshape(shape)

    def _same_slope(self, one: Tensor, other: Tensor) -> bool:
        """Whether equal values are the same function of the scores: different items may have equal scores."""
        weight = torch.rand(
            one.shape, generator=torch.Generator().manual_seed(0), dtype=one.dtype
        ).to(one.device)
        (slope,) = torch.autograd.grad(
            (weight * (one - other)).sum(), self._scores, retain_graph=True
        )
        return bool(slope.abs().max() <= 1e-6)

    def _limit(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A clamp keeps the order, so the gradient of comparisons passes through it."""
        through = func(*args, **kwargs).detach() + (args[0] - args[0].detach())
        return self._smooth(through, func, args, kwargs)

    def _steps(self, name: str, result: Tensor, values: Tensor) -> Read:
        """A rounded value: a bit for every step that it may reach.

        With other bits it is the highest step newly reached, or the one below the lowest newly
        missed.
        """
        result = result.detach()
        if not result.numel():
            return lambda _: result
        target = self._target.double()
        known = [target] if target.numel() and bool((target == target.round()).all()) else []
        every = torch.cat([result.double().flatten(), *(each.flatten() for each in known)])
        low, high = float(every.min()), float(every.max())
        if high - low > _MAX_STEPS:  # the step below and the one above
            reached = result.unsqueeze(-1) + torch.tensor([0, 1], device=values.device)
        else:
            reached = (
                torch.arange(low + 1, high + 1, device=values.device)
                .to(result.dtype)
                .expand(*result.shape, -1)
            )
        if not reached.shape[-1]:
            return lambda _: result
        toward_zero = name not in ("floor", "round", "ceil")
        border = reached + ROUNDS.get(name, 0.0) - (toward_zero & (reached <= 0)).to(values.dtype)
        own = result.unsqueeze(-1) >= reached
        read = self._decide(values.unsqueeze(-1) - border.to(values.dtype), own, name)
        far = abs(high) + abs(low) + 2

        def rounded(given: Given) -> Tensor:
            bits = read(given)
            up = torch.where(bits & ~own, reached, -far).amax(-1)
            down = torch.where(~bits & own, reached - 1, far).amin(-1)
            return torch.where(up > -far, up, torch.where(down < far, down, result)).to(
                result.dtype
            )

        return rounded

    def _buckets(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The bucket of a value is the number of borders below it."""
        named = [kwargs[key] for key in ("boundaries", "sorted_sequence") if key in kwargs]
        given = [*args, *named]
        values, borders = given if name == "bucketize" or named else given[::-1]
        if self.kind(borders) is not None or borders.dim() != 1:
            raise refusal(
                f"looks scores up among scores ({name})",
                "count comparisons instead: (a > b).sum(-1)",
            )
        result = func(*args, **kwargs)
        outcome = result.unsqueeze(-1) > torch.arange(len(borders), device=result.device)
        read = self._decide(values.unsqueeze(-1) - borders, outcome, name)
        return self._emit(lambda given: read(given).sum(-1).to(result.dtype))

    def _pass(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any other operation: run, and run again in a replay unless only smooth values go in."""
        kinds = {self.kind(tensor) for tensor in tensors_in((args, kwargs))} - {None}
        if name in ("detach", "data", "detach_", "requires_grad_"):
            self._note(lambda _, new_args, __: new_args[0])
            return args[0]
        args = self._constant_masks(name, args)
        out = func(*args, **kwargs)
        pure = kinds == {Kind.SMOOTH}
        tensors = list(tensors_in(out))
        attached = [tensor for tensor in tensors if tensor.requires_grad]
        if pure and name in VALUE_FREE:
            self._note(Constant(out))
            return out
        if not pure or not tensors:
            fixed = args[1:] if name == "getitem" and not self._tracked(args[1:]) else None

            def again(_: Given, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
                return func(*(new_args if fixed is None else (new_args[0], *fixed)), **new_kwargs)

            self._note(again)
            self._mark([tensor for tensor in tensors if not tensor.requires_grad], Kind.DECIDED)
            self._mark(attached, Kind.MIXED)
            if picks(name, args, self._tracked) or any(
                id(each) in self._ragged for each in tensors_in(args)
            ):
                self._ragged |= {id(tensor) for tensor in attached}
            return out
        if not attached:
            raise refusal(
                f"uses scores in torch.{name}, which has no gradient and is not an operation that is taken apart",
                "use comparisons, argmax, sort, topk, round or bucketize",
            )
        self._smooth(out, func, args, kwargs)
        self._mark([tensor for tensor in tensors if not tensor.requires_grad], Kind.OPAQUE)
        return out

    def _smooth(self, out: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A smooth result: replays take it from here, unless they are after its gradient."""
        fixed = args[1:] if len(args) > 1 and not self._tracked(args[1:]) else None

        def step(given: Given, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
            if not given.attached:
                return out
            return func(*(new_args if fixed is None else (new_args[0], *fixed)), **new_kwargs)

        self._note(step)
        self._mark(out, Kind.SMOOTH)
        return out

    def _constant_masks(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A mask that does not depend on scores as indices: those can be used for many configurations at once."""
        if name != "getitem" or self._tracked(args[1:]):
            return args
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        plain = tuple(
            part
            for each in index
            for part in (each.nonzero().unbind(-1) if is_mask(each) else (each,))
        )
        return (args[0], plain)

    def _note(self, step: Step) -> None:
        self.script.append((self._name, step))

    def _tracked(self, value: Any) -> bool:
        return any(self.kind(tensor) is not None for tensor in tensors_in(value))

    def _emit(self, read: Read) -> Tensor:
        """A result that bits decide."""
        self._note(lambda given, _, __: read(given))
        out = read(self._actual)
        self._mark(out, Kind.DECIDED)
        return out

    def _mark(self, out: Any, kind: Kind) -> None:
        self._keep(out)
        for tensor in tensors_in(out):
            self._kinds[id(tensor)] = kind
            self.largest = max(self.largest, tensor.numel())


def _recording() -> AbstractContextManager[Any]:
    """A context in which gradients are made, whatever the function says."""
    stack = ExitStack()
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    return stack
