"""Answers, words and translations to be read: what a fine-tuning made better, and what worse.

A table with `[samples]` names two rows, `before` and `after`. Their runs of seed 0 keep what they
gave for the first test items, with a value of each item. The items whose value rose most and those
whose value fell most are shown side by side.
"""

import json
from typing import Any

from benchmarks.table import Run, Table

_SHOWN = 5


def shown(content: Table, runs: list[Run]) -> list[str]:
    """Lines of Markdown with the best and the worst changes; none if a run is missing."""
    settings = content.content.get("samples")
    if settings is None:
        return []
    lines: list[str] = []
    for column in content.content.get("columns", {"all": {}}):
        before = _of(settings["before"], column, runs)
        after = _of(settings["after"], column, runs)
        if before and after:
            label = content.content.get("columns", {}).get(column, {}).get("label", "")
            lines += _changes(content, settings, before, after, f", {label}" if label else "")
    return lines


def _of(row: str, column: str, runs: list[Run]) -> list[Any]:
    """What the first seed of a row gave."""
    for run in runs:
        if (run.row, run.column, run.seed) == (row, column, 0):
            return json.loads(run.path.read_text())["result"].get("samples", [])
    return []


def _changes(
    content: Table, settings: dict[str, Any], before: list[Any], after: list[Any], label: str
) -> list[str]:
    names = [content.rows[settings[name]]["label"] for name in ("before", "after")]
    pairs = list(zip(before, after, strict=True))
    order = sorted(range(len(pairs)), key=lambda each: pairs[each][0][-1] - pairs[each][1][-1])
    changes = [pairs[each][1][-1] - pairs[each][0][-1] for each in order]
    best = [each for each, change in zip(order, changes, strict=True) if change > 0][:_SHOWN]
    worst = [each for each, change in zip(order, changes, strict=True) if change < 0][-_SHOWN:]
    lines = []
    for title, chosen in (("Most improved", best), ("Most worsened", worst[::-1])):
        lines += ["", f"**{title} of {len(pairs)} test items{label}**", ""]
        lines.append("| " + " | ".join([*settings["columns"], *names, settings["value"]]) + " |")
        lines.append("| --- |" + " --- |" * (len(settings["columns"]) + 1) + " ---: |")
        for one, other in (pairs[each] for each in chosen):
            values = f"{one[-1]:g} to {other[-1]:g}"
            cells = [*one[:-2], one[-2], other[-2], values]
            lines.append("| " + " | ".join(str(each).replace("|", "\\|") for each in cells) + " |")
        if not chosen:
            lines.append("| none |" + " |" * (len(settings["columns"]) + 2))
    return lines
