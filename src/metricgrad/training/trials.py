"""A trial: the training of one candidate at one learning rate, and which of its epochs is best.

After every epoch the metric is measured on validation data. A single epoch that stands out is
chance, and its model is fragile, so the mean of the last three epochs decides:

    best epoch = argmax_e  mean(m_{e-2}, m_{e-1}, m_e)

Epochs spent on the ordinary loss, before a warm start ends, neither win nor enter the mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.training.candidates import Candidate
from metricgrad.training.checkpoint import State, named
from metricgrad.training.optimizers import OptimizerFactory, ScheduleFactory

_RECENT = 3  # epochs whose mean decides which is best


@dataclass(frozen=True)
class TrialSettings:
    """The settings that all trials of one fit share; `mg.fit` describes them."""

    seed: int = 0
    decay: float = 0.0
    clip: float | None = 1.0
    memory: int = 0
    patience: int | None = None
    optimizer: OptimizerFactory | None = None  # None, and no schedule: Adam for all models at once
    schedule: ScheduleFactory | None = None
    # What else a resumed run must share with its checkpoint, ready for JSON.
    must_match: Mapping[str, Any] = field(default_factory=dict)


class PlannedTrial(NamedTuple):
    """A trial before its training."""

    candidate: Candidate
    rate: float


@dataclass(eq=False)
class Trial:
    """A trial after its training."""

    candidate: Candidate
    rate: float  # the learning rate that it started with
    epochs: int  # that it was to be trained for
    epoch: int  # the best of them
    value: float | None  # the metric then, on validation data; None if the training diverged
    threshold: Tensor | None  # where the value was reached, also of classes; None if there is none
    scores: Tensor  # of the validation data at the best epoch, [K, V, ...]
    state: dict[str, Tensor]  # of the model at the best epoch, where there is one fold
    curve: Tensor  # loss and metric, [epochs, 2]; NaN for epochs that were not trained
    folds: int = 1  # that it was trained on, which may be fewer than the search has

    def forget(self) -> None:
        """Drops scores and state, which need much memory, and keeps what tells how it went."""
        self.scores = self.scores[:0].clone()
        self.state = {}


def best_first(trials: list[Trial], metric: Metric) -> list[Trial]:
    """The trials that did not diverge, by their value."""
    finished = [trial for trial in trials if trial.value is not None]
    return sorted(finished, key=lambda trial: trial.value or 0.0, reverse=metric.higher_is_better)


class BestEpochs:
    """The curves of several trials, and the best epoch of each, the `warm_up` left out."""

    def __init__(self, epochs: int, trials: int, warm_up: int, higher_is_better: bool) -> None:
        self.curve = torch.full((epochs, trials, 2), torch.nan, dtype=torch.float64)
        self.epoch = torch.zeros(trials, dtype=torch.int64)  # the best, from 1; 0 if there is none
        self.value = torch.full((trials,), torch.nan, dtype=torch.float64)  # the metric there,
        self.recent = self.value.clone()  # and its mean over the last three epochs
        self._warm_up = warm_up
        self._sign = 1 if higher_is_better else -1

    def record(self, trial: int, epoch: int, loss: float, value: float) -> bool:
        """Adds an epoch, counted from 1, to a trial's curve; True if it is the best so far."""
        self.curve[epoch - 1, trial] = torch.tensor([loss, value], dtype=torch.float64)
        if epoch <= self._warm_up:
            return False
        recent = self.curve[max(self._warm_up, epoch - _RECENT) : epoch, trial, 1].nanmean()
        best = self.recent[trial]
        if not (best.isnan() or self._sign * recent > self._sign * best):
            return False
        self.value[trial] = value
        self.recent[trial] = recent
        self.epoch[trial] = epoch
        return True

    def gave_up(self, epoch: int, patience: int | None) -> bool:
        """Whether no trial has improved for as many epochs as patience allows, warm-up aside."""
        if patience is None or epoch <= self._warm_up:
            return False
        return epoch - max(int(self.epoch.max()), self._warm_up) >= patience

    def best_value(self) -> float | None:
        """The best value of all trials so far."""
        known = self._sign * self.value[self.value.isfinite()]
        return self._sign * known.max().item() if len(known) else None

    def state(self) -> State:
        """Everything that a checkpoint must keep."""
        best = {"value": self.value, "recent": self.recent, "epoch": self.epoch}
        return named("best.", best) | {"curve": self.curve}

    def restore(self, state: State) -> None:
        """Continues from what `state` returned."""
        self.value = state["best.value"]
        self.recent = state["best.recent"]
        self.epoch = state["best.epoch"]
        self.curve = state["curve"]
