"""The page of a run, and that of a comparison.

`metricgrad train` has the verdict, values on test data, figures, and every trial. `metricgrad
compare` has gains over the ordinary loss with their intervals, and a table. `blocks.py` has the
sections and tables that both are made of, `plots.py` the figures.
"""

from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from metricgrad.report import blocks, plots
from metricgrad.studies.evidence import threshold_curve
from metricgrad.studies.results import ComparisonResult, Finalist, RunResult
from metricgrad.studies.run import StoredComparison, StoredRun
from metricgrad.training.labels import label

_EPOCHS = ("epochs", "best epoch")
_TREES = ("most trees", "best number")
_IMPORTANT = 15  # columns that are drawn


def write_run(folder: Path, stored: StoredRun) -> Path:
    """Draws the figures of a run, writes its page into the folder, and returns its path."""
    result = stored.result
    figures = folder / "figures"
    sections = [
        blocks.section("On test data", _values(result), _comparison(result, figures)),
        *_alignment(stored, figures),
        blocks.section("During training", _curves(result, figures)),
        *_binary_figures(stored, figures),
        *_decisions(stored, figures),
        *_importances(result, figures),
        blocks.section("What was tried", _trials(result)),
        *blocks.columns(result),
        blocks.section("How to reproduce", blocks.reproduction(stored.config, result.command)),
    ]
    settings = stored.config.settings
    title = f"{label(settings.metric_name)} on {settings.source}"
    about = _about(result) + blocks.amount_note(settings.amounts)
    return blocks.write_page(folder / "report.html", title, about, result.told(), sections)


def _about(result: RunResult) -> str:
    told = result.rows.told()
    kind = f"{result.models[0].name} " if result.models else ""
    told += f"; {result.seconds} s; {kind}trained on {result.winner.label}"
    if result.positive_share is not None:
        share = 100 * result.positive_share
        told += f"; positive is {result.classes[1]}, {share:.1f} % of the test rows"
    return told


def _values(result: RunResult) -> str:
    """The finalists in a table, and how one of them was chosen."""
    rows = []
    for each in result.finalists:
        values = (f"{each.validation:.4f}", f"{each.test:.4f}", _threshold(each))
        chosen = "chosen" if each.role == result.chosen else ""
        rows.append((each.label, *values, f"{each.rate:g}", str(each.epoch), chosen))
    unit = "trees" if result.unit == "tree" else "epoch"
    header = (label(result.metric), "validation", "test", "threshold", "learning rate", unit, "")
    table = blocks.table(header, rows)
    models = f"{result.models_verdict} " if result.models_verdict else ""
    told = f"How the loss was chosen, on validation data: {models}{result.verdict}"
    return table + blocks.note(told)


def _threshold(finalist: Finalist) -> str:
    if finalist.threshold is None:
        return ""
    one = isinstance(finalist.threshold, float)
    return f"{finalist.threshold:.3g}" if one else "one for each label"


def _comparison(result: RunResult, figures: Path) -> str:
    rows = [(each.label, each.test, *each.interval) for each in result.finalists]
    path = plots.intervals(rows, label(result.metric), figures / "comparison.png")
    return blocks.figure(path, "95 % intervals from resampled test rows.")


def _curves(result: RunResult, figures: Path) -> str:
    curves = {each.label: each.curve for each in result.finalists}
    steps = {each.label: each.step for each in result.finalists}
    unit = "trees" if result.unit == "tree" else "epoch"
    path = plots.curves(curves, steps, unit, label(result.metric), figures / "curves.png")
    tuned = any(each.threshold is not None for each in result.finalists)
    where = ", at its best threshold" if tuned else ""
    caption = f"The true metric is measured on validation data{where}."
    if result.unit == "epoch":
        caption = f"The loss is measured on training data. {caption}"
    return blocks.figure(path, caption)


def _binary_figures(stored: StoredRun, figures: Path) -> list[str]:
    """Thresholds, ROC and precision-recall curves, where every item has one score."""
    evidence = stored.evidence
    scores = {each.label: evidence.of(each).test for each in stored.result.finalists}
    if evidence.test_target.ndim != 1 or any(each.ndim != 1 for each in scores.values()):
        return []
    path = plots.roc_and_pr(scores, evidence.test_target, figures / "roc_pr.png")
    title = "Before and after" if len(scores) > 1 else "ROC and precision-recall curves"
    return [*_thresholds(stored, figures), blocks.section(title, blocks.figure(path, "Test data."))]


def _thresholds(stored: StoredRun, figures: Path) -> list[str]:
    """The metric of validation data at all thresholds, where it has one."""
    result = stored.result
    chosen: dict[str, float] = {}
    for each in result.finalists:
        if not isinstance(each.threshold, float):
            return []
        chosen[each.label] = each.threshold
    evidence = stored.evidence
    target = torch.from_numpy(evidence.validation_target)
    scores: dict[str, np.ndarray] = {}
    curves: dict[str, np.ndarray] = {}
    for each in result.finalists:
        found = evidence.of(each)
        scores[each.label] = found.validation
        if found.curve is not None:
            curves[each.label] = found.curve
            continue
        metric = result.metric_config.metric()
        own = torch.from_numpy(found.validation)
        curves[each.label] = threshold_curve(metric, own, target, chosen[each.label])
    name = label(result.metric)
    drawn = plots.thresholds(scores, curves, chosen, name, figures / "threshold.png")
    caption = (
        "Validation data. A score above the threshold is a positive decision; the dot and the "
        "dotted line mark the threshold that the model uses."
    )
    return [blocks.section("Where to cut", blocks.figure(drawn, caption))]


