"""The sets that a metric of a table is computed on: drawn for every tree, or the queries.

A tree needs a gradient for every row, so the rows are dealt into sets, each row into one. Classes
are dealt evenly, so that every set has its share of each. If positives or negatives are rarer than
sets, there are as many sets as there are of them, and the sets are larger than asked for.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metricgrad import ops

_MOST_CLASSES = 1 << 15


class Sets(NamedTuple):
    """Rows in sets of similar size."""

    rows: Tensor  # `[S, L]`, their numbers
    real: Tensor  # `[S, L]`, False for padding


def drawn_sets(target: Tensor, size: int | None, generator: torch.Generator | None) -> Sets:
    """All rows, randomly divided into sets of about `size` rows; None is one set of all rows.

    Args:
        target: `[N]`. If these are classes, every set gets its share of each.
        size: Number of rows in a set. Sets are larger if there are fewer positives than sets.
        generator: Decides which rows meet in a set; None takes the global random numbers.
    """
    number = len(target)
    order = torch.randperm(number, generator=generator)
    sets = 1 if size is None else max(1, number // size)
    if sets > 1:
        classes = target.to(torch.int16)
        if int(target.max()) < _MOST_CLASSES and torch.equal(classes.to(target.dtype), target):
            counts = torch.bincount(classes.clamp_(min=0))
            if len(counts) == 2:
                sets = max(1, min(sets, int(counts.min())))
            # NumPy sorts short integers by radix, thirty times faster than torch sorts floats.
            by_class = np.argsort(classes[order].numpy(), kind="stable")
            order = order[torch.from_numpy(by_class)]
    length = -(-number // sets)
    padded = torch.cat([order, order.new_zeros(length * sets - number)])
    real = torch.arange(length * sets) < number
    return Sets(padded.view(length, sets).mT.contiguous(), real.view(length, sets).mT.contiguous())


def query_sets(groups: Tensor) -> Iterator[Sets]:
    """The rows of every query, those of similar length side by side; groups are ids `[N]`."""
    for _, index, real in ops.group_batches(groups):
        yield Sets(index, real)
