"""Pictures of the benchmark page that are drawn from more than the values of a table.

A table with `[curves]` shows how trainings went, over all seeds: the metric on training batches
and on validation data, by epoch, of some of its rows. A table with `[picture]` names a function
here by its `kind`, which draws what the reports of the first seed keep as `shown`. Both need a
`title`; without `rows` they show all rows, and of masks and joints the first row is trained on the
ordinary loss. They are drawn when the runs that they need are done.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import shown
from benchmarks.claims import Cell
from benchmarks.figures import band, save
from benchmarks.runner import finished
from benchmarks.sheets import tiles_of
from benchmarks.table import Table

_COLORS = ("#222222", "#2a6f97", "#bc4749", "#6a994e", "#f4a261", "#9b5de5")
_STYLES = {"train": ":", "valid": "-"}
_WORDS = {"train": "training batches", "valid": "validation"}
_EDGE = 2  # pixels of the frame around an image that was found
_GAP = 8
_CLASSES = 20  # that have colours of their own
_RIGHT, _WRONG = (106, 153, 78), (188, 71, 73)
Results = dict[str, list[dict[str, Any]]]  # of all seeds, by row


def draw(content: Table, folder: Path) -> None:
    """The pictures that a table has, as far as its runs are done."""
    for kind, seeds in (("curves", None), ("picture", 1)):
        wanted = content.content.get(kind)
        if wanted is None:
            continue
        runs = content.runs("small", seeds, wanted.get("rows"))
        if all(map(finished, runs)):
            found: Results = {}
            for run in runs:
                found.setdefault(run.row, []).append(json.loads(run.path.read_text())["result"])
            path = folder / f"{content.name}_{kind}.png"
            if kind == "curves":
                curves(found, content, path)
            elif all("shown" in results[0] for results in found.values()):
                _PICTURES[wanted["kind"]](found, content, path)


def curves(found: Results, content: Table, path: Path) -> None:
    """The metric by epoch, the mean of all seeds in a band of their spread."""
    wanted = content.content["curves"]
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for color, (row, results) in zip(itertools.cycle(_COLORS), found.items(), strict=False):
        for line in wanted["lines"]:
            epochs, cells = curve(results, line, wanted.get("smooth", 0.0))
            label = f"{content.rows[row]['label']}, {_WORDS[line]}"
            band(axis, epochs, cells, color=color, linestyle=_STYLES[line], label=label)
    axis.set(xlabel="epoch", ylabel=wanted["label"])
    if "lowest" in wanted:
        axis.set_ylim(bottom=wanted["lowest"])
    axis.legend(frameon=False, fontsize=9)
    save(figure, path)


def curve(results: list[dict[str, Any]], line: str, smooth: float) -> tuple[list[int], list[Cell]]:
    """Epochs, and one line of the curves of all seeds there, up to where the shortest one ends.

    `smooth` is how much of the mean so far a moving average keeps.
    """
    lines = []
    for result in results:
        whole = result.get("curve") or _of_chosen(result)
        column = whole["columns"].index(line)
        values = [row[column] for row in whole["rows"]]
        for place in range(1, len(values)):
            values[place] = smooth * values[place - 1] + (1 - smooth) * values[place]
        lines.append(values)
    number = min(map(len, lines))
    cells = [Cell([values[place] for values in lines]) for place in range(number)]
    return list(range(1, number + 1)), cells


def _of_chosen(result: dict[str, Any]) -> dict[str, Any]:
    """The curve of the trial whose learning rate was chosen, and not that of its screening."""
    rate = result["chosen"]["learning_rate"]
    found = [trial["curve"] for trial in result["trials"] if trial["learning_rate"] == rate]
    return max(found, key=lambda each: len(each["rows"]))


def relations(found: Results, content: Table, path: Path) -> None:
    """Sets as dots, the loss beside the metric, for the ordinary loss and for ReLoss."""
    figure, axes = plt.subplots(
        2, len(found), figsize=(2.7 * len(found), 5.4), layout="constrained", squeeze=False
    )
    kinds = {"ordinary": "ordinary loss", "reloss": "ReLoss"}
    for column, (row, results) in zip(axes.T, found.items(), strict=True):
        dots = results[0]["shown"]
        column[0].set_title(content.rows[row]["label"].replace(", ", "\n"), fontsize=9)
        for axis, (name, label) in zip(column, kinds.items(), strict=True):
            axis.scatter(dots[name], dots["metric"], s=9, alpha=0.6, color="#2a6f97", lw=0)
            spearman = results[0]["values"][f"{name}_spearman"]
            axis.set_xlabel(f"{label}, Spearman {spearman:.2f}", fontsize=9)
            axis.tick_params(labelsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("metric")
    save(figure, path)


def retrieval(found: Results, content: Table, path: Path) -> None:
    """Queries, and the images that rank first for each before and after the training."""
    kept = _kept(found, content)
    blocks = []
    titles = ["query", "before training"]
    for label, each in kept.items():
        right = np.array(each["relevant"]["after"])
        queries, number = right.shape
        tiles = tiles_of(each["sheet"], queries, 1 + 2 * number)
        if not blocks:
            blocks.append(_framed(tiles[:, :1], np.full((queries, 1), -1)))
            before = np.array(each["relevant"]["before"])
            blocks.append(_framed(tiles[:, 1 : 1 + number], before))
        blocks.append(_framed(tiles[:, 1 + number :], right))
        titles.append(f"after {label}")
    gap = np.full((blocks[0].shape[0], _GAP, 3), 255, np.uint8)
    parts = [part for block in blocks for part in (block, gap)][:-1]
    figure, axis = plt.subplots(figsize=(13, 4.4), layout="constrained")
    axis.imshow(np.concatenate(parts, 1), interpolation="nearest")
    axis.axis("off")
    left = 0
    for title, block in zip(titles, blocks, strict=True):
        axis.text(left, -6, title, fontsize=10, va="bottom")
        left += block.shape[1] + _GAP
    save(figure, path)


def _framed(tiles: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Tiles `[R, C, H, W]` as one picture; frames are for right (1), wrong (0) or neither (-1)."""
    rows, columns, height, width = tiles.shape
    shape = (rows, columns, height + 2 * _EDGE, width + 2 * _EDGE, 3)
    picture = np.full(shape, 255, np.uint8)
    picture[right == 1] = _RIGHT
    picture[right == 0] = _WRONG
    picture[:, :, _EDGE:-_EDGE, _EDGE:-_EDGE] = tiles[..., None]
    return picture.transpose(0, 2, 1, 3, 4).reshape(rows * shape[2], columns * shape[3], 3)


