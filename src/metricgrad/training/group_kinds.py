"""Groups of trials of two other kinds: losses that are trained, too, and models that are large.

With `method="bilevel"`, every model is trained along with its loss, by Algorithm 1
(`JointTrialGroup`).

A model in training takes several times its own size: weights, gradient, the two moments of Adam,
and what a step needs. Many small models side by side cost little more time than one, but large ones
gain nothing by it, and a hundred of them would not fit into memory. `models_that_fit` says how many
do. A search trains its trials in groups of so many models. If not even the folds of one trial fit,
each trains an epoch in its turn, and all are validated together after it (`TrialInTurns`): only one
gradient at a time needs its working memory.
"""

import copy
import logging
import math
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

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
SIDE_BY_SIDE = 2**29  # bytes that models in training may take side by side
_LOG = logging.getLogger("metricgrad")
_COPIES = 8  # tensors of a model's size that one in training takes, while it makes a step


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


def told_turns(model: nn.Module, models: int) -> str:
    """What a progress bar says if so many models do not fit side by side, and the log with it."""
    fitting = models_that_fit(model)
    if models <= fitting:
        return ""
    _LOG.info(
        "models train in turns, %d of %d at a time: the model has %.3g MiB, and those that train "
        "side by side may take %.3g MiB of memory",
        *(fitting, models, _size(model) / 2**20, SIDE_BY_SIDE / 2**20),
    )
    return f", {fitting} of {models} models at a time"


def models_that_fit(model: nn.Module) -> int:
    """How many models of this size can be trained side by side: one at least."""
    return max(1, SIDE_BY_SIDE // (_COPIES * _size(model)))


def _size(model: nn.Module) -> int:
    """The bytes of parameters and buffers."""
    return sum(each.nbytes for each in chain(model.parameters(), model.buffers()))


@dataclass(eq=False)
class TrialInTurns(TrialGroup):
    """A group of trials whose folds train in turns, each in a group of its own kind."""

    kind: type[TrialGroup] = TrialGroup

    def _build(self) -> None:
        batches = self.split.batches
        assert isinstance(batches, FoldBatches)
        self._parts = [
            self.kind(self.model, self.planned, self.split.only(number), self.epochs, self.settings)
            for number in range(len(batches.folds))
        ]
        first = self._parts[0]
        self._module = first._module
        self._device = first._device
        self._stack = first._stack
        self._varying = tuple(
            f"fold.{number}.{name}" for number in range(len(self._parts)) for name in first._varying
        )

    def _train(self) -> Tensor:
        """Trains one epoch of every fold; the mean loss of every trial."""
        found = []
        for part in self._parts:
            part._epoch = self._epoch
            part.until = self.until
            found.append(part._train())
        self._done = sum(part._done for part in self._parts) / len(self._parts)
        return torch.stack(found).mean(0)

    def _scores(self) -> Tensor:
        """Scores of the validation data, `[trials, K, V, ...]`."""
        return torch.cat([part._scores() for part in self._parts], 1)

    def _models_state(self) -> State:
        state: State = {}
        for number, part in enumerate(self._parts):
            state |= named(f"fold.{number}.", part._models_state())
        return state

    def _restore_models(self, state: State) -> None:
        for number, part in enumerate(self._parts):
            part._epoch = self._epoch
            part._restore_models(part_of(state, f"fold.{number}."))
