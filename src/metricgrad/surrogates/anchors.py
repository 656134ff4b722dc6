"""Anchors: the bit configurations between which IDW interpolates (UniLoss, Sec. 3.4; supplement, Sec. 1).

    best   all comparisons won
    good   the best one with one bit flipped
    near   the current configuration with one bit flipped: any, or a wrong one as in the released code
    bad    every bit at random

Which bits belong together is the re-expression's to say: for pose a flip takes all bits of a pixel with it. Sampling
is a function of its own, so that evaluating on given anchors is a pure one.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from metricgrad.metrics.reexpression import Reexpression

Near = Literal["any", "wrong"]
Sampler = Callable[[Reexpression, Tensor, Tensor, torch.Generator | None], Tensor]


def sample_anchors(
    plan: Reexpression,
    bits: Tensor,
    live: Tensor,
    generator: torch.Generator | None,
    *,
    number: int = 16,
    near: Near = "any",
    kinds: tuple[str, ...] = ("good", "near", "bad"),
) -> Tensor:
    """The paper's anchors.

    Args:
        plan: the target's metric.
        bits: `[..., D]`, the current configuration.
        live: `[..., D]`, bits that mean something; the others stay as they are.
        generator: source of randomness.
        number: how many of each kind.
        near: which bits nearby anchors flip.
        kinds: which kinds to draw, besides the best one.

    Returns:
        `[1 + len(kinds) * number, ..., D]`, bool.
    """
    best = torch.ones_like(bits)
    drawn = [best.unsqueeze(0)]
    if "good" in kinds:
        drawn.append(plan.flip(best, _choose(live, number, generator)))
    if "near" in kinds:
        wrong = live & ~bits
        candidates = live if near == "any" else torch.where(wrong.any(-1, keepdim=True), wrong, live)
        drawn.append(plan.flip(bits, _choose(candidates, number, generator)))
    if "bad" in kinds:
        drawn.append(torch.randint(0, 2, (number, *bits.shape), generator=generator, device=bits.device).bool())
    return torch.where(live, torch.cat(drawn), bits)


def _choose(candidates: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Places `[number, ...]` drawn from the candidates `[..., D]` of each set, -1 where there are none."""
    size = candidates.shape[-1]
    if not size:
        return torch.full((number, *candidates.shape[:-1]), -1, dtype=torch.int64, device=candidates.device)
    # The m-th of M candidates, m drawn at random: found where the running count of candidates passes m.
    count = candidates.sum(-1, keepdim=True)
    share = torch.rand(*candidates.shape[:-1], number, generator=generator, device=candidates.device)
    drawn = (share * count).to(torch.int64).clamp(max=(count - 1).clamp(min=0)) + 1
    places = torch.searchsorted(candidates.cumsum(-1), drawn)
    return torch.where(count > 0, places, -1).movedim(-1, 0)
