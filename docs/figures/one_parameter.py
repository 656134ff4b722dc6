"""Draws `one_parameter.png`: a model with one parameter and its learned loss at three moments.

It follows Figure 2 of Learning Surrogate Losses (Grabocka et al., 2019). The model a x - 1 starts
at a = 0.3 and is trained by Algorithm 1 on the error rate. The loss learns the metric around the
model's current parameter, and the model moves to where the loss is lowest. What the loss knows
about other values of the parameter comes from universal learning.

    python docs/figures/one_parameter.py
"""

from pathlib import Path
from typing import Literal, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import metricgrad as mg

MOMENTS = (10, 60, 400)
REACH = torch.linspace(0.0, 1.5, 301)


class Line(nn.Module):
    """The model, whose scores are a x - 1."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[...]` of items `[...]`."""
        return self.a * x - 1


class Moment(NamedTuple):
    """True and learned loss `[301]` over the range of the parameter, and the model's own value."""

    iteration: int
    true: Tensor
    learned: Tensor
    a: float


def data(items: int = 200) -> tuple[Tensor, Tensor]:
    """Items with one feature: negatives lie around 1, positives around 3."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(items) % 2
    return 1.0 + 2.0 * target + 0.7 * torch.randn(items, generator=generator), target


def moments(start: Literal["scratch", "universal"], seed: int = 2) -> list[Moment]:
    """Trains the model and records both losses on the way."""
    x, y = data()
    generator = torch.Generator().manual_seed(seed)
    model = Line()
    loss = mg.BilevelLoss("error_rate", generator=generator)
    run = mg.JointTraining(
        model,
        loss,
        x,
        y,
        start=start,
        model_rate=2e-3,
        loss_rate=1e-2,
        universal={"steps": 1000},
        generator=generator,
    )
    found = []
    for moment in MOMENTS:
        run.advance(moment - run.iteration, progress=False)
        scores = REACH.unsqueeze(-1) * x - 1  # every value of the parameter is a set
        with torch.no_grad():
            learned = loss.per_set(scores, y.expand_as(scores))
        true = mg.metric("error_rate")(scores, y.expand_as(scores))
        found.append(Moment(moment, true, learned, model.a.item()))
    return found


def draw(rows: dict[str, list[Moment]]) -> Figure:
    """Draws the data and both losses at each moment, with one row per start."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    axes = figure.subplots(len(rows), 1 + len(MOMENTS), squeeze=False)
    x, y = data()
    bins = torch.linspace(-1, 5, 31).tolist()
    for (label, found), (first, *others) in zip(rows.items(), axes, strict=True):
        for target, color, name in ((0, "#bc4749", "negative"), (1, "#2a6f97", "positive")):
            first.hist(x[y == target].tolist(), bins=bins, color=color, alpha=0.6, label=name)
        first.set_ylabel(label, fontsize=11)
        for axis, moment in zip(others, found, strict=True):
            axis.plot(REACH, moment.true, color="#1b9aaa", label="error rate")
            axis.plot(REACH, moment.learned, color="#c2185b", label="learned loss")
            axis.axvline(moment.a, color="black", linestyle="--", linewidth=1, label="the model")
            axis.set_title(f"after {moment.iteration} iterations", fontsize=11)
            axis.set_ylim(-0.1, 0.75)
    for axis in axes[0, :2]:
        axis.legend(frameon=False, fontsize=9)
    for axis, name in zip(axes[-1], ("x", *["parameter a"] * len(MOMENTS)), strict=True):
        axis.set_xlabel(name)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    figure = draw(
        {"SL-S, from scratch": moments("scratch"), "SL-R, universal start": moments("universal")}
    )
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=100, metadata={"Software": None})
