"""The page of a run: one HTML file with its pictures inside, which needs no network and no other file."""

import base64
import html
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from metricgrad.metrics.registry import metric_from_config
from metricgrad.report import plots

_SCALE = 0.62  # of a picture's own pixels
_STYLE = """
:root { --ink: #1d2733; --quiet: #5c677d; --line: #dfe4ea; --ours: #2a6f97; --paper: #ffffff; --wash: #f4f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 12px; }
p { margin: 0 0 12px; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.verdict { font-size: 19px; border-left: 4px solid var(--ours); padding: 4px 0 4px 16px; margin: 24px 0; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 22px 24px; margin: 20px 0; overflow-x: auto; }
img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figure { margin: 0; } figcaption { color: var(--quiet); font-size: 14px; margin-top: 10px; }
table { border-collapse: collapse; width: 100%; margin-bottom: 12px; font-variant-numeric: tabular-nums;
  font-size: 15px; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--quiet); font-weight: 600; }
pre { background: var(--wash); padding: 12px 14px; border-radius: 8px; overflow-x: auto; font-size: 14px; }
details summary { cursor: pointer; color: var(--ours); }
@media (max-width: 700px) {
  main { padding: 20px 10px 40px; } section { padding: 14px 12px; } th, td { padding: 5px 6px; }
  table { font-size: 13px; } figure { overflow-x: auto; } img { max-width: none; } figcaption { max-width: 85vw; }
}
"""


def write_run(folder: Path) -> Path:
    """Draws the pictures of a run of `metricgrad train` and writes its page.

    Args:
        folder: of the run, with config.json, result.json and evidence.npz.

    Returns:
        The page's path.
    """
    asked, result = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("config", "result")
    )
    with np.load(folder / "evidence.npz", allow_pickle=False) as file:
        evidence = dict(file)
    name, chosen = result["metric"], label(result["chosen"], result["finalists"][result["chosen"]])
    first, *others = _figures(folder, result, evidence)
    sections = [
        _section("On test data", _values(result), first),
        *(_section(title, figure) for title, figure in others),
        _section("What was tried", _tried(result)),
        _section("How to reproduce", _reproduce(asked, result)),
    ]
    rows = result["rows"]
    without = (
        f", {rows['without_target']:,} left out for want of a target"
        if rows["without_target"]
        else ""
    )
    head = f"{name} on {asked['asked']['data'] or 'digits from scikit-learn'}"
    about = (
        f"{rows['train']:,} rows for training, {rows['test']:,} for testing{without}; {result['seconds']} s; "
        f"trained on {chosen}"
    )
    if result.get("positive_share") is not None:
        about += f"; positive is {result['classes'][1]}, {100 * result['positive_share']:.1f} % of the rows for testing"
    return _write(folder / "report.html", head, about, result["verdict"], sections)


def write_comparison(folder: Path) -> Path:
    """Draws the picture of `metricgrad compare` and writes its page.

    Args:
        folder: of the comparison, with config.json and result.json.

    Returns:
        The page's path.
    """
    asked, result = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("config", "result")
    )
    against = result["differences"]
    gains = [(label, found["mean"], *found["interval"]) for label, found in against.items()]
    figure = _figure(
        plots.dots(
            [("cross-entropy", 0.0, 0.0, 0.0), *gains],
            f"gain in {result['metric']} over cross-entropy",
            folder / "figures" / "comparison.png",
            sign="+",
        ),
        f"Mean gain over {result['splits']} splits of the data into training and test, paired, with 95 % intervals "
        "that allow for rows shared by training parts, each for itself; p in the table is corrected for their number. "
        "Better is to the right.",
    )
    header = ("trained on", result["metric"], "spread", "gain", "error", "p, corrected")
    cells = []
    for label, values in result["values"].items():
        found, cell = against.get(label), (label, f"{fmean(values):.4f}", f"{stdev(values):.4f}")
        more = (
            ("", "", "")
            if found is None
            else (f"{found['mean']:+.4f}", f"{found['error']:.4f}", f"{found['p']:.3f}")
        )
        cells.append((*cell, *more))
    shown = {name: found["mean"] for name, found in against.items() if found["p"] < 0.05}
    told = [
        f"{word} than cross-entropy with its threshold tuned: {', '.join(names)}."
        for word, names in (
            ("Better", [name for name in shown if shown[name] > 0]),
            ("Worse", [name for name in shown if shown[name] < 0]),
        )
        if names
    ]
    verdict = (
        " ".join(told)
        or "No method is shown to differ from cross-entropy with its threshold tuned."
    )
    sections = [
        _section("Comparison", figure, _table(header, cells)),
        _section("How to reproduce", _reproduce(asked, result)),
    ]
    head = f"{result['metric']} on {asked['asked']['data'] or 'digits from scikit-learn'}: a comparison"
    return _write(folder / "report.html", head, f"{result['splits']} splits", verdict, sections)


