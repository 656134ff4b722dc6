"""The two sides of Algorithm 1, models and losses, for one run or for many at once.

The algorithm asks the models for scores of a batch, and the losses for estimates, truths and
misfits. One run answers with its modules as they are. Many runs of small networks are stacked into
one batched model, because a step of networks this small is all overhead: twenty of them stacked
cost hardly more than one. Indices of batches are `[..., N]` for one run and `[..., R, N]` for R
runs; each run has its own batches, weights, metric and gradient norm.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.surrogates.base import full_precision
from metricgrad.surrogates.bilevel import BilevelLoss, set_network
from metricgrad.surrogates.nets.base import Elements
from metricgrad.training.batches import Batches
from metricgrad.training.stack import Descent, Flat, Stack

State = dict[str, Tensor]


class Models(ABC):
    """What is trained on the losses.

    Attributes:
        network: the module that runs; its modes belong to the user outside of the training.
        steps: what moves the parameters.
    """

    network: nn.Module
    steps: Descent

    @abstractmethod
    def scores(self, x: Tensor, index: Tensor) -> Tensor:
        """Scores of the items at an index, in the shape of the index."""

    @abstractmethod
    def draw(self, batches: Batches, number: int, generator: torch.Generator) -> Tensor:
        """Indices of so many batches for each run."""

    @abstractmethod
    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """Weights and optimizer state, by part."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""


class Losses(ABC):
    """The surrogates that learn along.

    Attributes:
        first: a loss that speaks for all: how inputs are checked and what the network sees of them.
        steps: what moves the parameters.
    """

    first: BilevelLoss
    steps: Descent

    @abstractmethod
    def each(self) -> Sequence[BilevelLoss]:
        """All losses, one for each run."""

    @abstractmethod
    def estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2 of every run, on its metric's scale."""

    @abstractmethod
    def look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        """What the networks see of batches, and the truths: the metric of every run as a loss.

        The first truths set the scale of an unbounded metric.
        """

    @abstractmethod
    def misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance of every run's estimate from its truth."""

    @abstractmethod
    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """Weights and optimizer state, by part."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""


class OneModel(Models):
    """A model of its own."""

    def __init__(self, model: nn.Module, rate: float, clip: float | None) -> None:
        self.network = model
        self.steps = Flat(model.parameters(), rate, clip)

    def scores(self, x: Tensor, index: Tensor) -> Tensor:
        """One forward pass, however many batches the index has."""
        scores = self.network(x[index.flatten()])
        return scores.reshape(*index.shape, *scores.shape[1:])

    def draw(self, batches: Batches, number: int, generator: torch.Generator) -> Tensor:
        """`[number, N]`."""
        return batches.draw(number, generator)

    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """The model's own state, and Adam's."""
        return {"model": self.network.state_dict(), "model_adam": self.steps.state()}

    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""
        self.network.load_state_dict(part(state, "model."))
        self.steps.restore(part(state, "model_adam."))


class OneLoss(Losses):
    """A loss of its own."""

    def __init__(self, loss: BilevelLoss, rate: float, clip: float | None) -> None:
        self.first = loss
        self.steps = Flat(loss.parameters(), rate, clip)

    def each(self) -> Sequence[BilevelLoss]:
        """The loss."""
        return [self.first]

    def estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2."""
        return self.first.estimate(elements)

    def look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        """Elements and truths of batches `[K, N, ...]`."""
        inputs = self.first.check(scores, target, None)
        truth = self.first.truth(inputs)
        self.first.standardise(truth)
        return self.first.elements(inputs), truth

    def misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance between estimate and truth."""
        return self.first.distances(elements, truth)

    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """The loss's own state, Adam's, and whether it has learned from made-up sets."""
        universal = {"universal": torch.tensor(self.first.universal)}
        return {"loss": self.first.state_dict(), "loss_adam": self.steps.state(), "own": universal}

    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""
        self.first.load_state_dict(part(state, "loss."))
        self.steps.restore(part(state, "loss_adam."))
        self.first.universal = bool(state["own.universal"])


class ManyModels(Models):
    """R models of one architecture."""

    def __init__(
        self, models: Sequence[nn.Module], rate: float | Tensor, clip: float | None
    ) -> None:
        self.network = models[0]
        self._stack = Stack(models, rate, clip)
        self.steps = self._stack
        self._runs = len(models)

    def scores(self, x: Tensor, index: Tensor) -> Tensor:
        """One batched pass over all runs, which come first in the stack: `[R, K * N]`."""
        *steps, runs, items = index.shape
        if not steps:
            return self._stack(x[index]).reshape(index.shape)
        scores = self._stack(x[index.transpose(0, 1).flatten(1)])
        return scores.reshape(runs, *steps, items).transpose(0, 1)

    def draw(self, batches: Batches, number: int, generator: torch.Generator) -> Tensor:
        """`[number, R, N]`, each run its own."""
        return batches.draw(number * self._runs, generator).unflatten(0, (number, -1))

    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """All weights as one vector per run, and Adam's state."""
        return {"model": self.steps.state()}

    def restore(self, state: State) -> None:
        """Goes back to a state, and gives the modules their weights."""
        self.steps.restore(part(state, "model."))
        self.steps.part()


