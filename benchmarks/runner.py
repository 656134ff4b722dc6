"""Runs configurations and writes one JSON report for each, which can be read on its own.

A report has the configuration, seed, command, versions, commit, hardware, threads, time, result and
curve. A run is skipped if its report exists and has the same configuration, so a table that was
stopped continues where it was. A report of another configuration is written again. Every run has
one thread.

An executor of the library decides where runs are computed: in processes of this machine, or on a
Ray cluster. What a run needs of earlier reports is given to it, and its own report comes back and
is written here, so the machines of a cluster need no files in common. Data sets travel with the
runs (`carried.py`).

A run of a task that trains for an hour also keeps its trials one by one, in a file beside the
report, and continues after the last one; some tasks keep checkpoints there instead. On a cluster
such a run starts again.

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
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

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

from benchmarks.carried import CarriedFolder, carried
from benchmarks.pooling import common_point, grid_known, known_trials, pools
from benchmarks.table import Run
from metricgrad.studies import Executor, LostCellError

_PACKAGES = ("metricgrad", "torch", "numpy", "scikit-learn")
# Tasks whose runs are too long to lose.
_KEEP_TRIALS = (
    *("swap", "segmentation", "poses", "long_tail", "retrieval", "classes"),
    *("answers", "translation", "words", "peers.lists"),
)
# Tasks that keep checkpoints of their own, in files beside the report.
_CHECKPOINTS = ("protocol",)


def finished(run: Run) -> bool:
    """Whether the report exists, has this configuration and, if seeds share a point, is of that."""
    if not run.path.exists():
        return False
    report = json.loads(run.path.read_text())
    return report["configuration"] == run.configuration and (
        not pools(run) or report["result"].get("pooled", False)
    )


def run_all(
    runs: Iterable[Run], data: Path | None, executor: Executor, console: Console
) -> list[str]:
    """Runs everything that has no report yet; returns one line for each run that failed."""
    runs = list(runs)
    errors: list[str] = []
    grids = [run for run in runs if pools(run) and not grid_known(run)]
    if grids:
        console.print(f"{len(grids)} of {len(runs)} runs train their grids first, {executor}")
        errors += _run_those(grids, data, executor, console)
    todo = [run for run in runs if not finished(run)]
    done = len(runs) - len(todo)
    console.print(f"{done} of {len(runs)} runs are done already; {len(todo)} remain, {executor}")
    return errors + _run_those(todo, data, executor, console)


def _run_those(
    todo: list[Run], data: Path | None, executor: Executor, console: Console
) -> list[str]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    errors: list[str] = []
    starts = [_start(run, keeps=executor.same_machine) for run in todo]
    named = [run.configuration["dataset"] for run in todo if "dataset" in run.configuration]
    datasets = {each for name in named for each in name.split("+")}
    shared = data if data is None or executor.same_machine else carried(data, datasets)
    with (
        Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress,
        closing(executor.run(measured, shared, starts)) as outcomes,
    ):
        bar = progress.add_task("running", total=len(todo))
        for outcome in outcomes:
            run = outcome.cell.run
            progress.advance(bar)
            progress.update(bar, description=f"{run.table} {run.row} {run.column} {run.seed}")
            if outcome.error is None:
                _store(run, outcome.get())
            else:
                errors.append(f"{run.path.stem}: {_line(outcome.error)}")
    return errors


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, LostCellError) else f"{type(error).__name__}: {error}"


class Start(NamedTuple):
    """A run, and what it continues: trials of earlier reports and the seconds that they took."""

    run: Run
    trials: list[dict[str, Any]]
    point: dict[str, Any] | None  # of the grid, if all seeds share one
    seconds: float
    keeps: bool  # whether files that the run writes are on this machine


def _start(run: Run, *, keeps: bool) -> Start:
    trials = known_trials(run)
    seconds = json.loads(run.path.read_text())["seconds"] if trials else 0.0
    if run.configuration["task"] in _KEEP_TRIALS:
        trials, seconds = _Kept(run).read()
    return Start(run, trials, common_point(run), seconds, keeps)


def measured(data: Path | CarriedFolder | None, start: Start) -> dict[str, Any]:
    """The report of one run, computed here, with what it takes to run it again."""
    run = start.run
    task = importlib.import_module(f"benchmarks.{run.configuration['task']}")
    begin = time.perf_counter()
    kept = _Kept(run)

    def seconds() -> float:
        return start.seconds + time.perf_counter() - begin

    def keep(trials: list[dict[str, Any]]) -> None:
        if start.keeps:
            kept.write(trials, seconds())

    more: dict[str, Any] = {} if start.point is None else {"point": start.point}
    if run.configuration["task"] in _KEEP_TRIALS:
        more["keep"] = keep
    if run.configuration["task"] in _CHECKPOINTS and start.keeps:
        more["kept"] = run.path.with_suffix("")
    folder = data.unpacked() if isinstance(data, CarriedFolder) else data
    result = task.run(run.configuration, run.seed, folder, start.trials, **more)
    return {**provenance(run), "seconds": round(seconds(), 2), "result": result}


def _store(run: Run, report: dict[str, Any]) -> None:
    """Writes a report, which replaces the trials that were kept for it."""
    _write(run.path, _compact(report) + "\n")
    _Kept(run).path.unlink(missing_ok=True)
    for suffix in ("progress", "*.checkpoint"):
        for left in run.path.parent.glob(f"{run.path.stem}.{suffix}"):
            left.unlink()


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
            ["git", "--no-optional-locks", *arguments],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
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
