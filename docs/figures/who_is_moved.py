"""Which items a loss for accuracy moves: draws `who_is_moved.png` beside this file.

The slope of losses along the score of the target's class, for an item of ten classes whose other
scores are equal. What trains a network is the slope where items are wrong, left of the dotted line.

    python docs/figures/who_is_moved.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import metricgrad as mg
from metricgrad.training.recipes import teach

LEADS = torch.linspace(-8, 8, 161)
CLASSES = 10


def losses(steps: int = 300) -> dict[str, mg.Surrogate]:
    """Cross-entropy, the loss that ships, and the same without its penalty, of probabilities and of margins."""
    found: dict[str, mg.Surrogate] = {
        "cross-entropy": mg.baselines.CrossEntropy(),
        "ReLoss": mg.ReLoss.pretrained("accuracy"),
    }
    for label, sees in (("no penalty", "probability"), ("no penalty, of margins", "margin")):
        net = mg.nets.Classification(
            sees=sees, monotone=False, generator=torch.Generator().manual_seed(0)
        )
        found[label] = teach("accuracy", steps=steps, seed=0, net=net, progress=False).loss
    return found


def slopes(loss: mg.Surrogate) -> Tensor:
    """How steeply a loss falls at each lead of the target's score, the steepest being 1."""
    scores = torch.zeros(len(LEADS), 1, CLASSES)  # every item is a set
    scores[:, 0, 0] = LEADS
    leaf = scores.requires_grad_()
    (gradient,) = torch.autograd.grad(
        loss.per_set(leaf, torch.zeros(len(LEADS), 1, dtype=torch.long)).sum(), leaf
    )
    steepness = -gradient[:, 0, 0]
    return steepness / steepness.max()


def draw(found: dict[str, Tensor]) -> Figure:
    """All slopes in one picture."""
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
        print(
            f"{label}: {each[40].item():.3f} at a lead of {LEADS[40]:.0f}, {each[60].item():.3f} at {LEADS[60]:.0f}"
        )
