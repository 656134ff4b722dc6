"""Trials of `method="bilevel"`, whose losses are trained along with their models."""

import copy
import math
from functools import partial

import torch
from torch import Tensor

from metricgrad.processes import copy_from_first, passed
from metricgrad.surrogates import BilevelLoss
from metricgrad.training.checkpoint import State, named, part_of
from metricgrad.training.data import FoldBatches
from metricgrad.training.joint import JointTraining
from metricgrad.training.optimizers import Separate, adam
from metricgrad.training.split import Split
from metricgrad.training.stack import Stack
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import TrialSettings

_MODEL_STEPS = 3  # of an iteration
UNIVERSAL_STEPS = 2000


class JointTrialGroup(TrialGroup):
    """Trials of `method="bilevel"`: every model is trained along with its loss, by Algorithm 1.

    The loss learns from made-up sets once; every model then refines its own copy of it.
    """

    _apart = True

    def __post_init__(self) -> None:
        refuse_unjoint(self.split, self.settings)
        super().__post_init__()

    def _build(self) -> None:
        """Makes a joint training for every model."""
        super()._build()
        batches = self.split.batches
        settings = self.settings
        assert isinstance(batches, FoldBatches)
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
                universal={"steps": UNIVERSAL_STEPS, "progress": False},
                generator=torch.Generator().manual_seed(settings.seed),
            )
            run.divide()
            if row == 0:
                run.teach()
            self._runs.append(run)

    def _stacked(self) -> Stack | Separate:
        """Each model as it is, as every one has a training of its own."""
        own = partial(adam, decay=0.0)  # it is never asked for a step
        rates = [each.rate for each in self.planned for _ in range(self._folds)]
        return Separate(self._modules, rates, None, own, None)

    def _train(self) -> Tensor:
        """Trains one epoch of every run; the mean loss of every trial.

        If there is a moment at which training must end, the runs advance in turns, so that none of
        them is left behind.
        """
        step = self._iterations if math.isinf(self.until) else 1
        sums = torch.zeros(len(self._runs), dtype=torch.float64)
        made = 0
        while made < self._iterations:
            losses = [run.advance(step, progress=False).loss for run in self._runs]
            sums += step * torch.tensor(losses, dtype=torch.float64)
            made += step
            if passed(self.until):
                break
        for run in self._runs:
            copy_from_first([*run.model.parameters(), *run.model.buffers()])
            copy_from_first([*run.loss.parameters(), *run.loss.buffers()])
        self._done = made / self._iterations
        return (sums / made).unflatten(0, (-1, self._folds)).mean(-1)

    def _models_state(self) -> State:
        state = super()._models_state()
        for row, run in enumerate(self._runs):
            state |= named(f"pair.{row}.", run.state())
        return state

    def _restore_models(self, state: State) -> None:
        super()._restore_models(state)
        for row, run in enumerate(self._runs):
            run.restore(part_of(state, f"pair.{row}."))


def refuse_unjoint(split: Split, settings: TrialSettings) -> None:
    """Raises ValueError for what trials of `method="bilevel"` cannot do."""
    if not isinstance(split.batches, FoldBatches) or settings.memory:
        raise ValueError(
            "method='bilevel' draws its own batches; pass train=(x, y) in memory, and memory=0"
        )
    if settings.decay:
        raise ValueError(
            f"method='bilevel' has no weight decay; pass decay=0. Got {settings.decay}"
        )
    if split.batches.balanced:
        raise ValueError(
            "method='bilevel' draws its own batches, in which classes keep their shares; "
            "pass balanced=False"
        )
    if settings.optimizer is not None or settings.schedule is not None:
        raise ValueError(
            "method='bilevel' trains model and loss in turns, with Adam; leave out optimizer "
            "and schedule"
        )
