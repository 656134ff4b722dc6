"""Trials of boosted trees: what an epoch is for a network, ten more trees are for a booster.

One booster grows for each fold, ten trees at a time, and after each time the metric is measured on
the validation rows. As with networks, the mean of the last three decides which number of trees is
best. Trees on the metric grow on top of some trees on the ordinary loss, which neither win nor
enter that mean (`trials.py`).

A trial that is tried on a few folds first, or with few trees, goes on from the trees that it has.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
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


@dataclass(eq=False)
class FoldTrees:
    """The trees of a plan on one fold, which grow as far as somebody asks for them."""

    booster: Booster
    goal: Any  # what trees grow on after the start; None is the ordinary loss
    start: int  # trees on the ordinary loss
    scored: Callable[[np.ndarray], Tensor]
    scores: list[Tensor] = field(default_factory=list)  # of the validation rows, after every block

    def after(self, block: int) -> Tensor:
        """Scores of the validation rows after so many blocks of trees, counted from 1."""
        while len(self.scores) < block:
            on_metric = BLOCK * (len(self.scores) + 1) > self.start
            self.booster.grow(BLOCK, self.goal if on_metric else None)
            self.scores.append(self.scored(self.booster.watched()))
        return self.scores[block - 1]


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
    growing: dict[Trial, list[FoldTrees]] = field(default_factory=dict)  # that may go on

    def screen(self, plan: PlannedTrees, most: int) -> Trial:
        """A trial with fewer trees, on a few of the folds, from which `run` can go on."""
        few = replace(self, split=self.split.screening(), most=min(most, self.most))
        trees = few.fold_trees(plan)
        trial = few.measured(plan, trees)
        self.growing[trial] = trees
        return trial

    def run(
        self, plan: PlannedTrees, exactly: int | None = None, begun: Trial | None = None
    ) -> Trial:
        """Grows the trees of every fold until the validation metric stops improving.

        `exactly` is a number of trees to grow, at which the trial is measured. `begun` is what
        `screen` returned for this plan; all other trials that were screened cannot go on then.
        """
        trees = [] if begun is None else self.growing[begun]
        self.growing.clear()
        return self.measured(plan, trees + self.fold_trees(plan, len(trees)), exactly)

    def fold_trees(self, plan: PlannedTrees, first: int = 0) -> list[FoldTrees]:
        """The trees of every fold, or from a fold on, before they grow."""
        assert self.split.data.index is not None
        folds = list(enumerate(zip(self.split.folds, self.split.data.index, strict=True)))
        return [
            FoldTrees(
                self.booster(plan, fold.train, self.data.watched(valid)),
                self.objective(plan, fold.train, number),
                plan.start,
                partial(self.data.scores, index=valid),
            )
            for number, (fold, valid) in folds[first:]
        ]

    def measured(
        self, plan: PlannedTrees, trees: list[FoldTrees], exactly: int | None = None
    ) -> Trial:
        """The trial of the trees, which grow until it ends."""
        validation = self.split.validation
        blocks = math.ceil((exactly or self.most) / BLOCK)
        warm_up = plan.start // BLOCK if exactly is None else blocks - 1
        best = BestEpochs(blocks, 1, warm_up, self.data.metric.higher_is_better)
        found = None
        for block in range(1, blocks + 1):
            scores = torch.stack([each.after(block) for each in trees])
            self.tell(1)
            if block > warm_up:
                measured = validation.measure(scores)
                if best.record(0, block, math.nan, measured.value):
                    found = (scores, measured.threshold)
                grew = any(len(each.scores) == block for each in trees)
                if best.gave_up(block, _PATIENCE) or (grew and self.late()):
                    break
        assert found is not None
        scores, threshold = found
        value = float(best.value[0])
        epoch = BLOCK * int(best.epoch[0])
        curve = best.curve[:, 0]
        trial = Trial(
            plan.candidate, plan.rate, BLOCK * blocks, epoch, value, threshold, scores, {}, curve,
            len(trees),
        )  # fmt: skip
        self.plans[trial] = plan
        return trial

    def on(self, split: Split) -> "TreeSearch":
        """The same on another split of the data; the trials of both are kept together."""
        return replace(self, split=split, growing={})

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
