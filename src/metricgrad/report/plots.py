"""Pictures of a run, one function each, drawn from the numbers in its folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

USUAL, OURS, QUIET = "#8d99ae", "#2a6f97", "#5c677d"
_FIRST = "cross-entropy"


def _color(label: str) -> str:
    return USUAL if label.startswith(_FIRST) else OURS


def _axes(width: float = 4.8, height: float = 3.4, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * columns, height), dpi=150, layout="constrained")
    axes: Any = figure.subplots(1, columns)
    for each in np.ravel(axes):
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8, colors=QUIET)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def dots(
    rows: Sequence[tuple[str, float, float, float]], name: str, path: Path, sign: str = ""
) -> Path:
    """Values with intervals, one row each, the first being the one to beat.

    Args:
        rows: label, value, lower and upper end.
        name: of the metric.
        path: where the picture goes.
        sign: "+" writes the sign of positive values too.

    Returns:
        The path.
    """
    figure, axes = _axes(6.4, 0.9 + 0.42 * len(rows))
    for place, (label, value, low, high) in enumerate(rows):
        color = _color(label)
        axes.plot([low, high], [-place, -place], color=color, linewidth=2, solid_capstyle="round")
        axes.plot(value, -place, "o", color=color, ms=7)
        axes.annotate(
            f"{value:{sign}.4f}",
            (value, -place),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.axvline(rows[0][1], color=USUAL, linewidth=0.8, linestyle=":")
    axes.set_yticks([-place for place in range(len(rows))], [row[0] for row in rows], fontsize=9)
    axes.set_ylim(-len(rows) + 0.4, 0.7)
    axes.set_xlabel(name, fontsize=9)
    return _save(figure, path)


def curves(found: Mapping[str, Sequence[Sequence[float | None]]], name: str, path: Path) -> Path:
    """Loss and true metric after every epoch.

    Args:
        found: by entrant, pairs of loss and metric.
        name: of the metric.
        path: where the picture goes.

    Returns:
        The path.
    """
    figure, (*losses, last) = _axes(3.4, 3.2, columns=len(found) + 1)
    for (label, rows), own in zip(
        found.items(), losses, strict=True
    ):  # losses have scales of their own
        for axes, place in ((own, 0), (last, 1)):
            values = [np.nan if row[place] is None else row[place] for row in rows]
            axes.plot(range(1, len(rows) + 1), values, color=_color(label), label=label)
        own.set_title(f"loss: {label}", fontsize=9)
    last.set_title(f"{name}, validation data", fontsize=9)
    for axes in (*losses, last):
        axes.set_xlabel("epoch", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    last.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def thresholds(
    scores: Mapping[str, np.ndarray], target: np.ndarray, cuts: Mapping[str, float], value: Callable[..., float],
    name: str, path: Path,
) -> Path:  # fmt: skip
    """The metric of validation data at every threshold, and the one that was chosen.

    Args:
        scores: by entrant.
        target: of the same items.
        cuts: the chosen threshold of each.
        value: from scores, target and threshold to the metric.
        name: of the metric.
        path: where the picture goes.

    Returns:
        The path.
    """
    figure, axes = _axes()
    for entrant, each in scores.items():
        color = _color(entrant)
        tried = np.unique(np.quantile(each, np.linspace(0.01, 0.999, 80)))
        shares = [(each > cut).mean() for cut in tried]
        axes.plot(shares, [value(each, target, cut) for cut in tried], color=color, label=entrant)
        share = (each > cuts[entrant]).mean()
        axes.plot(share, value(each, target, cuts[entrant]), "o", color=color)
    axes.set_xscale("log")
    axes.set_xlabel("share of items above the threshold", fontsize=9)
    axes.set_ylabel(name, fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def confusions(
    decisions: Mapping[str, np.ndarray], target: np.ndarray, classes: Sequence[Any], path: Path
) -> Path:
    """Confusion matrices of test data, side by side.

    Args:
        decisions: by entrant, as classes.
        target: the truth.
        classes: their names, in the order of their numbers.
        path: where the picture goes.

    Returns:
        The path.
    """
    figure, grid = _axes(3.4, 3.2, len(decisions))
    for axes, (entrant, found) in zip(np.ravel(grid), decisions.items(), strict=True):
        counts = confusion_matrix(target, found, labels=list(range(len(classes))))
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if len(classes) <= 10:
            for row, column in np.ndindex(counts.shape):
                dark = shares[row, column] > 0.6
                axes.text(
                    column,
                    row,
                    counts[row, column],
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="w" if dark else "k",
                )
            axes.set_xticks(range(len(classes)), [str(each) for each in classes], fontsize=8)
            axes.set_yticks(range(len(classes)), [str(each) for each in classes], fontsize=8)
        axes.set_xlabel("predicted", fontsize=9)
        axes.set_ylabel("true", fontsize=9)
        axes.set_title(entrant, fontsize=9)
        axes.spines[:].set_visible(False)
    return _save(figure, path)


def roc_and_pr(scores: Mapping[str, np.ndarray], target: np.ndarray, path: Path) -> Path:
    """ROC and precision-recall curves of test data.

    Args:
        scores: by entrant.
        target: 0 and 1.
        path: where the picture goes.

    Returns:
        The path.
    """
    figure, (left, right) = _axes(columns=2)
    for entrant in scores:
        color = _color(entrant)
        wrong, right_ones, _ = roc_curve(target, scores[entrant])
        precision, recall, _ = precision_recall_curve(target, scores[entrant])
        left.plot(wrong, right_ones, color=color, label=entrant)
        right.step(recall, precision, where="post", color=color)
    left.plot([0, 1], [0, 1], color="#cccccc", linewidth=0.8, linestyle=":")
    left.set(xlabel="false positive rate", ylabel="true positive rate")
    right.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    left.set_title("ROC, test data", fontsize=10)
    right.set_title("precision and recall, test data", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def alignment(found: Mapping[str, Mapping[str, Any]], name: str, path: Path) -> Path:
    """Losses against the metric over sets of validation items, with their rank correlations.

    Args:
        found: by loss: `losses` and `values` of sets, and `spearman`.
        name: of the metric.
        path: where the picture goes.

    Returns:
        The path.
    """
    figure, grid = _axes(3.9, 3.3, len(found))
    for axes, (label, each) in zip(np.ravel(grid), found.items(), strict=True):
        axes.scatter(
            each["losses"], each["values"], s=8, alpha=0.5, color=_color(label), edgecolors="none"
        )
        axes.set_title(f"{label}\nrank correlation {each['spearman']:.3f}", fontsize=9)
        axes.set_xlabel("loss", fontsize=9)
        axes.set_ylabel(name, fontsize=9)
    return _save(figure, path)
