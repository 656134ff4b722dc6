"""A training run on a table: from a file to a folder with a model and its values on test data.

The test rows are looked at once, after the search has chosen a loss, a learning rate, an epoch and
a threshold on validation data.
"""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from metricgrad.estimators import MetricClassifier
from metricgrad.metrics import Metric
from metricgrad.metrics.registry import metric_config
from metricgrad.studies.evidence import Evidence, bootstrap_intervals, gather_evidence
from metricgrad.studies.results import (
    ComparisonResult,
    Finalist,
    Interval,
    Role,
    RowCounts,
    RunResult,
    TrialSummary,
)
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import ComparisonSettings, RunConfig, RunSettings, named_metric
from metricgrad.studies.splits import TableSplit, load_split
from metricgrad.training import Fit
from metricgrad.training.trials import Trial

# What reading JSON and .npz files raises when bytes are wrong.
_DAMAGE = (ValueError, OSError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Run:
    """A finished run; `fresh` is False where the folder had the result already."""

    folder: Path
    result: RunResult
    fresh: bool


@dataclass(frozen=True)
class StoredRun:
    """What the folder of `metricgrad train` holds."""

    config: RunConfig
    result: RunResult
    evidence: Evidence


@dataclass(frozen=True)
class StoredComparison:
    """What the folder of `metricgrad compare` holds."""

    config: RunConfig
    result: ComparisonResult


def train(settings: RunSettings, out: Path | None, *, command: str, progress: bool) -> Run:
    """Trains and tests in a folder, continuing what is there."""
    metric = named_metric(settings.metric)
    data, test = (None if each is None else Path(each) for each in (settings.data, settings.test))
    split = load_split(
        data, settings.target, test, settings.test_share, settings.seed, settings.drop
    )
    folder = RunFolder(out or Path("runs") / settings.folder_name, settings, split.sha256)
    stored = folder.read("result.json")
    if stored is not None and not stored["stopped"]:
        return Run(folder.path, RunResult.from_json(stored), fresh=False)
    model = settings.classifier(split.train.y, settings.method, settings.seed, progress=progress)
    model.fit(split.train.x, split.train.y, rows=split.train.rows, folder=folder.checkpoints)
    model.save(folder.path / "model.safetensors")
    x = model.prepared(split.test.x, split.test.rows)
    y = model.encoded(split.test.target)
    gather_evidence(model.fit_, x, y).save(folder.path / "evidence.npz")
    result = _result(model, metric, x, y, split, command)
    folder.finish(result)
    return Run(folder.path, result, fresh=True)


def read_run(path: Path) -> StoredRun | StoredComparison:
    """What the folder of a finished run or comparison holds; ValueError where it is not one."""
    needed = [name for name in ("config.json", "result.json") if not (path / name).is_file()]
    if needed:
        raise ValueError(f"{path} has no {' and '.join(needed)}; pass the folder of a finished run")
    try:
        config = RunConfig.from_json(json.loads((path / "config.json").read_text()))
        stored = json.loads((path / "result.json").read_text())
        if isinstance(config.settings, ComparisonSettings):
            return StoredComparison(config, ComparisonResult.from_json(stored))
        return StoredRun(config, RunResult.from_json(stored), Evidence.load(path / "evidence.npz"))
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a complete run: {error}") from None


def _result(
    model: MetricClassifier, metric: Metric, x: Tensor, y: Tensor, split: TableSplit, command: str
) -> RunResult:
    """What was found, with the metric on test data."""
    fit = model.fit_
    decision = fit.decision
    finalists, test_gain_interval = _finalists(fit, x, y)
    trials = [
        TrialSummary(str(each.candidate), each.rate, each.epochs, each.epoch, each.value)
        for each in fit.trials
    ]
    return RunResult(
        command=command,
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        metric_config=metric_config(fit.metric),
        classes=[str(each) for each in model.target_.ordered],
        positive_share=float(y.double().mean()) if model.target_.kind == "binary" else None,
        finalists=finalists,
        chosen="challenger" if decision.winner is decision.challenger else "cross_entropy",
        gain=decision.gain,
        test_gain_interval=test_gain_interval,
        luck=decision.luck,
        again=decision.again,
        folds=fit.folds,
        verdict=fit.verdict(),
        tried=trials,
        seconds=round(fit.seconds, 1),
        stopped=fit.stopped,
        rows=RowCounts(len(split.train), len(split.test), split.left_out),
    )


def _finalists(fit: Fit, x: Tensor, y: Tensor) -> tuple[list[Finalist], Interval | None]:
    """Both finalists on test data, and the interval of the gain where there are two."""
    bounds = bootstrap_intervals(fit, x, y)
    trials: dict[Role, Trial | None] = {
        "cross_entropy": fit.decision.ordinary,
        "challenger": fit.decision.challenger,
    }
    found: list[Finalist] = []
    for role, trial in trials.items():
        if trial is None:
            continue
        assert trial.value is not None
        curve = [
            (None if loss != loss else loss, None if value != value else value)
            for loss, value in trial.curve.tolist()
        ]
        found.append(
            Finalist(
                role=role,
                method=str(trial.candidate),
                validation=trial.value,
                test=fit.finalists[role].measure(x, y),
                interval=bounds.finalists[role],
                threshold=None if trial.threshold is None else trial.threshold.tolist(),
                rate=trial.rate,
                epoch=trial.epoch,
                curve=curve,
            )
        )
    return found, bounds.gain
