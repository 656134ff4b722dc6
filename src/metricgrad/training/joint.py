"""A model and its learned loss, trained in turns by Algorithm 1 (`algorithm.py`), with checkpoints.

SL-U   start="universal", refine=False    the loss is learned once from made-up sets, then left as it is
SL-S   start="scratch"                    it is learned along with the model alone
SL-R   start="universal"                  both; the paper's recommendation, and the default
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.elements import Elements
from metricgrad.training.algorithm import Algorithm1, Plan, State, modes_kept
from metricgrad.training.checkpoint import read_checkpoint, write_checkpoint
from metricgrad.training.flat import Flat

Start = Literal["universal", "scratch"]


class Round(NamedTuple):
    """Where a training stands; means over the iterations that `advance` made.

    Attributes:
        iteration: how many were made in all.
        loss: the surrogate's value on the model's batches.
        misfit: the surrogate's distance from the metric; NaN if it is not refined.
        truth: the metric, as a loss, on the surrogate's batches; NaN if it is not refined.
    """

    iteration: int
    loss: float
    misfit: float
    truth: float


class JointTraining(Algorithm1):
    """A model and a `BilevelLoss`, trained in turns.

    Args:
        model: from a batch of x to scores.
        loss: what it descends; its metric may have a threshold of its own (the paper's gamma).
        x: `[items, ...]`, the training data's features.
        y: `[items, ...]`, their targets.
        start: `"universal"` first teaches a loss that has not learned yet from made-up sets,
            `"scratch"` does not.
        refine: whether the loss goes on learning along with the model.
        model_steps: K_alpha, steps of the model in each iteration.
        loss_steps: K_beta, steps of the loss in each iteration.
        model_rate: the model's learning rate, for Adam.
        loss_rate: the loss's learning rate, for Adam.
        decay: the iteration at which both rates reach 0, along half a cosine wave; None keeps them.
        clip: the longest gradient of either, by its norm; None leaves them as they are.
        batch: items of a batch.
        stratified: whether batches keep the shares of the classes; None does where the target has a
            class per item.
        universal: options of `learn_universal` for the universal start.
        generator: source of randomness for batches, made-up sets and dropout.

    Attributes:
        iteration: how many were made.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
        >>> run = mg.JointTraining(model, mg.BilevelLoss("f1"), x, x[:, 0] > 1, universal={"steps": 300, "pool": 2048})
        >>> run.advance(20).iteration
        20

    Reference:
        Learning Surrogate Losses, Sec. 3.2, Algorithm 1, and Sec. 4.2.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: BilevelLoss,
        x: Tensor,
        y: Tensor,
        *,
        start: Start = "universal",
        refine: bool = True,
        model_steps: int = 3,
        loss_steps: int = 10,
        model_rate: float = 1e-3,
        loss_rate: float = 1e-3,
        decay: int | None = None,
        clip: float | None = 1.0,
        batch: int = 100,
        stratified: bool | None = None,
        universal: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        plan = Plan(
            refine=refine,
            model_steps=model_steps,
            loss_steps=loss_steps,
            model_rate=model_rate,
            loss_rate=loss_rate,
            decay=decay,
            clip=clip,
            batch=batch,
            stratified=stratified,
        )
        check(loss, x, y, start, refine)
        super().__init__(loss.metric.name, y, plan, generator)
        self.model, self.loss, self.x, self.y = model, loss, x, y
        self._teaching = {"size": batch, **(universal or {})} if start == "universal" else None
        self._model_side = Flat(model.parameters(), model_rate, clip)
        self._loss_side = Flat(loss.parameters(), loss_rate, clip)
        self._good = self.state()

    @classmethod
    def as_published(
        cls, model: nn.Module, loss: BilevelLoss, x: Tensor, y: Tensor, **options: Any
    ) -> "JointTraining":
        """The paper's settings (Sec. 4.1): Adam at 1e-5 and gradients of norm 1e-5 for both, its generator for SL-R.

        Args:
            model: the paper's has hidden layers of 100, 30 and 10, with batch normalisation and
                dropout 0.2 in each.
            loss: what it descends.
            x: `[items, ...]`, the training data's features.
            y: `[items, ...]`, their targets.
            **options: anything to be otherwise.

        Returns:
            A training of which the paper made 300,000 iterations.
        """
        published = {"model_rate": 1e-5, "loss_rate": 1e-5, "clip": 1e-5}
        universal = {"source": "paper", **(options.pop("universal", None) or {})}
        return cls(model, loss, x, y, **{**published, **options}, universal=universal)

    def advance(self, iterations: int, *, progress: bool = True) -> Round:
        """Makes so many iterations of Algorithm 1.

        Args:
            iterations: how many.
            progress: shows a bar, on a terminal.

        Returns:
            Means over these iterations. A training that cannot go on raises a TrainingError in one
            sentence, with model and loss as they were when it still went well.
        """
        means = self._advance(iterations, progress)
        return Round(self.iteration, *(part.item() for part in means))

    def teach(self) -> None:
        """Teaches a loss that has not learned yet from made-up sets, where that is asked for; `advance` does it too."""
        self._begin()

    def _begin(self) -> None:
        if self._teaching is not None and not self.loss.universal:
            self.loss.learn_universal(
                **{"generator": self._generator, "classes": self._classes(), **self._teaching}
            )
            self._good = self.state()

    @torch.no_grad()
    def _classes(self) -> int | None:
        """How many classes or labels the model's scores have; None for one score per item."""
        with modes_kept(self.model):
            inputs = self.loss.check(self.model.eval()(self.x[:2]), self.y[:2], None)
        return inputs.scores.shape[-1] if self.loss.elements(inputs).many else None

    def _sides(self) -> tuple[Flat, Flat]:
        return self._model_side, self._loss_side

    def _draw(self, number: int) -> Tensor:
        return self._batches.draw(number, self._generator)

    def _value(self, batch: Tensor) -> Tensor:
        self.model.train()
        inputs = self.loss.check(self.model(self.x[batch]), self.y[batch], None)
        return self.loss.estimate(self.loss.elements(inputs))

    @torch.no_grad()
    def _look(self, index: Tensor) -> tuple[Elements, Tensor]:
        self.model.eval()
        scores = self.model(self.x[index.flatten()])
        inputs = self.loss.check(
            scores.reshape(*index.shape, *scores.shape[1:]), self.y[index], None
        )
        truth = self.loss.truth(inputs)
        self.loss.standardise(truth)
        return self.loss.elements(inputs), truth

    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        return self.loss.distances(elements, truth)

    def _network(self) -> nn.Module:
        return self.model

    def state(self) -> State:
        """Everything that the next iteration depends on, as tensors of its own."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "model_adam": self._model_side.state(),
            "loss_adam": self._loss_side.state(),
            "own": {**self._own_state(), "universal": torch.tensor(self.loss.universal)},
        }
        return {
            f"{part}.{name}": value.clone()
            for part, values in parts.items()
            for name, value in values.items()
        }

    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""

        def part(which: str) -> State:
            return {
                name.removeprefix(which): value
                for name, value in state.items()
                if name.startswith(which)
            }

        self.model.load_state_dict(part("model."))
        self.loss.load_state_dict(part("loss."))
        self._model_side.restore(part("model_adam."))
        self._loss_side.restore(part("loss_adam."))
        self._restore_own(part("own."))
        self.loss.universal = bool(state["own.universal"])
        self._good = state

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, one safetensors file, from which `resume` goes on exactly.

        Args:
            path: where to; an existing file is replaced only once the new one is complete.
        """
        write_checkpoint(path, self.state(), self._settings())

    def resume(self, path: str | Path) -> None:
        """Goes on from a checkpoint of a training with the same settings, model, metric and data.

        Args:
            path: what `save` wrote.
        """
        self.restore(read_checkpoint(path, self.state(), self._settings()))

    def _settings(self) -> dict[str, Any]:
        """What a checkpoint must agree in, ready for JSON."""
        loss = {name: value for name, value in self.loss.config().items() if name != "universal"}
        return {
            **asdict(self.plan),
            "universal": self._teaching is not None,
            "items": len(self.y),
            "loss": loss,
        }


def check(loss: BilevelLoss, x: Tensor, y: Tensor, start: Start, refine: bool) -> None:
    """Raises where a training cannot begin."""
    if not isinstance(loss, BilevelLoss):
        raise TypeError(
            f"loss must be a BilevelLoss, which learns along with the model; got {type(loss).__name__}"
        )
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same number of items; got {len(x)} and {len(y)}")
    if start not in ("universal", "scratch"):
        raise ValueError(f"start must be 'universal' or 'scratch'; got {start!r}")
    if start == "scratch" and not refine:
        raise ValueError(
            "a loss that starts from scratch and is not refined never learns; pass refine=True"
        )
    if start == "scratch" and loss.universal:
        raise ValueError(
            "this loss has learned from made-up sets already; pass a fresh one to start from scratch"
        )
