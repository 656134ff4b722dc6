"""Anchors: the bit configurations between which IDW interpolates (UniLoss, Sec. 3.4; supplement, Sec. 1).

    best   all comparisons won
    good   the best one with one bit flipped
    near   the current configuration with one bit flipped: any, or a wrong one as in the released code
    bad    every bit at random

Which bits belong together is the re-expression's to say: for pose a flip takes all bits of a pixel
with it. Sampling is a function of its own, so that evaluating on given anchors is a pure one.
"""

import math
from collections.abc import Callable, Sequence
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
    best = plan.best_bits(bits)
    drawn = [best.unsqueeze(0)]
    if "good" in kinds:
        drawn.append(plan.flip(best, _choose(live, number, generator)))
    if "near" in kinds:
        wrong = live & ~bits
        candidates = (
            live if near == "any" else torch.where(wrong.any(-1, keepdim=True), wrong, live)
        )
        drawn.append(plan.flip(bits, _choose(candidates, number, generator)))
    if "bad" in kinds:
        drawn.append(_coins((number, *bits.shape), generator, bits.device))
    # Live bits as drawn, the others as they are: x if live else b is b ^ ((x ^ b) & live), which is
    # faster for bools.
    return torch.cat(drawn).bitwise_xor_(bits).bitwise_and_(live).bitwise_xor_(bits)


def _coins(shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Bits at random, each 1 with chance 1/2: the lowest bits of random bytes, of which one draw gives eight."""
    size = math.prod(shape)
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=device).random_(
        generator=generator
    )
    return words.view(torch.uint8)[:size].bitwise_and_(1).view(torch.bool).reshape(shape)


def _choose(candidates: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Places `[number, ...]` drawn from the candidates `[..., D]` of each set, -1 where there are none."""
    size = candidates.shape[-1]
    if not size:
        return torch.full(
            (number, *candidates.shape[:-1]), -1, dtype=torch.int64, device=candidates.device
        )
    # The m-th of M candidates, m drawn at random: found where the running count of candidates
    # passes m.
    running = candidates.cumsum(-1, dtype=torch.int32)
    count = running[..., -1:]
    shape = (*candidates.shape[:-1], number)
    share = torch.rand(shape, dtype=torch.float64, generator=generator, device=candidates.device)
    places = torch.searchsorted(running, (share * count).to(torch.int32), right=True)
    return places.masked_fill_(count == 0, -1).movedim(-1, 0)
