r"""Algorithm 1 of Learning Surrogate Losses: a model and its surrogate, trained in turns.

    for each iteration
        K_alpha times:  draw a batch, and let the model descend the surrogate at its scores      (Eqn. 4)
        K_beta times:   draw a batch, and let the surrogate descend its misfit at these scores   (Eqn. 5)

So the surrogate follows the metric around where the model is. While it learns, the model does not
change: one forward pass in `eval()` mode and one call of the metric serve all K_beta sets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.elements import Elements
from metricgrad.training.batches import Batches, has_classes
from metricgrad.training.flat import Descent
from metricgrad.training.guard import Guard, TrainingError

State = dict[str, Tensor]
_KEEP = 50  # iterations between two states to fall back on


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of Algorithm 1; `JointTraining` describes them."""

    refine: bool = True
    model_steps: int = 3
    loss_steps: int = 10
    model_rate: float = 1e-3
    loss_rate: float = 1e-3
    decay: int | None = None
    clip: float | None = 1.0
    batch: int = 100
    stratified: bool | None = None

    def __post_init__(self) -> None:
        whole("model_steps", self.model_steps, 1)
        whole("loss_steps", self.loss_steps, 1)
        if self.decay is not None:
            whole("decay", self.decay, 1)
        for name in ("model_rate", "loss_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")

    def share(self, iteration: int) -> float:
        """What is left of the learning rates at an iteration: half a cosine wave down to 0 at `decay`."""
        return (
            1.0
            if self.decay is None
            else 0.5 + 0.5 * math.cos(math.pi * min(1.0, iteration / self.decay))
        )


class Means(NamedTuple):
    """Means over iterations, 0-dim, or `[R]` for R runs: loss, misfit and truth."""

    loss: Tensor
    misfit: Tensor
    truth: Tensor


