"""Real processes for the tests: ranks of one gloo group on this machine, or a script alone.

They are forked from a fresh process that has only imported what takes each of them seconds, so they
begin quickly and know nothing of the tests.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_PATIENCE = 400.0  # seconds until processes are taken for hanging


class Ended(NamedTuple):
    """How a process ended: what its work returned, or the error that it raised."""

    code: int | None  # minus the signal that killed it; None if it hung
    result: Any
    error: str


def launch(
    work: Callable[..., Any],
    size: int,
    folder: Path,
    *arguments: Any,
    timeout: float = 200.0,
    halted: int | None = None,
) -> list[Ended]:
    """Runs `work(*arguments)` in so many processes; all of them have ended when it returns.

    The process of rank `halted` will not end by itself, and is not waited for.
    """
    context = _forking(work.__module__)
    processes = [
        context.Process(target=_run, args=(work, rank, size, folder, timeout, arguments))
        for rank in range(size)
    ]
    for each in processes:
        each.start()
    deadline = time.monotonic() + _PATIENCE
    for rank, each in enumerate(processes):
        if rank != halted:
            each.join(max(0.0, deadline - time.monotonic()))
    codes = [each.exitcode for each in processes]
    for each in processes:
        each.kill()
        each.join()
    return [Ended(code, *_read(folder / f"{rank}.pt")) for rank, code in enumerate(codes)]


def _forking(*modules: str) -> Any:
    """Makes processes for which these modules, too, are imported, if it is called first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "sklearn.utils", *modules])
    return context


def run_script(path: Path, output: Path) -> int | None:
    """Runs a script as `python path` does, with all that it prints in a file; its exit code."""
    process = _forking().Process(target=_script, args=(path, output))
    process.start()
    process.join(_PATIENCE)
    code = process.exitcode
    process.kill()
    return code


def _script(path: Path, output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def results(ended: list[Ended]) -> list[Any]:
    """What all processes returned; AssertionError with the first error if one failed."""
    for each in ended:
        assert each.code == 0, each.error
    return [each.result for each in ended]


def _read(path: Path) -> tuple[Any, str]:
    return torch.load(path, weights_only=False) if path.exists() else (None, "")


def _run(
    work: Callable[..., Any],
    rank: int,
    size: int,
    folder: Path,
    timeout: float,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    _wait_for_all(rank, size, folder)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        found = (work(*arguments), "")
    except Exception:
        found = (None, traceback.format_exc())
    torch.save(found, folder / f"{rank}.pt")
    if found[1]:
        os._exit(1)  # not waiting for processes that may be gone
    dist.destroy_process_group()


def _wait_for_all(rank: int, size: int, folder: Path) -> None:
    """Until all processes have imported torch, which takes long on a busy machine."""
    (folder / f"{rank}.ready").touch()
    while len(list(folder.glob("*.ready"))) < size:
        time.sleep(0.02)


def stop(how: signal.Signals) -> None:
    """Ends, or halts, the process that calls it."""
    os.kill(os.getpid(), how)
