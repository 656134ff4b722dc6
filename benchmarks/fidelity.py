"""How well an interpolation follows its metric away from the bits at which it was made.

A network is trained, and the bits v of some of its batches are kept. At every distance, some bits
of v are flipped at random, and the interpolation made at v (from anchors drawn there, or from the
flip gains there) is compared with the true metric of the flipped bits, by root mean square error in
percentage points and by rank correlation (UniLoss, supplement, Sec. 2.1).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import network
from benchmarks.data import load
from benchmarks.losses import cross_entropy

# Shares of the bits that are flipped, by the names that they have in the results.
DISTANCES = {
    "0": 0.0,
    "1_512": 1 / 512,
    "1_128": 1 / 128,
    "1_32": 1 / 32,
    "1_8": 1 / 8,
    "1_2": 1 / 2,
}


def run(
    settings: Mapping[str, Any], seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Error and rank correlation of one interpolation of one metric, at every distance."""
    generator = torch.Generator().manual_seed(seed)
    metric: Any = mg.metric(settings["metric"], **settings.get("metric_options", {}))
    approximate: dict[str, list[Tensor]] = {name: [] for name in DISTANCES}
    true: dict[str, list[Tensor]] = {name: [] for name in DISTANCES}
    for scores, target in _met_in_training(settings, seed, folder):
        comparisons, _ = metric.comparisons(scores, target)
        bits = comparisons > 0
        interpolated = _interpolation(
            settings["interpolation"], metric, scores, target, bits, generator
        )
        for name, share in DISTANCES.items():
            flipped = _flipped(bits, round(share * bits.numel()), settings["draws"], generator)
            approximate[name].append(interpolated(flipped))
            true[name].append(metric.from_bits(flipped, target, shape=scores.shape))
    values = {}
    for name in DISTANCES:
        ours = torch.cat(approximate[name]).double()
        truth = torch.cat(true[name]).double()
        values[f"error_{name}"] = 100 * (ours - truth).square().mean().sqrt().item()
        values[f"rank_{name}"] = float(mg.ops.spearman(ours, truth))
    return {"values": values}


def _met_in_training(
    settings: Mapping[str, Any], seed: int, folder: Path | None
) -> list[tuple[Tensor, Tensor]]:
    """Scores and targets of some batches, evenly spaced in a training on cross-entropy."""
    torch.manual_seed(seed)
    data = load(settings["dataset"], folder, seed)
    model = network(settings, data)
    optimizer = torch.optim.SGD(model.parameters(), settings["learning_rate"], momentum=0.5)
    every = settings["steps"] // settings["batches"]
    kept = []
    for step in range(1, settings["steps"] + 1):
        batch = torch.randint(len(data.train.y), (settings["batch"],))
        scores = model(data.train.x[batch])
        target = data.train.y[batch]
        if step % every == 0:
            kept.append((scores.detach(), target))
        optimizer.zero_grad()
        cross_entropy(scores, target).backward()
        optimizer.step()
    return kept


def _interpolation(
    kind: str, metric: Any, scores: Tensor, target: Tensor, bits: Tensor, generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """The interpolation made at the bits: a function from configurations `[A, D]` to `[A]`."""
    live = torch.ones_like(bits)
    value = metric.from_bits(bits, target, shape=scores.shape)
    if kind == "multilinear":
        gains = metric.flip_gains(bits, target, shape=scores.shape)
        return lambda flipped: value + (gains * (flipped.float() - bits.float())).sum(-1)
    plan = metric.reexpress(scores.shape, target, None, torch.float64)
    anchors = mg.sample_anchors(plan, bits, live, generator)
    values = metric.from_bits(anchors, target, shape=scores.shape)

    def idw(one: Tensor) -> Tensor:
        """Eqn. 10; at an anchor, its own value."""
        close = 1 / (anchors ^ one).sum(-1).double().sqrt().clamp(min=1e-100)
        return (close * values).sum() / close.sum()

    return lambda flipped: torch.stack([idw(one) for one in flipped])


def _flipped(bits: Tensor, number: int, draws: int, generator: torch.Generator) -> Tensor:
    """Configurations `[draws, D]` that differ from the bits in `number` random positions."""
    flipped = torch.rand(draws, bits.numel(), generator=generator).argsort(-1)[:, :number]
    return bits ^ torch.zeros(draws, bits.numel(), dtype=torch.bool).scatter_(1, flipped, True)