def _figures(folder: Path, result: dict[str, Any], evidence: dict[str, np.ndarray]) -> list[Any]:
    """The pictures with their titles; the first stands with the values."""
    name, place, finalists = result["metric"], folder / "figures", result["finalists"]
    labels = {each: label(each, found) for each, found in finalists.items()}
    rows = [(labels[each], found["test"], *found["interval"]) for each, found in finalists.items()]
    found: list[Any] = [
        _figure(
            plots.dots(rows, name, place / "comparison.png"), "95 % intervals, test data resampled."
        )
    ]
    curves = {labels[each]: found["curve"] for each, found in finalists.items()}
    picture = plots.curves(curves, name, place / "curves.png")
    tuned = any(each["threshold"] is not None for each in finalists.values())
    caption = (
        "The loss is that of training data; the metric is the true one"
        + ", at its best threshold." * tuned
    )
    found.append(("While it trained", _figure(picture, caption if tuned else caption + ".")))
    scores = {labels[each]: evidence[f"test_{each}"] for each in finalists}
    target = evidence["test_target"]
    if target.ndim == 1 and all(each.ndim == 1 for each in scores.values()):
        found += _thresholds(result, evidence, labels, place)
        picture = plots.roc_and_pr(scores, target, place / "roc_pr.png")
        title = "Before and after" if len(scores) > 1 else "Right and wrong, at every threshold"
        found.append((title, _figure(picture, "Test data.")))
    decisions = {
        labels[each]: evidence[f"decided_{each}"]
        for each in finalists
        if f"decided_{each}" in evidence
    }
    if decisions and target.ndim == 1:
        picture = plots.confusions(decisions, target, result["classes"], place / "confusion.png")
        found.append(("What was decided", _figure(picture, "Test data, counts of items.")))
    aligned = _aligned(evidence)
    if aligned:
        picture = plots.alignment(aligned, name, place / "alignment.png")
        line = "falling" if result["higher_is_better"] else "rising"
        caption = (
            "Sets of validation items, scored by all that was tried, whatever it was trained on: the closer to one "
            f"{line} line, the better. UniLoss is drawn by its relaxation, which it descends; its value is the metric."
        )
        found.append(("Is the loss aligned with the metric?", _figure(picture, caption)))
    return found


def label(name: str, found: dict[str, Any]) -> str:
    """What a finalist is called."""
    return "cross-entropy" if found["method"] == name == "cross_entropy" else found["method"]


def _thresholds(
    result: dict[str, Any], evidence: dict[str, np.ndarray], labels: dict[str, str], place: Path
) -> list[tuple[str, str]]:
    """The metric of validation data at all thresholds, where it has one."""
    cuts = {labels[each]: found["threshold"] for each, found in result["finalists"].items()}
    if any(not isinstance(cut, float) for cut in cuts.values()):
        return []
    metric = metric_from_config(result["metric_config"])

    def value(scores: np.ndarray, truth: np.ndarray, cut: float) -> float:
        moved, values = metric.at_threshold(torch.tensor(cut), torch.from_numpy(scores))
        return float(moved(values, torch.from_numpy(truth)))

    valid = {labels[each]: evidence[f"valid_{each}"] for each in labels}
    picture = plots.thresholds(
        valid, evidence["valid_target"], cuts, value, result["metric"], place / "threshold.png"
    )
    return [
        (
            "Where to cut",
            _figure(picture, "Validation data; the dot is the threshold that was chosen."),
        )
    ]


