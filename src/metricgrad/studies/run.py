"""A training run on a table: from a file to a folder with a model and its values on test data.

The test rows are looked at once, after the search has chosen a loss, a learning rate, an epoch and
a threshold on validation data. The model then predicts the rows of other tables.
"""

import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from metricgrad.estimators import MetricClassifier, MetricRanker
from metricgrad.estimators.ranker import RANKER
from metricgrad.metrics import Metric
from metricgrad.metrics.registry import metric_config
from metricgrad.storage import holds
from metricgrad.studies import results, splits, tables
from metricgrad.studies.evidence import (
    Evidence,
    bootstrap_intervals,
    finalist_trials,
    value_on_test,
)
from metricgrad.studies.queries import QuerySplit, load_queries, read_queries
from metricgrad.studies.results import ComparisonResult, Finalist, Interval, RunResult
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import (
    ComparisonSettings,
    RunConfig,
    RunSettings,
    chosen_class,
    named_metric,
    refuse_misfit,
    refuse_unranked,
)
from metricgrad.training import Fit
from metricgrad.training.data import Items

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


@dataclass(frozen=True)
class MeasuredValue:
    """The metric of the rows whose truth is known."""

    metric: str
    value: float
    rows: int


@dataclass(frozen=True)
class Predictions:
    """A DataFrame with a prediction and probabilities for each row; the metric, if asked for."""

    table: Any
    measured: MeasuredValue | None


def train(settings: RunSettings, out: Path | None, *, command: str, progress: bool) -> Run:
    """Trains and tests in a folder, continuing what is there."""
    metric = named_metric(settings.metric)  # a wrong name is refused before the data is read
    study = _Queries if settings.group is not None else _Classes
    work = study(settings, metric)
    folder = RunFolder(out or Path("runs") / settings.folder_name, settings, work.split.sha256)
    stored = folder.read("result.json")
    if stored is not None and not stored["stopped"]:
        return Run(folder.path, RunResult.from_json(stored), fresh=False)
    model = work.fitted(folder.checkpoints, progress)
    model.save(folder.path / "model.safetensors")
    tested = work.tested()
    Evidence.gather(model.fit_, tested.items).save(folder.path / "evidence.npz")
    result = _result(model.fit_, tested, work.split, command)
    folder.finish(result)
    return Run(folder.path, result, fresh=True)


@dataclass(frozen=True)
class _Tested:
    """Test rows as the model takes them, and their classes, where they have some."""

    items: Items
    classes: list[str] = field(default_factory=list)
    positive_share: float | None = None


class _Classes:
    """A run on rows that have one class each."""

    def __init__(self, settings: RunSettings, metric: Metric) -> None:
        data, test = _paths(settings)
        self.settings = settings
        self.split = splits.load_split(
            data, settings.target, test, settings.test_share, settings.seed, settings.drop
        )
        y = self.split.train.y
        refuse_misfit(metric, y, chosen_class(settings.positive, y))

    def fitted(self, checkpoints: Path, progress: bool) -> MetricClassifier:
        """A classifier that was trained on the training rows."""
        settings = self.settings
        train = self.split.train
        self.model = settings.classifier(train.y, settings.method, settings.seed, progress=progress)
        return self.model.fit(train.x, train.y, rows=train.rows, folder=checkpoints)

    def tested(self) -> _Tested:
        """The test rows, which were not looked at before."""
        test = self.split.test
        x = self.model.prepared(test.x, test.rows)
        y = self.model.encoded(test.target)
        binary = self.model.target_.kind == "binary"
        classes = [str(each) for each in self.model.target_.ordered]
        return _Tested(Items(x, y), classes, float(y.double().mean()) if binary else None)


class _Queries:
    """A run on documents of queries, which have a grade each."""

    def __init__(self, settings: RunSettings, metric: Metric) -> None:
        assert settings.group is not None
        refuse_unranked(metric, settings.positive)
        data, test = _paths(settings)
        self.settings = settings
        self.split = load_queries(
            data,
            settings.target,
            settings.group,
            test,
            settings.test_share,
            settings.seed,
            settings.drop,
        )

    def fitted(self, checkpoints: Path, progress: bool) -> MetricRanker:
        """A ranker that was trained on the training queries."""
        train = self.split.train
        self.model = self.settings.ranker(progress=progress)
        return self.model.fit(train.x, train.grades, groups=train.queries, folder=checkpoints)

    def tested(self) -> _Tested:
        """The test queries, which were not looked at before."""
        test = self.split.test
        return _Tested(self.model.items(test.x, test.grades, test.queries))


