r"""Comparing losses on one table: repeated splits, and which differences are significant.

Every method is trained on the same splits, so values are compared in pairs. Splits of one table
share rows, so their values are not independent, and the usual t test finds differences that are
not there. The variance of the mean difference over n splits is therefore taken as
(1/n + test/train) s^2 instead of s^2 / n (Nadeau and Bengio, 2003). With several methods, p-values
are corrected by Holm's rule: the smallest is multiplied by the number of methods, the next by one
fewer, and so on.

No difference is known better than to one item. If a single item of each test set were decided by a
coin, the value would have a standard deviation of r = (best - worst) / items, so s is taken as r at
least. Otherwise three splits that happen to differ by one item each would have no spread at all,
and p = 0.
"""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from scipy.stats import t as student

from metricgrad.boosting.growing import TreeTask
from metricgrad.estimators.kinds import model_kinds
from metricgrad.estimators.target import Target, plain
from metricgrad.metrics import Metric
from metricgrad.studies import splits
from metricgrad.studies.cells import Executor
from metricgrad.studies.measuring import measure_methods, split
from metricgrad.studies.own_metrics import AmountColumns, named_metric
from metricgrad.studies.queries import QueryRows, load_rows
from metricgrad.studies.records import SuspiciousColumn
from metricgrad.studies.results import ComparisonResult, Difference
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import (
    UNRANKED,
    ComparisonSettings,
    chosen_class,
    refuse_misfit,
    refuse_unranked,
)
from metricgrad.studies.splits import load_table
from metricgrad.studies.suspicious import suspicious_columns
from metricgrad.studies.tables import LabelledTable
from metricgrad.surrogates.base import TargetKind
from metricgrad.training.candidates import (
    ORDINARY,
    method_names,
    ordinary_candidate,
    takes,
    usual_methods,
)
from metricgrad.training.fit_trees import tree_methods

_ROUNDING = 1e-12  # a spread below this share of the values is rounding


def compare(
    settings: ComparisonSettings,
    methods: str | None,
    out: Path | None,
    *,
    command: str,
    progress: bool,
    executor: Executor | None = None,
) -> tuple[Path, ComparisonResult]:
    """Compares losses in a folder, continuing what is there; returns the folder and the result.

    `methods` is what the user typed: names, `all`, or None for the usual ones. It replaces
    `settings.methods`. `executor` says where the methods are trained; None is this process.
    """
    metric = named_metric(settings.metric)
    table, names = _table_and_methods(settings, metric, methods)
    settings = replace(settings, methods=tuple(names))
    data = None if settings.data is None else Path(settings.data)
    sha256 = splits.digests(data) + splits.metric_digests(settings.metric)
    folder = RunFolder(out or Path("runs") / settings.folder_name, settings, sha256)
    suspicious = _suspicious(settings, table)
    values = measure_methods(folder, settings, table, progress=progress, executor=executor)
    higher = metric.higher_is_better
    result = ComparisonResult(
        command=command,
        metric=settings.metric_name,
        higher_is_better=higher,
        splits=settings.splits,
        values=values,
        differences=paired_differences(
            values,
            higher,
            settings.test_share,
            names[0],
            resolution=resolution(metric, values, _test_items(settings, table)),
        ),
        columns=[str(name) for name in table.x.columns],
        ordinary=names[0],
        dropped=settings.dropped,
        suspicious=suspicious,
    )
    folder.finish(result)
    return folder.path, result


def _table_and_methods(
    settings: ComparisonSettings, metric: Metric, methods: str | None
) -> tuple[LabelledTable | QueryRows, list[str]]:
    """The data and the names of the methods, the ordinary one first; ValueError for a misfit."""
    amounts = AmountColumns.of(settings.amounts, settings.keep)
    amounts.refuse_misfit(metric)
    data = None if settings.data is None else Path(settings.data)
    if settings.group is not None:
        typed = (methods or "").split(",")
        refuse_unranked(metric, settings.positive, [each.strip() for each in typed])
        rows = load_rows(data, settings.target, settings.group, settings.drop)
        return rows, methods_to_rank(methods, metric, rows.grades, settings.model)
    table = load_table(data, settings.target, settings.drop, amounts)
    positive = chosen_class(settings.positive, table.y, metric)
    refuse_misfit(metric, table.y, positive)
    return table, methods_to_compare(methods, metric, table.y, positive, settings.model)


def _suspicious(
    settings: ComparisonSettings, table: LabelledTable | QueryRows
) -> list[SuspiciousColumn]:
    """Columns that look wrong, by the training rows of the first split."""
    train = split(settings, table, settings.seed)[0]
    if isinstance(train, QueryRows):
        return suspicious_columns(train.x, train.grades)
    return suspicious_columns(train.x, train.y, train.rows)


def _test_items(settings: ComparisonSettings, table: LabelledTable | QueryRows) -> int:
    """About how many rows, or queries, a test part has."""
    items = np.unique(table.queries) if isinstance(table, QueryRows) else table.y
    return max(1, round(settings.test_share * len(items)))


def resolution(metric: Metric, values: dict[str, list[float]], items: int) -> float:
    """What one of so many test items is worth: its share of the metric's range.

    The largest value stands for the range of a metric that has no best or no worst.
    """
    span = abs(metric.best - metric.worst)
    if not math.isfinite(span):
        span = max(abs(value) for each in values.values() for value in each)
    return span / items


