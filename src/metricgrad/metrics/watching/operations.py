"""Torch's operations as a recording sees them (`record.py`): their names by what they do, and their arguments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.watching.interception import refusal, tensors_in

COMPARE = {
    "gt": ">", "greater": ">", "lt": "<", "less": "<", "ge": ">=", "greater_equal": ">=",
    "le": "<=", "less_equal": "<=", "eq": "==", "ne": "!=", "not_equal": "!=",
}  # fmt: skip
LEAVING = {
    "__bool__": "decides a Python branch", "is_nonzero": "decides a Python branch", "item": "leaves torch by .item()",
    "tolist": "leaves torch by .tolist()", "numpy": "leaves torch by .numpy()", "__array__": "leaves torch for NumPy",
    "__float__": "leaves torch by float()", "__int__": "leaves torch by int()", "__index__": "becomes a Python index",
    "__contains__": "decides a Python branch", "equal": "decides a Python branch",
    "allclose": "decides a Python branch",
}  # fmt: skip
VIEWS = {
    "getitem", "unsqueeze", "squeeze", "reshape", "view", "flatten", "ravel", "expand", "expand_as", "clone", "permute",
    "t", "T", "mT", "transpose", "swapaxes", "flip", "narrow", "select", "contiguous", "movedim", "unbind", "split",
    "chunk", "unflatten", "iter", "view_as", "reshape_as", "broadcast_to",
}  # fmt: skip
CASTS = {"to", "long", "int", "float", "double", "type_as", "cpu"}
GATHERS = {"getitem", "gather", "take_along_dim", "index_select", "take"}
VALUE_FREE = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "new_tensor", "isnan", "isfinite", "isinf",
}  # fmt: skip
LIMITS = {"relu", "clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6"}
ROUNDS = {
    "floor": 0.0,
    "round": -0.5,
    "ceil": -1.0,
    "trunc": 0.0,
    "fix": 0.0,
    "long": 0.0,
    "int": 0.0,
    "short": 0.0,
}
CHOOSES = {
    "argmax": ("input", "dim", "keepdim"), "argmin": ("input", "dim", "keepdim"), "max": ("input", "dim", "keepdim"),
    "min": ("input", "dim", "keepdim"), "sort": ("input", "dim", "descending"),
    "argsort": ("input", "dim", "descending"), "topk": ("input", "k", "dim", "largest", "sorted"),
}  # fmt: skip
DIVISIONS = {"floor_divide", "floordiv", "div", "divide", "true_divide"}
DISCRETE = {*COMPARE, *ROUNDS, *CHOOSES, "sign", "sgn", "heaviside", "bucketize", "searchsorted"}
JUMPING = {
    "copysign",
    "frac",
    "remainder",
    "mod",
    "fmod",
    "ldexp",
    "nextafter",
}  # torch calls them smooth


def is_mask(index: Any) -> bool:
    """Whether an index is a mask."""
    return isinstance(index, Tensor) and index.dtype == torch.bool


def picks(name: str, args: tuple[Any, ...], tracked: Callable[[Any], bool]) -> bool:
    """Whether an operation picks items by a comparison of scores, so that their number depends on the scores."""
    masks = [each for each in tensors_in(args[1:]) if is_mask(each)]
    return name in ("getitem", "masked_select") and tracked(masks)


def replace(value: Any, old: Tensor, new: Tensor) -> Any:
    """Nested arguments with one tensor in place of another."""
    if value is old:
        return new
    if isinstance(value, dict):
        return {name: replace(each, old, new) for name, each in value.items()}
    return (
        type(value)(replace(each, old, new) for each in value)
        if isinstance(value, (tuple, list))
        else value
    )


def bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; `dim` is always there, None unless given."""
    bound = {"dim": kwargs.get("axis"), "descending": False}
    return {**bound, **dict(zip(CHOOSES[name], args, strict=False)), **kwargs}


def out_of_place(func: Any, kwargs: dict[str, Any]) -> tuple[Any, str]:
    """The operation that gives a new tensor, and its name without underscores; WatchError where there is none.

    `total += x` and `x.add_(y)` work like `total + x`: the result is the same where it is used.
    Where the old tensor is looked at later, the recorder refuses.
    """
    raw = func.__name__
    if raw == "__get__":
        return func, func.__self__.__name__
    if raw in LEAVING:
        raise refusal(
            f"{LEAVING[raw]}, where no other outcome can be followed",
            "stay in torch: torch.where for a branch, clamp(min=1) for a zero denominator, tensors for numbers; "
            "or let mg.UniLoss take the function as a black box",
        )
    if raw in ("__setitem__", "__set__") or "out" in kwargs:
        raise refusal(
            "writes into a tensor, which cannot be followed",
            "make a new one: torch.where, scatter, stack or cat",
        )
    if (
        raw.startswith("__i")
        and hasattr(Tensor, "__" + raw[3:])
        and raw not in ("__iter__", "__invert__")
    ):
        return getattr(Tensor, "__" + raw[3:]), raw[3:-2]
    if raw.endswith("_") and not raw.startswith("__"):
        plain = getattr(Tensor, raw[:-1], None)
        if plain is None:
            raise refusal(
                f"changes a tensor in place by {raw}",
                "make a new one: torch.where, scatter, stack or cat",
            )
        return plain, raw[:-1]
    return func, raw.strip("_")
