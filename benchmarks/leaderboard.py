"""Builds `docs/leaderboard.md`: who wins, ties and loses, over the cells of all tables.

Everything on the page comes from the runs' JSON and the tables' TOML. The site makes its tables
sortable (`docs/assets/leaderboard.js`).
"""

import posixpath
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.board import Contest, Difference, contests, difference
from benchmarks.table import RESULTS, Table, table, table_names

PAGE = Path(__file__).parents[1] / "docs" / "leaderboard.md"
INTRODUCTION = """# Leaderboard

This page counts, over all measured cells, how often each loss wins. A cell is one metric of one
model on one data set. All numbers are generated from the runs in `benchmarks/results`, and every
cell links to its first run, which has its configuration, its commit and the command that repeats
it. On the site, a click on the head of a column sorts by it.

Losses are compared seed by seed. Two losses **tie** in a cell if the 95 % interval of their
difference contains 0 and the mean difference is below .005; if not, the sign of the mean difference
decides. In brackets: how many of the wins or losses have an interval without 0. With three seeds
these intervals are wide. A mean rank is read against the number of losses in a cell ("of"), because
tables compare different numbers of losses. "Ordinary loss" is cross-entropy, except for rankings
and poses, where it is what people train on there.
"""
GROUPS = (
    (
        True,
        "Everything tuned on validation data",
        "Each loss has its own search over learning rates and what else it has, on the same\n"
        "validation data; so has the ordinary loss.",
    ),
    (
        False,
        "One line swapped, nothing tuned",
        "The settings are the same for all losses, and values are means over them.",
    ),
)


def write(page: Path = PAGE) -> Path:
    """Builds the page and returns its path."""
    tables = [table(name) for name in sorted(table_names(), key=_order)]
    found = [contest for content in tables for contest in contests(content)]
    sections = [INTRODUCTION]
    for tuned, title, text in GROUPS:
        group = [contest for contest in found if contest.tuned == tuned]
        if group:
            sections += [f"## {title}\n", text + "\n", _against_ordinary(group)]
            sections += [_against_best(group), _against_each(group)]
    sections += [
        "## By table\n",
        _grouped(found, "table", lambda each: f"`{each.table}`"),
        "## By metric\n",
        _grouped(found, "metric", lambda each: each.metric),
        "## All cells\n",
        _cells(found),
        _absent(tables, found),
    ]
    page.write_text("\n".join(sections).rstrip() + "\n")
    return page


def _order(name: str) -> tuple[int, str]:
    return table(name).content.get("order", 99), name


def names(found: Iterable[Contest]) -> list[str]:
    """All losses on the board, ours first."""
    found = list(found)
    ours = [name for contest in found for name in contest.ours if name in contest.values]
    others = [name for contest in found for name in contest.values if name not in contest.ours]
    return list(dict.fromkeys([*ours, *others]))


def counted(found: Iterable[Difference]) -> tuple[str, str, str]:
    """Numbers of wins, ties and losses; in brackets, those whose interval leaves out 0."""
    found = list(found)

    def number(result: str) -> str:
        those = [each for each in found if each.result == result]
        return f"{len(those)} ({sum(each.clear for each in those)})"

    return number("win"), str(sum(each.result == "tie" for each in found)), number("loss")


def _line(name: str, group: list[Contest]) -> list[str] | None:
    """Rank and counts of a loss over the cells that it is in; None if there are none."""
    cells = [contest for contest in group if name in contest.values]
    if not cells:
        return None
    rank = statistics.fmean(contest.rank(name) for contest in cells)
    field = statistics.fmean(len(contest.values) for contest in cells)
    compared = [contest.against_ordinary(name) for contest in cells if name != contest.ordinary]
    shown = f"{statistics.fmean(each.mean for each in compared):+.4f}" if compared else ""
    counts = counted(compared) if compared else ("", "", "")
    return [str(len(cells)), f"{rank:.2f}", f"{field:.2f}", *counts, shown]


def _against_ordinary(group: list[Contest]) -> str:
    head = ["loss", "cells", "mean rank", "of", "wins", "ties", "losses", "mean difference"]
    lines = [[_bold(name, group), *(_line(name, group) or [])] for name in names(group)]
    return _table("Against the ordinary loss of the same cell", head, lines)


def _bold(name: str, group: list[Contest]) -> str:
    """Our losses are bold."""
    return f"**{name}**" if any(name in contest.ours for contest in group) else name


