"""Batches of a table that does not fit into memory: from pools of rows of shuffled row groups.

A pool holds some 260,000 training rows of several row groups, prepared as the network takes them.
Batches are drawn from it as they are drawn from items in memory (`training/data.py`), and after a
few epochs the next pool follows. Which rows a pool holds depends on the seed and its number alone,
so a run that is resumed continues with the batches it would have had.

Row groups are taken in random order until every class has its share of the pool. A group that only
has more of what is full is passed over, which costs nothing, as the counts are known. So the shares
are those of the table even where its rows are sorted, or every class has files of its own.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from metricgrad.estimators.parquet_tables import to_frame
from metricgrad.estimators.passing import class_numbers, is_known, target_of
from metricgrad.estimators.surveys import Survey
from metricgrad.estimators.target import Target
from metricgrad.training.data import Fold, FoldBatches, Items

_ROWS = 2**18  # of a pool,
_BYTES = 2**27  # and its size; both are limits
_LEAST = 64  # rows of a class in a pool, or all it has, however rare it is
_GROUPS = 8  # row groups that a class comes from, at least, if it is in as many
_KEPT = 4  # pools that are kept, as many as 20 epochs have


class PooledBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches `(x, y)` of the training rows of a table.

    Its length is the number of batches of an epoch, which is that of items in memory: 25 to 150.

    Args:
        surveyed: The table, and what was found in it.
        target: The kind of target, which says how classes become numbers.
        batch: Number of rows in a batch.
        balanced: Whether every class has an equal share of each batch.
    """

    def __init__(self, surveyed: Survey, target: Target, batch: int, balanced: bool) -> None:
        self._surveyed = surveyed
        self._target = target
        self._batch = batch
        self._balanced = balanced
        self._epoch = 0
        self._shares = pool_shares(surveyed)
        self._pools: dict[int, FoldBatches] = {}

    def __len__(self) -> int:
        return self._drawn_from(0).steps

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next batches are of."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first = self._drawn_from(0)
        # A pool serves as many epochs as draw each of its rows once, on average.
        epochs = max(1, int(self._shares.sum()) // (first.steps * first.size))
        for drawn in self._drawn_from(self._epoch // epochs).epoch(self._epoch, 1):
            yield drawn.x[0], drawn.y[0]

    def _drawn_from(self, number: int) -> FoldBatches:
        """A pool, read again unless it is one of the last few."""
        if number not in self._pools:
            while len(self._pools) >= _KEPT:
                del self._pools[max(self._pools)]  # every trial begins with the first ones
            items = self._read(number)
            everything = Fold(torch.arange(len(items)), torch.zeros(0, dtype=torch.int64))
            seed = self._surveyed.split.seed
            self._pools[number] = FoldBatches(
                items, [everything], self._batch, self._balanced, seed
            )
        return self._pools[number]

    def _read(self, number: int) -> Items:
        """The rows of a pool, prepared."""
        source = np.random.default_rng([self._surveyed.split.seed, number, 1])
        plan = pool_groups(self._surveyed.counts, self._shares, source)
        width = sum(self._surveyed.preparation.widths)
        x = torch.empty(int(self._shares.sum()), width)
        y = torch.empty(len(x), dtype=torch.int64)
        filled = 0
        for group, taken in sorted(plan.items()):
            for some_x, some_y in _chosen_rows(self._surveyed, group, taken, source):
                after = filled + len(some_y)
                x[filled:after] = torch.from_numpy(some_x)
                y[filled:after] = self._target.encode(self._surveyed.classes[some_y])
                filled = after
        if filled < len(x):
            raise ValueError(
                f"the Parquet files have changed while they were read: {filled} of {len(x)} rows "
                "were found; start again"
            )
        return Items(x, y)


def pool_shares(surveyed: Survey) -> np.ndarray:
    """How many rows of each class a pool has, `[classes]`: its share of the table, or all rows."""
    total = surveyed.counts.sum(0)
    width = sum(surveyed.preparation.widths)
    rows = min(_ROWS, max(1, _BYTES // (4 * width)), int(total.sum()))
    exact = np.rint(total * (rows / total.sum())).astype(np.int64)
    return np.maximum(exact, np.minimum(total, _LEAST))


def pool_groups(
    counts: np.ndarray, shares: np.ndarray, source: np.random.Generator
) -> dict[int, np.ndarray]:
    """Which row groups a pool is made of, and how many rows of each class it takes from them.

    Args:
        counts: Training rows of the table, `[groups, classes]`.
        shares: Rows that the pool has of each class, `[classes]`.
        source: Random numbers that decide the order in which row groups are taken.

    Returns:
        Rows of each class, `[classes]`, by the number of the group.
    """
    order = source.permutation(len(counts))
    taken = np.zeros_like(counts)
    # A large group first gives its part only, so that several groups are in every pool; the second
    # time round groups give what is missing then.
    missing = shares.copy()
    for most in (-(-shares // _GROUPS), shares):
        for group in order:
            if not missing.any():
                break
            more = np.minimum(np.minimum(counts[group], most) - taken[group], missing)
            taken[group] += more
            missing -= more
    return {int(group): taken[group] for group in np.flatnonzero(taken.any(1))}


def _chosen_rows(
    surveyed: Survey, group: int, taken: np.ndarray, source: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Prepared rows of a row group, `taken` of each class at random, with their class numbers."""
    chosen = []
    for count, number in zip(surveyed.counts[group].tolist(), taken.tolist(), strict=True):
        marks = np.zeros(count, dtype=bool)
        marks[source.permutation(count)[:number]] = True
        chosen.append(marks)
    seen = [0] * len(chosen)
    draws = surveyed.split.draws(group)
    for batch in surveyed.table.parts(group, [*surveyed.features, surveyed.target]):
        values = target_of(batch, surveyed.target)
        trains = surveyed.split.trains(draws.random(len(batch)), is_known(values))
        classes = np.where(trains, class_numbers(values, surveyed.classes), -1)
        rows = []
        for number, marks in enumerate(chosen):
            own = np.flatnonzero(classes == number)
            due = marks[seen[number] : seen[number] + len(own)]
            rows.append(own[: len(due)][due])
            seen[number] += len(own)
        wanted = np.sort(np.concatenate(rows))
        if len(wanted):
            frame = to_frame(batch.select(surveyed.features))
            yield surveyed.preparation.transform(frame, wanted), classes[wanted]