def _decisions(stored: StoredRun, figures: Path) -> list[str]:
    """Confusion matrices, where the metric asks for decisions."""
    evidence = stored.evidence
    decisions = {
        each.label: found
        for each in stored.result.finalists
        if (found := evidence.of(each).decisions) is not None
    }
    if not decisions or evidence.test_target.ndim != 1:
        return []
    path = figures / "confusion.png"
    drawn = plots.confusions(decisions, evidence.test_target, stored.result.classes, path)
    return [blocks.section("Decisions", blocks.figure(drawn, "Test data, counts of items."))]


def _importances(result: RunResult, figures: Path) -> list[str]:
    """The columns that matter most, where they are known."""
    found = result.importances
    if found is None:
        return []
    rows = list(zip(found.names, found.means, found.spreads, strict=True))[:_IMPORTANT]
    worse = "falls" if result.higher_is_better else "rises"
    name = label(result.metric)
    axis = f"how much {name} {worse}"
    drawn = plots.importance_bars(rows, axis, figures / "importances.png")
    caption = (
        f"How much {name} of {found.rows:,} test rows {worse} when a column is shuffled: mean and "
        f"standard deviation of {found.shuffles} shuffles. Columns with the same information may "
        "each look unimportant. If you use this figure to choose columns, test on other rows."
    )
    return [blocks.section("Which columns matter", blocks.figure(drawn, caption))]


def _alignment(stored: StoredRun, figures: Path) -> list[str]:
    """Losses beside the metric, where they could be ranked."""
    if not stored.evidence.alignments:
        return []
    result = stored.result
    path = figures / "alignment.png"
    drawn = plots.alignment(stored.evidence.alignments, label(result.metric), path)
    line = "falling" if result.higher_is_better else "rising"
    caption = (
        "Each point is a set of validation items, scored by one of the trials. The closer the "
        f"points are to one {line} line, the better the loss agrees with the metric. UniLoss is "
        "drawn by its relaxation, whose gradient it has; its own value is the metric."
    )
    return [blocks.section("Is the loss aligned with the metric?", blocks.figure(drawn, caption))]


def _trials(result: RunResult) -> str:
    """How the search works, and every trial, best first."""
    sign = -1 if result.higher_is_better else 1
    known = [(each, each.value) for each in result.tried if each.value is not None]
    rows = [
        (label(each.method), f"{each.rate:g}", str(each.epochs), str(each.epoch), f"{value:.4f}")
        for each, value in sorted(known, key=lambda pair: sign * pair[1])
    ]
    trees = result.unit == "tree"
    header = ("loss", "learning rate", *(_TREES if trees else _EPOCHS), "validation")
    usual = result.finalists[0].label
    compared = f", and is compared with {usual}" if len(result.finalists) > 1 else ""
    how = (
        "Every candidate is trained briefly, if there are many folds on two of them; the best two "
        "continue, and the best is trained to the end on all folds. The best trial on all folds "
        f"wins{compared}."
    )
    if trees:
        how = (
            "A hundred trees, if there are many folds on two of them, show which size is best. "
            "Trees of that size grow until validation data no longer gains. Trees on the metric "
            "follow a quarter of the best number of trees on the ordinary loss."
        )
    return f"<p>{how}</p>{blocks.folded(f'All {len(rows)} trials', blocks.table(header, rows))}"


def write_comparison(folder: Path, stored: StoredComparison) -> Path:
    """Draws the figure of a comparison, writes its page into the folder, and returns its path."""
    result = stored.result
    sections = [
        blocks.section("Comparison", _gains_figure(folder, result), _gains_table(result)),
        *blocks.columns(result),
        blocks.section("How to reproduce", blocks.reproduction(stored.config, result.command)),
    ]
    title = f"{label(result.metric)} on {stored.config.settings.source}: a comparison"
    about = f"{result.splits} splits" + blocks.amount_note(stored.config.settings.amounts)
    return blocks.write_page(folder / "report.html", title, about, _gains_verdict(result), sections)


def _gains_figure(folder: Path, result: ComparisonResult) -> str:
    gains = [(label(name), each.mean, *each.interval) for name, each in result.differences.items()]
    path = plots.intervals(
        [(label(result.ordinary), 0.0, 0.0, 0.0), *gains],
        f"gain in {label(result.metric)} over {label(result.ordinary)}",
        folder / "figures" / "comparison.png",
        sign="+",
    )
    caption = (
        f"Mean gain over {result.splits} splits into training and test rows, in pairs, with 95 % "
        "intervals. The intervals allow for rows that splits share, each method on its own; the "
        "p-values in the table are also corrected for the number of methods. Better is to the "
        "right."
    )
    return blocks.figure(path, caption)


def _gains_table(result: ComparisonResult) -> str:
    header = ("trained on", label(result.metric), "spread", "gain", "error", "p, corrected", "")
    rows = []
    for name, values in result.values.items():
        found = result.differences.get(name)
        gain = ("", "", "", "")
        if found is not None:
            gain = (f"{found.mean:+.4f}", f"{found.error:.4f}", f"{found.p:.3f}", found.verdict)
        rows.append((label(name), f"{fmean(values):.4f}", f"{stdev(values):.4f}", *gain))
    return blocks.table(header, rows)


def _gains_verdict(result: ComparisonResult) -> str:
    """What is shown of every method: better, worse, or nothing."""
    names: dict[str, list[str]] = {}
    for name, each in result.differences.items():
        names.setdefault(each.verdict, []).append(label(name))
    heads = {
        "better": f"Better than {result.yardstick}",
        "worse": f"Worse than {result.yardstick}",
        "no difference shown": f"No difference from {result.yardstick} is shown",
    }
    told = [f"{head}: {', '.join(names[key])}." for key, head in heads.items() if key in names]
    return " ".join(told) or f"There is nothing to compare {label(result.ordinary)} with."
