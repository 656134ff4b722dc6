"""One point of the grid for all seeds: the one with the best mean validation value.

The points of a grid often differ less on validation data than seeds do, so a single seed's choice
is half chance. With `choose = "pooled"` in a table, every seed first trains its grid, and then all
seeds train the common point. The choice still uses validation data only, for every method alike.
"""

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import own
from benchmarks.table import Run

_FREE = {"grid": None, "choose": None}  # may differ between reports that share trials


def points(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All points of the grid in the settings."""
    grid = settings.get("grid", {})
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]


def pools(run: Run) -> bool:
    """Whether the run shares a point of its grid with its siblings."""
    return run.configuration.get("choose") == "pooled" and len(points(run.configuration)) > 1


def known_trials(run: Run, path: Path | None = None) -> list[dict[str, Any]]:
    """Trials in the run's report, or a sibling's, if the configuration differs only in the grid."""
    path = path or run.path
    if not path.exists():
        return []
    old = json.loads(path.read_text())
    same = {**old["configuration"], **_FREE} == {**run.configuration, **_FREE}
    return old["result"].get("trials", []) if same else []


def known(trials: list[dict[str, Any]], point: dict[str, Any]) -> dict[str, Any] | None:
    """The trial of a point, or None."""
    return next(
        (trial for trial in trials if all(trial.get(key) == value for key, value in point.items())),
        None,
    )


def grid_known(run: Run) -> bool:
    """Whether the run has trained its whole grid."""
    trials = known_trials(run)
    return all(known(trials, point) is not None for point in points(run.configuration))


def common_point(run: Run) -> dict[str, Any] | None:
    """The best point for all siblings together, or None while one of them lacks a trial."""
    if not pools(run):
        return None
    found = [known_trials(run, path) for path in run.siblings]
    means: list[tuple[float, dict[str, Any]]] = []
    for point in points(run.configuration):
        trials = [known(trials, point) for trials in found]
        if any(trial is None for trial in trials):
            return None
        values = [trial["valid"] for trial in trials if trial is not None]
        if all(value is not None for value in values):  # no seed has diverged
            means.append((statistics.fmean(values), point))
    metric = own.metric(run.configuration["metric"], **run.configuration.get("metric_options", {}))
    sign = 1 if metric.higher_is_better else -1
    return max(means, key=lambda pair: sign * pair[0])[1]
