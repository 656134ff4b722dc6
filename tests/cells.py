"""Work for executors: small trainings, some of which kill their process or raise."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import metricgrad as mg
from metricgrad.studies import Executor, LostCellError, Outcome
from metricgrad.studies.cells import attempt

RATES = (0.01, 0.03, 0.1, 0.3)
SEEDS = range(6)
GRID = [(rate, seed) for rate in RATES for seed in SEEDS]
KILLED = GRID[9]


class TwoPartsError(Exception):
    """An error that pickle cannot make again: it asks for more than its message."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Features and a rare target."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 5, generator=generator)
    return x, x[:, 0] + x[:, 1] * x[:, 2] > 1.5


def trained(shared: tuple[Path, Any, Any], cell: tuple[float, int]) -> float:
    """The loss after some steps; the worker of one cell is killed when it comes there first."""
    folder, x, y = shared
    rate, seed = cell
    note_attempt(folder, cell)
    if cell == KILLED and attempts(folder)[cell] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(seed)
    model = torch.nn.Linear(5, 1)
    loss = mg.MetricLoss("f1")
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for _ in range(20):
        optimizer.zero_grad()
        loss(model(x).squeeze(-1), y).backward()
        optimizer.step()
    return loss(model(x).squeeze(-1), y).item()


def note_attempt(folder: Path, cell: Any) -> None:
    """Leaves a file for every time that a cell was started."""
    (folder / f"{cell} {time.time_ns()}").touch()


def attempts(folder: Path) -> dict[Any, int]:
    """How often each cell of the grid was started."""
    names = [path.name.rpartition(" ")[0] for path in folder.iterdir()]
    return {cell: names.count(str(cell)) for cell in GRID}


def odd(folder: Path, cell: str) -> Any:
    """Does what the cell says; otherwise tells about the process it is in."""
    note_attempt(folder, cell)
    if cell == "die" or (cell == "die once" and len(list(folder.glob("die once*"))) == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if cell == "raise":
        raise TwoPartsError("cannot", "go on")
    if cell == "refuse":
        raise ValueError("no such thing")
    interrupts = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return cell, torch.get_num_threads(), interrupts


class Losing(Executor):
    """Computes cells here, except some whose processes are lost."""

    same_machine = True

    def __init__(self, *lost: Any) -> None:
        self.lost = lost
        self.computed: list[Any] = []

    def run(self, work: Any, shared: Any, cells: Sequence[Any]) -> Any:
        """Computes all cells, as `Executor` describes it."""
        for number, cell in enumerate(cells):
            self.computed.append(cell)
            error = LostCellError() if number in self.lost else None
            yield Outcome(cell, error=error) if error else attempt(work, shared, cell)