class Algorithm1(ABC):
    """The alternation itself, for one run or many at once.

    Args:
        name: of the metric.
        target: of the training data.
        plan: the settings.
        generator: source of randomness.

    Attributes:
        iteration: how many were made.
    """

    def __init__(
        self, name: str, target: Tensor, plan: Plan, generator: torch.Generator | None
    ) -> None:
        self.iteration, self.plan, self._name = 0, plan, name
        stratified = has_classes(target, plan.batch) if plan.stratified is None else plan.stratified
        self._batches, self._guard = (
            Batches(target, plan.batch, stratified),
            Guard(name, plan.batch),
        )
        seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        self._generator = torch.Generator().manual_seed(seeds[0])
        self._dropout = torch.Generator().manual_seed(seeds[1]).get_state()
        self._good: State = {}

    @abstractmethod
    def _begin(self) -> None:
        """Before the first iteration of all: universal learning, where it is asked for."""

    @abstractmethod
    def _sides(self) -> tuple[Descent, Descent]:
        """What moves the model, and what moves the loss."""

    @abstractmethod
    def _draw(self, number: int) -> Tensor:
        """Indices of so many batches, `[number, ..., N]`."""

    @abstractmethod
    def _value(self, batch: Tensor) -> Tensor:
        """The surrogate at the model's scores of a batch, with a gradient for the model."""

    @abstractmethod
    def _look(self, index: Tensor) -> tuple[Elements, Tensor]:
        """What the surrogate sees of K_beta batches, by the model as it is, and their truths `[K, ...]`."""

    @abstractmethod
    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The surrogate's distance from the truth of one batch, with a gradient for the surrogate."""

    @abstractmethod
    def _network(self) -> nn.Module:
        """The module that runs; its modes are the user's outside of `advance`."""

    @abstractmethod
    def state(self) -> State:
        """Everything that the next iteration depends on, as tensors of its own."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""

    def _advance(self, iterations: int, progress: bool) -> Means:
        """So many iterations; means over them."""
        whole("iterations", iterations, 1)
        self._begin()
        sums: Means | None = None
        with (
            self._at_work(),
            to_progress(f"training on {self._name}", iterations, progress) as tell,
        ):
            for count in range(1, iterations + 1):
                found = Means(*(part.double() for part in self._iterate()))
                sums = found if sums is None else Means(*map(torch.add, sums, found))
                if not count % _KEEP:
                    tell(_KEEP, f"loss {found.loss.mean():.4f}, misfit {found.misfit.mean():.4f}")
        assert sums is not None
        return Means(*((part / iterations).float() for part in sums))

    def _iterate(self) -> Means:
        """One iteration."""
        model_side, loss_side = self._sides()
        plan, share = self.plan, self.plan.share(self.iteration)
        index = self._draw(plan.model_steps + plan.loss_steps * plan.refine)
        losses = []
        loss_side.freeze(True)
        for batch in index[: plan.model_steps]:  # lines 4 to 7
            value = self._value(batch)
            model_side.descend(value, share)
            losses.append(value.detach())
        loss_side.freeze(False)
        loss = torch.stack(losses)
        misfit = truth = torch.full_like(loss[:1], torch.nan)
        if plan.refine:
            elements, truth = self._look(index[plan.model_steps :])
            self._guard.check_truth(truth)
            misfit = self._move_loss(elements, truth, share)
            self._guard.check_misfit(misfit)
        self._guard.check_loss(loss)
        self._guard.check_parameters(model_side.vector, loss_side.vector)
        self.iteration += 1
        self._remember()
        return Means(loss.mean(0), misfit.mean(0), truth.nanmean(0))

    def _move_loss(self, elements: Elements, truth: Tensor, share: float) -> Tensor:
        """A step of the surrogate for every batch on which the metric is defined: lines 9 to 12."""
        _, loss_side = self._sides()
        defined = truth.isfinite().reshape(len(truth), -1).any(-1).tolist()
        misfits = []
        for one, value, known in zip(elements.each(), truth, defined, strict=True):
            if known:
                misfit = self._misfit(one, value)
                loss_side.descend(misfit, share)
                misfits.append(misfit.detach())
        return torch.stack(misfits)

    def _remember(self) -> None:
        """Keeps a state to fall back on, now and then."""
        if not self.iteration % _KEEP:
            self._dropout = torch.get_rng_state()
            self._good = self.state()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """For as long as steps are made: parameters joined, randomness its own; if it breaks, the last good state."""
        with torch.random.fork_rng(devices=[]), modes_kept(self._network()):
            torch.set_rng_state(self._dropout)
            for side in self._sides():
                side.join()
            try:
                yield
                self._dropout = torch.get_rng_state()
            except (
                BaseException
            ) as error:  # Ctrl-C too: an iteration is made as a whole or not at all
                broken = self.iteration + 1
                self.restore(self._good)
                if not isinstance(error, Exception):
                    raise
                raise TrainingError(
                    f"{error}, at iteration {broken}; model and loss are back at iteration {self.iteration}. If they "
                    f"diverged, pass lower rates than model_rate={self.plan.model_rate:g} and "
                    f"loss_rate={self.plan.loss_rate:g}"
                ) from error
            finally:
                for side in self._sides():
                    side.freeze(False)
                    side.part()

    def _own_state(self) -> State:
        return {
            "generator": self._generator.get_state(),
            "dropout": self._dropout.clone(),
            "guard": self._guard.state(),
            "iteration": torch.tensor(self.iteration),
        }

    def _restore_own(self, state: State) -> None:
        self._generator.set_state(state["generator"])
        self._guard.restore(state["guard"])
        self._dropout, self.iteration = state["dropout"].clone(), int(state["iteration"])


@contextmanager
def modes_kept(network: nn.Module) -> Iterator[None]:
    """Puts every module back into the mode it was in, `train()` or `eval()`, at the end."""
    modes = [(each, each.training) for each in network.modules()]
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training
