"""A grid of joint trainings (seeds, metrics, learning rates) in one batched model.

A step of networks as small as the paper's is all overhead, so twenty of them stacked cost hardly
more than one. Each run has its own batches, weights, metric and gradient norm. It gives what a run
of its own would give, but for rounding and the random numbers that it draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from metricgrad.metrics.one_score import item_target
from metricgrad.surrogates.base import full_precision
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.nets.base import Elements
from metricgrad.surrogates.set_networks import set_network
from metricgrad.training.algorithm import Algorithm1, Alternation, Means
from metricgrad.training.checkpoint import State
from metricgrad.training.drawing import Batches
from metricgrad.training.joint import LossStart, check_start
from metricgrad.training.stack import Stack


class StackedTraining(Algorithm1):
    r"""Algorithm 1 for R models and their losses at once, on sets of binary scores.

    .. math:: \alpha_r \leftarrow \alpha_r - \eta_{\alpha r} \nabla_{\alpha_r} \,
        \ell_{\beta_r}(y, s_{\alpha_r}(x)), \qquad
        \beta_r \leftarrow \beta_r - \eta_{\beta r} \nabla_{\beta_r} \,
        | \ell_{\beta_r}(y, s_{\alpha_r}(x)) - \ell_r(y, s_{\alpha_r}(x)) |

    for every run r = 1, ..., R in one batched step, with the notation of `JointTraining`.

    Args:
        models: R models of the same architecture, trained in place from the weights they have.
        losses: R losses, one for each, of the same widths and distance; their metrics may differ.
        x: `[items, ...]`, features of the training data, shared by all runs.
        y: `[items]`, targets of the training data, shared by all runs.
        model_rates: Adam's learning rates for the models, one each, instead of `model_rate`.
        loss_rates: Adam's learning rates for the losses, one each, instead of `loss_rate`.
        parts: For each run, the indices of the items that it may see, such as the training part of
            a fold or of a seed; None lets all runs see all items.
        start: `"universal"` first teaches losses that have not learned yet, one by one; `"scratch"`
            does not. One for all runs, or one each.
        universal: Options of `learn_universal` for the universal start.
        generator: Source of randomness for batches, made-up sets and dropout.
        **settings: Other options of `JointTraining`, shared by all runs, such as `batch`.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> models = [torch.nn.Linear(4, 1) for _ in range(3)]
        >>> losses = [mg.BilevelLoss(name) for name in ("f1", "auc", "mcc")]
        >>> run = mg.StackedTraining(models, losses, x, x[:, 0] > 1, start="scratch")
        >>> run.advance(20).misfit.shape
        torch.Size([3])

    Reference:
        Learning Surrogate Losses, Algorithm 1.
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
        parts: Sequence[Tensor] | None = None,
        start: LossStart | Sequence[LossStart] = "universal",
        universal: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        chosen = Alternation(**settings)
        given = [start] * len(losses) if isinstance(start, str) else start
        starts = cast(Sequence[LossStart], given)
        rates = {"model_rates": model_rates, "loss_rates": loss_rates}
        _check_stack(models, losses, **rates, parts=parts, start=starts)
        for loss, each in zip(losses, starts, strict=True):
            check_start(loss, x, y, each, chosen.refine)
        self.models = list(models)
        self.losses = list(losses)
        self._unbounded = torch.tensor([loss.unbounded for loss in losses])
        self._model_stack = Stack(self.models, _each(model_rates, chosen.model_rate), chosen.clip)
        self._loss_stack = Stack(self.losses, _each(loss_rates, chosen.loss_rate), chosen.clip)
        sides = (self._model_stack, self._loss_stack)
        teaching = (universal or {}) if "universal" in starts else None
        data = (x, item_target(y, losses[0].metric))
        super().__init__(models[0], self.losses, sides, data, chosen, teaching, generator)
        self._parts = None if parts is None else self._own_batches(parts)
        self._pupils = [
            loss for loss, each in zip(losses, starts, strict=True) if each == "universal"
        ]

    def advance(self, iterations: int, *, progress: bool = True) -> Means:
        """Runs iterations of Algorithm 1.

        Args:
            iterations: How many rounds of model and loss steps to add, for every run.
            progress: Whether to show a progress bar, on a terminal.

        Returns:
            Means over these iterations, `[R]` each.
        """
        return self._advance(iterations, progress)

    def restore(self, state: State) -> None:
        """Goes back to a state, and gives the modules their weights."""
        super().restore(state)
        self._model_stack.part()
        self._loss_stack.part()

    def _own_batches(self, parts: Sequence[Tensor]) -> list[tuple[list[int], Tensor, Batches]]:
        """Runs that see the same part, the part, and what draws from it."""
        found: list[tuple[list[int], Tensor, Batches]] = []
        for run, part in enumerate(parts):
            alike = next((runs for runs, other, _ in found if torch.equal(other, part)), None)
            if alike is None:
                batches = Batches(
                    self.y[part], self._settings.batch, self._batches.stratified,
                    self._settings.balanced,
                )  # fmt: skip
                found.append(([run], part, batches))
            else:
                alike.append(run)
        return found

    def _draw(self, number: int) -> Tensor:
        """Indices of so many batches for every run, `[number, R, N]`, each from its own part."""
        if self._parts is None:
            return super()._draw(number)
        index = torch.empty(number, len(self.models), self._settings.batch, dtype=torch.long)
        for runs, part, batches in self._parts:
            drawn = part[batches.draw(number * len(runs), self._generator)]
            index[:, runs] = drawn.unflatten(0, (number, len(runs)))
        return index

    def _scores(self, index: Tensor) -> Tensor:
        """One batched pass over all runs, which come first in the stack: `[R, K * N]`."""
        *steps, runs, items = index.shape
        if not steps:
            return self._model_stack(self.x[index]).reshape(index.shape)
        scores = self._model_stack(self.x[index.transpose(0, 1).flatten(1)])
        return scores.reshape(runs, *steps, items).transpose(0, 1)

    def _estimate(self, elements: Elements) -> Tensor:
        layers: dict[str, list[Any]] = {"g": [], "h": []}
        for name, each in self._loss_stack.parameters().items():
            layers[name[0]].append(each if each.dim() == 3 else each.unsqueeze(-2))
        buffers = self._loss_stack.buffers
        with full_precision(elements.items.device.type):
            value = set_network(elements, layers["g"], layers["h"])
            return torch.addcmul(buffers["shift"], value, buffers["scale"])

    def _look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        """Elements and truths `[K, R]`; runs that share a metric are valued in one call."""
        truth = torch.empty(scores.shape[:-1], dtype=self._loss_stack.vector.dtype)
        left = list(range(len(self.losses)))
        while left:
            loss = self.losses[left[0]]
            runs = [number for number in left if self.losses[number].metric == loss.metric]
            truth[:, runs] = loss.truth(loss.check(scores[:, runs], target[:, runs], None))
            left = [number for number in left if number not in runs]
        self._standardise(truth)
        return self.losses[0].elements(self.losses[0].check(scores, target, None)), truth

    def _standardise(self, truth: Tensor) -> None:
        """At the first look, what `BilevelLoss.standardise` does for a loss of its own."""
        buffers = self._loss_stack.buffers
        fresh = self._unbounded & (buffers["scale"] == 1) & (buffers["shift"] == 0)
        if not fresh.any():
            return
        for number, loss in enumerate(self.losses):
            loss.standardise(truth[:, number])
            for name in ("shift", "scale"):
                buffers[name][number] = getattr(loss, name)

    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        """The distance of every run; 0 where its truth is undefined."""
        gap = torch.where(truth.isfinite(), self._estimate(elements) - truth, 0.0)
        unit = torch.where(self._unbounded, self._loss_stack.buffers["scale"], 1.0)
        return self.losses[0].measure(gap / unit)


def _check_stack(
    models: Sequence[nn.Module], losses: Sequence[BilevelLoss], **each: Sequence[Any] | None
) -> None:
    """Raises where runs cannot be stacked."""
    for name, given in {"losses": losses, **each}.items():
        if given is not None and len(given) != len(models):
            raise ValueError(
                f"{name} must be one for each model; got {len(given)} for {len(models)} models"
            )
    for name in ("model_rates", "loss_rates"):
        rates = each[name]
        if rates is not None and not all(rate > 0 for rate in rates):
            raise ValueError(f"{name} must be above 0; got {list(rates)}")
    kinds = {(loss.hidden, loss.distance) for loss in losses}
    if len(kinds) != 1 or any(loss.metric.layout == "labels" for loss in losses):
        raise ValueError(
            "stacked losses must be of binary metrics, with the same hidden widths and distance"
        )
    if len({repr(model) for model in models}) != 1:
        raise ValueError(
            "stacked models must be of one architecture, activations and dropout included"
        )


def _each(rates: Sequence[float] | None, rate: float) -> float | Tensor:
    """One rate for all runs, or `[R, 1]`."""
    return rate if rates is None else torch.tensor(rates, dtype=torch.float32).unsqueeze(-1)
