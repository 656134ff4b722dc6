"""What a surrogate is: a differentiable stand-in for a metric, lower is better, an ordinary `nn.Module`.

`loss(scores, target)` takes logits as they leave the model and gives a 0-dim tensor to call `.backward()` on: the mean
of `per_set` over the sets on which the metric is defined. If there are none, it is 0 with a zero gradient, still
attached to the graph, so that a training loop needs no special case.
"""

import math
import warnings
from abc import abstractmethod

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric

_WATCHED = 50  # batches at the start of training that are looked at before a warning


class Surrogate(nn.Module):
    """A loss in place of a metric.

    Attributes:
        readable: whether the value of the loss is that of the metric, as a loss.
    """

    readable: bool = False
    _batches = _empty = 0

    @abstractmethod
    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every set `[...]`, and whether the metric is defined there `[...]`."""

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

    def forward(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The mean loss of the sets on which the metric is defined.

        Args:
            scores: raw model output, in the metric's shapes.
            target: ground truth.
            where: True for what counts; None counts all.

        Returns:
            A 0-dim tensor; 0 with a zero gradient where no set has a value.
        """
        values, defined = self.losses(scores, target, where)
        if self.training and self._batches < _WATCHED:
            self._watch(defined)
        return torch.where(defined, values, 0.0).sum() / defined.sum().clamp(min=1)

    def _watch(self, defined: Tensor) -> None:
        """Warns, once, when most of the first batches are too small to have a value."""
        self._batches += 1
        self._empty += int(not defined.any())
        if self._batches == _WATCHED and 2 * self._empty > _WATCHED:
            warnings.warn(
                f"{self._empty} of the first {_WATCHED} batches had no value of the metric (no positive, for example), "
                "so nothing was learned from them. Larger or stratified batches help, or mg.with_memory(loss), which "
                "lets past items join the set",
                stacklevel=3,
            )


def as_loss(metric: Metric, values: Tensor) -> Tensor:
    """Values of a metric as losses: best - value (1 - F1), the value where lower is better, -value if unbounded."""
    if not metric.higher_is_better:
        return values
    return metric.best - values if math.isfinite(metric.best) else -values
