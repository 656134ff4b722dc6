"""Draws `loss_surfaces.png`: five metrics and their UniLoss surrogates while two scores vary.

It follows Figure 1 of Learning Surrogate Losses (Grabocka et al., 2019), with its five metrics. Of
eight scores, one negative and one positive move. Sets are a leading dimension, so a whole grid of
score pairs is one call.

    python docs/figures/loss_surfaces.py
"""

from pathlib import Path
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

import metricgrad as mg

METRICS = {
    "auc": "1 - AUC",
    "average_precision": "1 - average precision",
    "error_rate": "error rate",
    "eer": "equal error rate",
    "f1": "1 - F1",
}
COLUMNS = ["the metric", "multilinear", "inverse distances (IDW)"]
OTHERS = [1.201, 0.601, -0.501, 0.901, -0.201, -1.101]  # three positives, then three negatives
TARGET = torch.tensor([0, 1, 1, 1, 1, 0, 0, 0])
SLOPE = 2.0  # of the sigmoid
REACH = 2.0  # scores go from -REACH to REACH


def grid(cells: int, reach: float = REACH) -> Tensor:
    """Scores `[cells, cells, 8]`; the positive varies along dimension 0, the negative along 1."""
    positive, negative = torch.meshgrid(*[torch.linspace(-reach, reach, cells)] * 2, indexing="ij")
    others = torch.tensor(OTHERS).expand(cells, cells, -1)
    return torch.cat([torch.stack([negative, positive], -1), others], -1)


def surface(name: str, column: int, scores: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """The loss of every set `[...]` and its gradient by the two scores `[..., 2]`.

    IDW draws its anchors at random, so it is averaged over several draws.
    """
    target = TARGET.expand_as(scores)
    if column == 0:
        metric = mg.metric(name)
        values = metric(scores, target)
        return 1 - values if metric.higher_is_better else values, torch.zeros_like(scores[..., :2])
    options: dict[str, Any] = {"interpolation": "idw"} if column == 2 else {}
    loss = mg.UniLoss(name, slope=SLOPE, generator=torch.Generator().manual_seed(0), **options)
    total = torch.zeros(scores.shape[:-1])
    gradient = torch.zeros_like(scores)
    draws = draws if column == 2 else 1
    for _ in range(draws):
        leaf = scores.clone().requires_grad_()
        values = loss.relaxed(leaf, target)  # one value per set
        total += values.detach() / draws
        gradient += torch.autograd.grad(values.sum(), leaf)[0] / draws
    return total, gradient[..., :2]


def draw(cells: int = 200, draws: int = 32) -> tuple[Figure, dict[str, list[Tensor]]]:
    """The figure, and the three surfaces of each metric.

    Arrows point down the gradient; lengths can be compared within a panel only.
    """
    figure = Figure(figsize=(7.2, 12.2), layout="constrained")
    axes = figure.subplots(len(METRICS), 3, sharex=True, sharey=True)
    grids = [grid(cells), grid(cells), grid(cells // 2)]  # anchors are slow
    surfaces = {
        name: [surface(name, i, scores, draws)[0] for i, scores in enumerate(grids)]
        for name in METRICS
    }
    scale = Normalize(0.1, 0.65)
    arrows = grid(8, 0.86 * REACH)
    for row, (name, title) in enumerate(METRICS.items()):
        for column, axis in enumerate(axes[row]):
            values = surfaces[name][column].numpy()
            axis.imshow(
                values,
                origin="lower",
                extent=[-REACH, REACH] * 2,
                norm=scale,
                interpolation="nearest",
            )
            if column:
                gradient = surface(name, column, arrows, 4 * draws)[1]
                down = -gradient / gradient.norm(dim=-1).amax()
                ends = torch.cat([arrows[..., :2], down], -1).unbind(-1)
                axis.quiver(*(each.numpy() for each in ends), color="white", scale=8, width=0.009)
            axis.set(xticks=[-2, 0, 2], yticks=[-2, 0, 2])
        axes[row, 0].text(-1.85, 1.85, title, color="white", va="top", fontweight="bold")
    for axis, title in zip(axes[0], COLUMNS, strict=True):
        axis.set_title(title)
    axes[-1, 1].set_xlabel("score of one negative", fontsize=11)
    axes[2, 0].set_ylabel("score of one positive", fontsize=11)
    figure.colorbar(
        ScalarMappable(scale),
        ax=axes,
        location="bottom",
        shrink=0.6,
        aspect=40,
        pad=0.02,
        label="loss",
    )
    return figure, surfaces


if __name__ == "__main__":
    draw()[0].savefig(Path(__file__).with_suffix(".png"), dpi=110)
