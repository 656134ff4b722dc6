"""Trials of boosted trees: what an epoch is for a network, ten more trees are for a booster.

One booster grows for each fold, ten trees at a time, and after each time the metric is measured on
the validation rows. As with networks, the mean of the last three decides which number of trees is
best. Trees on the metric grow on top of some trees on the ordinary loss, which neither win nor
enter that mean (`trials.py`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metricgrad.boosting import objective
from metricgrad.boosting.growing import (
    BoostedTrees,
    Booster,
    Engine,
    Forest,
    TreeRows,
    TreeSettings,
    TreeTask,
    new_booster,
)
from metricgrad.metrics import Metric
from metricgrad.metrics.rows import SAMPLE_WEIGHT, Rows, at
from metricgrad.progress import Tell
from metricgrad.training.candidates import Candidate
from metricgrad.training.data import Items, stream_seed
from metricgrad.training.split import Split
from metricgrad.training.trials import BestEpochs, Trial

BLOCK = 10  # trees that grow between two looks at validation data
_PATIENCE = 4  # looks without a better value that end a trial
_STREAM = 1_000  # of the seeds for sets


@dataclass(frozen=True)
class TreeData:
    """A table, or the documents of queries, as trees take them.

    The columns of `items` are float64, with NaN for what is missing.
    """

    items: Items
    task: TreeTask
    classes: int
    categories: tuple[int, ...]
    metric: Metric

    @property
    def own_rows(self) -> Rows:
        """What the metric takes of an item besides weights, by which the library multiplies."""
        rows = self.items.rows.items()
        return {name: row for name, row in rows if name != SAMPLE_WEIGHT}

    def rows(self, index: Tensor) -> TreeRows:
        """The rows of some items; those of queries one after the other, without padding."""
        batch = self.items.take(index)
        if batch.where is None:
            weight = batch.rows.get(SAMPLE_WEIGHT)
            weight = None if weight is None else weight.numpy()
            return TreeRows(batch.x.numpy(), batch.y.numpy(), weight=weight)
        sizes = batch.where.sum(-1).numpy()
        return TreeRows(batch.x[batch.where].numpy(), batch.y[batch.where].numpy(), sizes)

    def watched(self, index: Tensor) -> np.ndarray:
        """The columns of some items, `[items, columns]`; of queries with their padding."""
        return self.items.x[index].reshape(-1, self.items.x.shape[-1]).numpy()

    def scores(self, found: np.ndarray, index: Tensor) -> Tensor:
        """Scores of watched rows, in the shape of the items' targets, or `[items, classes]`."""
        scores = torch.from_numpy(found.astype(np.float32))
        return scores.reshape(len(index), *self.items.y.shape[1:], *scores.shape[1:])


class PlannedTrees(NamedTuple):
    """A trial of trees before it is run."""

    candidate: Candidate
    leaves: int
    rate: float
    start: int = 0  # trees that grow on the ordinary loss first
    options: Mapping[str, Any] | None = None  # of the objective of all others; None: ordinary, too


@dataclass
class TreeSearch:
    """Runs trials of trees on a split of the data, and keeps them."""

    data: TreeData
    split: Split
    engine: Engine
    seed: int
    threads: int
    most: int  # trees of a trial
    tell: Tell = lambda *_: None
    late: Callable[[], bool] = lambda: False  # whether trials have to end
    stopped: bool = False  # by Ctrl-C
    plans: dict[Trial, PlannedTrees] = field(default_factory=dict)  # of all trials so far
    before: Forest | None = None  # trees that all boosters begin with

    def run(self, plan: PlannedTrees, exactly: int | None = None) -> Trial:
        """Grows the trees of every fold until the validation metric stops improving.

        `exactly` is a number of trees to grow, at which the trial is measured.
        """
        folds = self.split.folds
        index = self.split.data.index
        assert index is not None
        boosters = [
            self.booster(plan, fold.train, self.data.watched(valid))
            for fold, valid in zip(folds, index, strict=True)
        ]
        goals = [self.objective(plan, fold.train, number) for number, fold in enumerate(folds)]
        validation = self.split.validation
        blocks = math.ceil((exactly or self.most) / BLOCK)
        warm_up = plan.start // BLOCK if exactly is None else blocks - 1
        best = BestEpochs(blocks, 1, warm_up, self.data.metric.higher_is_better)
        found = None
        for block in range(1, blocks + 1):
            for booster, goal in zip(boosters, goals, strict=True):
                on_metric = BLOCK * block > plan.start
                booster.grow(BLOCK, goal if on_metric else None)
            self.tell(1)
            if block > warm_up:
                scores = torch.stack(
                    [
                        self.data.scores(booster.watched(), valid)
                        for booster, valid in zip(boosters, index, strict=True)
                    ]
                )
                measured = validation.measure(scores)
                if best.record(0, block, math.nan, measured.value):
                    found = (scores, measured.threshold)
                if best.gave_up(block, _PATIENCE) or self.late():
                    break
        assert found is not None
        scores, threshold = found
        value = float(best.value[0])
        epoch = BLOCK * int(best.epoch[0])
        curve = best.curve[:, 0]
        trial = Trial(
            plan.candidate, plan.rate, BLOCK * blocks, epoch, value, threshold, scores, {}, curve,
            len(folds),
        )  # fmt: skip
        self.plans[trial] = plan
        return trial

    def on(self, split: Split) -> "TreeSearch":
        """The same on another split of the data; the trials of both are kept together."""
        return replace(self, split=split)

    def grown(self, plan: PlannedTrees, trees: int) -> BoostedTrees:
        """A model with so many trees, grown on all items."""
        everything = torch.arange(len(self.data.items))
        booster = self.booster(plan, everything, None)
        first = trees if plan.options is None else plan.start
        booster.grow(first)
        booster.grow(trees - first, self.objective(plan, everything, 0))
        return BoostedTrees(booster.forest())

    def booster(self, plan: PlannedTrees, train: Tensor, watched: np.ndarray | None) -> Booster:
        """A booster without trees, on some of the items."""
        settings = TreeSettings(
            self.data.task,
            self.data.classes,
            self.data.categories,
            plan.leaves,
            plan.rate,
            self.threads,
            self.seed,
            self.before,
        )
        return new_booster(self.engine, self.data.rows(train), settings, watched)

    def objective(self, plan: PlannedTrees, train: Tensor, fold: int) -> Any:
        """What trees grow on after the start; None is the ordinary loss."""
        if plan.options is None:
            return None
        seed = stream_seed(self.seed, _STREAM + fold, 0)
        generator = torch.Generator().manual_seed(seed)
        rows = at(self.data.own_rows, train)
        return objective(self.data.metric, rows=rows, generator=generator, **plan.options)
