"""Cells: independent pieces of work whose results come back as they are finished.

A cell is one method on one split, or one run of a benchmark table. `work(shared, cell)` computes
it, from data that all cells share. An executor decides where: in processes of this machine, or on
the machines of a Ray cluster (`ray_cells.py`). It yields an `Outcome` for every cell, in the order
in which they end:

    for outcome in executor.run(work, shared, cells):
        store(outcome.cell, outcome.get())

Whoever started the cells stores what comes back, so no cell has to write to a disk that others
can see, and a second start leaves out the cells that are stored. If a process is killed, only its
cell is computed again; after `RETRIES` more attempts it is given up (`LostCellError`).

A cell has one thread, wherever it runs: its result does not depend on the machine's cores, and the
small models of tables are slower with several threads.
"""

import multiprocessing
import pickle
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, Generic, TypeVar

import torch

RETRIES = 2  # a cell that has cost three workers would cost a fourth

Cell = TypeVar("Cell")
Value = TypeVar("Value")
Shared = TypeVar("Shared")


class LostCellError(RuntimeError):
    """The processes that worked on a cell were killed, each time it was tried."""

    def __init__(self, reason: str = "its process was killed") -> None:
        super().__init__(f"{reason}, {RETRIES + 1} times")


class UnfinishedError(Exception):
    """Some cells were given up, all others are stored; the sentence says how to go on."""


@dataclass(frozen=True)
class Outcome(Generic[Cell, Value]):
    """What became of a cell: the value that its work returned, or the error that it raised."""

    cell: Cell
    value: Value | None = None
    error: Exception | None = None

    def get(self) -> Value:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # pyright: ignore[reportReturnType]  # None if that is the value


class Executor(ABC):
    """Where cells are computed; as text, it says how many at a time, or where."""

    same_machine: ClassVar[bool]  # whether cells see the files of this machine

    @abstractmethod
    def run(
        self, work: Callable[[Shared, Cell], Value], shared: Shared, cells: Sequence[Cell]
    ) -> Generator[Outcome[Cell, Value], None, None]:
        """Computes `work(shared, cell)` for every cell; closing the iterator ends all work.

        Args:
            work: A function of a module, so that other processes can import it.
            shared: What all cells need, such as the data. It is sent once to each process or node.
            cells: What tells the cells apart; small, and must be picklable, as results must.

        Yields:
            The outcome of every cell, in the order in which they end.
        """


class LocalProcesses(Executor):
    """Processes of this machine; a single job is done in this process.

    Args:
        jobs: How many cells are computed at the same time.
    """

    same_machine = True

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise ValueError(f"the number of jobs must be 1 or more; got {jobs}")
        self.jobs = jobs

    def __str__(self) -> str:
        return f"{self.jobs} at a time"

    def run(
        self, work: Callable[[Shared, Cell], Value], shared: Shared, cells: Sequence[Cell]
    ) -> Generator[Outcome[Cell, Value], None, None]:
        """Computes all cells, as `Executor` describes it."""
        if self.jobs == 1:
            for cell in cells:
                yield attempt(work, shared, cell)
            return
        idle: list[_Worker] = []
        busy: dict[Any, _Worker] = {}  # by connection
        waiting = deque((cell, RETRIES) for cell in cells)
        try:
            idle += [_Worker(work, shared) for _ in range(min(self.jobs, len(cells)))]
            while waiting or busy:
                while waiting and idle:
                    worker = idle.pop()
                    worker.begin(*waiting.popleft())
                    busy[worker.connection] = worker
                for connection in wait(list(busy)):
                    worker = busy.pop(connection)
                    outcome = worker.outcome()
                    idle.append(worker if outcome is not None else _Worker(work, shared))
                    if outcome is not None:
                        yield outcome
                    elif worker.retries:
                        waiting.append((worker.cell, worker.retries - 1))
                    else:
                        yield Outcome(worker.cell, error=LostCellError())
        finally:
            for worker in idle:
                worker.leave()
            for worker in busy.values():
                worker.end()


class _Worker:
    """A process that computes one cell after another."""

    def __init__(self, work: Callable[[Any, Any], Any], shared: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, shared))
        with _uninterrupted():
            self.process.start()
        theirs.close()  # the process has the only other end: if it dies, ours is told so
        self.cell: Any = None
        self.retries = 0

    def begin(self, cell: Any, retries: int) -> None:
        """Starts a cell that may be tried again so often."""
        self.cell = cell
        self.retries = retries
        with suppress(OSError):  # a process that died while it was idle loses this cell, too
            self.connection.send(cell)

    def outcome(self) -> Outcome[Any, Any] | None:
        """What became of the cell; None if the process was killed."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.end()
            return None

    def leave(self) -> None:
        """Lets an idle process end by itself, and remove its temporary files."""
        self.connection.close()
        self.process.join()

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, work: Callable[[Any, Any], Any], shared: Any) -> None:
    """Computes cells as they arrive, until nobody is there any more to send them."""
    with suppress(EOFError, OSError):
        while True:
            connection.send(portable(attempt(work, shared, connection.recv())))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C; this one ends them and says so, once."""
    if sys.platform == "win32":
        yield  # there are no signal masks on Windows
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # is started with the first process, and lifts the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def attempt(
    work: Callable[[Shared, Cell], Value], shared: Shared, cell: Cell
) -> Outcome[Cell, Value]:
    """Computes one cell in this process, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Outcome(cell, work(shared, cell))
    except Exception as error:  # the other cells go on
        return Outcome(cell, error=error)
    finally:
        torch.set_num_threads(threads)


def portable(outcome: Outcome[Cell, Value]) -> Outcome[Cell, Value]:
    """An outcome that another process can read; its error has the traceback as a note."""
    error = outcome.error
    if error is None:
        return outcome
    try:
        error.add_note("".join(traceback.format_exception(error)))
        pickle.loads(pickle.dumps(error))
    except Exception:  # not every exception can be made again from its arguments
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Outcome(outcome.cell, error=error)
