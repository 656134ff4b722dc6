"""The process group: who there is, and what all processes must have alike.

Processes that train together wait for each other in every step. If one of them decided differently,
by its own clock or its own file system, the others would wait for a step that it never takes. So
whatever is not computed from the same numbers comes from the first process (`from_first`, `clock`),
is added up over all of them (`sum_over_processes`), or must be the same everywhere (`agree`). If a
process does not answer, the others say so in a sentence.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
_ON_CPU = ("gloo", "mpi", "ucc")  # backends that exchange what is in main memory


def number_of_processes() -> int:
    """How many processes train together; 1 without a process group."""
    alone = not dist.is_available() or not dist.is_initialized()
    return 1 if alone else dist.get_world_size()


def alone() -> bool:
    """Whether there are no other processes."""
    return number_of_processes() == 1


def own_rank() -> int:
    """The number of this process, from 0."""
    return 0 if alone() else dist.get_rank()


def is_first() -> bool:
    """Whether this process is the one that writes files and prints."""
    return own_rank() == 0


def message_device() -> torch.device:
    """Where a tensor must be for the group to exchange it."""
    if dist.get_backend() not in _ON_CPU and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def answered() -> Iterator[None]:
    """Explains that a process is lost, where the group only raises an error of a socket."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "Not all processes answered: one has ended or made a different call. Every process "
            "must call mg.fit, or a loss of across_ranks, equally often; a process without items "
            f"passes an empty set. {error}"
        ) from error


def gather(own: Tensor) -> Tensor:
    """A tensor of the same shape from every process, `[processes, ...]`."""
    own = own.to(message_device())
    every = own.new_empty(number_of_processes(), *own.shape)
    with answered():
        dist.all_gather(list(every), own)
    return every


@contextmanager
def joined_by_torchrun() -> Iterator[None]:
    """Joins the processes of `torchrun`, if there are several; only the first one warns.

    Commands use it; scripts make a group of their own. What is exchanged is in main memory, where
    commands train.
    """
    launched = dist.is_available() and dist.is_torchelastic_launched()
    if not launched or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    dist.init_process_group("gloo")
    try:
        with warnings.catch_warnings():
            if not is_first():
                warnings.simplefilter("ignore")
            yield
    finally:
        dist.destroy_process_group()


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
