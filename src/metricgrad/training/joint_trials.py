"""A group of trials of models that train along with their losses (`method="bilevel"`): Algorithm 1 in place of plain steps.

The loss learns from made-up sets once; every model then refines a copy of its own.
"""

import copy

import torch
from torch import Tensor, nn

from metricgrad.surrogates import BilevelLoss
from metricgrad.training.data import Drawing, Fold, Loader
from metricgrad.training.joint import JointTraining
from metricgrad.training.split import Split
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, TrialSettings

_MODEL_STEPS = 3
_UNIVERSAL_STEPS = 2000


class JointTrialGroup(TrialGroup):
    """Entrants that train a `BilevelLoss` along; the arguments are those of `TrialGroup`."""

    def __init__(
        self,
        model: nn.Module,
        planned: list[PlannedTrial],
        split: Split,
        epochs: int,
        settings: TrialSettings,
    ) -> None:
        feed = split.feed
        if isinstance(feed, Loader) or settings.memory:
            raise ValueError(
                "method='bilevel' draws its own batches: pass train=(x, y) in memory, and memory=0"
            )
        if settings.decay:
            raise ValueError(
                f"method='bilevel' has no weight decay; pass decay=0. Got {settings.decay}"
            )
        if feed.balanced:
            raise ValueError(
                "method='bilevel' draws its own batches, in which classes have their shares; pass balanced=False"
            )
        super().__init__(model, planned, split, epochs, settings)
        (loss,) = self._losses
        assert isinstance(loss, BilevelLoss)
        self._iterations = -(-feed.steps // _MODEL_STEPS)
        self._pairs: list[JointTraining] = []
        for row, module in enumerate(self._modules):
            rate, fold = planned[row // len(feed.folds)][1], feed.folds[row % len(feed.folds)]
            self._pairs.append(
                self._pair(module, loss if not row else copy.deepcopy(loss), feed, fold, rate)
            )
            if not row:
                self._pairs[0].teach()

    def _pair(
        self, module: nn.Module, loss: BilevelLoss, feed: Drawing, fold: Fold, rate: float
    ) -> JointTraining:
        x, y, _ = feed.items.take(fold.train)
        return JointTraining(
            module,
            loss,
            x,
            y,
            model_rate=rate,
            model_steps=_MODEL_STEPS,
            decay=self._iterations * self.epochs,
            clip=self.settings.clip,
            batch=feed.size,
            universal={"steps": _UNIVERSAL_STEPS, "progress": False},
            generator=torch.Generator().manual_seed(self.settings.seed),
        )

    def _train(self) -> Tensor:
        """One epoch of each; the mean loss of every entrant."""
        found = [pair.advance(self._iterations, progress=False).loss for pair in self._pairs]
        self._crew.join()
        return torch.tensor(found, dtype=torch.float64).unflatten(0, (-1, self._folds)).mean(-1)

    def _state(self) -> dict[str, Tensor]:
        parts = {
            f"pair.{row}.{name}": value
            for row, pair in enumerate(self._pairs)
            for name, value in pair.state().items()
        }
        return {**super()._state(), **parts}

    def _restore(self, state: dict[str, Tensor]) -> None:
        own = {name: value for name, value in state.items() if not name.startswith("pair.")}
        super()._restore(own)
        for row, pair in enumerate(self._pairs):
            start = f"pair.{row}."
            pair.restore(
                {
                    name[len(start) :]: value
                    for name, value in state.items()
                    if name.startswith(start)
                }
            )
