"""Recording a function while it runs: discrete operations are taken apart into comparisons.

A `Recorder` stands between the function and torch. Where a value that depends on the scores
smoothly meets a discrete operation, comparisons c are found whose bits [c > 0] decide the result:

    a > b            c = a - b                    the bit
    a == b           c = a - b and b - a          neither bit
    round, floor     c = x - each step            the last step reached
    argmax == k      c = x_k - the best other     the bit (`indices.py`)
    argmax, sort     depends on how their indices are used (`indices.py`)

Discrete operations on values that only bits decide need no comparisons: a replay runs them again.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metricgrad.metrics.watching.comparisons import WatchError, watch_error
from metricgrad.metrics.watching.indices import CHOOSING, Indices
from metricgrad.metrics.watching.tape import Dependence, Operation, Outcomes, Read, Tape, tensors_in

# An operation that rounds to more than this many steps compares a value only with the nearest two.
_MAX_STEPS = 16

_COMPARING = {
    "gt": ">", "greater": ">", "lt": "<", "less": "<", "ge": ">=", "greater_equal": ">=",
    "le": "<=", "less_equal": "<=", "eq": "==", "ne": "!=", "not_equal": "!=",
}  # fmt: skip
_WON = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_ROUNDING = {  # a step k is reached at k plus this
    "floor": 0.0, "round": -0.5, "ceil": -1.0, "trunc": 0.0, "fix": 0.0, "long": 0.0, "int": 0.0,
    "short": 0.0,
}  # fmt: skip
_CASTING = {"to", "type"}
_DIVIDING = {"floor_divide", "floordiv", "div", "divide", "true_divide"}
_CLAMPING = {"relu", "clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6"}
_DISCRETE = {
    *_COMPARING, *_ROUNDING, *CHOOSING, "sign", "sgn", "heaviside", "bucketize", "searchsorted",
}  # fmt: skip
# These jump, although torch has a gradient for them.
_JUMPING = {
    "copysign", "frac", "remainder", "mod", "fmod", "ldexp", "nextafter", "threshold", "hardshrink",
}  # fmt: skip
_LEAVING = {
    "__bool__": "decides a Python branch", "is_nonzero": "decides a Python branch",
    "__contains__": "decides a Python branch", "equal": "decides a Python branch",
    "allclose": "decides a Python branch", "item": "leaves torch by .item()",
    "tolist": "leaves torch by .tolist()", "numpy": "leaves torch by .numpy()",
    "__array__": "leaves torch for NumPy", "__float__": "leaves torch by float()",
    "__int__": "leaves torch by int()", "__index__": "becomes a Python index",
}  # fmt: skip
_NEW_TENSORS = "make a new one: torch.where, scatter, stack or cat"


class Recorder(TorchFunctionMode):
    """Records a run on a tape; `numbers` are choices that are known to be used as numbers."""

    def __init__(self, scores: Tensor, target: Tensor, numbers: set[int]) -> None:
        super().__init__()
        self.tape = Tape(scores)
        self.indices = Indices(self.tape, numbers)
        self._target = target  # its range tells how many steps a rounded value may reach
        self._changed: dict[int, tuple[Tensor, WatchError]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and records it if it depends on the scores."""
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        for tensor in tensors:
            if id(tensor) in self._changed:
                raise self._changed[id(tensor)][1]
        sources = {self.tape.dependence(tensor) for tensor in tensors} - {None}
        if not sources:
            if self.tape.hidden(tensors):
                raise watch_error(
                    "uses the scores inside torch.vmap or torch.func, where they cannot be watched",
                    "compute with all items at once, in plain torch",
                )
            return func(*args, **kwargs)
        self.tape.function = func.__name__
        operation = _out_of_place(func, *input_first(args, kwargs))
        if operation.func is not func:
            # The change was made to a new tensor, so the old one must not be used any more.
            changed = operation.args[0]
            error = watch_error("changes a tensor in place that is used later", _NEW_TENSORS)
            self._changed[id(changed)] = (changed, error)
        if Dependence.OPAQUE in sources:
            raise watch_error(
                "uses indices of an operation that is not taken apart",
                "use the values, or the indices of argmax, sort or topk",
            )
        with torch.inference_mode(False), torch.enable_grad():  # whatever the function says
            return self._record(operation, sources)

    def _record(self, operation: Operation, sources: set[Dependence | None]) -> Any:
        """The result of an operation on values that depend on the scores."""
        if (found := self.indices.follow(operation)) is not None:
            return found
        if sources != {Dependence.DECIDED}:
            if operation.name in _DISCRETE and self.tape.ragged(operation.tensors):
                raise watch_error(
                    "compares scores that another comparison of scores has picked",
                    "keep all items, and use torch.where or a product with the mask instead of "
                    "indexing by it",
                )
            if (found := self._discrete(operation)) is not None:
                return found
            if operation.name in _CLAMPING and sources == {Dependence.SMOOTH}:
                # A clamp keeps the order, so the gradient of comparisons passes through it.
                values = operation.args[0].nan_to_num(0.0, 0.0, 0.0)  # inf - inf would be NaN
                through = operation.run().detach() + (values - values.detach())
                return self.tape.smooth(through, operation)
        return self.tape.run(operation)

    def _discrete(self, operation: Operation) -> Tensor | tuple[Any, ...] | None:
        """The result of a discrete operation, taken apart; None for any other operation."""
        name, _, args, kwargs = operation
        if self.indices.chooses(operation):
            return self.indices.choose(operation)
        read: Read | None = None
        if name in _COMPARING:
            left, right = (*args, kwargs["other"]) if "other" in kwargs else args
            read = self._compare(_COMPARING[name], left, right)
        elif name in ("sign", "sgn"):
            read = self._sign(name, args[0])
        elif name == "heaviside":
            read = self._heaviside(*args)
        elif name in ("bucketize", "searchsorted"):
            read = self._bucket(operation)
        elif name == "bool":
            read = self._compare("!=", args[0], 0)
        elif name in _DIVIDING and (kwargs.get("rounding_mode") is not None or "floor" in name):
            mode = kwargs.get("rounding_mode") or "floor"
            read = self._round(mode, operation.run(), args[0] / args[1])
        elif name in _ROUNDING or (name in _CASTING and not operation.run().is_floating_point()):
            read = self._round_to(operation)
        elif name in _JUMPING:
            raise watch_error(
                f"uses scores in torch.{name}, which jumps and is not taken apart",
                "use comparisons, floor, round or bucketize",
            )
        return None if read is None else self.tape.emit(read)

    def _compare(self, sign: str, left: Any, right: Any) -> Read:
        """One of > >= < <= == !=, element by element."""
        if sign in _WON:
            difference = left - right if ">" in sign else right - left
            return self.tape.compare(difference, _WON[sign](left, right), sign)
        above = self.tape.compare(left - right, left > right, sign)
        below = self.tape.compare(right - left, left < right, sign)
        if sign == "!=":
            return lambda outcomes: above(outcomes) | below(outcomes)
        return lambda outcomes: ~(above(outcomes) | below(outcomes))

    def _sign(self, name: str, values: Tensor) -> Read:
        """The sign: 1 if the comparison with 0 is won, else -1, or 0 for a tie."""
        above = self.tape.compare(values, values > 0, name)
        # Values that a clamp has cut at 0 fall to 0 when they lose, not below.
        cut = (values == 0).any() & (values >= 0).all()
        untied = ((values != 0) & ~cut).to(values.dtype)
        return lambda outcomes: above(outcomes) * (1 + untied) - untied

    def _heaviside(self, values: Tensor, at_zero: Tensor) -> Read:
        """The step function, whose value at 0 is given."""
        above = self._compare(">", values, 0)
        same = self._compare("==", values, 0)
        return lambda given: torch.where(same(given), at_zero, above(given).to(at_zero.dtype))

    def _bucket(self, operation: Operation) -> Read:
        """The number of boundaries below a value, for `bucketize` and `searchsorted`."""
        name, _, args, kwargs = operation
        named = [kwargs[key] for key in ("boundaries", "sorted_sequence") if key in kwargs]
        given = [*args, *named]
        values, boundaries = given if name == "bucketize" or named else given[::-1]
        if self.tape.depends(boundaries) or boundaries.dim() != 1:
            raise watch_error(
                f"looks scores up among scores ({name})",
                "count comparisons instead: (a > b).sum(-1)",
            )
        result = operation.run()
        outcome = result.unsqueeze(-1) > torch.arange(len(boundaries), device=result.device)
        read = self.tape.compare(values.unsqueeze(-1) - boundaries, outcome, name)
        return lambda outcomes: read(outcomes).sum(-1).to(result.dtype)

    def _round_to(self, operation: Operation) -> Read:
        """A rounded value; with decimals, the rounded value of a power of ten times the value."""
        name, _, args, kwargs = operation
        decimals = kwargs.get("decimals", 0) if name == "round" else 0
        if not decimals:
            return self._round(name, operation.run(), args[0])
        scaled = args[0] * 10**decimals
        read = self._round(name, scaled.round(), scaled)
        return lambda outcomes: read(outcomes) / 10**decimals

    def _round(self, name: str, result: Tensor, values: Tensor) -> Read:
        """A rounded value: one comparison for each step that it may reach.

        With other bits it is the highest step newly reached, or the one below the lowest step newly
        missed.
        """
        result = result.detach()
        if not result.numel():
            return lambda _: result
        whole = self._target.double().flatten()
        whole = whole if (whole == whole.round()).all() else whole[:0]
        expected = torch.cat([result.double().flatten(), whole])
        low = float(expected.min())
        high = float(expected.max())
        if high - low > _MAX_STEPS:
            reached = result.unsqueeze(-1) + torch.tensor([0, 1], device=values.device)
        else:
            every = torch.arange(low + 1, high + 1, device=values.device)
            reached = every.to(result.dtype).expand(*result.shape, -1)
        if not reached.numel():
            return lambda _: result
        toward_zero = name not in ("floor", "round", "ceil")
        border = reached + _ROUNDING.get(name, 0.0)
        border = border - (toward_zero & (reached <= 0)).to(values.dtype)
        own = result.unsqueeze(-1) >= reached
        read = self.tape.compare(values.unsqueeze(-1) - border.to(values.dtype), own, name)
        far = abs(high) + abs(low) + 2

        def rounded(outcomes: Outcomes) -> Tensor:
            bits = read(outcomes)
            up = torch.where(bits & ~own, reached, -far).amax(-1)
            down = torch.where(~bits & own, reached - 1, far).amin(-1)
            lowered = torch.where(down < far, down, result)
            return torch.where(up > -far, up, lowered).to(result.dtype)

        return rounded


