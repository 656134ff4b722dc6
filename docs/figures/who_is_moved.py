"""Draws `who_is_moved.png`: which items a loss for accuracy moves.

It shows how steeply losses fall along the score of the target's class, for an item of ten classes
whose other scores are equal. A network learns from the slope where items are wrong, left of the
dotted line.

    python docs/figures/who_is_moved.py
"""

from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

import metricgrad as mg
from metricgrad.training import teach

LEADS = torch.linspace(-8, 8, 161)
CLASSES = 10


def losses(steps: int = 300) -> dict[str, mg.Surrogate]:
    """Cross-entropy, the ReLoss that ships, and two that were learned without its penalty."""
    found: dict[str, mg.Surrogate] = {
        "cross-entropy": mg.baselines.CrossEntropy(),
        "ReLoss": mg.ReLoss.pretrained("accuracy"),
    }
    kinds: dict[str, Literal["probability", "margin"]] = {
        "no penalty": "probability",
        "no penalty, of margins": "margin",
    }
    for label, sees in kinds.items():
        generator = torch.Generator().manual_seed(0)
        net = mg.nets.Classification(sees=sees, monotone=False, generator=generator)
        found[label] = teach("accuracy", steps=steps, seed=0, net=net, progress=False).loss
    return found


def slopes(loss: mg.Surrogate) -> Tensor:
    """How steeply a loss falls at each lead of the target's score; the steepest slope is 1."""
    scores = torch.zeros(len(LEADS), 1, CLASSES)  # every item is a set
    scores[:, 0, 0] = LEADS
    leaf = scores.requires_grad_()
    target = torch.zeros(len(LEADS), 1, dtype=torch.long)
    (gradient,) = torch.autograd.grad(loss.per_set(leaf, target).sum(), leaf)
    steepness = -gradient[:, 0, 0]
    return steepness / steepness.max()


def draw(found: dict[str, Tensor]) -> Figure:
    """Draws all slopes into one picture."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    colors = ("#222222", "#2a6f97", "#f4a261", "#bc4749")
    for (label, each), color in zip(found.items(), colors, strict=True):
        axes.plot(LEADS, each, color=color, label=label)
    axes.axvline(0, color="#999999", linestyle=":", linewidth=1)
    axes.set(
        xlabel="score of the target's class minus that of the others",
        ylabel="slope of the loss (steepest 1)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    measured = {label: slopes(loss) for label, loss in losses().items()}
    draw(measured).savefig(Path(__file__).with_suffix(".png"), dpi=150)
    for label, each in measured.items():
        shown = [f"{each[index].item():.3f} at {LEADS[index]:.0f}" for index in (40, 60)]
        print(f"{label}: slope {', '.join(shown)}")
