"""Claims about speed: ours against a yardstick, timed in turn within one run; memory is the peak of a fresh process."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One claim: ours against a yardstick, in seconds or MiB, and the ratio that must hold."""

    claim: str
    ours: float
    yardstick: float
    unit: str
    ratio: float
    limit: str
    holds: bool


def best_of(rounds: int, *functions: Callable[[], Any]) -> list[float]:
    """The shortest time of each function, in seconds; they take turns, so that a busy moment hits all of them."""
    times = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[index] = min(times[index], time.perf_counter() - start)
    return times


def faster(claim: str, ours: Callable[[], Any], yardstick: Callable[[], Any], factor: float) -> Row:
    """Ours must be at least `factor` times faster than the yardstick."""
    ours()
    (slow,) = best_of(2, yardstick)
    (fast,) = best_of(20, ours)
    return Row(claim, fast, slow, "ms", slow / fast, f"at least {factor:g}", slow / fast >= factor)


def within(
    claim: str, ours: Callable[[], Any], yardstick: Callable[[], Any], factor: float, rounds: int
) -> Row:
    """Ours must take at most `factor` times as long as the yardstick."""
    ours()
    spent, base = best_of(rounds, ours, yardstick)
    return Row(
        claim, spent, base, "ms", spent / base, f"at most {factor:g}", spent / base <= factor
    )


_PEAK = """
import resource, sys, torch
import metricgrad as mg
kind, name, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
function = {"metric": mg.metric, "loss": mg.UniLoss}[kind](name)
def call(scores, target):
    value = function(scores, target)
    if value.requires_grad:
        value.backward()
call(torch.randn(1000, requires_grad=True), torch.arange(1000) % 2)
scores, target = torch.randn(size, requires_grad=True), (torch.rand(size) < 0.1).long()
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 1024
call(scores, target)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_memory(kind: str, name: str, size: int) -> float:
    """MiB that a call of a metric, or of a loss and its backward pass, adds to a fresh process at its peak (Linux)."""
    command = [sys.executable, "-c", _PEAK, kind, name, str(size)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
