"""The figures of a run, one function each: numbers in, PNG files out.

Every panel is a file of its own, narrow enough for a telephone of 390 pixels at full size; a page
puts panels beside each other where it is wider.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from metricgrad.studies.evidence import LossAlignment

_ORDINARY = "#8d99ae"
_OURS = "#2a6f97"
_QUIET = "#5c677d"
_LETTERS = 44  # of a column's name
_WIDTH = 3.5  # inches; 325 pixels on the page


def _color(label: str) -> str:
    return _ORDINARY if label in ("cross-entropy", "ListNet") else _OURS


def _panel(height: float = 2.8) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH, height), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=_QUIET)
    return figure, axes


def _save(figure: Figure, path: Path, number: int | None = None) -> Path:
    """Writes a picture; those of several panels are numbered from 1."""
    path = path if number is None else path.with_stem(f"{path.stem}-{number}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def intervals(
    rows: Sequence[tuple[str, float, float, float]], name: str, path: Path, sign: str = ""
) -> list[Path]:
    """Values with their intervals, one row each; a dotted line marks the first, the one to beat.

    A row is its label, value, lower and upper end. `sign="+"` also writes the sign of gains.
    """
    figure, axes = _panel(0.7 + 0.55 * len(rows))
    for row, (label, value, low, high) in enumerate(rows):
        color = _color(label)
        axes.plot([low, high], [-row, -row], color=color, linewidth=2, solid_capstyle="round")
        axes.plot(value, -row, "o", color=color, ms=7)
        above = {"transform": axes.get_yaxis_transform(), "fontsize": 9, "va": "bottom"}
        axes.text(0.0, 0.22 - row, label, **above)
        axes.text(1.0, 0.22 - row, f"{value:{sign}.4f}", ha="right", **above)
    axes.axvline(rows[0][1], color=_ORDINARY, linewidth=0.8, linestyle=":")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-len(rows) + 0.6, 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(name, fontsize=9)
    return [_save(figure, path)]


def importance_bars(rows: Sequence[tuple[str, float, float]], name: str, path: Path) -> list[Path]:
    """What columns are worth, one bar each with its name above; `name` is that of the axis.

    A row is the column, the mean and the standard deviation, which is drawn as a line.
    """
    figure, axes = _panel(0.6 + 0.36 * len(rows))
    places = -np.arange(len(rows))
    names, means, spreads = zip(*rows, strict=True)
    axes.barh(places, means, height=0.4, color=_OURS, alpha=0.75)
    axes.errorbar(means, places, xerr=spreads, fmt="none", ecolor=_QUIET, elinewidth=1.2)
    axes.vlines(0 * places, places - 0.3, places + 0.2, color=_QUIET, linewidth=0.8)
    above = {"transform": axes.get_yaxis_transform(), "fontsize": 8, "va": "bottom"}
    for place, each, mean in zip(places, names, means, strict=True):
        short = each if len(each) <= _LETTERS else f"{each[: _LETTERS - 1]}…"
        axes.text(0.0, place + 0.22, short.replace("$", r"\$"), **above)
        axes.text(1.0, place + 0.22, f"{mean:.4f}", ha="right", **above)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-len(rows) + 0.6, 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(name, fontsize=9)
    return [_save(figure, path)]


def curves(
    found: Mapping[str, Sequence[Sequence[float | None]]],
    steps: Mapping[str, int],
    unit: str,
    name: str,
    path: Path,
) -> list[Path]:
    """Loss and metric after every epoch; `found` has a row for each epoch of each finalist.

    Trees have no loss, and `steps` of them are between two rows. `unit` names the axis.
    """
    known = [label for label, rows in found.items() if any(row[0] is not None for row in rows)]
    panels = [(f"loss: {label}", [label], 0) for label in known]  # each has a scale of its own
    panels.append((f"{name}, validation data", list(found), 1))
    saved = []
    for number, (title, labels, column) in enumerate(panels, 1):
        figure, axes = _panel()
        for label in labels:
            rows = found[label]
            values = [np.nan if row[column] is None else row[column] for row in rows]
            places = [steps[label] * number for number in range(1, len(rows) + 1)]
            axes.plot(places, values, color=_color(label), label=label)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(unit, fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(labels) > 1:
            axes.margins(y=0.25)  # room for the legend
            axes.legend(frameon=False, fontsize=8)
        saved.append(_save(figure, path, number))
    return saved


def thresholds(
    scores: Mapping[str, np.ndarray],
    curves: Mapping[str, np.ndarray],
    chosen: Mapping[str, float],
    name: str,
    path: Path,
) -> list[Path]:
    """The metric at every threshold, `[2, K]`, and the one that was chosen, which is among them."""
    saved = []
    for number, (label, each) in enumerate(scores.items(), 1):
        figure, axes = _panel()
        color = _color(label)
        cut = chosen[label]
        tried, values = curves[label]
        axes.plot(tried, values, color=color)
        reached = values[np.abs(tried - cut).argmin()]
        share = float((each > cut).mean())
        axes.axvline(cut, color=color, linewidth=0.8, linestyle=":")
        axes.plot(cut, reached, "o", color=color)
        # Far from the chosen threshold nothing happens, and a few scores go a long way.
        shares = (min(0.98, max(0.2, 10 * share)), share / 20)
        ends = np.quantile(each, [1 - shares[0], 1 - shares[1]])
        low, high = min(ends[0], cut), max(ends[1], cut)
        if high > low:
            axes.set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        axes.set_title(
            f"{label}\ncut at {cut:.3g}: {name} {reached:.3f}, {100 * share:.3g} % above",
            fontsize=9,
        )
        axes.set_xlabel("threshold (score)", fontsize=9)
        axes.set_ylabel(name, fontsize=9)
        saved.append(_save(figure, path, number))
    return saved


def confusions(
    decisions: Mapping[str, np.ndarray], target: np.ndarray, classes: Sequence[Any], path: Path
) -> list[Path]:
    """Confusion matrices side by side; `classes` are names in the order of their numbers."""
    saved = []
    for number, (label, found) in enumerate(decisions.items(), 1):
        figure, axes = _panel(3.2)
        counts = confusion_matrix(target, found, labels=list(range(len(classes))))
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if len(classes) <= 10:
            for row, column in np.ndindex(counts.shape):
                ink = {"color": "w" if shares[row, column] > 0.6 else "k", "fontsize": 9}
                axes.text(column, row, counts[row, column], ha="center", va="center", **ink)
            axes.set_xticks(range(len(classes)), [str(each) for each in classes], fontsize=8)
            axes.set_yticks(range(len(classes)), [str(each) for each in classes], fontsize=8)
        axes.set_xlabel("predicted", fontsize=9)
        axes.set_ylabel("true", fontsize=9)
        axes.set_title(label, fontsize=9)
        axes.spines[:].set_visible(False)
        saved.append(_save(figure, path, number))
    return saved


def roc_and_pr(scores: Mapping[str, np.ndarray], target: np.ndarray, path: Path) -> list[Path]:
    """ROC and precision-recall curves of test data, for targets 0 and 1."""
    (roc, left), (pr, right) = _panel(), _panel()
    for label, each in scores.items():
        color = _color(label)
        false_positives, true_positives, _ = roc_curve(target, each)
        precision, recall, _ = precision_recall_curve(target, each)
        left.plot(false_positives, true_positives, color=color, label=label)
        right.step(recall, precision, where="post", color=color)
    left.plot([0, 1], [0, 1], color="#cccccc", linewidth=0.8, linestyle=":")
    axes = ((left, "false positive rate", "true positive rate"), (right, "recall", "precision"))
    for each, below, beside in axes:
        each.set_xlabel(below, fontsize=9)
        each.set_ylabel(beside, fontsize=9)
    right.set_ylim(0, 1.03)
    left.set_title("ROC, test data", fontsize=9)
    right.set_title("precision and recall, test data", fontsize=9)
    left.legend(frameon=False, fontsize=8)
    return [_save(roc, path, 1), _save(pr, path, 2)]


def alignment(found: Sequence[LossAlignment], name: str, path: Path) -> list[Path]:
    """Losses against the metric over sets of validation items, with their rank correlations."""
    saved = []
    for number, each in enumerate(found, 1):
        figure, axes = _panel()
        color = _color(each.label)
        axes.scatter(each.losses, each.values, s=8, alpha=0.5, color=color, edgecolors="none")
        axes.set_title(f"{each.label}\nrank correlation {each.spearman:.3f}", fontsize=9)
        axes.set_xlabel("loss", fontsize=9)
        axes.set_ylabel(name, fontsize=9)
        saved.append(_save(figure, path, number))
    return saved
