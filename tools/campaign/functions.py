"""Users' functions in odd styles: the loss is right, or it refuses; it is never silently wrong.

Right means two things. The value of `mg.UniLoss(fn)` is minus fn, called on the same scores. And
when one score moves past another, or past 0, so that bits flip, the loss's metric gives for the new
bits what fn gives for the new scores; where a single bit has flipped, its flip gain is the
difference of the two. A refusal is an error whose message says why.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from tools.campaign.case import Case, Outcome
from tools.campaign.styles import STYLES

SETS = 12
ITEMS = 9
REFUSALS = (ValueError, TypeError, RuntimeError)


def cases(size: int, seed: int) -> list[Case]:
    """One case for every style."""
    names = [getattr(fn, "__name__", type(fn).__name__) for fn in STYLES]
    pairs = zip(names, STYLES, strict=True)
    return [Case(name, partial(check, fn, seed)) for name, fn in pairs]


def check(fn: Callable[..., Any], seed: int) -> Outcome:
    """Compares the loss of a function with the function, on sets and on single moves."""
    logging.getLogger("metricgrad").setLevel(logging.ERROR)  # that it is a black box, for example
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(seed)
    failures: list[str] = []
    moves = 0
    for _ in range(SETS):
        scores = torch.randn(ITEMS, generator=generator, dtype=torch.float64)
        target = torch.randint(2, (ITEMS,), generator=generator)
        target[:2] = torch.tensor([0, 1])
        loss = mg.UniLoss(fn)
        try:
            value = loss(scores.clone().requires_grad_(), target)
        except REFUSALS as error:
            return Outcome(f"refused: {' '.join(str(error).split())[:160]}", failures)
        expected = -float(fn(scores.clone(), target))
        if abs(value.item() - expected) > 1e-6:
            failures.append(f"the value is {value.item():.6f}, and fn gives {expected:.6f}")
        found, wrong = check_moves(loss.metric, fn, scores, target)
        moves += found
        failures += wrong
    if not moves:
        failures.append("no move flipped a bit, so no gradient would reach the scores")
    return Outcome(f"{SETS} sets, {moves} flips", failures)


def check_moves(
    metric: Any, fn: Callable[..., Any], scores: Tensor, target: Tensor
) -> tuple[int, list[str]]:
    """How many moves flipped bits, and where the metric's value was not the function's."""
    failures: list[str] = []
    number = 0
    before = float(fn(scores.clone(), target))
    plan = metric.reexpress(scores.shape, target, None, scores.dtype)
    own = plan.comparisons(scores)[0] > 0
    gains = plan.flip_gains(own)
    for moved in single_moves(scores):
        after = float(fn(moved.clone(), target))
        other = metric.reexpress(scores.shape, target, None, scores.dtype).comparisons(moved)[0] > 0
        if other.shape != own.shape:
            continue  # what is compared depends on the scores: there are no bits to set
        flipped = (other != own).nonzero().squeeze(-1)
        if not len(flipped):
            if abs(after - before) > 1e-6:
                failures.append(f"no bit flips where fn goes from {before:.6f} to {after:.6f}")
            continue
        number += 1
        found = float(plan.from_bits(other))
        if len(flipped) == 1:
            at = int(flipped)
            found = before + float(gains[at]) * (1 if other[at] else -1)
        if abs(found - after) > 1e-6:
            failures.append(f"{len(flipped)} bits give {found:.6f}, and fn gives {after:.6f}")
    return number, failures


def single_moves(scores: Tensor) -> list[Tensor]:
    """The scores with one of them moved just past its neighbour, and past 0."""
    moves = []
    order = scores.argsort()
    for low, high in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        moved = scores.clone()
        moved[low] = scores[high] + 1e-4
        moves.append(moved)
    for at in range(len(scores)):
        moved = scores.clone()
        moved[at] = -1e-4 * scores[at].sign()
        moves.append(moved)
    return moves
