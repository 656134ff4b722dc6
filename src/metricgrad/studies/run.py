"""A training run on a table: from a file to a folder with a model and its values on test data.

The test rows are looked at once, after the search has chosen a loss, a learning rate, an epoch and
a threshold on validation data.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from metricgrad.estimators import MetricClassifier, MetricRanker
from metricgrad.estimators.importances import column_importances
from metricgrad.metrics import Metric
from metricgrad.metrics.rows import to_rows
from metricgrad.processes import from_first
from metricgrad.storage import read_json
from metricgrad.studies import results, splits
from metricgrad.studies.evidence import (
    Evidence,
    TestedRows,
    bootstrap_intervals,
    finalists_of,
    value_on_test,
)
from metricgrad.studies.large_tables import StreamedClasses, too_large
from metricgrad.studies.own_metrics import AmountColumns, named_metric
from metricgrad.studies.queries import QuerySplit, load_queries
from metricgrad.studies.records import ImportantColumns, SuspiciousColumn
from metricgrad.studies.results import ComparisonResult, Finalist, Interval, RunResult
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import (
    ComparisonSettings,
    RunConfig,
    RunSettings,
    chosen_class,
    refuse_misfit,
    refuse_unranked,
)
from metricgrad.studies.suspicious import suspicious_columns
from metricgrad.studies.table_files import named_in_errors
from metricgrad.training import Fit
from metricgrad.training.data import Items

_MOST_IMPORTANT = 30  # columns whose importances are stored
# What reading JSON and .npz files raises when bytes are wrong.
_DAMAGE = (ValueError, OSError, KeyError, TypeError, AttributeError)


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
    """Trains and tests in a folder, continuing what is there.

    Several processes train together; the first one alone reads and writes the folder.
    """
    metric = named_metric(settings.metric)  # a wrong name is refused before the data is read
    amounts = AmountColumns.of(settings.amounts, settings.keep)
    amounts.refuse_misfit(metric)
    work = _work(settings, metric, amounts, progress)
    sha256 = work.sha256 + splits.metric_digests(settings.metric)
    path = out or Path("runs") / settings.folder_name
    folder = from_first(lambda: RunFolder(path, settings, sha256))
    known = from_first(lambda: _finished(folder))
    if known is not None:
        return Run(folder.path, known, fresh=False)
    suspicious = from_first(work.suspicious)
    model = work.fitted(folder.checkpoints, progress)
    tested = from_first(lambda: _tested_result(folder, work, model, command, suspicious))
    return Run(folder.path, tested, fresh=True)


def _finished(folder: RunFolder) -> RunResult | None:
    """The result that a folder has; None if the run has to go on."""
    stored = folder.read("result.json")
    if stored is None:
        return None
    with named_in_errors(folder.path):
        result = RunResult.from_json(stored)
    return None if result.stopped else result


def _tested_result(
    folder: RunFolder,
    work: "_Classes | _Queries | StreamedClasses",
    model: MetricClassifier | MetricRanker,
    command: str,
    suspicious: list[SuspiciousColumn],
) -> RunResult:
    """What the test rows say of a model, which its folder then holds."""
    model.save(folder.path / "model.safetensors")
    tested = work.tested()
    Evidence.gather(model.fit_, tested.items).save(folder.path / "evidence.npz")
    result = replace(
        _result(model.fit_, tested, work.rows, work.columns, command),
        dropped=work.settings.dropped,
        suspicious=suspicious,
        importances=_important(model, tested, work.columns),
    )
    folder.finish(result)
    return result


def _important(
    model: MetricClassifier | MetricRanker, tested: TestedRows, columns: list[str]
) -> ImportantColumns:
    """The columns that the metric of the test rows owes most to.

    No other rows are honest: the model may have been trained again on all others. They come after
    every choice, so nothing is chosen by them.
    """
    found = column_importances(model.trained_, model.preparation_, tested.items)
    best = (-found.means).argsort(kind="stable")[:_MOST_IMPORTANT]
    return ImportantColumns(
        [columns[number] for number in best],
        found.means[best].tolist(),
        found.spreads[best].tolist(),
        found.rows,
        found.shuffles,
    )


def _work(
    settings: RunSettings, metric: Metric, amounts: AmountColumns, progress: bool
) -> "_Classes | _Queries | StreamedClasses":
    """The kind of run that the data and the settings ask for."""
    large = too_large(_paths(settings)[0], settings.memory)
    if large is not None:
        return StreamedClasses(settings, metric, large, progress=progress)
    if settings.group is not None:
        return _Queries(settings, metric)
    return _Classes(settings, metric, amounts)


class _Classes:
    """A run on rows that have one class each."""

    def __init__(self, settings: RunSettings, metric: Metric, amounts: AmountColumns) -> None:
        data, test = _paths(settings)
        self.settings = settings
        self.split = splits.load_split(
            data, settings.target, test, settings.test_share, settings.seed, settings.drop, amounts
        )
        self.sha256 = self.split.sha256
        self.rows = _row_counts(self.split)
        self.columns = [str(name) for name in self.split.train.x.columns]
        y = self.split.train.y
        refuse_misfit(metric, y, chosen_class(settings.positive, y, metric))

    def suspicious(self) -> list[SuspiciousColumn]:
        """Columns that look wrong, by the training rows."""
        train = self.split.train
        return suspicious_columns(train.x, train.y, train.rows)

    def fitted(self, checkpoints: Path, progress: bool) -> MetricClassifier:
        """A classifier that was trained on the training rows."""
        settings = self.settings
        train = self.split.train
        self.model = settings.classifier(
            train.x, train.y, settings.method, settings.seed, progress=progress
        )
        return self.model.fit(
            train.x, train.y, rows=train.rows, folder=checkpoints, **train.amount_values
        )

    def tested(self) -> TestedRows:
        """The test rows, which were not looked at before."""
        test = self.split.test
        x = self.model.prepared(test.x, test.rows)
        y = self.model.encoded(test.target)
        binary = self.model.target_.kind == "binary"
        classes = [str(each) for each in self.model.target_.ordered]
        items = Items(x, y, rows=to_rows(test.own_amounts))
        return TestedRows(items, classes, float(y.double().mean()) if binary else None)


class _Queries:
    """A run on documents of queries, which have a grade each."""

    def __init__(self, settings: RunSettings, metric: Metric) -> None:
        assert settings.group is not None
        refuse_unranked(metric, settings.positive, [settings.method])
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
        self.sha256 = self.split.sha256
        self.rows = _row_counts(self.split)
        self.columns = [str(name) for name in self.split.train.x.columns]

    def suspicious(self) -> list[SuspiciousColumn]:
        """Columns that look wrong, by the training queries."""
        return suspicious_columns(self.split.train.x, self.split.train.grades)

    def fitted(self, checkpoints: Path, progress: bool) -> MetricRanker:
        """A ranker that was trained on the training queries."""
        train = self.split.train
        self.model = self.settings.ranker(
            train.x, self.settings.method, self.settings.seed, progress=progress
        )
        return self.model.fit(train.x, train.grades, groups=train.queries, folder=checkpoints)

    def tested(self) -> TestedRows:
        """The test queries, which were not looked at before."""
        test = self.split.test
        return TestedRows(self.model.items(test.x, test.grades, test.queries))


def _row_counts(split: splits.TableSplit | QuerySplit) -> results.RowCounts:
    return results.RowCounts(len(split.train), len(split.test), split.left_out)


def _paths(settings: RunSettings) -> tuple[Path | None, Path | None]:
    data, test = (None if each is None else Path(each) for each in (settings.data, settings.test))
    return data, test


def read_run(path: Path) -> StoredRun | StoredComparison:
    """What the folder of a finished run or comparison holds; ValueError where it is not one."""
    needed = [name for name in ("config.json", "result.json") if not (path / name).is_file()]
    if needed:
        raise ValueError(f"{path} has no {' and '.join(needed)}; pass the folder of a finished run")
    try:
        config = RunConfig.from_json(read_json(path / "config.json"))
        stored = read_json(path / "result.json")
        if isinstance(config.settings, ComparisonSettings):
            return StoredComparison(config, ComparisonResult.from_json(stored))
        return StoredRun(config, RunResult.from_json(stored), Evidence.load(path / "evidence.npz"))
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a complete run: {error}") from None


def _result(
    fit: Fit, tested: TestedRows, rows: results.RowCounts, columns: list[str], command: str
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
        metric_config=results.MetricConfig.of(fit.metric),
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
        rows=rows,
        columns=columns,
        models=[results.ModelSummary(*each) for each in fit.models],
        models_verdict=fit.models_verdict(),
        unit=fit.unit,
    )


def _finalists(fit: Fit, items: Items) -> tuple[list[Finalist], Interval | None]:
    """Both finalists on test data, and the interval of the gain where there are two."""
    intervals, gain = bootstrap_intervals(fit, items)
    found: list[Finalist] = []
    for each, interval in zip(finalists_of(fit), intervals, strict=True):
        trial = each.trial
        assert trial.value is not None
        curve = trial.curve.tolist()
        found.append(
            Finalist(
                role=each.role,
                method=str(trial.candidate),
                validation=trial.value,
                test=value_on_test(each.trained, items),
                interval=interval,
                threshold=None if trial.threshold is None else trial.threshold.tolist(),
                rate=trial.rate,
                epoch=trial.epoch,
                curve=[(_known(loss), _known(value)) for loss, value in curve],
                step=trial.epochs // len(curve),
            )
        )
    return found, gain


def _known(value: float) -> float | None:
    """A number as JSON has it, where NaN is null."""
    return None if math.isnan(value) else value
