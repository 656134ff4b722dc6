r"""Comparing losses on one table: repeated splits, and which differences are significant.

Every method is trained on the same splits, so values are compared in pairs. Splits of one table
share rows, so their values are not independent, and the usual t test finds differences that are
not there. The variance of the mean difference over n splits is therefore taken as
(1/n + test/train) s^2 instead of s^2 / n (Nadeau and Bengio, 2003). With several methods, p-values
are corrected by Holm's rule: the smallest is multiplied by the number of methods, the next by one
fewer, and so on.
"""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from metricgrad.estimators.target import Target, plain
from metricgrad.metrics import Metric
from metricgrad.progress import progress as to_progress
from metricgrad.studies import splits
from metricgrad.studies.results import ComparisonResult, Difference
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import (
    ComparisonSettings,
    chosen_class,
    named_metric,
    refuse_misfit,
)
from metricgrad.studies.splits import TableRows
from metricgrad.studies.tables import LabelledTable, load_table
from metricgrad.training.candidates import ORDINARY, method_names, takes, usual_methods

_APART = 1000  # between the seeds of splits, so that the next --seed shares none of them


def compare(
    settings: ComparisonSettings,
    methods: str | None,
    out: Path | None,
    *,
    command: str,
    progress: bool,
) -> tuple[Path, ComparisonResult]:
    """Compares losses in a folder, continuing what is there; returns the folder and the result.

    `methods` is what the user typed: names, `all`, or None for the usual ones. It replaces
    `settings.methods`.
    """
    metric = named_metric(settings.metric)
    data = None if settings.data is None else Path(settings.data)
    table = load_table(data, settings.target, settings.drop)
    positive = chosen_class(settings.positive, table.y)
    refuse_misfit(metric, table.y, positive)
    names = methods_to_compare(methods, metric, table.y, positive)
    settings = replace(settings, methods=tuple(names))
    folder = RunFolder(out or Path("runs") / settings.folder_name, settings, splits.digests(data))
    values = measure_methods(folder, settings, table, progress=progress)
    result = ComparisonResult(
        command=command,
        metric=settings.metric,
        higher_is_better=metric.higher_is_better,
        splits=settings.splits,
        values=values,
        differences=paired_differences(values, metric.higher_is_better, settings.test_share),
        columns=[str(name) for name in table.x.columns],
    )
    folder.finish(result)
    return folder.path, result


def measure_methods(
    folder: RunFolder, settings: ComparisonSettings, table: LabelledTable, *, progress: bool = False
) -> dict[str, list[float]]:
    """Trains every method on every split and measures it on the test rows.

    Args:
        folder: Keeps the values; those that are there already are not measured again.
        settings: Names the methods, the number of splits and how each classifier is trained.
        table: The data, as `load_table` reads it.
        progress: Shows a bar on a terminal.

    Returns:
        Test values by method, one for each split.

    Example:
        >>> import tempfile
        >>> settings = ComparisonSettings(methods=("cross_entropy",), splits=1, hidden=(), epochs=1)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = RunFolder(Path(place) / "run", settings)
        ...     values = measure_methods(folder, settings, load_table(None))
        >>> [len(each) for each in values.values()]
        [1]
    """
    values: dict[str, list[float]] = folder.read("values.json") or {}
    numbers = all(isinstance(each, list) and _finite(each) for each in values.values())
    if not numbers or not values.keys() <= set(settings.methods):
        raise ValueError(f"{folder.path / 'values.json'} is damaged; delete it to measure again")
    total = len(settings.methods) * settings.splits
    with to_progress("comparing", total, progress) as tell:
        for number in range(settings.splits):
            seed = settings.seed + _APART * number
            train, test = splits.stratified_split(table.x, table.y, settings.test_share, seed)
            for name in settings.methods:
                known = values.setdefault(name, [])
                if len(known) <= number:
                    known.append(_test_value(settings, train, test, name, seed))
                    folder.write("values.json", values)
                tell(1, f"{name}: {known[number]:.4f}")
    return values


def _finite(values: list[Any]) -> bool:
    return all(isinstance(each, float) and math.isfinite(each) for each in values)


def _test_value(
    settings: ComparisonSettings, train: TableRows, test: TableRows, method: str, seed: int
) -> float:
    """The metric of one method on one split."""
    model = settings.classifier(train.y, method, seed, progress=False)
    model.fit(train.x, train.y, rows=train.rows)
    if model.fit_.stopped:
        raise KeyboardInterrupt  # a model that is half trained has no value to compare
    features = model.prepared(test.x, test.rows)
    return model.trained_.measure(features, model.encoded(test.target))


def paired_differences(
    values: dict[str, list[float]], higher_is_better: bool, test_share: float
) -> dict[str, Difference]:
    """Compares every method with cross-entropy over the same splits.

    Args:
        values: By method, one value for each split; `cross_entropy` must be among them.
        higher_is_better: The metric's direction; a positive difference is always an improvement.
        test_share: Share of the rows in the test part; 0 where the values are independent.

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
    for name in (name for name in values if name != ORDINARY):
        pairs = zip(values[name], values[ORDINARY], strict=True)
        each = [sign * (one - other) for one, other in pairs]
        mean = statistics.fmean(each)
        number = len(each)
        error = statistics.stdev(each) * math.sqrt(1 / number + test_share / (1 - test_share))
        p = 2 * float(student.sf(abs(mean) / error, number - 1)) if error else float(mean == 0)
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


def methods_to_compare(text: str | None, metric: Metric, y: Any, positive: Any) -> list[str]:
    """Names of the methods, cross-entropy first.

    `text` is what the user typed. Of `all` methods, and of the usual ones that None stands for,
    those that have no loss for such a target are left out.
    """
    known = ["auto", *method_names()]
    if text is not None and text.strip() != "all":
        names = [each.strip() for each in text.split(",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"there is no method {', '.join(map(repr, unknown))}; "
                f"choose from all, {', '.join(known)}"
            )
        return list(dict.fromkeys([ORDINARY, *names]))
    kinds = Target.of(plain(y), metric, positive)
    candidates = usual_methods(metric) if text is None else [ORDINARY, *method_names()]
    trained_for = kinds.metric_for(metric)
    fitting = [name for name in candidates if takes(name, trained_for, kinds.kind)]
    return list(dict.fromkeys([ORDINARY, *fitting, "auto"]))
