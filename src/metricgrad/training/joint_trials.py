"""Trials of `method="bilevel"`: every model is trained along with its loss, by Algorithm 1.

The loss learns from made-up sets once; every model then refines its own copy of it.
"""

import copy

import torch
from torch import Tensor, nn

from metricgrad.surrogates import BilevelLoss
from metricgrad.training.checkpoint import part_of
from metricgrad.training.data import FoldBatches
from metricgrad.training.joint import JointTraining
from metricgrad.training.split import Split
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, TrialSettings

_MODEL_STEPS = 3
_UNIVERSAL_STEPS = 2000


class JointTrialGroup(TrialGroup):
    """Trains models along with a `BilevelLoss`; the arguments are those of `TrialGroup`."""

    def __init__(
        self,
        model: nn.Module,
        planned: list[PlannedTrial],
        split: Split,
        epochs: int,
        settings: TrialSettings,
    ) -> None:
        batches = split.batches
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
        super().__init__(model, planned, split, epochs, settings)
        (loss,) = self._losses
        assert isinstance(loss, BilevelLoss)
        self._iterations = -(-batches.steps // _MODEL_STEPS)
        self._runs: list[JointTraining] = []
        for row, module in enumerate(self._modules):
            trial, fold = divmod(row, self._folds)
            own = loss if row == 0 else copy.deepcopy(loss)
            self._runs.append(self._joint(module, own, batches, fold, planned[trial].rate))
            if row == 0:
                self._runs[0].teach()

    def _joint(
        self, module: nn.Module, loss: BilevelLoss, batches: FoldBatches, fold: int, rate: float
    ) -> JointTraining:
        x, y, _ = batches.items.take(batches.folds[fold].train)
        return JointTraining(
            module,
            loss,
            x,
            y,
            model_rate=rate,
            model_steps=_MODEL_STEPS,
            decay=self._iterations * self.epochs,
            clip=self.settings.clip,
            batch=batches.size,
            universal={"steps": _UNIVERSAL_STEPS, "progress": False},
            generator=torch.Generator().manual_seed(self.settings.seed),
        )

    def _train(self) -> Tensor:
        """Trains one epoch of every run; the mean loss of every trial."""
        found = [run.advance(self._iterations, progress=False).loss for run in self._runs]
        self._stack.join()
        return torch.tensor(found, dtype=torch.float64).unflatten(0, (-1, self._folds)).mean(-1)

    def _state(self) -> dict[str, Tensor]:
        state = super()._state()
        for row, run in enumerate(self._runs):
            state |= {f"pair.{row}.{name}": value for name, value in run.state().items()}
        return state

    def _restore(self, state: dict[str, Tensor]) -> None:
        super()._restore(state)
        for row, run in enumerate(self._runs):
            run.restore(part_of(state, f"pair.{row}."))
