"""Claims about speed: our code and a yardstick, timed in turn; memory of fresh processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Row:
    """One claim: our code and a yardstick in seconds or MiB, and the ratio that must hold."""

    claim: str
    ours: float
    yardstick: float
    unit: str
    ratio: float
    limit: str
    holds: bool


def best_of(rounds: int, *functions: Callable[[], Any]) -> list[float]:
    """The shortest time of each function in seconds; they take turns, so a busy moment hits all."""
    times = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[index] = min(times[index], time.perf_counter() - start)
    return times


def faster(claim: str, ours: Callable[[], Any], yardstick: Callable[[], Any], factor: float) -> Row:
    """Claims that our code is at least `factor` times faster than the yardstick."""
    ours()
    (slow,) = best_of(2, yardstick)
    (fast,) = best_of(20, ours)
    return Row(claim, fast, slow, "ms", slow / fast, f"at least {factor:g}", slow / fast >= factor)


def within(
    claim: str, ours: Callable[[], Any], yardstick: Callable[[], Any], factor: float, rounds: int
) -> Row:
    """Claims that our code takes at most `factor` times as long as the yardstick."""
    ours()
    spent, base = best_of(rounds, ours, yardstick)
    return Row(
        claim, spent, base, "ms", spent / base, f"at most {factor:g}", spent / base <= factor
    )


def best_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor],
    losses: Iterable[Callable[[Tensor, Tensor], Tensor]],
    rounds: int,
) -> tuple[list[float], float]:
    """The best time of every loss, and of the network with its optimizer, in seconds.

    A loss is timed from the scores to their gradient. The losses take turns; the rest of a step is
    the same work for all of them, so the best time of all steps counts.
    """
    images, target = batch

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[float, float]:
        start = time.perf_counter()
        scores = model(images)
        before = time.perf_counter()
        (gradient,) = torch.autograd.grad(loss(scores, target), scores)
        after = time.perf_counter()
        optimizer.zero_grad()
        scores.backward(gradient)
        optimizer.step()
        return after - before, time.perf_counter() - after + before - start

    compared = list(losses)
    times = torch.tensor([[step(loss) for loss in compared] for _ in range(rounds)])
    return times[..., 0].amin(0).tolist(), times[..., 1].min().item()


_PEAK = """
import re, sys, torch
import metricgrad as mg
kind, name, size = sys.argv[1:]
size = int(size)
torch.set_num_threads(1)
function = {"metric": mg.metric, "loss": mg.UniLoss}[kind](name)
def call(scores, target):
    value = function(scores, target)
    if value.requires_grad:
        value.backward()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
call(torch.randn(1000, requires_grad=True), torch.arange(1000) % 2)
scores = torch.randn(size, requires_grad=True)
target = (torch.rand(size) < 0.1).long()
open("/proc/self/clear_refs", "w").write("5")  # the peak so far, part of it the parent's
before = peak()
call(scores, target)
print(peak() - before)
"""


def peak_memory(kind: str, name: str, size: int) -> float:
    """MiB that a metric, or a loss with its backward pass, adds to a fresh process (Linux only)."""
    return peak_of(_PEAK, kind, name, size)


def peak_of(script: str, *arguments: object, **environment: str) -> float:
    """MiB from a script that prints the KiB it needed at its peak."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    surroundings = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings)
    return int(done.stdout) / 1024
