"""Weak scaling: what a step costs when every process brings 256 items to one set.

    python -m benchmarks.scaling                                           # measure and print
    python -m benchmarks.scaling --out benchmarks/results/scaling.json     # and keep the numbers

A step of a perceptron under `DistributedDataParallel` is timed with one process and with two, on
the cross-entropy of each process's own items and on `MetricLoss` of the items of all. All of these
take turns, so a busy moment hits each of them, and the shortest step of a kind counts. What more
processes would exchange is computed, not measured: the bytes are those that `across_ranks` packs,
the messages those of a ring.

`tables` makes the two tables of docs/distributed.md from the numbers that are kept.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import metricgrad as mg

KEPT = Path(__file__).parent / "results" / "scaling.json"
ITEMS = 256  # of each process
WIDTHS = (64, 512, 512, 1)
MEASURED = (1, 2)
COMPUTED = (8, 64, 512)  # processes
EMBEDDINGS = (128, 512)  # floats of each
ROUNDS = 4
STEPS = 150  # of each kind in a round,
_WARM = 10  # and before it
_METRIC = "average_precision"


def network() -> nn.Sequential:
    """The perceptron that is trained."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Flatten(0))


def work() -> None:
    """One of the processes; the first one prints the milliseconds of its steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(ITEMS, WIDTHS[0], generator=generator)
    target = (torch.rand(ITEMS, generator=generator) < 0.1).long()
    losses = {
        "cross_entropy": mg.baselines.CrossEntropy(),
        "metric_loss": mg.across_ranks(mg.MetricLoss(_METRIC)),
    }
    times: dict[str, list[float]] = {name: [] for name in losses}
    for step in range(_WARM + STEPS):
        for name, loss in losses.items():
            spent = _timed(lambda loss=loss: _step(model, optimizer, loss, x, target))
            if step >= _WARM:
                times[name].append(1000 * spent)
    if dist.get_rank() == 0:
        print(json.dumps({name: round(min(each), 3) for name, each in times.items()}))
    dist.destroy_process_group()


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: nn.Module, x: Tensor, target: Tensor
) -> None:
    optimizer.zero_grad()
    loss(model(x), target).backward()
    optimizer.step()


def _timed(call: Callable[[], None]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(processes: int) -> dict[str, float]:
    """The shortest milliseconds of a step of each kind, with so many processes on this machine."""
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    found = subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", "benchmarks.scaling", "--work"],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )
    return json.loads(found.stdout.splitlines()[-1])


def best_of_rounds() -> dict[str, dict[str, float]]:
    """The shortest step of each kind, by the number of processes, which take turns."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for processes in MEASURED:
            now = measure(processes)
            before = found.get(str(processes), now)
            found[str(processes)] = {name: min(now[name], before[name]) for name in now}
    return found


def exchanged(processes: int, sent: list[int]) -> dict[str, int]:
    """What a process receives in all-gathers of so many bytes each, round a ring."""
    others = processes - 1
    return {"bytes": others * sum(sent), "messages": others * len(sent)}


def computed() -> list[dict[str, Any]]:
    """What a process receives in each step, for scores and targets and for embeddings."""
    # `mg.across_ranks` sends 11 numbers of 8 bytes, then float32 scores and int64 targets.
    ours = [11 * 8, ITEMS * (4 + 8)]
    float_bytes = torch.zeros(1).nbytes
    return [
        {
            "processes": processes,
            "scores": exchanged(processes, ours),
            **{
                f"embeddings of {size}": exchanged(processes, [ITEMS * size * float_bytes])
                for size in EMBEDDINGS
            },
        }
        for processes in COMPUTED
    ]


def tables(kept: dict[str, Any]) -> list[str]:
    """Both tables of the page, in Markdown."""
    first = kept["measured"]["1"]
    timed = [
        "| processes | items in the set | step on cross-entropy | step on `MetricLoss` of all |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for processes, found in kept["measured"].items():
        cells = [
            f"{found[name]:.1f} ms ({found[name] / first[name]:.2f} times one process)"
            if processes != "1"
            else f"{found[name]:.1f} ms"
            for name in ("cross_entropy", "metric_loss")
        ]
        timed.append(f"| {processes} | {int(processes) * ITEMS} | {' | '.join(cells)} |")
    kinds = ["scores", *(f"embeddings of {size}" for size in EMBEDDINGS)]
    heads = ["scores and targets", *(f"embeddings of {size} floats" for size in EMBEDDINGS)]
    sent = [
        "| processes | " + " | ".join(f"{head} | messages" for head in heads) + " |",
        "| ---: " * (1 + 2 * len(kinds)) + "|",
    ]
    for row in kept["computed"]:
        cells = [f"{row[kind]['bytes']:,} bytes | {row[kind]['messages']:,}" for kind in kinds]
        sent.append(f"| {row['processes']} | {' | '.join(cells)} |")
    return ["\n".join(timed), "\n".join(sent)]


def main() -> None:
    """Measures, prints the tables, and keeps the numbers if it is told where."""
    parser = argparse.ArgumentParser(description="Weak scaling of a step across processes.")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work()
        return
    kept = {
        "settings": {"items": ITEMS, "widths": WIDTHS, "metric": _METRIC, "steps": ROUNDS * STEPS},
        "machine": {
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),  # of one minute, before the measurement
            "processor": platform.machine(),
            "torch": torch.__version__,
        },
        "measured": best_of_rounds(),
        "computed": computed(),
    }
    print("\n\n".join(tables(kept)))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
