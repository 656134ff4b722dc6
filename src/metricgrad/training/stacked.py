"""Many joint trainings at once, for grids: seeds, metrics and learning rates stacked into one batched model.

A step of networks this small is all overhead, and a step of twenty of them stacked has hardly more
of it. Each run has its own batches, weights, metric and gradient norm; what they share is the data,
the architecture and the numbers of steps. Stacked runs give what runs of their own would give, but
for rounding and the random numbers they draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.surrogates.base import full_precision
from metricgrad.surrogates.bilevel import BilevelLoss, set_network
from metricgrad.surrogates.elements import Elements, is_multilabel
from metricgrad.training.algorithm import Algorithm1, Means, Plan, State
from metricgrad.training.flat import Stack
from metricgrad.training.joint import Start, check


class StackedTraining(Algorithm1):
    """Algorithm 1 for R models and their losses at once, on sets of binary scores.

    Args:
        models: R models of one architecture.
        losses: R losses, one for each, of the same widths and distance; their metrics may differ.
        x: `[items, ...]`, the training data's features, shared.
        y: `[items]`, their targets, shared.
        model_rates: the models' learning rates, for Adam; one each, instead of `model_rate`.
        loss_rates: the losses' learning rates, for Adam; one each, instead of `loss_rate`.
        start: `"universal"` first teaches losses that have not learned yet, one by one; `"scratch"`
            does not.
        universal: options of `learn_universal` for the universal start.
        generator: source of randomness for batches, made-up sets and dropout.
        **plan: the other options of `JointTraining`.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> models = [torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0)) for _ in range(3)]
        >>> losses = [mg.BilevelLoss(name) for name in ("f1", "auc", "mcc")]
        >>> run = mg.StackedTraining(models, losses, x, x[:, 0] > 1, start="scratch")
        >>> run.advance(20).misfit.shape
        torch.Size([3])
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        losses: Sequence[BilevelLoss],
        x: Tensor,
        y: Tensor,
        *,
        model_rates: Sequence[float] | None = None,
        loss_rates: Sequence[float] | None = None,
        start: Start = "universal",
        universal: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
        **plan: Any,
    ) -> None:
        settings = Plan(**plan)
        for name, given in (
            ("losses", losses),
            ("model_rates", model_rates),
            ("loss_rates", loss_rates),
        ):
            if given is not None and len(given) != len(models):
                raise ValueError(
                    f"{name} must be one for each model; got {len(given)} for {len(models)} models"
                )
        for name, rates in (("model_rates", model_rates), ("loss_rates", loss_rates)):
            if rates is not None and not all(rate > 0 for rate in rates):
                raise ValueError(f"{name} must be above 0; got {list(rates)}")
        for loss in losses:
            check(loss, x, y, start, settings.refine)
        if len({(loss.hidden, loss.distance) for loss in losses}) != 1 or any(
            is_multilabel(loss.metric) for loss in losses
        ):
            raise ValueError(
                "stacked losses must be of binary metrics, with the same hidden widths and distance"
            )
        if len({repr(model) for model in models}) != 1:
            raise ValueError(
                "stacked models must be of one architecture, activations and dropout included"
            )
        super().__init__(
            ", ".join(dict.fromkeys(loss.metric.name for loss in losses)), y, settings, generator
        )
        self.models, self.losses, self.x, self.y = list(models), list(losses), x, y
        self._teaching = (
            {"size": settings.batch, **(universal or {})} if start == "universal" else None
        )
        self._model_side = Stack(
            self.models, _each(model_rates, settings.model_rate), settings.clip
        )
        self._loss_side = Stack(self.losses, _each(loss_rates, settings.loss_rate), settings.clip)
        self._unbounded = torch.tensor([loss.unbounded for loss in losses])
        self._good = self.state()

    def advance(self, iterations: int, *, progress: bool = True) -> Means:
        """Makes so many iterations of Algorithm 1.

        Args:
            iterations: how many.
            progress: shows a bar, on a terminal.

        Returns:
            Means over these iterations, `[R]` each.
        """
        return self._advance(iterations, progress)

    def _begin(self) -> None:
        if self._teaching is None or all(loss.universal for loss in self.losses):
            return
        for loss in self.losses:
            if not loss.universal:
                loss.learn_universal(**{"generator": self._generator, **self._teaching})
        self._loss_side.join()
        self._good = self.state()

    def _sides(self) -> tuple[Stack, Stack]:
        return self._model_side, self._loss_side

    def _draw(self, number: int) -> Tensor:
        """Batches `[number, R, N]`, each run its own."""
        return self._batches.draw(number * len(self.models), self._generator).unflatten(
            0, (number, -1)
        )

    def _estimate(self, elements: Elements) -> Tensor:
        """Eqn. 2 of every run, `[R]`, on its metric's scale."""
        parts: dict[str, list[Tensor]] = {"g": [], "h": []}
        for name, each in self._loss_side.parameters().items():
            parts[name[0]].append(each if each.dim() == 3 else each.unsqueeze(-2))
        buffers = self._loss_side.buffers
        with full_precision(elements.items.device.type):
            return torch.addcmul(
                buffers["shift"], set_network(elements, parts["g"], parts["h"]), buffers["scale"]
            )

    def _value(self, batch: Tensor) -> Tensor:
        self.models[0].train()
        scores = self._model_side(self.x[batch])
        inputs = self.losses[0].check(scores.reshape(batch.shape), self.y[batch], None)
        return self._estimate(self.losses[0].elements(inputs))

    @torch.no_grad()
    def _look(self, index: Tensor) -> tuple[Elements, Tensor]:
        self.models[0].eval()
        steps, runs, items = index.shape
        scores = self._model_side(self.x[index.transpose(0, 1).flatten(1)])
        scores = scores.reshape(runs, steps, items).transpose(0, 1)
        target = self.y[index]
        truth = torch.empty(steps, runs, dtype=self._loss_side.vector.dtype)
        for loss, which in self._by_metric():
            truth[:, which] = loss.truth(loss.check(scores[:, which], target[:, which], None))
        self._standardise(truth)
        return self.losses[0].elements(self.losses[0].check(scores, target, None)), truth

    def _by_metric(self) -> list[tuple[BilevelLoss, list[int]]]:
        """One loss of each metric, and the runs that have it."""
        found: list[tuple[BilevelLoss, list[int]]] = []
        for number, loss in enumerate(self.losses):
            runs = next((runs for other, runs in found if other.metric == loss.metric), None)
            if runs is None:
                found.append((loss, [number]))
            else:
                runs.append(number)
        return found

    def _standardise(self, truth: Tensor) -> None:
        """At the first look, what `BilevelLoss.standardise` does for a loss of its own."""
        if self.iteration or not self._unbounded.any():
            return
        for number, loss in enumerate(self.losses):
            loss.standardise(truth[:, number])
            for name in ("shift", "scale"):
                self._loss_side.buffers[name][number] = getattr(loss, name)

    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        gap = torch.where(truth.isfinite(), self._estimate(elements) - truth, 0.0)
        unit = torch.where(self._unbounded, self._loss_side.buffers["scale"], 1.0)
        return self.losses[0].measure(gap / unit)

    def _network(self) -> nn.Module:
        return self.models[0]

    def state(self) -> State:
        """Everything that the next iteration depends on, as tensors of its own."""
        parts = {
            "model": self._model_side.state(),
            "loss": self._loss_side.state(),
            "own": self._own_state(),
        }
        return {
            f"{part}.{name}": value.clone()
            for part, values in parts.items()
            for name, value in values.items()
        }

    def restore(self, state: State) -> None:
        """Goes back to a state."""
        for part, side in (("model.", self._model_side), ("loss.", self._loss_side)):
            side.restore(
                {
                    name.removeprefix(part): value
                    for name, value in state.items()
                    if name.startswith(part)
                }
            )
            side.part()
        self._restore_own(
            {
                name.removeprefix("own."): value
                for name, value in state.items()
                if name[:4] == "own."
            }
        )
        self._good = state


def _each(rates: Sequence[float] | None, rate: float) -> float | Tensor:
    return rate if rates is None else torch.tensor(rates, dtype=torch.float32).unsqueeze(-1)