def _against_best(group: list[Contest]) -> str:
    head = ["loss", "cells", "wins", "ties", "losses", "won or tied"]
    head += ["linear or structured", "of these won"]
    lines = []
    for name in _ours(group):
        cells = [contest for contest in group if name in contest.values]
        found = [_with_best(contest, name) for contest in cells]
        hard = [
            _with_best(contest, name).result
            for contest in cells
            if contest.linear or contest.structured
        ]
        kept = sum(each.result != "loss" for each in found) / len(found)
        won = f"{hard.count('win') / len(hard):.0%}" if hard else ""
        lines.append(
            [f"**{name}**", str(len(cells)), *counted(found), f"{kept:.0%}", str(len(hard)), won]
        )
    caption = "Ours against the best of all others in the cell, the ordinary loss among them"
    return _table(caption, head, lines)


def _with_best(contest: Contest, name: str) -> Difference:
    return difference(contest.values[name], contest.values[contest.best_rival()])


def _ours(group: list[Contest]) -> list[str]:
    return [name for name in names(group) if any(name in each.ours for each in group)]


def _against_each(group: list[Contest]) -> str:
    """Our losses in columns, their rivals in rows."""
    ours = _ours(group)
    lines = []
    for rival in (name for name in names(group) if name not in ours):
        shown = []
        for name in ours:
            found = [
                difference(each.values[name], each.values[rival])
                for each in group
                if name in each.values and rival in each.values
            ]
            numbers = [sum(each.result == word for each in found) for word in _WORDS]
            shown.append(" / ".join(map(str, numbers)) if found else "")
        lines.append([rival, *shown])
    caption = "Ours against each single loss: wins / ties / losses"
    return _table(caption, ["rival", *(f"**{name}**" for name in ours)], lines)


_WORDS = ("win", "tie", "loss")


def _grouped(found: list[Contest], head: str, key: Callable[[Contest], str]) -> str:
    """Rank and counts of every loss in every group of cells."""
    groups: dict[str, list[Contest]] = {}
    for contest in found:
        groups.setdefault(key(contest), []).append(contest)
    lines = [
        [title, _bold(name, group), *(_line(name, group) or [])]
        for title, group in groups.items()
        for name in names(group)
    ]
    columns = [head, "loss", "cells", "mean rank", "of", "wins", "ties", "losses", "difference"]
    return _table("", columns, lines, text=2)


def _cells(found: list[Contest]) -> str:
    """Every loss in every cell."""
    head = ["cell", "loss", "metric", "value", "difference", "95 % interval", "result", "rank"]
    lines = []
    for contest in found:
        for name, seeds in contest.values.items():
            mean = statistics.fmean(seeds.values())
            path = contest.runs[name].path.relative_to(RESULTS).as_posix()
            target = posixpath.join("../benchmarks/results", path)
            shown = ["", "", ""]
            if name != contest.ordinary:
                each = contest.against_ordinary(name)
                shown = [f"{each.mean:+.4f}", f"{each.low:+.4f} to {each.high:+.4f}", each.result]
            cell = f"[{contest.table}: {contest.label}]({target})"
            value = f"{abs(mean):.4f}" if mean >= 0 else f"{1 + mean:.4f}"
            line = [cell, _bold(name, [contest]), contest.metric, value, *shown]
            lines.append([*line, f"{contest.rank(name):g} of {len(contest.values)}"])
    text = (
        "Differences are from the ordinary loss of the cell, whose line has none. Values of "
        "tables that print losses are shown as 1 - loss.\n"
    )
    return text + "\n" + _table("", head, lines, text=3, filterable=True)


def _absent(tables: list[Table], found: list[Contest]) -> str:
    """The tables that the board does not have, and why."""
    there = {contest.table for contest in found}
    lines = []
    for content in tables:
        if content.name in there:
            continue
        declared = content.content.get("leaderboard")
        if declared is None:
            why = "It does not say which of its rows are losses to compare."
        else:
            why = declared.get("left_out", "It has not been measured yet.")
        lines.append(f"- `{content.name}`, {content.title}: {why}")
    return "## Tables that are not on the board\n\n" + "\n".join(lines) if lines else ""


def _table(
    caption: str, head: list[str], lines: list[list[str]], text: int = 1, filterable: bool = False
) -> str:
    """A Markdown table that the site makes sortable; the first `text` columns are words."""
    kinds = ["---"] * text + ["---:"] * (len(head) - text)
    rows = [head, kinds, *lines]
    grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    kind = "sortable filterable" if filterable else "sortable"
    above = f"**{caption}**\n\n" if caption else ""
    return f'{above}<div class="{kind}" markdown>\n\n{grid}\n\n</div>\n'
