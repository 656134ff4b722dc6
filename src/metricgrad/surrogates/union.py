"""The loss of the union of the sets that all processes have.

With data parallelism every process sees a part of the batch, and the metric of a part is not a part
of the metric: the mean of the F1 of 8 batches of 32 is not the F1 of 256, and a part without
positives has none at all. So scores and targets of all processes are joined, and every process
computes the same loss of the same set. They are small: a number for each item, where activations
are thousands.

Gradients are exact. Each process differentiates by its own scores s_r, and the chain rule adds the
parts up:

    dL/dw = sum_r dL/ds_r ds_r/dw

`DistributedDataParallel` divides that sum by the number of processes, so the gradient by the own
scores is multiplied by it first.
"""

from typing import Any

from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import to_tensor
from metricgrad.processes import Parts, join, number_of_processes
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.calls import Call


class AcrossRanks(Surrogate):
    """A surrogate of the sets of all processes; made by `across_ranks`."""

    def __init__(self, loss: Surrogate) -> None:
        super().__init__()
        self.loss = loss
        self.readable = loss.readable
        self.remembers = loss.remembers
        self.weighs = loss.weighs

    def shapes(self) -> Metric:
        """The metric whose shapes the loss takes."""
        return self.loss.shapes()

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss alone in one process; with several, other wrappers may not call it."""
        if number_of_processes() > 1:
            raise TypeError(
                "across_ranks joins whole calls, so it goes around all other wrappers: write "
                "mg.across_ranks(mg.with_memory(loss)), not mg.with_memory(mg.across_ranks(loss))"
            )
        return self.loss.losses(scores, target, where)

    def _mean(self, call: Call) -> Tensor:
        """The mean over the sets of all processes."""
        return self.loss._mean(_union(call))

    def _each(self, call: Call) -> tuple[Tensor, Tensor]:
        """The losses of the sets of all processes."""
        return self.loss._each(_union(call))

    def config(self) -> dict[str, Any]:
        """The loss's own description."""
        return {"loss": self.loss.description()}


def _union(call: Call) -> Call:
    """The calls of all processes as one; the own scores keep their gradient."""
    size = number_of_processes()
    if size == 1:
        return call
    found = join(lambda: _parts(call, size))
    scores = found.pop("scores")
    target = found.pop("target")
    return Call(scores, target, found.pop("where", None), found.pop("groups", None), found)


def _parts(call: Call, size: int) -> Parts:
    """What the others need to know of a call."""
    to_tensor("scores", call.scores)
    parts = {
        "scores": _with_gradient_times(size, call.scores),
        "target": to_tensor("target", call.target),
    }
    if call.where is not None:
        parts["where"] = to_tensor("where", call.where)
    if call.groups is not None:
        parts["groups"] = to_tensor("groups", call.groups)
    return parts | dict(sorted(call.rows.items()))


def _with_gradient_times(factor: int, scores: Tensor) -> Tensor:
    """The same scores; their gradient is multiplied by the factor on its way to the model."""
    scores = scores.view_as(scores)
    if scores.requires_grad:
        scores.register_hook(lambda gradient: gradient * factor)
    return scores
