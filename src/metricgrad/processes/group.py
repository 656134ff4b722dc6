"""The process group: how many processes there are, and what is said if one does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

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
