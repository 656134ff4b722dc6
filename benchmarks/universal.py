"""How well a surrogate knows its metric after learning from made-up sets (Sec. 3.1, Eqn. 3).

`BilevelLoss(metric).learn_universal()` runs with its defaults. It is tested on 4,000 new sets of
100 items from the paper's generator (p = 0.5, Normal(0, 1)), and on 4,000 sets from a generator
whose separation, spread and shift vary from set to set.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Rank correlation and misfit on both kinds of sets, and the seconds that learning took."""
    generator = torch.Generator().manual_seed(seed)
    loss = mg.BilevelLoss(settings["metric"], generator=generator)
    start = time.perf_counter()
    loss.learn_universal(progress=False, generator=generator)
    values = {"seconds": time.perf_counter() - start}
    for name, draw in {
        "paper": lambda g: ignorant(settings["sets"], g),
        "broad": lambda g: varied(settings["sets"], g),
    }.items():
        scores, target = draw(generator)
        with torch.no_grad():
            found = loss.per_set(scores, target)
            truth = loss.truth(loss.check(scores, target, None))
        values[f"{name}_rank"] = float(mg.ops.spearman(found, truth))
        values[f"{name}_misfit"] = float((found - truth).abs().mean())
    return {"values": values}


def ignorant(sets: int, generator: torch.Generator, size: int = 100) -> tuple[Tensor, Tensor]:
    """y ~ Bernoulli(0.5) and s ~ N(0, 1), which know nothing of each other (Eqn. 3)."""
    target = torch.rand(sets, size, generator=generator) < 0.5
    return torch.randn(sets, size, generator=generator), target


def varied(sets: int, generator: torch.Generator, size: int = 100) -> tuple[Tensor, Tensor]:
    """y ~ Bernoulli(0.5) and s = N(0, 1) * spread + (y - 0.5) * separation + shift.

    For each set, spread ~ U(0.2, 2.2), separation ~ U(-1, 5) and shift ~ N(0, 1).
    """
    target = torch.rand(sets, size, generator=generator) < 0.5
    spread, separation = torch.rand(2, sets, 1, generator=generator).unbind(0)
    scores = torch.randn(sets, size, generator=generator) * (0.2 + 2 * spread)
    scores = scores + (target.float() - 0.5) * (6 * separation - 1)
    return scores + torch.randn(sets, 1, generator=generator), target
