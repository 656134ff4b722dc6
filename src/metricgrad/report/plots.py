"""The figures of a run, one function each: numbers in, a PNG file out."""

from collections.abc import Callable, Mapping, Sequence
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


def _color(label: str) -> str:
    return _ORDINARY if label.startswith("cross-entropy") else _OURS


def _axes(width: float = 4.8, height: float = 3.4, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * columns, height), dpi=150, layout="constrained")
    axes: Any = figure.subplots(1, columns)
    for each in np.ravel(axes):
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8, colors=_QUIET)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def intervals(
    rows: Sequence[tuple[str, float, float, float]], name: str, path: Path, sign: str = ""
) -> Path:
    """Values with their intervals, one row each; a dotted line marks the first, the one to beat.

    A row is its label, value, lower and upper end. `sign="+"` also writes the sign of gains.
    """
    figure, axes = _axes(6.4, 0.9 + 0.42 * len(rows))
    for row, (label, value, low, high) in enumerate(rows):
        color = _color(label)
        axes.plot([low, high], [-row, -row], color=color, linewidth=2, solid_capstyle="round")
        axes.plot(value, -row, "o", color=color, ms=7)
        above = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate(f"{value:{sign}.4f}", (value, -row), **above)
    axes.axvline(rows[0][1], color=_ORDINARY, linewidth=0.8, linestyle=":")
    axes.set_yticks([-row for row in range(len(rows))], [row[0] for row in rows], fontsize=9)
    axes.set_ylim(-len(rows) + 0.4, 0.7)
    axes.set_xlabel(name, fontsize=9)
    return _save(figure, path)


def curves(found: Mapping[str, Sequence[Sequence[float | None]]], name: str, path: Path) -> Path:
    """Loss and metric after every epoch; `found` has a row for each epoch of each finalist."""
    figure, (*losses, last) = _axes(3.4, 3.2, columns=len(found) + 1)
    for (label, rows), own in zip(found.items(), losses, strict=True):
        # Losses have scales of their own, so each gets its own axes; the metric is shared.
        for axes, column in ((own, 0), (last, 1)):
            values = [np.nan if row[column] is None else row[column] for row in rows]
            axes.plot(range(1, len(rows) + 1), values, color=_color(label), label=label)
        own.set_title(f"loss: {label}", fontsize=9)
    last.set_title(f"{name}, validation data", fontsize=9)
    for axes in (*losses, last):
        axes.set_xlabel("epoch", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    last.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def thresholds(
    scores: Mapping[str, np.ndarray],
    target: np.ndarray,
    chosen: Mapping[str, float],
    value: Callable[[np.ndarray, np.ndarray, float], float],
    name: str,
    path: Path,
) -> Path:
    """The metric at every threshold, and the threshold that was chosen; `value` computes it."""
    figure, axes = _axes()
    for label, each in scores.items():
        color = _color(label)
        tried = np.unique(np.quantile(each, np.linspace(0.01, 0.999, 80)))
        shares = [(each > cut).mean() for cut in tried]
        axes.plot(shares, [value(each, target, cut) for cut in tried], color=color, label=label)
        share = (each > chosen[label]).mean()
        axes.plot(share, value(each, target, chosen[label]), "o", color=color)
    axes.set_xscale("log")
    axes.set_xlabel("share of items above the threshold", fontsize=9)
    axes.set_ylabel(name, fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def confusions(
    decisions: Mapping[str, np.ndarray], target: np.ndarray, classes: Sequence[Any], path: Path
) -> Path:
    """Confusion matrices side by side; `classes` are names in the order of their numbers."""
    figure, grid = _axes(3.4, 3.2, len(decisions))
    for axes, (label, found) in zip(np.ravel(grid), decisions.items(), strict=True):
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
    return _save(figure, path)


def roc_and_pr(scores: Mapping[str, np.ndarray], target: np.ndarray, path: Path) -> Path:
    """ROC and precision-recall curves of test data, for targets 0 and 1."""
    figure, (left, right) = _axes(columns=2)
    for label, each in scores.items():
        color = _color(label)
        false_positives, true_positives, _ = roc_curve(target, each)
        precision, recall, _ = precision_recall_curve(target, each)
        left.plot(false_positives, true_positives, color=color, label=label)
        right.step(recall, precision, where="post", color=color)
    left.plot([0, 1], [0, 1], color="#cccccc", linewidth=0.8, linestyle=":")
    left.set(xlabel="false positive rate", ylabel="true positive rate")
    right.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    left.set_title("ROC, test data", fontsize=10)
    right.set_title("precision and recall, test data", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def alignment(found: Sequence[LossAlignment], name: str, path: Path) -> Path:
    """Losses against the metric over sets of validation items, with their rank correlations."""
    figure, grid = _axes(3.9, 3.3, len(found))
    for axes, each in zip(np.ravel(grid), found, strict=True):
        color = _color(each.label)
        axes.scatter(each.losses, each.values, s=8, alpha=0.5, color=color, edgecolors="none")
        axes.set_title(f"{each.label}\nrank correlation {each.spearman:.3f}", fontsize=9)
        axes.set_xlabel("loss", fontsize=9)
        axes.set_ylabel(name, fontsize=9)
    return _save(figure, path)
