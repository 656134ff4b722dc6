r"""Algorithm 1 of Learning Surrogate Losses: models and their surrogates, trained in turns.

    for each iteration
        K_alpha times:  draw a batch; the model descends the surrogate at its scores       (Eqn. 4)
        K_beta times:   draw a batch; the surrogate descends its misfit at these scores    (Eqn. 5)

The surrogate thus follows the metric around where the model is. While it learns, the model does not
change: one forward pass in `eval()` mode and one call of the metric serve all K_beta sets. The same
code trains one run or many at once; `sides.py` knows the difference.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.nets.base import Elements
from metricgrad.training.batches import Batches, has_classes
from metricgrad.training.guard import Guard, TrainingError
from metricgrad.training.sides import Losses, Models, State, part

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
        """What is left of the learning rates: half a cosine wave that reaches 0 at `decay`."""
        if self.decay is None:
            return 1.0
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, iteration / self.decay))


class Means(NamedTuple):
    """Means over iterations, 0-dim, or `[R]` for R runs: loss, misfit and truth."""

    loss: Tensor
    misfit: Tensor
    truth: Tensor


class Algorithm1:
    """The alternation itself.

    Args:
        models: One model, or many.
        losses: The surrogates that the models descend, one for each.
        x: `[items, ...]`, features of the training data.
        y: `[items, ...]`, targets of the training data.
        settings: The numbers of steps, the learning rates and the batches.
        universal: Options of `learn_universal` for losses that have not learned yet; None leaves
            them as they are.
        generator: Source of randomness for batches, made-up sets and dropout.
    """

    def __init__(
        self,
        models: Models,
        losses: Losses,
        x: Tensor,
        y: Tensor,
        settings: Alternation,
        universal: Mapping[str, Any] | None,
        generator: torch.Generator | None,
    ) -> None:
        self.iteration = 0
        self.settings = settings
        self.models = models
        self.losses = losses
        self.universal = None if universal is None else {"size": settings.batch, **universal}
        self.name = ", ".join(dict.fromkeys(loss.metric.name for loss in losses.each()))
        self._x = x
        self._y = y
        stratified = settings.stratified
        stratified = has_classes(y, settings.batch) if stratified is None else stratified
        self._batches = Batches(y, settings.batch, stratified)
        self._guard = Guard(self.name, settings.batch)
        seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        self._generator = torch.Generator().manual_seed(seeds[0])
        self.dropout = torch.Generator().manual_seed(seeds[1]).get_state()
        self.last_good = self.state()

    def advance(self, iterations: int, progress: bool) -> Means:
        """Makes so many iterations, and gives the means over them."""
        whole("iterations", iterations, 1)
        self.teach()
        sums: Means | None = None
        title = f"training on {self.name}"
        with self._at_work(), to_progress(title, iterations, progress) as tell:
            for count in range(1, iterations + 1):
                found = Means(*(each.double() for each in self._iterate()))
                sums = found if sums is None else Means(*map(torch.add, sums, found))
                if not count % _KEEP:
                    told = f"loss {found.loss.mean():.4f}, misfit {found.misfit.mean():.4f}"
                    tell(_KEEP, told)
        assert sums is not None
        return Means(*((each / iterations).float() for each in sums))

    def teach(self) -> None:
        """Teaches losses that have not learned yet from made-up sets, where that is asked for."""
        untaught = [loss for loss in self.losses.each() if not loss.universal]
        if self.universal is None or not untaught:
            return
        options = {"generator": self._generator, "classes": self._classes(), **self.universal}
        for loss in untaught:
            loss.learn_universal(**options)
        self.losses.steps.join()
        self.losses.steps.part()
        self.last_good = self.state()

    def draw(self, number: int) -> Tensor:
        """Indices of so many batches of every run."""
        return self.models.draw(self._batches, number, self._generator)

    def _iterate(self) -> Means:
        """One iteration."""
        settings = self.settings
        share = settings.share(self.iteration)
        index = self.draw(settings.model_steps + settings.loss_steps * settings.refine)
        loss = self._move_models(index[: settings.model_steps], share)
        misfit = truth = torch.full_like(loss[:1], torch.nan)
        if settings.refine:
            elements, truth = self._look(index[settings.model_steps :])
            self._guard.check_truth(truth)
            misfit = self._move_losses(elements, truth, share)
            self._guard.check_misfit(misfit)
        self._guard.check_loss(loss)
        self._guard.check_parameters(self.models.steps.vector, self.losses.steps.vector)
        self.iteration += 1
        if not self.iteration % _KEEP:
            self.dropout = torch.get_rng_state()
            self.last_good = self.state()
        return Means(loss.mean(0), misfit.mean(0), truth.nanmean(0))

    def _move_models(self, index: Tensor, share: float) -> Tensor:
        """A step of the models for every batch: lines 4 to 7."""
        values = []
        self.losses.steps.freeze(True)
        for batch in index:
            self.models.network.train()
            scores = self.models.scores(self._x, batch)
            inputs = self.losses.first.check(scores, self._y[batch], None)
            value = self.losses.estimate(self.losses.first.elements(inputs))
            self.models.steps.descend(value, share)
            values.append(value.detach())
        self.losses.steps.freeze(False)
        return torch.stack(values)

    @torch.no_grad()
    def _look(self, index: Tensor) -> tuple[Elements, Tensor]:
        """What the losses see of K_beta batches, by the models as they are, and their truths."""
        self.models.network.eval()
        return self.losses.look(self.models.scores(self._x, index), self._y[index])

    def _move_losses(self, elements: Elements, truth: Tensor, share: float) -> Tensor:
        """A step of the losses for every batch on which the metric is defined: lines 9 to 12."""
        defined = truth.isfinite().reshape(len(truth), -1).any(-1).tolist()
        misfits = []
        for one, value, known in zip(elements.each(), truth, defined, strict=True):
            if known:
                misfit = self.losses.misfit(one, value)
                self.losses.steps.descend(misfit, share)
                misfits.append(misfit.detach())
        return torch.stack(misfits)

    @torch.no_grad()
    def _classes(self) -> int | None:
        """How many classes or labels the scores have; None for one score per item."""
        with modes_kept(self.models.network):
            scores = self.models.network.eval()(self._x[:2])
        inputs = self.losses.first.check(scores, self._y[:2], None)
        return inputs.scores.shape[-1] if self.losses.first.elements(inputs).many else None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Joins the parameters for the steps to come; an error restores the last good state."""
        sides = (self.models.steps, self.losses.steps)
        with torch.random.fork_rng(devices=[]), modes_kept(self.models.network):
            torch.set_rng_state(self.dropout)
            for side in sides:
                side.join()
            try:
                yield
                self.dropout = torch.get_rng_state()
            except (
                BaseException
            ) as error:  # Ctrl-C too: an iteration is made as a whole or not at all
                broken = self.iteration + 1
                self.restore(self.last_good)
                if not isinstance(error, Exception):
                    raise
                raise TrainingError(
                    f"{error}, at iteration {broken}; model and loss are back at iteration "
                    f"{self.iteration}. If they diverged, pass lower rates than "
                    f"model_rate={self.settings.model_rate:g} and "
                    f"loss_rate={self.settings.loss_rate:g}"
                ) from error
            finally:
                for side in sides:
                    side.freeze(False)
                    side.part()

    def state(self) -> State:
        """Everything that the next iteration depends on, as tensors of its own."""
        own = {
            "generator": self._generator.get_state(),
            "dropout": self.dropout,
            "guard": self._guard.state(),
            "iteration": torch.tensor(self.iteration),
        }
        found: State = {f"own.{name}": value.clone() for name, value in own.items()}
        for side in (self.models.state(), self.losses.state()):
            for which, values in side.items():
                found |= {f"{which}.{name}": value.clone() for name, value in values.items()}
        return found

    def restore(self, state: State) -> None:
        """Goes back, or on, to a state."""
        self.models.restore(state)
        self.losses.restore(state)
        own = part(state, "own.")
        self._generator.set_state(own["generator"])
        self._guard.restore(own["guard"])
        self.dropout = own["dropout"].clone()
        self.iteration = int(own["iteration"])
        self.last_good = state


@contextmanager
def modes_kept(network: nn.Module) -> Iterator[None]:
    """Puts every module back into the mode it was in, `train()` or `eval()`, at the end."""
    modes = [(each, each.training) for each in network.modules()]
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training
