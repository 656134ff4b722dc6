"""Losses that learn before any model is trained: once for a whole search, within its budget.

ReLoss learns to rank made-up sets where no loss ships for the metric, and BilevelLoss learns their
values. All trials start from copies of the loss that has learned. Within a time budget, a short
lesson comes first. If there is time for a longer one, the loss learns anew, as the learning rate
has to fall to 0 over the whole of a lesson.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.processes import clock, copy_from_first, from_first, is_first
from metricgrad.storage import write_json
from metricgrad.surrogates import BilevelLoss, Surrogate
from metricgrad.training.candidates import Candidate, learned_reloss, shipped_reloss
from metricgrad.training.checkpoint import planned_number
from metricgrad.training.data import FoldBatches, Loader
from metricgrad.training.group_kinds import UNIVERSAL_STEPS

Learn = Callable[[int], Surrogate]  # a loss that has learned for so many steps
_SHARE = 0.25  # of the time after the first lesson that longer ones may take
_FEWEST = 10  # steps of a lesson
_LESSONS = 3  # longer than the first, at most
_RELOSS_STEPS = 300
_SETS = 64  # made-up sets in a step, which is what `learn_universal` draws
_POOL = 16384  # made-up sets in all, as many as `learn_universal` makes


@dataclass(frozen=True)
class Lessons:
    """What losses have to know to learn, and how long they may take."""

    metric: Metric
    scores: Tensor  # `[items, ...]`, of a few items: they show how many classes there are
    target: Tensor  # `[items, ...]`, theirs
    batches: FoldBatches | Loader  # of the training
    seed: int
    until: float = math.inf  # when the whole fit must end, by `clock`
    folder: Path | None = None  # where a resumed run finds the number of steps

    def taught(self, candidates: list[Candidate]) -> list[Candidate]:
        """Candidates of one method with a loss that has learned; others as they are."""
        first = candidates[0]
        if first.method == "reloss" and first.given is None:
            shipped = shipped_reloss(self.metric, first.options)
            loss = shipped or self._in_time(lambda steps: self._reloss(first, steps), _RELOSS_STEPS)
        elif first.method == "bilevel" and not self._knows(first.given):
            loss = self._in_time(lambda steps: self._bilevel(first, steps), UNIVERSAL_STEPS)
        else:
            return candidates
        copy_from_first([*loss.parameters(), *loss.buffers()])
        return [replace(each, given=loss) for each in candidates]

    def _in_time(self, learn: Learn, most: int) -> Surrogate:
        """What a lesson teaches in at most so many steps, and in fewer if time is short."""
        path = None if self.folder is None else self.folder / "steps.json"
        if math.isinf(self.until):
            return learn(most)
        known = None if path is None else from_first(lambda: planned_number(path, most, "steps"))
        if known is not None:
            return learn(known)
        steps = min(_FEWEST, most)
        loss, spent = _timed(learn, steps)
        until = clock() + _SHARE * (self.until - clock())
        for _ in range(_LESSONS):  # the first one may have taken long to get ready
            longer = min(most, int(steps * (until - clock()) / spent))
            if longer < steps or steps == most:
                break
            steps = longer
            loss, spent = _timed(learn, steps)
        if path is not None and is_first():
            write_json(path, steps)
        return loss

    def _reloss(self, candidate: Candidate, steps: int) -> Surrogate:
        generator = torch.Generator().manual_seed(self.seed)
        return learned_reloss(self.metric, generator, candidate.options, steps)

    def _bilevel(self, candidate: Candidate, steps: int) -> Surrogate:
        loss = candidate.loss(self.metric, self.seed)
        assert isinstance(loss, BilevelLoss)
        assert isinstance(self.batches, FoldBatches)
        loss.learn_universal(
            steps=steps,
            size=self.batches.size,
            pool=min(_POOL, _SETS * steps),
            **self._shape(loss),
            progress=False,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return loss

    def _shape(self, loss: BilevelLoss) -> dict[str, Any]:
        """What tells `learn_universal` the shape of the scores of a batch."""
        assert isinstance(self.batches, FoldBatches)
        return loss.shape_options(self.scores, self.target, self.batches.size)

    @staticmethod
    def _knows(given: Surrogate | None) -> bool:
        return isinstance(given, BilevelLoss) and given.universal


def _timed(learn: Learn, steps: int) -> tuple[Surrogate, float]:
    """What a lesson teaches, and the seconds that it took."""
    start = clock()
    loss = learn(steps)
    return loss, max(clock() - start, 1e-9)
