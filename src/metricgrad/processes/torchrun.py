"""The group of processes that `torchrun` starts, for a command; scripts make their own."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from metricgrad.processes.group import is_first


@contextmanager
def joined_by_torchrun() -> Iterator[None]:
    """Joins the processes of `torchrun`, if there are several; only the first one warns.

    They exchange what is in main memory, where commands train.
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
