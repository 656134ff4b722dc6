"""Universal learning: how well a surrogate that was learned from made-up sets knows its metric (Sec. 3.1, Eqn. 3).

`BilevelLoss(metric).learn_universal()` with its defaults; then 4,000 fresh sets of 100 items from
the paper's generator (p = 0.5, Normal(0, 1)), and 4,000 from one with separation, spread and shift
varied from set to set.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from metricgrad.surrogates import sources


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """One learning.

    Args:
        settings: the metric, and the number of sets to test on.
        seed: of weights and sets.
        folder: not used; sets are made up.
        known: not used.

    Returns:
        `values`: rank correlation and misfit on both kinds of sets, and the seconds that learning
        took.
    """
    generator = torch.Generator().manual_seed(seed)
    loss, start = mg.BilevelLoss(settings["metric"], generator=generator), time.perf_counter()
    loss.learn_universal(progress=False, generator=generator)
    values = {"seconds": time.perf_counter() - start}
    for name, draw in {
        "paper": sources.paper(settings["sets"]),
        "broad": lambda g: varied(settings["sets"], g),
    }.items():
        scores, target = draw(generator)
        with torch.no_grad():
            found, truth = (
                loss.per_set(scores, target),
                loss.truth(loss.check(scores, target, None)),
            )
        values[f"{name}_rank"] = float(mg.ops.spearman(found, truth))
        values[f"{name}_misfit"] = float((found - truth).abs().mean())
    return {"values": values}


def varied(sets: int, generator: torch.Generator, size: int = 100) -> tuple[Tensor, Tensor]:
    """y ~ Bernoulli(0.5), s = N(0, 1) * U(0.2, 2.2) + (y - 0.5) * U(-1, 5) + N(0, 1), the last three for each set."""
    target = torch.rand(sets, size, generator=generator) < 0.5
    spread, separation = (torch.rand(2, sets, 1, generator=generator)).unbind(0)
    scores = torch.randn(sets, size, generator=generator) * (0.2 + 2 * spread)
    scores = (
        scores
        + (target.float() - 0.5) * (6 * separation - 1)
        + torch.randn(sets, 1, generator=generator)
    )
    return scores, target
