"""Trials whose models do not fit into memory side by side: the folds train in turns.

A model in training takes several times its own size: weights, gradient, the two moments of Adam,
and what a step needs. Many small models side by side cost little more time than one, but large ones
gain nothing by it, and a hundred of them would not fit. `models_that_fit` says how many do. A
search trains its trials in groups of so many models. If not even the folds of one trial fit, each
trains an epoch in its turn, and all are validated together after it (`TrialInTurns`): only one
gradient at a time needs its working memory.
"""

import logging
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from metricgrad.training.checkpoint import State, named, part_of
from metricgrad.training.data import FoldBatches
from metricgrad.training.trial_group import TrialGroup

MEMORY = 2**29  # bytes that models in training may take side by side
_LOG = logging.getLogger("metricgrad")
_COPIES = 8  # tensors of a model's size that one in training takes, while it makes a step


def told_turns(model: nn.Module, models: int) -> str:
    """What a progress bar says if so many models do not fit side by side, and the log with it."""
    fitting = models_that_fit(model)
    if models <= fitting:
        return ""
    _LOG.info(
        "models train in turns, %d of %d at a time: the model has %.3g MiB, and those that train "
        "side by side may take %.3g MiB of memory",
        *(fitting, models, _size(model) / 2**20, MEMORY / 2**20),
    )
    return f", {fitting} of {models} models at a time"


def models_that_fit(model: nn.Module) -> int:
    """How many models of this size can be trained side by side: one at least."""
    return max(1, MEMORY // (_COPIES * _size(model)))


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
