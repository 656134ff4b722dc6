"""What a surrogate is: a differentiable stand-in for a metric, lower is better, an ordinary `nn.Module`.

`loss(scores, target)` takes logits as they leave the model and gives a 0-dim tensor to call
`.backward()` on: the mean of `per_set` over the sets on which the metric is defined. If there are
none, it is 0 with a zero gradient, still attached to the graph, so that a training loop needs no
special case.
"""

import math
import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.storage import write_tensors
from metricgrad.surrogates.elements import is_multilabel

TargetKind = Literal["binary", "classes", "labels", "grades"]
_WATCHED = 50  # batches at the start of training that are looked at before a warning


class Surrogate(nn.Module, ABC):
    """A loss in place of a metric.

    Attributes:
        readable: whether the value of the loss is that of the metric, as a loss.
    """

    readable: bool = False
    _batches = _empty = 0

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """Whether the loss can be trained on targets of a kind for a metric, by the metric's facts."""
        return kind in target_kinds(metric)

    @abstractmethod
    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every set `[...]`, and whether the metric is defined there `[...]`."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What rebuilds the surrogate, ready for JSON."""

    def description(self) -> dict[str, Any]:
        """Class and configuration, ready for JSON."""
        return {"class": type(self).__name__, "config": self.config()}

    def save(self, path: str | Path) -> None:
        """Writes the surrogate to one safetensors file: its tensors, and its settings as JSON in the header.

        Args:
            path: where to; an existing file is replaced only once the new one is complete.
        """
        write_tensors(path, self.state_dict(), "metricgrad", self.description())

    def per_set(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The loss of every set.

        Args:
            scores: raw model output, in the metric's shapes.
            target: ground truth.
            where: True for what counts; None counts all.

        Returns:
            `[...]`.
        """
        return self.losses(scores, target, where)[0]

    # What is compared depends on the target, so a compiled model calls the loss as it is.
    @torch.compiler.disable
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator hides the signature)
        self, scores: Tensor, target: Tensor, where: Tensor | None = None
    ) -> Tensor:
        """The mean loss of the sets on which the metric is defined.

        Args:
            scores: raw model output, in the metric's shapes.
            target: ground truth.
            where: True for what counts; None counts all.

        Returns:
            A 0-dim tensor; 0 with a zero gradient where no set has a value.
        """
        if scores.shape == target.shape and scores.shape[-1:] == (1,) and scores.dim() > 1:
            scores, target, where = self._items(scores, target, where)
        values, defined = self.losses(scores, target, where)
        if self.training:
            self._watch(defined)
        if not values.dim() and defined:  # one set, as most of the time
            return values
        return torch.where(defined, values, 0.0).sum() / defined.sum().clamp(min=1)

    def _items(
        self, scores: Tensor, target: Tensor, where: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Binary scores and target `[..., N, 1]`, as torch's own losses like them: N items, not N sets of one."""
        metric = getattr(self, "metric", None)
        if metric is not None and ("binary" not in metric.families or is_multilabel(metric)):
            return scores, target, where
        where = where.squeeze(-1) if where is not None and where.dim() == scores.dim() else where
        return scores.squeeze(-1), target.squeeze(-1), where

    def _watch(self, defined: Tensor) -> None:
        """Warns, once, when most of the first batches are too small to have a value."""
        if self._batches == _WATCHED:
            return
        self._batches += 1
        self._empty += int(not defined.any())
        if self._batches == _WATCHED and 2 * self._empty > _WATCHED:
            warnings.warn(
                f"{self._empty} of the first {_WATCHED} batches had no value of the metric (no positive, for example), "
                "so nothing was learned from them. Larger or stratified batches help, or mg.with_memory(loss), which "
                "lets past items join the set",
                stacklevel=3,
            )


class LearnedSurrogate(Surrogate):
    """A loss with parameters of its own, which its misfit teaches.

    Attributes:
        metric: what it stands for.
    """

    metric: Metric

    @abstractmethod
    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """How far the surrogate is from its metric on these sets: 0-dim, with a gradient for its parameters alone."""


def target_kinds(metric: Metric) -> tuple[TargetKind, ...]:
    """The kinds of targets for which a metric's shapes and checks have a value.

    Binary targets and labels both have the shape of the scores: to a metric of binary scores, labels
    `[N, C]` are N sets, and to a metric of labels, a set `[N]` is an item with N labels.
    """
    match metric.layout:
        case "any":
            return ("binary", "classes", "labels", "grades")
        case "labels" if metric.decided_by != "anything":  # a user's function takes any numbers
            return ("binary", "labels")
        case "binary" if metric.takes_classes:
            return ("binary", "classes", "labels")
        case "binary" | "labels" | "grades":
            return ("binary", "labels", "grades")
        case _:
            return ()


def as_loss(metric: Metric, values: Tensor) -> Tensor:
    """Values of a metric as losses: best - value (1 - F1), the value where lower is better, -value if unbounded."""
    if not metric.higher_is_better:
        return values
    return metric.best - values if math.isfinite(metric.best) else -values


def full_precision(device: str) -> AbstractContextManager[Any]:
    """A context without autocast; entering one costs something, so only where there is autocast."""
    return (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else nullcontext()
    )
