"""Trials of `method="bilevel"`, whose losses are trained along with their models."""

import copy

import torch
from torch import Tensor

from metricgrad.surrogates import BilevelLoss
from metricgrad.training.checkpoint import State, named, part_of
from metricgrad.training.data import FoldBatches
from metricgrad.training.joint import JointTraining
from metricgrad.training.trial_group import TrialGroup

_MODEL_STEPS = 3  # of an iteration
_UNIVERSAL_STEPS = 2000


class JointTrialGroup(TrialGroup):
    """Trials of `method="bilevel"`: every model is trained along with its loss, by Algorithm 1.

    The loss learns from made-up sets once; every model then refines its own copy of it.
    """

    def __post_init__(self) -> None:
        batches = self.split.batches
        settings = self.settings
        if not isinstance(batches, FoldBatches) or settings.memory:
            raise ValueError(
                "method='bilevel' draws its own batches; pass train=(x, y) in memory, and memory=0"
            )
        if settings.decay:
            raise ValueError(
                f"method='bilevel' has no weight decay; pass decay=0. Got {settings.decay}"
            )
        if batches.balanced:
            raise ValueError(
                "method='bilevel' draws its own batches, in which classes keep their shares; "
                "pass balanced=False"
            )
        if settings.optimizer is not None or settings.schedule is not None:
            raise ValueError(
                "method='bilevel' trains model and loss in turns, with Adam; leave out optimizer "
                "and schedule"
            )
        super().__post_init__()
        (loss,) = self._losses
        assert isinstance(loss, BilevelLoss)
        self._iterations = -(-batches.steps // _MODEL_STEPS)
        self._runs: list[JointTraining] = []
        for row, module in enumerate(self._modules):
            trial, fold = divmod(row, self._folds)
            own = batches.items.take(batches.folds[fold].train).to(self._device)
            run = JointTraining(
                module,
                loss if row == 0 else copy.deepcopy(loss),
                own.x,
                own.y,
                model_rate=self.planned[trial].rate,
                model_steps=_MODEL_STEPS,
                decay=self._iterations * self.epochs,
                clip=settings.clip,
                batch=batches.size,
                universal={"steps": _UNIVERSAL_STEPS, "progress": False},
                generator=torch.Generator().manual_seed(settings.seed),
            )
            if row == 0:
                run.teach()
            self._runs.append(run)

    def _train(self) -> Tensor:
        """Trains one epoch of every run; the mean loss of every trial."""
        found = [run.advance(self._iterations, progress=False).loss for run in self._runs]
        self._stack.join()
        return torch.tensor(found, dtype=torch.float64).unflatten(0, (-1, self._folds)).mean(-1)

    def _state(self) -> State:
        state = super()._state()
        for row, run in enumerate(self._runs):
            state |= named(f"pair.{row}.", run.state())
        return state

    def _restore(self, state: State) -> None:
        super()._restore(state)
        for row, run in enumerate(self._runs):
            run.restore(part_of(state, f"pair.{row}."))
