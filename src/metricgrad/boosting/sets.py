"""The sets that a metric of a table is taken on: drawn anew for every tree, or the queries.

A tree needs a gradient for every row, so the rows are dealt into sets, each row into one. Classes
are dealt evenly, so that every set has positives; where they are rarer than sets, the sets are
larger than asked for.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from metricgrad import ops


class Sets(NamedTuple):
    """Rows in sets of similar size."""

    index: Tensor  # `[S, L]`, numbers of rows
    real: Tensor  # `[S, L]`, False for padding


def drawn_sets(target: Tensor, size: int | None, generator: torch.Generator | None) -> Sets:
    """All rows, dealt into sets of about `size` rows; None is one set of them all.

    Args:
        target: `[N]`, classes; every set gets its share of each.
        size: Rows of a set.
        generator: Source of randomness.
    """
    number = len(target)
    rarest = int(target.unique(return_counts=True)[1].min())
    sets = 1 if size is None else max(1, min(number // size, rarest))
    order = torch.randperm(number, generator=generator)
    order = order[target[order].argsort(stable=True)]  # by class, so that each is dealt out evenly
    length = -(-number // sets)
    places = torch.arange(length * sets)
    padded = torch.cat([order, order.new_zeros(length * sets - number)])
    real = places < number
    return Sets(padded.view(length, sets).mT, real.view(length, sets).mT)


def query_sets(groups: Tensor) -> Iterator[Sets]:
    """The rows of every query, those of similar length side by side; groups are ids `[N]`."""
    for _, index, real in ops.group_batches(groups):
        yield Sets(index, real)