def _paths(settings: RunSettings) -> tuple[Path | None, Path | None]:
    data, test = (None if each is None else Path(each) for each in (settings.data, settings.test))
    return data, test


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
    fit: Fit, tested: _Tested, split: splits.TableSplit | QuerySplit, command: str
) -> RunResult:
    """What was found, with the metric on test data."""
    decision = fit.decision
    finalists, test_gain_interval = _finalists(fit, tested.items)
    trials = [
        results.TrialSummary(str(each.candidate), each.rate, each.epochs, each.epoch, each.value)
        for each in fit.trials
    ]
    return RunResult(
        command=command,
        metric=fit.metric.name,
        higher_is_better=fit.metric.higher_is_better,
        metric_config=metric_config(fit.metric),
        classes=tested.classes,
        positive_share=tested.positive_share,
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
        rows=results.RowCounts(len(split.train), len(split.test), split.left_out),
        columns=[str(name) for name in split.train.x.columns],
    )


def _finalists(fit: Fit, items: Items) -> tuple[list[Finalist], Interval | None]:
    """Both finalists on test data, and the interval of the gain where there are two."""
    intervals, gain = bootstrap_intervals(fit, items)
    found: list[Finalist] = []
    for role, trial in finalist_trials(fit).items():
        assert trial.value is not None
        curve = trial.curve.tolist()
        found.append(
            Finalist(
                role=role,
                method=str(trial.candidate),
                validation=trial.value,
                test=value_on_test(fit.finalists[role], items),
                interval=intervals[role],
                threshold=None if trial.threshold is None else trial.threshold.tolist(),
                rate=trial.rate,
                epoch=trial.epoch,
                curve=[(_known(loss), _known(value)) for loss, value in curve],
            )
        )
    return found, gain


def _known(value: float) -> float | None:
    """A number as JSON has it, where NaN is null."""
    return None if math.isnan(value) else value


def predict(
    model: Path, data: Path, target: str | None = None, group: str | None = None
) -> Predictions:
    """Predicts the rows of a file with the model of a run folder or file.

    `target` names a column with the true classes, or grades, to measure the model on; `group` the
    column of queries, for a model that ranks.
    """
    path = model / "model.safetensors" if model.is_dir() else model
    if holds(path, RANKER):
        return _ranked(MetricRanker.load(path), data, target, group)
    if group is not None:
        raise ValueError(f"{path} does not rank documents; leave out --group {group}")
    classifier = MetricClassifier.load(path)
    table = tables.read_table(data)
    x = _features(classifier, table, data, target)
    found = pd.DataFrame({"prediction": classifier.predict(x)})
    probabilities = classifier.predict_proba(x)
    for number, each in enumerate(classifier.classes_):
        found[f"probability of {each}"] = probabilities[:, number].round(6)
    return Predictions(found, None if target is None else _measured(classifier, table, x, target))


def _ranked(ranker: MetricRanker, data: Path, target: str | None, group: str | None) -> Predictions:
    """Scores of documents, and their ranks within queries where those are known."""
    table = tables.read_table(data, queries=group == tables.QUERY)
    found = pd.DataFrame({"score": ranker.predict(_features(ranker, table, data, target))})
    if group is not None:
        tables.check_column(table, group)
        queries = found["score"].groupby(table[group].to_numpy())
        found["rank"] = queries.rank(ascending=False, method="first").astype(int)
    if target is None:
        return Predictions(found, None)
    if group is None:
        raise ValueError("grades are measured query by query; pass --group COLUMN beside --target")
    rows, _ = read_queries(data, target, group)
    x = _features(ranker, rows.x, data, target)
    value = ranker.score(x, rows.grades, groups=rows.queries)
    return Predictions(found, MeasuredValue(ranker.trained_.metric.name, value, len(rows)))


def _features(
    model: MetricClassifier | MetricRanker, table: Any, path: Path, target: str | None
) -> Any:
    """The columns that the model was trained on; by position where it was trained on an array."""
    names = list(vars(model).get("feature_names_in_", []))
    if names:
        return tables.parsed(tables.with_columns(table, names, path))
    columns = [name for name in table.columns if name != target]
    if len(columns) != model.n_features_in_:
        raise ValueError(
            f"{path} has {len(columns)} columns; the model was trained on {model.n_features_in_}"
        )
    return tables.parsed(table[columns]).to_numpy()


def _measured(classifier: MetricClassifier, table: Any, x: Any, target: str) -> MeasuredValue:
    """The metric on the rows that have a target."""
    _, y, _ = tables.split_target(table, target, several=False)
    known = table[target].notna().to_numpy()
    features = classifier.prepared(x[known])
    value = classifier.trained_.measure(features, classifier.encoded(y.to_numpy()))
    return MeasuredValue(classifier.trained_.metric.name, value, len(y))