class ManyLosses(Losses):
    """R losses of binary scores, with the same widths and distance; their metrics may differ."""

    def __init__(
        self, losses: Sequence[BilevelLoss], rate: float | Tensor, clip: float | None
    ) -> None:
        self.first = losses[0]
        self._stack = Stack(losses, rate, clip)
        self.steps = self._stack
        self._losses = losses
        self._unbounded = torch.tensor([loss.unbounded for loss in losses])

    def each(self) -> Sequence[BilevelLoss]:
        """All losses."""
        return self._losses

    def estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2 of every run, `[..., R]`."""
        layers: dict[str, list[Any]] = {"g": [], "h": []}
        for name, each in self._stack.parameters().items():
            layers[name[0]].append(each if each.dim() == 3 else each.unsqueeze(-2))
        buffers = self._stack.buffers
        with full_precision(elements.items.device.type):
            value = set_network(elements, layers["g"], layers["h"])
            return torch.addcmul(buffers["shift"], value, buffers["scale"])

    def look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        """Elements and truths `[K, R]`; runs that share a metric are valued in one call."""
        truth = torch.empty(scores.shape[:-1], dtype=self.steps.vector.dtype)
        for loss, runs in self._by_metric():
            truth[:, runs] = loss.truth(loss.check(scores[:, runs], target[:, runs], None))
        self._standardise(truth)
        return self.first.elements(self.first.check(scores, target, None)), truth

    def misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance of every run; 0 where its truth is undefined."""
        gap = torch.where(truth.isfinite(), self.estimate(elements) - truth, 0.0)
        unit = torch.where(self._unbounded, self._stack.buffers["scale"], 1.0)
        return self.first.measure(gap / unit)

    def state(self) -> dict[str, Mapping[str, Tensor]]:
        """All weights as one vector per run, and Adam's state."""
        return {"loss": self.steps.state()}

    def restore(self, state: State) -> None:
        """Goes back to a state, and gives the modules their weights."""
        self.steps.restore(part(state, "loss."))
        self.steps.part()

    def _by_metric(self) -> list[tuple[BilevelLoss, list[int]]]:
        """One loss of each metric, and the runs that have it."""
        found: list[tuple[BilevelLoss, list[int]]] = []
        for number, loss in enumerate(self._losses):
            runs = next((runs for other, runs in found if other.metric == loss.metric), None)
            if runs is None:
                found.append((loss, [number]))
            else:
                runs.append(number)
        return found

    def _standardise(self, truth: Tensor) -> None:
        """At the first look, what `BilevelLoss.standardise` does for a loss of its own."""
        buffers = self._stack.buffers
        fresh = self._unbounded & (buffers["scale"] == 1) & (buffers["shift"] == 0)
        if not fresh.any():
            return
        for number, loss in enumerate(self._losses):
            loss.standardise(truth[:, number])
            for name in ("shift", "scale"):
                buffers[name][number] = getattr(loss, name)


def part(state: State, prefix: str) -> State:
    """The tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
