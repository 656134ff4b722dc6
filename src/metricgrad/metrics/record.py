"""Recording a metric's run: every operation on the scores becomes a step, every discrete one comparisons (`watch.py`).

Values are of four kinds: SMOOTH ones depend on the scores with a gradient, DECIDED ones through bits only, MIXED ones
both ways; OPAQUE ones, such as the indices of a median, must not be used. Discrete operations on DECIDED values need no
comparisons: they are simply run again.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.operations import (
    CHOOSES,
    COMPARE,
    DISCRETE,
    LIMITS,
    ROUNDS,
    VALUE_FREE,
    bind,
    is_mask,
    out_of_place,
    picks,
)
from metricgrad.metrics.watch import Constant, Decision, Given, Step, Watch, decision, origin, refusal, tensors_in

_MAX_STEPS = 16  # classes that rounding may tell apart; beyond that an entry is compared with its two nearest steps

Read = Callable[[Given], Tensor]


class Kind(Enum):
    """How a value depends on the scores."""

    SMOOTH = "smooth"
    MIXED = "mixed"
    DECIDED = "decided"
    OPAQUE = "opaque"


class StepRecorder(Watch):
    """Runs a function and records what it compares; indices are for the `Recorder` in `indices.py`.

    Args:
        scores: what is watched; a tensor with a gradient.
        target: the ground truth, whose range says how far rounding to classes goes.
    """

    def __init__(self, scores: Tensor, target: Tensor) -> None:
        super().__init__()
        self.script: list[Step] = []
        self.names: list[str] = []
        self.decisions: list[Decision] = []
        self.largest = scores.numel()  # entries of the largest tensor on the way
        self._target, self._actual = target, Given()
        self._same: dict[tuple[int, float], list[int]] = {}
        self._kinds: dict[int, Kind] = {}
        self._ragged: set[int] = set()
        self._mark(scores, Kind.SMOOTH)

    def kind(self, value: Any) -> Kind | None:
        """How a value depends on the scores; None if it does not."""
        return self._kinds.get(id(value))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation: recorded if it depends on the scores."""
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        kinds = {self.kind(tensor) for tensor in tensors} - {None}
        if not kinds:
            return func(*args, **kwargs)
        func, name = out_of_place(func, kwargs)
        if Kind.OPAQUE in kinds:
            raise refusal(
                "uses indices of an operation that is not taken apart",
                "use the values, or the indices of argmax, sort or topk",
            )
        self.names.append(name)
        with torch.enable_grad():
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

    def _with_indices(
        self, tensors: list[Tensor], name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation on indices that a choice gave; None for any other."""
        raise NotImplementedError

    def _choose(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """argmax, argmin, max, min, sort, argsort, topk."""
        raise NotImplementedError

    def _discrete(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A discrete operation on scores, taken apart; None for any other."""
        values = args[0] if args else kwargs["input"]
        if name in COMPARE:
            other = args[1] if len(args) > 1 else kwargs["other"]
            return self._emit(self._compare(COMPARE[name], values, other))
        if name == "sign":
            up, untied, dtype = self._compare(">", values, 0), (values != 0).detach(), values.dtype
            return self._emit(lambda given: torch.where(untied, 2 * up(given).to(dtype) - 1, up(given).to(dtype)))
        if name == "heaviside":
            up, same, at_zero = self._compare(">", values, 0), self._compare("==", values, 0), args[1]
            return self._emit(lambda given: torch.where(same(given), at_zero, up(given).to(at_zero.dtype)))
        if name in CHOOSES and not (name in ("max", "min") and not isinstance(bind(name, args, kwargs)["dim"], int)):
            return self._choose(name, func, args, kwargs)
        if name in ("bucketize", "searchsorted"):
            return self._buckets(name, func, args, kwargs)
        if name == "bool":
            return self._emit(self._compare("!=", values, 0))
        if name in ROUNDS or (name in ("to", "type") and not func(*args, **kwargs).is_floating_point()):
            return self._emit(self._steps(name, func(*args, **kwargs), values))
        return None

    def _compare(self, sign: str, left: Any, right: Any) -> Read:
        if sign in (">", ">="):
            return self._decide(left - right, left > right if sign == ">" else left >= right, sign)
        if sign in ("<", "<="):
            return self._decide(right - left, left < right if sign == "<" else left <= right, sign)
        above, below = self._decide(left - right, left > right, sign), self._decide(right - left, left < right, sign)
        if sign == "!=":
            return lambda given: above(given) | below(given)
        return lambda given: ~(above(given) | below(given))

    def _decide(self, values: Tensor, outcome: Tensor, operation: str, *, turned: bool = True) -> Read:
        """Notes comparisons, and how they turned out; gives what reads their bits.

        Equal ones share theirs, and so do opposite ones without ties, if `turned` allows it.
        """
        shape, found = values.shape, decision(origin(operation), values, outcome)
        values = found.values
        same = self._same.setdefault((values.numel(), abs(float(values.detach().sum()))), [])
        for index in same:
            if torch.equal(self.decisions[index].values, values):
                return lambda given: given.bits[index].reshape(shape)
            if turned and torch.equal(self.decisions[index].values, -values) and not (values == 0).any():
                return lambda given: ~given.bits[index].reshape(shape)
        number = len(self.decisions)
        same.append(number)
        self.decisions.append(found)
        self._actual.bits.append(found.bits)
        return lambda given: given.bits[number].reshape(shape)

    def _limit(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A clamp keeps the order, so the gradient of comparisons passes through it."""
        through = func(*args, **kwargs).detach() + (args[0] - args[0].detach())
        return self._smooth(through, func, args, kwargs)

    def _steps(self, name: str, result: Tensor, values: Tensor) -> Read:
        """A rounded value: its lowest possible one, and a bit for every step above it."""
        if not result.numel():
            return lambda _: result
        target = self._target.double()
        known = [target] if target.numel() and bool((target == target.round()).all()) else []
        every = torch.cat([result.detach().double().flatten(), *(each.flatten() for each in known)])
        low, high = float(every.min()), float(every.max())
        if high - low > _MAX_STEPS:  # the step below and the one above
            reached = result.detach().unsqueeze(-1) + torch.tensor([0, 1], device=values.device)
            low_of_each = result.detach() - 1
        else:
            reached = torch.arange(low + 1, high + 1, device=values.device).expand(*result.shape, -1)
            low_of_each = torch.full_like(result.detach(), low)
        toward_zero = name not in ("floor", "round", "ceil")
        border = reached + ROUNDS.get(name, 0.0) - (toward_zero & (reached <= 0)).to(reached.dtype)
        outcome = result.detach().unsqueeze(-1) >= reached
        read = self._decide(values.unsqueeze(-1) - border.to(values.dtype), outcome, name)
        return lambda given: low_of_each + read(given).sum(-1).to(result.dtype)

    def _buckets(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The bucket of a value is the number of borders below it."""
        values, borders = args[:2] if name == "bucketize" else args[1::-1]
        if self.kind(borders) is not None or borders.dim() != 1:
            raise refusal(f"looks scores up among scores ({name})", "count comparisons instead: (a > b).sum(-1)")
        result = func(*args, **kwargs)
        outcome = result.unsqueeze(-1) > torch.arange(len(borders), device=result.device)
        read = self._decide(values.unsqueeze(-1) - borders, outcome, name)
        return self._emit(lambda given: read(given).sum(-1).to(result.dtype))

    def _pass(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any other operation: run, and run again in a replay unless only smooth values go in."""
        kinds = {self.kind(tensor) for tensor in tensors_in((args, kwargs))} - {None}
        if name in ("detach", "data", "detach_", "requires_grad_"):
            self.script.append(lambda _, new_args, __: new_args[0])
            return args[0]
        args = self._constant_masks(name, args)
        out = func(*args, **kwargs)
        pure = kinds == {Kind.SMOOTH}
        tensors = list(tensors_in(out))
        attached = [tensor for tensor in tensors if tensor.requires_grad]
        if pure and name in VALUE_FREE:
            self.script.append(Constant(out))
            return out
        if not pure or not tensors:
            fixed = args[1:] if name == "getitem" and not self._tracked(args[1:]) else None

            def again(_: Given, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
                return func(*(new_args if fixed is None else (new_args[0], *fixed)), **new_kwargs)

            self.script.append(again)
            self._mark([tensor for tensor in tensors if not tensor.requires_grad], Kind.DECIDED)
            self._mark(attached, Kind.MIXED)
            if picks(name, args, self._tracked) or any(id(each) in self._ragged for each in tensors_in(args)):
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

        self.script.append(step)
        self._mark(out, Kind.SMOOTH)
        return out

    def _constant_masks(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A mask that does not depend on scores as indices: those can be used for many configurations at once."""
        if name != "getitem" or self._tracked(args[1:]):
            return args
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        plain = tuple(part for each in index for part in (each.nonzero().unbind(-1) if is_mask(each) else (each,)))
        return (args[0], plain)

    def _tracked(self, value: Any) -> bool:
        return any(self.kind(tensor) is not None for tensor in tensors_in(value))

    def _emit(self, read: Read) -> Tensor:
        """A result that bits decide."""
        self.script.append(lambda given, _, __: read(given))
        out = read(self._actual)
        self._mark(out, Kind.DECIDED)
        return out

    def _mark(self, out: Any, kind: Kind) -> None:
        self._keep(out)
        for tensor in tensors_in(out):
            self._kinds[id(tensor)] = kind
            self.largest = max(self.largest, tensor.numel())
