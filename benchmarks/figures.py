"""Pictures of the benchmark page, drawn from the same values as its tables.

A table with `figure = true` has a function of its name here. It takes the cells (mean and spread by
row and column), the settings of the rows, the values that the paper printed (None if it printed
none) and the path of the picture.

A table with `[pictures]` shows what networks predict for a few test images: `rows` names the rows,
the first of which is trained on the ordinary loss, and `kind` the function here, `masks` or
`joints`. It takes what the first seeds of these rows have kept (`shown.py`), their labels and the
path.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import shown

plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
_DISTANCES = ["0", "1_512", "1_128", "1_32", "1_8", "1_2"]
_LOSSES = {
    "auc": "1 - AUC",
    "average_precision": "1 - average precision",
    "f1": "1 - F1",
    "error_rate": "error rate",
}
_KINDS = {
    "cross": ("cross-entropy", "#222222"),
    "paper": ("ReLoss", "#2a6f97"),
    "alternate": ("ReLoss, alternate", "#00b4d8"),
    "steps": ("ReLoss, 10 to 1,000 learning steps", "#90c2de"),
    "free": ("no penalty", "#f4a261"),
    "reloss": ("no penalty, monotone", "#e76f51"),
    "approximation": ("approximation", "#9b5de5"),
    "margin": ("ReLoss on margins", "#bc4749"),
    "ls_ed": ("LS-ED", "#8d6e63"),
    "rank_loss": ("RankLoss", "#e9c46a"),
    "uniloss": ("UniLoss", "#6a994e"),
}
_CLASSES = 20  # that have colours of their own
_COLORS = {"accuracy": "#2a6f97", "accuracy_best": "#6a994e", "ap": "#bc4749"}


def fidelity(
    cells: dict[tuple[str, str], Any], rows: dict[str, dict[str, Any]], paper: Any, path: Path
) -> None:
    """Error and rank correlation by the share of flipped bits, with one line per row."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    positions = range(len(_DISTANCES))
    for axis, measure in zip(axes, ("error", "rank"), strict=True):
        for row, settings in rows.items():
            values = [cells[row, f"{measure}_{distance}"].mean for distance in _DISTANCES]
            metric, _, kind = row.rpartition("_")
            style = {
                "color": _COLORS[metric],
                "linestyle": "-" if kind == "multilinear" else "--",
                "marker": "o",
                "ms": 4,
            }
            axis.plot(positions, values, label=settings["label"], **style)
        printed = [next(iter(paper.values()))[f"{measure}_{distance}"] for distance in _DISTANCES]
        axis.plot(
            positions,
            printed,
            color="black",
            linestyle=":",
            marker="x",
            label="UniLoss, supplement, Table 1",
        )
        axis.set_xticks(positions, [distance.replace("_", "/") for distance in _DISTANCES])
        axis.set_xlabel("share of bits flipped")
    axes[0].set_yscale("symlog", linthresh=0.1)
    axes[0].set_ylim(0, None)
    axes[0].set_title("error of the interpolated metric, percentage points", fontsize=11)
    axes[1].set_title("rank correlation with the true metric", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def convergence(
    cells: dict[tuple[str, str], Any], rows: dict[str, dict[str, Any]], paper: Any, path: Path
) -> None:
    """The surrogate, its misfit and the true test loss during training, by metric and row."""
    names = list(dict.fromkeys(column.rsplit("_", 2)[0] for _, column in cells))
    moments = sorted({int(column.rsplit("_", 1)[1]) for _, column in cells})
    figure, axes = plt.subplots(
        len(rows), len(names), figsize=(13, 5.6), layout="constrained", sharex=True, sharey="col"
    )
    kinds = {
        "loss": ("surrogate", "#c2185b"),
        "misfit": ("misfit", "#888888"),
        "test": ("true loss on test data", "#1b9aaa"),
    }
    for line, (row, settings) in zip(axes, rows.items(), strict=True):
        for axis, name in zip(line, names, strict=True):
            for kind, (label, color) in kinds.items():
                found = [cells[row, f"{name}_{kind}_{moment}"] for moment in moments]
                _band(axis, moments, found, color=color, label=label)
            axis.set_ylim(-0.05, 1.05)
        line[0].set_ylabel(settings["label"])
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(_LOSSES.get(name, name), fontsize=11)
    for axis in axes[-1]:
        axis.set_xlabel("iterations")
    axes[0, 0].legend(frameon=False, fontsize=9)
    _save(figure, path)


def synthetic(
    cells: dict[tuple[str, str], Any], rows: dict[str, dict[str, Any]], paper: Any, path: Path
) -> None:
    """Rank correlation while losses learn, and the metric while they move inputs."""
    colors = {"metric": "#444444", "approximation": "#bc4749", "correlation": "#2a6f97"}
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for row, settings in rows.items():
        base, _, penalised = row.partition("_")
        style = {
            "color": colors[base],
            "linestyle": "--" if penalised else "-",
            "label": settings["label"],
        }
        for axis, kind in zip(axes, ("learning", "descent"), strict=True):
            moments = sorted(
                int(column.split("_")[1])
                for at, column in cells
                if at == row and column.startswith(kind)
            )
            found = [cells[row, f"{kind}_{moment}"] for moment in moments]
            if found:  # the metric itself has no learning curve
                _band(axis, moments, found, **style)
    axes[0].set(title="Spearman with the metric on held-out inputs", xlabel="learning steps")
    axes[1].set(title="metric of inputs that minimise each loss (lower is better)", xlabel="steps")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    _save(figure, path)


def reloss_mnist(
    cells: dict[tuple[str, str], Any], rows: dict[str, dict[str, Any]], paper: Any, path: Path
) -> None:
    """Accuracy by rank correlation (ReLoss, Figure 3a) and by the size of the loss (Figure 3b)."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    sizes = {
        "width_4": 53,
        "layers_2": 385,
        "width_16": 593,
        "width_64": 8513,
        "paper": 33409,
        "width_256": 132353,
    }
    shown = [row for row in rows if row not in sizes or row == "paper"]
    beside = [row for row in shown if row.endswith("_ce") or row == "cross_entropy"]
    alone = [row for row in shown if row not in beside or row == "cross_entropy"]
    near = [
        row
        for row in alone
        if cells[row, "accuracy"].mean > 97.5 and cells[row, "spearman"].mean < 99
    ]
    for axis, chosen, title in (
        (axes[0, 0], alone, "trained on the loss alone"),
        (axes[0, 1], near, "the same, only losses close to cross-entropy"),
        (axes[1, 0], beside, "trained on the loss and cross-entropy"),
    ):
        for row in chosen:
            ranked = cells[row, "spearman"]
            found = cells[row, "accuracy"]
            color = next(color for start, (_, color) in _KINDS.items() if row.startswith(start))
            style = {"color": color, "fmt": "o", "ms": 6, "capsize": 2, "lw": 0.8}
            axis.errorbar(ranked.mean, found.mean, found.spread, ranked.spread, **style)
        axis.set(
            title=title, xlabel="Spearman of the loss with accuracy, %", ylabel="test accuracy, %"
        )
    _band(
        axes[1, 1],
        list(sizes.values()),
        [cells[row, "accuracy"] for row in sizes],
        color="#2a6f97",
        marker="o",
    )
    usual = cells["cross_entropy", "accuracy"].mean
    axes[1, 1].axhline(usual, color=_KINDS["cross"][1], linestyle=":")
    axes[1, 1].set(
        title="ReLoss alone, by size of its network",
        xscale="log",
        xlabel="parameters of the loss",
        ylabel="test accuracy, %",
    )
    for label, color in _KINDS.values():
        axes[0, 0].plot([], [], "o", color=color, label=label)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    _save(figure, path)


def masks(kept: dict[str, dict[str, Any]], labels: dict[str, str], path: Path) -> None:
    """Photographs, true label maps and those of each row, one line for each image."""
    first = next(iter(kept.values()))
    columns = {"photograph": first["images"], "target": first["target"]}
    columns |= {labels[row]: found["predicted"] for row, found in kept.items()}
    figure, axes = _grid(len(first["images"]), list(columns), first["images"][0])
    colors = np.zeros((shown.VOID + 1, 3))
    colors[:_CLASSES] = matplotlib.colormaps["tab20"](np.arange(_CLASSES))[:, :3]
    for line, texts in zip(axes, zip(*columns.values(), strict=True), strict=True):
        void = shown.pixels(texts[1]) == shown.VOID
        for axis, text in zip(line, texts, strict=True):
            pixels = shown.pixels(text)
            if pixels.ndim == 2:
                pixels = colors[np.where(void, shown.VOID, pixels)]
            axis.imshow(pixels, interpolation="nearest")
    _save(figure, path)


def joints(kept: dict[str, dict[str, Any]], labels: dict[str, str], path: Path) -> None:
    """The true joints (rings) and those of each row (points) on photographs, a line for each row.

    A line joins the two, so that a long one is a large error.
    """
    first = next(iter(kept.values()))
    figure, axes = _grid(len(kept), [""] * len(first["images"]), first["images"][0])
    for line, (row, found) in zip(axes, kept.items(), strict=True):
        line[0].set_ylabel(labels[row])
        people = zip(first["images"], found["target"], found["predicted"], strict=True)
        for axis, (text, truth, places) in zip(line, people, strict=True):
            pixels = shown.pixels(text)
            scale = pixels.shape[0] / found["side"]
            axis.imshow(pixels)
            for joint, place in zip(truth, places, strict=True):
                if joint is None:
                    continue
                x, y = ((scale * (np.array([joint, place]) + 0.5)) - 0.5).T
                axis.plot(x, y, color="#ffd166", lw=1)
                axis.plot(x[:1], y[:1], "o", mfc="none", mec="white", ms=7)
                axis.plot(x[1:], y[1:], "o", color="#ef476f", ms=3.5)
            axis.set_xlim(-0.5, pixels.shape[1] - 0.5)
            axis.set_ylim(pixels.shape[0] - 0.5, -0.5)
    _save(figure, path)


def _grid(lines: int, titles: list[str], photograph: str) -> tuple[Any, Any]:
    """Axes without ticks, in the shape of a photograph, with titles above the columns."""
    height, width = shown.pixels(photograph).shape[:2]
    figure, axes = plt.subplots(
        lines,
        len(titles),
        figsize=(1.9 * len(titles), 1.9 * lines * height / width + 0.3),
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    return figure, axes


def gains(lines: list[tuple[str, Any, Any]], path: Path) -> None:
    """Cross-entropy and UniLoss, with one line per task: its label and the two cells."""
    figure, axis = plt.subplots(figsize=(8.4, 0.42 * len(lines) + 1.1), layout="constrained")
    lines = sorted(lines, key=lambda line: line[2].mean - line[1].mean)
    for height, (_, usual, ours) in enumerate(lines):
        axis.plot([usual.mean, ours.mean], [height, height], color="#9dbfd3", lw=3, zorder=1)
        for cell, color in ((usual, "#777777"), (ours, "#2a6f97")):
            axis.errorbar(
                cell.mean, height, xerr=cell.spread, fmt="o", color=color, ms=7, capsize=2, lw=1
            )
        end = max(usual.mean + usual.spread, ours.mean + ours.spread)
        gain = round(ours.mean - usual.mean, 3) + 0.0  # avoids -0.000
        axis.annotate(
            f"{gain:+.3f}", (end, height), (8, -3), textcoords="offset points", fontsize=9
        )
    axis.set_yticks(range(len(lines)), [label for label, _, _ in lines])
    axis.plot([], [], "o", color="#777777", label="trained on cross-entropy, threshold tuned")
    axis.plot([], [], "o", color="#2a6f97", label="trained on the metric, mg.UniLoss")
    axis.set_xlabel("metric on test data (bars: standard deviation over seeds)")
    axis.grid(axis="x", color="#eeeeee")
    axis.set_axisbelow(True)
    axis.margins(x=0.16)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=10)
    _save(figure, path)


def _band(axis: Any, positions: list[int], found: list[Any], **style: Any) -> None:
    """Draws a line of means in a band of their spread."""
    axis.plot(positions, [cell.mean for cell in found], **style)
    low = [cell.mean - cell.spread for cell in found]
    high = [cell.mean + cell.spread for cell in found]
    axis.fill_between(positions, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
