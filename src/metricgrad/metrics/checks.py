"""Inputs are checked once, on entry: every error repeats what was passed and says what to pass.

Entries that do not count (`where` is False) are never looked at: padding may hold NaN, -100 or
anything else. The checks do the cheap test first (one sum tells whether all scores are finite) and
search for the offending entries only when it fails.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metricgrad import ops

_SHOWN = 5
_VOID = 255  # what segmentation data sets call pixels without a label


def to_tensor(argument: str, value: Any) -> Tensor:
    """A detached real tensor from a tensor, an array or nested lists; errors name the argument."""
    tensor = value.detach() if isinstance(value, Tensor) else _from_array(argument, value)
    if tensor.is_complex():
        raise TypeError(f"{argument} must be real; got {tensor.dtype} of shape {shape(tensor)}")
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        tensor = tensor.to(torch.int64)
    elif tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        tensor = tensor.to(torch.float32)
    if not tensor.dim():
        wanted = "at least one dimension, the items of a set"
        raise ValueError(f"{argument} must have {wanted}; got the number {tensor}")
    return tensor


def shape(tensor: Tensor) -> str:
    """The tensor's shape as it is written in messages: `[3, 4]`."""
    return str(list(tensor.shape))


def expand_where(where: Tensor | None, full: Sequence[int], items: int) -> Tensor | None:
    """`where` as bool of shape `full`, from that shape or from its first `items` dimensions."""
    if where is None:
        return None
    if list(where.shape) not in (list(full), list(full[:items])):
        allowed = " or ".join(dict.fromkeys([str(list(full)), str(list(full[:items]))]))
        raise ValueError(f"where must have shape {allowed} here; got {shape(where)}")
    where = zero_one("where", where)
    return where.reshape(where.shape + (1,) * (len(full) - where.dim())).expand(tuple(full))


def real_scores(scores: Tensor, where: Tensor | None) -> Tensor:
    """Scores in float32 or float64, 0 where they do not count; ValueError for NaN and infinity."""
    scores = scores.to(ops.float_dtype(scores))
    if where is not None:
        scores = scores.masked_fill(~where, 0.0)
    if math.isfinite(scores.detach().sum().item()):
        return scores
    bad = ~scores.isfinite()
    count = int(bad.sum())
    if count:
        places = ", ".join(str(place) for place in bad.nonzero()[:_SHOWN].tolist())
        raise ValueError(
            f"scores has {count} NaN or infinite value{'s' * (count > 1)} of {scores.numel()} "
            f"(shape {shape(scores)}), at {places}{', ...' * (count > _SHOWN)}; "
            "find out where they come from, or mask them with where"
        )
    return scores


def zero_one(argument: str, target: Tensor, where: Tensor | None = None, hint: str = "") -> Tensor:
    """The tensor as bool; ValueError unless it holds only 0 and 1 where it counts."""
    truth = target != 0
    if where is not None:
        truth = truth & where
    if target.dtype == torch.bool:
        return truth
    wrong = truth != target if where is None else (truth != target) & where
    if wrong.any():
        raise ValueError(
            f"{argument} must hold only 0 and 1; got {_examples(target[wrong])} among its values "
            f"(shape {shape(target)}){ignoring(target[wrong], target) or hint}"
        )
    return truth


def class_indices(target: Tensor, classes: int, where: Tensor | None) -> Tensor:
    """The target as int64 class indices, 0 where it does not count; ValueError if out of range."""
    indices = target.to(torch.int64)
    if where is not None:
        indices = indices.masked_fill(~where, 0)
    wrong = (indices < 0) | (indices >= classes)
    if target.is_floating_point():
        wrong |= (indices != target) if where is None else (indices != target) & where
    if wrong.any():
        raise ValueError(
            f"target must hold class indices 0 to {classes - 1}, as scores has {classes} classes; "
            f"got {_examples(target[wrong])} among its values (shape {shape(target)})"
            f"{ignoring(target[wrong], target)}"
        )
    return indices


def ignoring(wrong: Tensor, target: Tensor) -> str:
    """What to pass if the wrong values of a target look like a mark for what does not count.

    That is one value, negative or 255. In a target of -1 and 1, however, -1 is a class.
    """
    mark = wrong.flatten()[0].item()
    if not (wrong == mark).all() or not (mark < 0 or mark == _VOID):
        return ""
    if mark == -1 and ((target == 1) | (target == -1)).all():
        return "; if -1 is the negative class, pass target > 0"
    return (
        f"; if {mark:g} marks what does not count, pass where=target != {mark:g}, or a metric with "
        f"ignore_index={mark:g} for label maps"
    )


def one_of(option: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raises ValueError unless an option has one of the values that it may have."""
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ValueError(f"{option} must be {', '.join(others)} or {last}; got {value!r}")


def whole(option: str, value: Any, least: int) -> None:
    """Raises unless an option is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{option} must be a whole number; got {value!r}")
    if value < least:
        raise ValueError(f"{option} must be {least} or more; got {value}")


def grades(target: Tensor, where: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The target as float grades, 0 where it does not count; ValueError unless finite and >= 0."""
    grade = target.to(dtype)
    if where is not None:
        grade = grade.masked_fill(~where, 0.0)
    wrong = ~((grade >= 0) & grade.isfinite())
    if wrong.any():
        raise ValueError(
            f"target must hold finite grades of 0 or more; got {_examples(grade[wrong])} "
            f"(shape {shape(target)}){ignoring(target[wrong], target)}"
        )
    return grade


def _examples(values: Tensor) -> str:
    """A few of the values, each once."""
    different = dict.fromkeys(f"{value:.10g}" for value in values.flatten()[:1000].tolist())
    return ", ".join(list(different)[:_SHOWN])


def _from_array(argument: str, value: Any) -> Tensor:
    """A tensor of the array that NumPy makes of the value."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{argument} must be a tensor, an array or lists of equal lengths; {error}"
        ) from None
    match array.dtype.kind:
        case "b":
            dtype = np.bool_
        case "i" | "u":
            dtype = np.int64
        case "f":
            dtype = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.float64
        case "c":
            dtype = np.complex128
        case _:
            raise TypeError(
                f"{argument} must hold numbers; got {type(value).__name__} of {array.dtype}: "
                f"{value!r:.80}"
            )
    return torch.from_numpy(array.astype(dtype, order="C"))
