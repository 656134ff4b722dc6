r"""Algorithm 1 of Learning Surrogate Losses: models and their surrogates, trained in turns.

    for each iteration
        K_alpha times:  draw a batch; the model descends the surrogate at its scores       (Eqn. 4)
        K_beta times:   draw a batch; the surrogate descends its misfit at these scores    (Eqn. 5)

The surrogate thus follows the metric around where the model is. While it learns, the model does not
change: one forward pass in `eval()` mode and one call of the metric serve all K_beta sets. A guard
(`guard.py`) watches what may go wrong; a training that stops is put back to its last good state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.nets.base import Elements
from metricgrad.training.checkpoint import State, read_checkpoint, write_checkpoint
from metricgrad.training.drawing import Batches, has_classes
from metricgrad.training.guard import Guard, TrainingError
from metricgrad.training.stack import Flat, Stack, half_cosine, modes_kept

_KEEP = 50  # iterations between two states to fall back on


@dataclass(frozen=True, kw_only=True)
class Alternation:
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
    balanced: bool = False
    head_start: int = 0

    def __post_init__(self) -> None:
        whole("head_start", self.head_start, 0)
        if self.head_start and not self.refine:
            raise ValueError(
                f"a loss that is not refined cannot learn before the model; got head_start="
                f"{self.head_start} and refine=False"
            )
        if self.balanced and self.stratified is False:
            raise ValueError(
                "balanced=True gives every class an equal share of a batch, so batches cannot be "
                "drawn with stratified=False; leave one of them out"
            )
        for name in ("model_steps", "loss_steps", "decay"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        for name in ("model_rate", "loss_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")

    def share(self, iteration: int) -> float:
        """What is left of the learning rates: half a cosine wave that reaches 0 at `decay`."""
        return 1.0 if self.decay is None else half_cosine(iteration / self.decay)


class Means(NamedTuple):
    """Means over iterations, 0-dim, or `[R]` for R runs: loss, misfit and truth."""

    loss: Tensor
    misfit: Tensor
    truth: Tensor


class Algorithm1(ABC):
    """The alternation itself; subclasses say how one run, or many at once, are computed.

    Indices of batches are `[..., N]` for one run, `[..., R, N]` for R runs. The first loss speaks
    for all: how inputs are checked, and what the surrogate sees of them.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Sequence[BilevelLoss],
        sides: tuple[Flat, Flat] | tuple[Stack, Stack],
        data: tuple[Tensor, Tensor],
        settings: Alternation,
        universal: Mapping[str, Any] | None,
        generator: torch.Generator | None,
    ) -> None:
        self._iteration = 0
        self._settings = settings
        self._network = network
        self._each_loss = losses
        self._pupils = losses  # that a universal start teaches
        self._first = losses[0]
        self._sides = sides
        self._model_side, self._loss_side = sides
        self.x, self.y = data
        self._universal = None if universal is None else {"size": settings.batch, **universal}
        self._name = ", ".join(dict.fromkeys(loss.metric.name for loss in losses))
        stratified = settings.stratified
        if stratified is None:
            stratified = settings.balanced or has_classes(self.y, settings.batch)
        self._batches = Batches(self.y, settings.batch, stratified, settings.balanced)
        self._guard = Guard(self._name, settings.batch)
        seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        self._generator = torch.Generator().manual_seed(seeds[0])
        self._dropout = torch.Generator().manual_seed(seeds[1]).get_state()
        self._last_good: State = {}  # while it is at work, as it takes as much memory as the models

    @property
    def iteration(self) -> int:
        """Iterations made so far."""
        return self._iteration

    @abstractmethod
    def _scores(self, index: Tensor) -> Tensor:
        """Scores of the items at an index, in the shape of the index."""

    @abstractmethod
    def _estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2 of every run, on its metric's scale."""

    @abstractmethod
    def _look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        """What the surrogates see, and the truths: every metric as a loss, scaled by the first."""

    @abstractmethod
    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance of every run's estimate from its truth."""

    def _advance(self, iterations: int, progress: bool) -> Means:
        """Makes so many iterations, and gives the means over them."""
        whole("iterations", iterations, 1)
        self.teach()
        sums = Means(*torch.zeros(3, dtype=torch.float64))
        title = f"training on {self._name}"
        with self._at_work(), to_progress(title, iterations, progress) as tell:
            for count in range(1, iterations + 1):
                found = self._iterate()
                sums = Means(*(a + b.double() for a, b in zip(sums, found, strict=True)))
                if not count % _KEEP:
                    tell(_KEEP, f"loss {found.loss.mean():.4f}, misfit {found.misfit.mean():.4f}")
        return Means(*((each / iterations).float() for each in sums))

    def teach(self) -> None:
        """Trains losses that have not learned yet, if the start is universal, as `advance` does."""
        untaught = [loss for loss in self._pupils if not loss.universal]
        if self._universal is None or not untaught:
            return
        options = {"generator": self._generator, **self._shape(), **self._universal}
        for loss in untaught:
            loss.learn_universal(**options)
        self._loss_side.join()
        self._loss_side.part()

    def _draw(self, number: int) -> Tensor:
        """Indices of so many batches: `[number, N]`, or `[number, R, N]`."""
        runs = self._model_side.vector.shape[:-1]
        drawn = self._batches.draw(number * runs.numel(), self._generator)
        return drawn.unflatten(0, (number, *runs))

    def _iterate(self) -> Means:
        settings = self._settings
        share = settings.share(self._iteration)
        index = self._draw(settings.model_steps + settings.loss_steps * settings.refine)
        loss = self._move_models(index[: settings.model_steps], share)
        misfit = truth = torch.full_like(loss[:1], torch.nan)
        if settings.refine:
            with torch.no_grad():
                self._network.eval()
                seen = index[settings.model_steps :]
                elements, truth = self._look(self._scores(seen), self.y[seen])
            self._guard.check_truth(truth)
            misfit = self._move_losses(elements, truth, share)
            self._guard.check_misfit(misfit)
        if not math.isfinite(loss.sum().item()):
            raise TrainingError("the surrogate's value of the model's scores is not finite")
        self._guard.check_parameters(self._model_side.vector, self._loss_side.vector)
        self._iteration += 1
        if not self._iteration % _KEEP:
            self._dropout = torch.get_rng_state()
            self._last_good = self.state()
        return Means(loss.mean(0), misfit.mean(0), truth.nanmean(0))

    def _move_models(self, index: Tensor, share: float) -> Tensor:
        """A step of the models for every batch: lines 4 to 7."""
        values = []
        self._loss_side.freeze(True)
        for batch in index:
            self._network.train()
            inputs = self._first.check(self._scores(batch), self.y[batch], None)
            value = self._estimate(self._first.elements(inputs))
            if self._iteration >= self._settings.head_start:  # else it only updates batch norms
                self._model_side.descend(value, share)
            values.append(value.detach())
        self._loss_side.freeze(False)
        return torch.stack(values)

    def _move_losses(self, elements: Elements, truth: Tensor, share: float) -> Tensor:
        """A step of the losses for every batch on which the metric is defined: lines 9 to 12."""
        defined = truth.isfinite().reshape(len(truth), -1).any(-1).tolist()
        misfits = []
        for one, value, known in zip(elements.each(), truth, defined, strict=True):
            if known:
                misfit = self._misfit(one, value)
                self._loss_side.descend(misfit, share)
                misfits.append(misfit.detach())
        return torch.stack(misfits)

    @torch.no_grad()
    def _shape(self) -> dict[str, Any]:
        """What tells `learn_universal` the shape of the scores of a batch."""
        with modes_kept(self._network):
            scores = self._network.eval()(self.x[:2])
        return self._first.shape_options(scores, self.y[:2], self._batches.size)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Joins the parameters for the steps to come; an error restores the last good state."""
        with torch.random.fork_rng(devices=[]), modes_kept(self._network):
            torch.set_rng_state(self._dropout)
            for side in self._sides:
                side.join()
            self._last_good = self.state()
            try:
                yield
                self._dropout = torch.get_rng_state()
            except BaseException as error:  # Ctrl-C too: an iteration is made whole or not at all
                broken = self._iteration + 1
                self.restore(self._last_good)
                if not isinstance(error, Exception):
                    raise
                raise TrainingError(
                    f"{error}, at iteration {broken}; model and loss are back at iteration "
                    f"{self._iteration}. If they diverged, pass lower rates than "
                    f"model_rate={self._settings.model_rate:g} and "
                    f"loss_rate={self._settings.loss_rate:g}"
                ) from error
            finally:
                for side in self._sides:
                    side.freeze(False)
                    side.part()
                self._last_good = {}

    def state(self) -> State:
        """Everything that the next iteration depends on, as copies."""
        state = {
            "own.generator": self._generator.get_state(),
            "own.dropout": self._dropout,
            "own.guard": self._guard.state(),
            "own.iteration": torch.tensor(self._iteration),
        }
        state |= self._model_side.state("model") | self._loss_side.state("loss")
        state["own.universal"] = torch.tensor([loss.universal for loss in self._each_loss])
        return {name: value.clone() for name, value in state.items()}

    def restore(self, state: State) -> None:
        """Returns to a state, earlier or later."""
        self._model_side.restore(state, "model")
        self._loss_side.restore(state, "loss")
        self._generator.set_state(state["own.generator"])
        self._guard.restore(state["own.guard"])
        self._dropout = state["own.dropout"].clone()
        self._iteration = int(state["own.iteration"])
        for loss, universal in zip(self._each_loss, state["own.universal"].tolist(), strict=True):
            loss.universal = universal

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, one safetensors file, from which `resume` continues exactly.

        Args:
            path: File to write; an existing file is replaced only once the new one is complete.
        """
        write_checkpoint(path, self.state(), self._known())

    def resume(self, path: str | Path) -> None:
        """Continues from a checkpoint that has the same settings, model, metric and data.

        Args:
            path: Checkpoint that `save` wrote; another training's is refused.
        """
        state = read_checkpoint(path, self.state(), self._known(), varying="own.guard")
        self.restore(state)

    def _known(self) -> dict[str, Any]:
        """What a checkpoint must agree in, ready for JSON."""
        configs = [loss.config() for loss in self._each_loss]
        losses = [
            {name: value for name, value in config.items() if name != "universal"}
            for config in configs
        ]
        taught = self._universal is not None
        loss = losses[0] if len(losses) == 1 else losses
        return {**asdict(self._settings), "universal": taught, "items": len(self.y), "loss": loss}
