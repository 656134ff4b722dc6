"""The page of `metricgrad compare`: gains over cross-entropy with their intervals, and a table."""

from pathlib import Path
from statistics import fmean, stdev

from metricgrad.report import page, plots
from metricgrad.studies.results import ComparisonResult
from metricgrad.studies.run import StoredComparison


def write_comparison(folder: Path, stored: StoredComparison) -> Path:
    """Draws the figure of a comparison, writes its page into the folder, and returns its path."""
    result = stored.result
    sections = [
        page.section("Comparison", _figure(folder, result), _table(result)),
        page.section("How to reproduce", page.reproduction(stored.config, result.command)),
    ]
    title = f"{result.metric} on {stored.config.settings.source}: a comparison"
    about = f"{result.splits} splits"
    return page.write(folder / "report.html", title, about, _verdict(result), sections)


def _figure(folder: Path, result: ComparisonResult) -> str:
    gains = [(name, each.mean, *each.interval) for name, each in result.differences.items()]
    path = plots.intervals(
        [("cross-entropy", 0.0, 0.0, 0.0), *gains],
        f"gain in {result.metric} over cross-entropy",
        folder / "figures" / "comparison.png",
        sign="+",
    )
    caption = (
        f"Mean gain over {result.splits} splits into training and test rows, in pairs, with 95 % "
        "intervals. The intervals allow for rows that splits share, each method on its own; the "
        "p-values in the table are also corrected for the number of methods. Better is to the "
        "right."
    )
    return page.figure(path, caption)


def _table(result: ComparisonResult) -> str:
    header = ("trained on", result.metric, "spread", "gain", "error", "p, corrected")
    rows = []
    for name, values in result.values.items():
        found = result.differences.get(name)
        gain = ("", "", "")
        if found is not None:
            gain = (f"{found.mean:+.4f}", f"{found.error:.4f}", f"{found.p:.3f}")
        rows.append((name, f"{fmean(values):.4f}", f"{stdev(values):.4f}", *gain))
    return page.table(header, rows)


def _verdict(result: ComparisonResult) -> str:
    shown = {name: each.mean for name, each in result.differences.items() if each.significant}
    better = [name for name, mean in shown.items() if mean > 0]
    worse = [name for name, mean in shown.items() if mean < 0]
    told = [
        f"{word} than cross-entropy with its threshold tuned: {', '.join(names)}."
        for word, names in (("Better", better), ("Worse", worse))
        if names
    ]
    none = "No method is shown to differ from cross-entropy with its threshold tuned."
    return " ".join(told) or none
