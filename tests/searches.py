"""Searches whose trials have made-up values, and groups of real ones: what tests share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import metricgrad as mg
from metricgrad.training.candidates import Candidate
from metricgrad.training.data import Items
from metricgrad.training.search import Search
from metricgrad.training.split import Split, SplitPlan, split_data
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from tests.fitting import linear, made


def split_of(metric: Any = "f1", folds: int = 1) -> Split:
    plan = SplitPlan(mg.metric(metric), tune=True, batch=64, balanced=False, folds=folds, share=0.2)
    return split_data(Items(*made()), None, plan, 0)


Valued = Callable[[PlannedTrial, int], float | None]


@dataclass
class MadeUp(Search):
    """A search whose trials have made-up values and are never trained."""

    valued: Valued = lambda planned, epochs: planned.rate
    asked: list[tuple[str, list[PlannedTrial], int, int | None]] = field(default_factory=list)

    def run(
        self, name: str, planned: list[PlannedTrial], epochs: int, only: int | None = None
    ) -> list[Trial]:
        self.asked.append((name, planned, epochs, only))
        found = [trial_of(each, self.valued(each, epochs), epochs) for each in planned]
        self.trials += found
        return found


def trial_of(planned: PlannedTrial, value: float | None, epochs: int = 4, epoch: int = 2) -> Trial:
    scores = torch.zeros(1, 80)
    return Trial(*planned, epochs, epoch, value, None, scores, {}, torch.zeros(epochs, 2))


def made_up(
    valued: Valued | None = None, epochs: int = 20, metric: Any = "f1", folds: int = 1, **more: Any
) -> MadeUp:
    given = {} if valued is None else {"valued": valued}
    return MadeUp(linear(), split_of(metric, folds), TrialSettings(), epochs, **given, **more)


def group_of(
    *planned: tuple[Candidate, float],
    epochs: int = 4,
    metric: Any = "f1",
    folds: int = 1,
    cls: type[TrialGroup] = TrialGroup,
    balanced: bool = False,
    number: int = 200,
    outputs: int = 1,
    **settings: Any,
) -> TrialGroup:
    plan = SplitPlan(mg.metric(metric), True, 50, balanced, folds, 0.2)
    split = split_data(Items(*made(number)), None, plan, 0)
    trials = [PlannedTrial(*each) for each in planned]
    return cls(linear(outputs), trials, split, epochs, TrialSettings(**settings))
