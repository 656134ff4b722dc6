"""Runs configurations and writes one JSON report for each, which can be read on its own.

A report has the configuration, seed, command, versions, commit, hardware, threads, time, result and
curve. A run is skipped if its report exists and has the same configuration, so a table that was
stopped continues where it was. A report of another configuration is written again. Every process
has one thread.

A run of a task that trains for an hour also keeps its trials one by one, in a file beside the
report, and continues after the last one.

With `choose = "pooled"` in a table, all seeds share one point of the grid (`pooling.py`), and there
are two rounds: first the grids, then the common point.
"""

import importlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.pooling import common_point, grid_known, known_trials, pools
from benchmarks.table import Run

_PACKAGES = ("metricgrad", "torch", "numpy", "scikit-learn")
_KEEP_TRIALS = ("swap",)  # tasks whose runs are too long to lose


def finished(run: Run) -> bool:
    """Whether the report exists, has this configuration and, if seeds share a point, is of that."""
    if not run.path.exists():
        return False
    report = json.loads(run.path.read_text())
    return report["configuration"] == run.configuration and (
        not pools(run) or report["result"].get("pooled", False)
    )


def run_all(runs: Iterable[Run], data: Path | None, jobs: int, console: Console) -> list[str]:
    """Runs everything that has no report yet; returns one line for each run that failed."""
    runs = list(runs)
    errors: list[str] = []
    grids = [run for run in runs if pools(run) and not grid_known(run)]
    if grids:
        console.print(f"{len(grids)} of {len(runs)} runs train their grids first, {jobs} at a time")
        errors += _run_those(grids, data, jobs, console)
    todo = [run for run in runs if not finished(run)]
    done = len(runs) - len(todo)
    console.print(
        f"{done} of {len(runs)} runs are done already; {len(todo)} remain, {jobs} at a time"
    )
    return errors + _run_those(todo, data, jobs, console)


def _run_those(todo: list[Run], data: Path | None, jobs: int, console: Console) -> list[str]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    errors: list[str] = []
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("running", total=len(todo))
        for run, error in _results(todo, data, jobs):
            progress.advance(bar)
            progress.update(bar, description=f"{run.table} {run.row} {run.column} {run.seed}")
            errors += [] if error is None else [f"{run.path.stem}: {error}"]
    return errors


def _results(todo: list[Run], data: Path | None, jobs: int) -> Iterable[tuple[Run, str | None]]:
    if jobs == 1:
        for run in todo:
            yield run, run_one(run, data)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_one, run, data): run for run in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def run_one(run: Run, data: Path | None) -> str | None:
    """Runs one configuration and writes its report; returns the error as a line, or None."""
    torch.set_num_threads(1)
    task = importlib.import_module(f"benchmarks.{run.configuration['task']}")
    start = time.perf_counter()
    trials = known_trials(run)
    point = common_point(run)
    shared: dict[str, Any] = {} if point is None else {"point": point}
    before = json.loads(run.path.read_text())["seconds"] if trials else 0.0
    kept = _Kept(run)
    if run.configuration["task"] in _KEEP_TRIALS:
        trials, before = kept.read()
        shared["keep"] = lambda found: kept.write(found, before + time.perf_counter() - start)
    try:
        result = task.run(run.configuration, run.seed, data, trials, **shared)
    except Exception as error:  # The other runs of a long table continue.
        return f"{type(error).__name__}: {error}"
    report = {
        **provenance(run),
        "seconds": round(before + time.perf_counter() - start, 2),
        "result": result,
    }
    _write(run.path, _compact(report) + "\n")
    kept.path.unlink(missing_ok=True)
    return None


class _Kept:
    """The trials of a run that is not finished, in a file of their own."""

    def __init__(self, run: Run) -> None:
        self.path = run.path.with_suffix(".trials")
        self.configuration = run.configuration

    def read(self) -> tuple[list[dict[str, Any]], float]:
        """The trials and the seconds they took; none if they have another configuration."""
        if not self.path.exists():
            return [], 0.0
        stored = json.loads(self.path.read_text())
        same = stored["configuration"] == self.configuration
        return (stored["trials"], stored["seconds"]) if same else ([], 0.0)

    def write(self, trials: list[dict[str, Any]], seconds: float) -> None:
        """Stores all trials so far."""
        content = {"configuration": self.configuration, "seconds": seconds, "trials": trials}
        _write(self.path, json.dumps(content) + "\n")


def _write(path: Path, text: str) -> None:
    """Writes a file at once, so that a run which is stopped leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def provenance(run: Run) -> dict[str, Any]:
    """Everything that is needed to repeat the run."""
    scale = run.path.parent.name
    command = f"python -m benchmarks run {run.table} --scale {scale}"
    return {
        "table": run.table,
        "row": run.row,
        "column": run.column,
        "scale": scale,
        "seed": run.seed,
        "command": f"{command} --rows {run.row} --seeds {run.seed + 1}",
        "configuration": run.configuration,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        "commit": _commit(),
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        },
        "threads": torch.get_num_threads(),
    }


def _commit() -> str:
    """The commit, with a plus if the code of the library or the benchmarks differs from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (
        "+" if git("status", "--porcelain", "--", "../src", "*.py") else ""
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def _compact(report: dict[str, Any]) -> str:
    """JSON with one line per key and trial, which keeps diffs readable and files short."""
    lines = []
    for key, value in report.items():
        if key != "result":
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    inner = [f"    {json.dumps(key)}: {_rows(value)}" for key, value in report["result"].items()]
    lines.append('  "result": {\n' + ",\n".join(inner) + "\n  }")
    return "{\n" + ",\n".join(lines) + "\n}"


def _rows(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n      " + ",\n      ".join(json.dumps(row) for row in value) + "\n    ]"
    return json.dumps(value)
