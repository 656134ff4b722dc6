"""Cells on the machines of a Ray cluster, and what the option `--on` means.

    local                  processes of this machine
    ray                    the cluster that RAY_ADDRESS names, or one that runs on this machine;
                           where there is neither, one is started here and ended afterwards
    ray=local              always a cluster of this machine's own, which is started and ended
    ray=HOST:6379          the cluster with this address, of which this machine is a node
    ray://HOST:10001       the same from a machine that is not a node of it

A cell is a task with one CPU. Ray puts the shared data into the object store of a node once, and
all cells there read it from shared memory. Results come back to this process, so nodes need no
file system in common, only the same versions of Python, Ray and metricgrad. If a worker or a node
dies, Ray computes its cells again elsewhere, and all others go on.
"""

import importlib.util
import logging
import os
import re
import socket
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from metricgrad.studies.cells import (
    RETRIES,
    Cell,
    Executor,
    LocalProcesses,
    LostCellError,
    Outcome,
    Shared,
    Value,
    attempt,
    portable,
)

_PATIENCE = 5.0  # seconds for an address to answer; Ray itself tries for minutes
_LOCAL = "local"
_FROM_OUTSIDE = "ray://"


def executor_for(on: str = _LOCAL, jobs: int | None = None) -> Executor:
    """The executor that the option `--on` names.

    Args:
        on: `local`, `ray`, `ray=ADDRESS` or `ray://HOST:PORT`, as described above.
        jobs: How many cells are computed at the same time on this machine; None is 1. A Ray
            cluster computes one on each of its CPUs.

    Returns:
        An executor. It connects to a cluster when it is given cells.

    Example:
        >>> executor_for("local", jobs=4).jobs
        4
    """
    if on == _LOCAL:
        return LocalProcesses(1 if jobs is None else jobs)
    found = re.fullmatch(r"ray(?:=(\S+))?|(ray://\S+)", on)
    if found is None:
        raise ValueError(f"--on must be local, ray, ray=ADDRESS or ray://HOST:PORT; got {on!r}")
    if jobs is not None:
        raise ValueError(
            f"--jobs {jobs} is for --on local; a Ray cluster computes a cell on each of its CPUs"
        )
    address = found[1] or found[2] or ""
    for package in ("ray", "grpc") if address.startswith(_FROM_OUTSIDE) else ("ray",):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--on {on} needs the package {package}: pip install 'metricgrad[ray]'"
            )
    return RayCluster(address)


class RayCluster(Executor):
    """The workers of a Ray cluster.

    A process that has called `ray.init` already uses the cluster that it is connected to.

    Args:
        address: As Ray takes it; an empty one means RAY_ADDRESS, a running cluster or a new one.
    """

    same_machine = False

    def __init__(self, address: str = "") -> None:
        self.address = address

    def __str__(self) -> str:
        return f"on the Ray cluster {self.address}".rstrip()

    def run(
        self, work: Callable[[Shared, Cell], Value], shared: Shared, cells: Sequence[Cell]
    ) -> Generator[Outcome[Cell, Value], None, None]:
        """Computes all cells, as `Executor` describes it."""
        if not cells:
            return
        import ray

        with _connected(ray, self.address):
            task = ray.remote(num_cpus=1, max_retries=RETRIES)(_attempt)
            # A reference among the arguments: Ray fetches what it stands for, once a node.
            stored = ray.put((work, shared))
            running = {task.remote(stored, cell): cell for cell in cells}
            try:
                while running:
                    for reference in ray.wait(list(running))[0]:
                        yield _outcome(ray, reference, running.pop(reference))
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)


def _attempt(stored: tuple[Callable[[Any, Any], Any], Any], cell: Any) -> Outcome[Any, Any]:
    work, shared = stored
    return portable(attempt(work, shared, cell))


def _outcome(ray: Any, reference: Any, cell: Cell) -> Outcome[Cell, Any]:
    """What a task returned; an error where Ray could not compute it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # the work's own errors are returned, not raised
        return Outcome(
            cell,
            error=RuntimeError(
                "a node of the Ray cluster cannot start it; all nodes need the same version of "
                f"metricgrad, and of your own code: {_last_line(error)}"
            ),
        )
    except ray.exceptions.RayError as error:
        return Outcome(
            cell, error=LostCellError(f"its Ray worker was lost ({type(error).__name__})")
        )


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster, ended afterwards unless it was there before."""
    if ray.is_initialized():
        yield
        return
    _connect(ray, address or os.environ.get("RAY_ADDRESS", ""))
    try:
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Joins the cluster with this address, or starts one if it is empty or `local`."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == _LOCAL:
        _start(ray, quiet)
    elif not address:
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            _start(ray, quiet)
    else:
        _refuse_silent(address)
        try:
            with warnings.catch_warnings():  # the error says the same
                warnings.simplefilter("ignore")
                ray.init(address=address, **quiet)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConnectionError(
                f"the Ray cluster {address} cannot be joined: {_last_line(error)} (one that asks "
                "for a token needs RAY_AUTH_MODE=token)"
            ) from None


def _start(ray: Any, quiet: dict[str, Any]) -> None:
    """Starts a cluster on this machine, which tells nobody about itself."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address=_LOCAL, include_dashboard=False, **quiet)


def _refuse_silent(address: str) -> None:
    """Raises ConnectionError unless a host listens at an address with a port."""
    place = urlsplit(address if "//" in address else f"//{address}")
    try:
        host = place.hostname
        port = place.port
    except ValueError:  # a port that is not a number
        return
    if host is None or port is None:  # such as `auto`, which Ray looks up
        return
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, "
            "or pass --on ray for this machine"
        ) from None