def paired_differences(
    values: dict[str, list[float]],
    higher_is_better: bool,
    test_share: float,
    ordinary: str = ORDINARY,
    *,
    resolution: float = 0.0,
) -> dict[str, Difference]:
    """Compares every method with the ordinary one over the same splits.

    Args:
        values: By method, one value for each split; the ordinary one must be among them.
        higher_is_better: The metric's direction; a positive difference is always an improvement.
        test_share: Share of the rows in the test part; 0 where the values are independent.
        ordinary: The method that the others are compared with.
        resolution: What one test item is worth, below which the standard deviation of differences
            is never taken. If it is not known, n differences without any spread have only their
            signs to show, p = 2 / 2^n.

    Returns:
        By method: mean difference, standard error, 95 % interval, and p after Holm's correction.

    Example:
        >>> values = {"cross_entropy": [0.6, 0.7, 0.5], "focal": [0.61, 0.72, 0.53]}
        >>> found = paired_differences(values, True, 0.25)["focal"]
        >>> round(found.mean, 3), round(found.p, 3)
        (0.02, 0.134)
    """
    found: dict[str, Difference] = {}
    sign = 1 if higher_is_better else -1
    for name in (name for name in values if name != ordinary):
        pairs = zip(values[name], values[ordinary], strict=True)
        each = [sign * (one - other) for one, other in pairs]
        mean = statistics.fmean(each)
        number = len(each)
        spread = max(statistics.stdev(each), resolution)
        error = spread * math.sqrt(1 / number + test_share / (1 - test_share))
        if spread <= _ROUNDING * max(map(abs, (*values[name], *values[ordinary]))):
            p = 2 / 2**number if mean else 1.0
        else:
            p = 2 * float(student.sf(abs(mean) / error, number - 1))
        reach = error * float(student.ppf(0.975, number - 1))
        found[name] = Difference(mean, error, (mean - reach, mean + reach), p)
    return _holm(found)


def _holm(found: dict[str, Difference]) -> dict[str, Difference]:
    """Holm's correction: a p-value is never below that of a smaller one before it."""
    highest = 0.0
    corrected = dict(found)
    for rank, name in enumerate(sorted(found, key=lambda name: found[name].p)):
        highest = max(highest, min(1.0, (len(found) - rank) * found[name].p))
        corrected[name] = replace(found[name], p=highest)
    return corrected


def methods_to_compare(
    text: str | None, metric: Metric, y: Any, positive: Any, model: str | None = None
) -> list[str]:
    """Names of the methods, cross-entropy first.

    `text` is what the user typed. Of `all` methods, and of the usual ones that None stands for,
    those that have no loss for such a target, or for such a `model`, are left out.
    """
    if model is not None and "boosted" in model_kinds(model):
        return _tree_names(text, "binary", model)
    if _typed(text):
        return _names(text, ORDINARY, ["auto", *method_names()], "there is no method")
    kinds = Target.of(plain(y), metric, positive)
    return _fitting(text, kinds.metric_for(metric), kinds.kind, ORDINARY)


def methods_to_rank(
    text: str | None, metric: Metric, grades: Any, model: str | None = None
) -> list[str]:
    """Names of the methods for documents of queries, ListNet first; `text` as above.

    ReLoss is learned again for every split of queries, which takes minutes, so it has to be asked
    for.
    """
    if model is not None and "boosted" in model_kinds(model):
        return _tree_names(text, "grades", model)
    ordinary = ordinary_candidate(metric, sets=True).method
    if _typed(text):
        return _names(text, ordinary, ["auto", *method_names()], "there is no method")
    kind = "binary" if np.isin(grades, (0, 1)).all() else "grades"
    left_out = UNRANKED if text is not None else (*UNRANKED, "reloss")
    names = _fitting(text, metric, kind, ordinary)
    return [name for name in names if name not in left_out]


def _tree_names(text: str | None, task: TreeTask, model: str | None) -> list[str]:
    """What boosted trees are grown on: what the user typed, or everything that there is."""
    known = [*tree_methods(task), "auto"]
    if not _typed(text):
        return known
    return _names(text, known[0], known, f"--model {model} has no method")


def _typed(text: str | None) -> TypeGuard[str]:
    """Whether the user named methods."""
    return text is not None and text.strip() != "all"


def _names(text: str, ordinary: str, known: list[str], missing: str) -> list[str]:
    """The methods that the user typed, after the ordinary one; `missing` begins the refusal."""
    names = [each.strip() for each in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{missing} {', '.join(map(repr, unknown))}; choose from all, {', '.join(known)}"
        )
    return list(dict.fromkeys([ordinary, *names]))


def _fitting(text: str | None, metric: Metric, kind: TargetKind, ordinary: str) -> list[str]:
    """All methods, or the usual ones unless `all` was typed, that take targets of a kind."""
    candidates = usual_methods(metric) if text is None else [ORDINARY, *method_names()]
    fitting = [name for name in candidates if takes(name, metric, kind)]
    return list(dict.fromkeys([ordinary, *fitting, "auto"]))