def _aligned(evidence: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Losses and values of sets, by loss."""
    names = [str(each) for each in evidence.get("aligned_names", [])]
    return {
        name: {
            "losses": evidence[f"aligned_{number}_losses"],
            "values": evidence[f"aligned_{number}_values"],
            "spearman": float(evidence[f"aligned_{number}_spearman"]),
        }
        for number, name in enumerate(names)
    }


def _values(result: dict[str, Any]) -> str:
    rows, finalists, bounds = [], result["finalists"], result.get("test_gain_interval")
    for name, found in finalists.items():
        cut = found["threshold"]
        shown = (
            f"{cut:.3g}" if isinstance(cut, float) else "" if cut is None else "one for each label"
        )
        mark = "chosen" if name == result["chosen"] else ""
        values = (
            f"{found['validation']:.4f}",
            f"{found['test']:.4f}",
            shown,
            f"{found['rate']:g}",
            str(found["epoch"]),
        )
        rows.append((label(name, found), *values, mark))
    table = _table(
        (result["metric"], "validation", "test", "threshold", "learning rate", "epoch", ""), rows
    )
    if bounds is None:
        return table
    gain = finalists["challenger"]["test"] - finalists["cross_entropy"]["test"]
    gain = gain if result["higher_is_better"] else -gain
    told = f"On the same test rows the challenger gains {gain:+.4f}, 95 % interval {bounds[0]:+.4f} to {bounds[1]:+.4f}."
    return f"{table}<p class=quiet>{told}</p>"


def _tried(result: dict[str, Any]) -> str:
    sign = -1 if result["higher_is_better"] else 1
    tried = sorted(
        (each for each in result["tried"] if each["value"] is not None),
        key=lambda each: sign * each["value"],
    )
    rows = [
        (
            each["method"],
            f"{each['rate']:g}",
            str(each["epochs"]),
            str(each["epoch"]),
            f"{each['value']:.4f}",
        )
        for each in tried
    ]
    table = _table(("loss", "learning rate", "epochs", "best epoch", "validation"), rows)
    meets = ", and meets cross-entropy" if len(result["finalists"]) > 1 else ""
    return (
        "<p>Everyone trains briefly, the best third for longer, the best two to the end; the best of all these "
        f"trainings counts, as a short one can be best{meets}.</p>"
        f"<details><summary>All {len(rows)} trainings</summary>{table}</details>"
    )


def _reproduce(asked: dict[str, Any], result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in asked["versions"].items())
    command = result.get("command") or shlex.join(["metricgrad", asked["asked"]["command"]])
    settings = html.escape(json.dumps(asked["asked"], indent=2))
    return (
        f"<pre>{html.escape(command)}</pre><p class=quiet>{html.escape(versions)}</p>"
        f"<details><summary>All settings</summary><pre>{settings}</pre></details>"
    )


def _figure(path: Path, caption: str) -> str:
    picture = path.read_bytes()
    data, text = base64.b64encode(picture).decode(), html.escape(caption)
    # A PNG's width stands in bytes 16 to 19; one scale for all pictures, so that their letters are
    # of one size.
    width = round(_SCALE * int.from_bytes(picture[16:20], "big"))
    image = f'<img alt="{text}" width="{width}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def _write(path: Path, head: str, about: str, verdict: str, sections: list[str]) -> Path:
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(head)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><main><h1>{html.escape(head)}</h1>"
        f'<p class="quiet">{html.escape(about)}</p><p class="verdict">{html.escape(verdict)}</p>'
        f'{"".join(sections)}<p class="quiet">metricgrad: train on the metric you report.</p></main></body></html>\n'
    )
    partial = path.with_suffix(".partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(path)
    return path
