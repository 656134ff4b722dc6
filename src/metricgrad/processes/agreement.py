"""What all processes must have alike, so that they take the same decisions.

Processes that train together wait for each other in every step. If one of them decided differently,
by its own clock or its own file system, the others would wait for a step that it never takes. So
whatever is not computed from the same numbers comes from the first process.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from metricgrad.processes.group import (
    alone,
    answered,
    is_first,
    message_device,
    number_of_processes,
)

T = TypeVar("T")


def from_first(make: Callable[[], T]) -> T:
    """What the first process makes; the others do not make it, and get a copy.

    If the first one fails, the others end with its error in a RuntimeError.
    """
    if alone():
        return make()
    failure = None
    told: list[Any] = [None, None]
    if is_first():
        try:
            told[0] = make()
        except Exception as error:  # whatever it was, the others are waiting
            failure = error
            told[1] = f"the first process stopped: {type(error).__name__}: {error}"
    with answered():
        dist.broadcast_object_list(told, 0, device=message_device())
    if failure is not None:
        raise failure
    if told[1] is not None:
        raise RuntimeError(told[1])
    return told[0]


def clock() -> float:
    """Seconds by the clock of the first process, as `time.monotonic` counts them."""
    return from_first(time.monotonic)


def passed(moment: float) -> bool:
    """Whether a moment of that clock has passed."""
    if not alone() and math.isinf(moment):
        return moment < 0  # nobody needs to be asked
    return clock() > moment


@torch.no_grad()
def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrites tensors, in place, by those of the first process."""
    if alone():
        return
    own = list(tensors)
    first = from_first(lambda: [each.detach().cpu().clone() for each in own])
    if not is_first():
        for each, value in zip(own, first, strict=True):
            each.copy_(value)


@torch.no_grad()
def sum_over_processes(part: Tensor) -> None:
    """Replaces a tensor, in place, by the sum of those of all processes."""
    if alone():
        return
    sent = part.to(message_device()).contiguous()
    with answered():
        dist.all_reduce(sent)
    if sent is not part:
        part.copy_(sent)


def told_by_all(own: T) -> list[T]:
    """What every process says, by rank."""
    if alone():
        return [own]
    every: list[Any] = [None] * number_of_processes()
    with answered():
        dist.all_gather_object(every, own)
    return every


def agree(told: Mapping[str, Any]) -> None:
    """Raises ValueError, in all processes, unless each of them says the same under every name."""
    every = told_by_all(told)
    for name, value in every[0].items():
        for rank, other in enumerate(every):
            if other.get(name) != value:
                raise ValueError(
                    f"all processes must call mg.fit with the same arguments and data; on rank 0 "
                    f"{name} is {value!r:.200}, on rank {rank} it is {other.get(name)!r:.200}"
                )
