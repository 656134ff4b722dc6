"""A random network as the metric: should a loss learn its values or its order?

The metric is a network with random weights. Losses learn from a limited number of inputs and their
values: one loss approximates the values (Eqn. 5), one ranks the inputs (Eqn. 7). Then gradient
descent moves inputs down each loss, and down the metric itself. What counts is the metric's value
at the moved inputs; lower is better.
"""

import itertools
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings
from metricgrad.metrics import Inputs


class RandomMetric(mg.Metric):
    """A network with random weights as a metric of vectors; lower is better."""

    name = "random network"
    families = ("binary",)
    higher_is_better = False
    best = -float("inf")
    worst = float("inf")
    ties = "own"
    undefined = "never"
    reference = "itself"

    def __init__(self, size: int, width: int, generator: torch.Generator) -> None:
        widths = (size, width, width, 1)
        self.weights = [
            torch.randn(a, b, generator=generator) * (2 / a) ** 0.5
            for a, b in itertools.pairwise(widths)
        ]

    @property
    def layout(self) -> Literal["binary"]:
        """One number per item of a set."""
        return "binary"

    def value(self, scores: Tensor) -> Tensor:
        """`[...]` from vectors `[..., size]`, with a gradient."""
        for weight in self.weights[:-1]:
            scores = torch.tanh(scores @ weight * 1.5)
        return (scores @ self.weights[-1]).squeeze(-1)

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Accepts all vectors."""
        return Inputs(scores, target, where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The network's value."""
        return self.value(scores)


class Learner(nn.Module):
    """The network of a loss, with ELU instead of the metric's tanh."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1)
        )

    def forward(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """`[...]` from vectors `[..., size]`."""
        return self.layers(scores).squeeze(-1)


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Learns one loss of one metric and moves inputs down it.

    The values are the held-out rank correlation along the learning, and the metric's mean along the
    descent in units of its standard deviation over random inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    size = settings["size"]
    metric = RandomMetric(size, settings["metric_width"], generator)
    observed, held, inputs = (
        torch.randn(number, size, generator=generator)
        for number in (settings["observations"], 1024, 256)
    )
    middle = metric.value(held).mean().item()
    spread = metric.value(held).std().item()
    values: dict[str, float] = {}
    objective = metric.value
    if settings["method"] != "metric":
        torch.manual_seed(seed)
        net = Learner(size, settings["width"])
        loss = mg.ReLoss(
            metric,
            net=net,
            objective=settings["method"],
            penalty=settings["penalty"],
            smooth="equal",
        )
        learned = loss.learn(
            [(observed, torch.zeros_like(observed))],
            valid=[(held, torch.zeros_like(held))],
            steps=settings["steps"],
            share=0.0,
            sets=settings["sets"],
            progress=False,
            generator=generator,
        )
        values = {"spearman": learned.spearman, "kendall": learned.kendall}
        values |= {f"learning_{step}": found for step, _, found in learned.curve}
        objective = lambda x: loss.per_set(x, torch.zeros_like(x))  # noqa: E731
    for moment, x in descend(objective, inputs, settings["moments"], settings["rate"]):
        values[f"descent_{moment}"] = (metric.value(x).mean().item() - middle) / spread
    return {"values": values}


def descend(objective: Any, inputs: Tensor, moments: list[int], rate: float) -> Any:
    """Moves inputs down an objective with Adam and yields them at the given steps."""
    x = inputs.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], rate)
    for step in range(max(moments) + 1):
        if step in moments:
            yield step, x.detach()
        optimizer.zero_grad(set_to_none=True)
        objective(x).sum().backward()
        optimizer.step()
