"""The page of `metricgrad compare`: gains over the ordinary loss, their intervals, and a table."""

from pathlib import Path
from statistics import fmean, stdev

from metricgrad.report import page, plots
from metricgrad.studies.results import ComparisonResult
from metricgrad.studies.run import StoredComparison
from metricgrad.training.labels import label


def write_comparison(folder: Path, stored: StoredComparison) -> Path:
    """Draws the figure of a comparison, writes its page into the folder, and returns its path."""
    result = stored.result
    sections = [
        page.section("Comparison", _figure(folder, result), _table(result)),
        *page.columns(result),
        page.section("How to reproduce", page.reproduction(stored.config, result.command)),
    ]
    title = f"{label(result.metric)} on {stored.config.settings.source}: a comparison"
    about = f"{result.splits} splits" + page.amounts(stored.config.settings.amounts)
    return page.write(folder / "report.html", title, about, _verdict(result), sections)


def _figure(folder: Path, result: ComparisonResult) -> str:
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
    return page.figure(path, caption)


def _table(result: ComparisonResult) -> str:
    header = ("trained on", label(result.metric), "spread", "gain", "error", "p, corrected", "")
    rows = []
    for name, values in result.values.items():
        found = result.differences.get(name)
        gain = ("", "", "", "")
        if found is not None:
            gain = (f"{found.mean:+.4f}", f"{found.error:.4f}", f"{found.p:.3f}", found.verdict)
        rows.append((label(name), f"{fmean(values):.4f}", f"{stdev(values):.4f}", *gain))
    return page.table(header, rows)


def _verdict(result: ComparisonResult) -> str:
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