def input_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments with the first one in front, where it was passed as `input=`."""
    if args or "input" not in kwargs:
        return args, kwargs
    return (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}


def _out_of_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
    """The operation that gives a new tensor, such as + for +=; WatchError where there is none."""
    raw = func.__name__
    if raw == "__get__":
        return Operation(func.__self__.__name__, func, args, kwargs)
    if raw in _LEAVING:
        raise watch_error(
            f"{_LEAVING[raw]}, where no other outcome can be followed",
            "stay in torch: torch.where for a branch, clamp(min=1) for a zero denominator, tensors "
            "for numbers; or let mg.UniLoss take the function as a black box",
        )
    if raw in ("__setitem__", "__set__") or "out" in kwargs:
        raise watch_error("writes into a tensor, which cannot be followed", _NEW_TENSORS)
    in_place_operator = raw.startswith("__i") and raw not in ("__iter__", "__invert__")
    plain: Callable[..., Any] | None = None
    if in_place_operator and (plain := getattr(Tensor, "__" + raw[3:], None)) is not None:
        return Operation(raw[3:-2], plain, args, kwargs)
    if raw.endswith("_") and not raw.startswith("__"):
        plain = getattr(Tensor, raw[:-1], None)
        if plain is None:
            raise watch_error(f"changes a tensor in place by {raw}", _NEW_TENSORS)
        return Operation(raw[:-1], plain, args, kwargs)
    return Operation(raw.strip("_"), func, args, kwargs)