def masks(found: Results, content: Table, path: Path) -> None:
    """Photographs, true label maps and those of each row, one line for each image."""
    kept = _kept(found, content)
    first = next(iter(kept.values()))
    columns = {"photograph": first["images"], "target": first["target"]}
    columns |= {label: each["predicted"] for label, each in kept.items()}
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
    save(figure, path)


def joints(found: Results, content: Table, path: Path) -> None:
    """The true joints (rings) and those of each row (points) on photographs, a line for each row.

    A line joins the two, so that a long one is a large error.
    """
    kept = _kept(found, content)
    first = next(iter(kept.values()))
    figure, axes = _grid(len(kept), [""] * len(first["images"]), first["images"][0])
    for line, (label, each) in zip(axes, kept.items(), strict=True):
        line[0].set_ylabel(label)
        people = zip(first["images"], each["target"], each["predicted"], strict=True)
        for axis, (text, truth, places) in zip(line, people, strict=True):
            pixels = shown.pixels(text)
            scale = pixels.shape[0] / each["side"]
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
    save(figure, path)


def _kept(found: Results, content: Table) -> dict[str, dict[str, Any]]:
    """What the first seed of each row kept, by the row's label."""
    return {
        content.rows[row]["label"].replace("`", ""): results[0]["shown"]
        for row, results in found.items()
    }


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


_PICTURES: dict[str, Callable[[Results, Table, Path], None]] = {
    "relations": relations,
    "retrieval": retrieval,
    "masks": masks,
    "joints": joints,
}
