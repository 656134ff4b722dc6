"""Numbers that are written in README and docs, each compared with the runs that it comes from.

`numbers.toml` has a section for each page. A result is a piece of the page with `{}` in place of
each number, and where the numbers come from:

    ["| cross-entropy | {} | {} | {} |", "relaxations/cross_entropy/*"]
    ["gains {} on average", "mean swap/*_mlp_*/metric_loss"]

A source is a cell, `table/row/column`, whose mean over seeds is meant; with `*` it is several, in
the order of the table, unless `mean`, `max` or `min` stands before it. `sd` is the spread of a
cell. `A - B` subtracts cell by cell (`1 - B` turns a loss into its metric), `A / B` divides the
sums, and `* 100` at the end makes percentages. `paper:table/row/column` is what a paper printed,
and `speed:CLAIM` is the ratio of a claim about speed.

Every decimal number and percentage of a page must be in a result, or in one of `other`: pieces with
settings, versions, formulas and numbers of other people. `by_hand` has results that were measured
without a report. Lines that `benchmarks/README.md` or `benchmarks/scaling.py` generates need no
source.
"""

import json
import re
import statistics
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import scaling
from benchmarks.claims import Cell
from benchmarks.report import PAGE, collect
from benchmarks.runner import finished
from benchmarks.table import RESULTS, table

ROOT = Path(__file__).parents[1]
CLAIMS = Path(__file__).parent / "numbers.toml"
NUMBER = re.compile(
    r"(?<![\w.,-])[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)?\.\d+(?![\w]|\.\d)|\d+(?= ?%))"
)
_HOLE = r"([+-]?\d*\.?\d+)"
_IGNORED = re.compile(
    r"`[^`\n]*`|\]\([^)\n]*\)|</?[a-z][^<>\n]*>|\$[^$\n]*\$"
    r"|\b(?:Sec|Table|Eqn|Figure)s?\.? [\d.]+\d"
)
_BLOCK = re.compile(r"^ *```.*?^ *```|^\$\$.*?\$\$", re.DOTALL | re.MULTILINE)


class Mistake(NamedTuple):
    """What is wrong with a page."""

    page: str
    text: str


def text_of(page: Path) -> str:
    """A page without bold marks and blocks of code, with one line for each paragraph."""
    lines = [
        line
        for line in page.read_text().splitlines()
        if line not in _generated() or "|" not in line
    ]
    text = _BLOCK.sub("", "\n".join(lines)).replace("**", "")
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


@cache
def _generated() -> frozenset[str]:
    """Lines of tables that other tests hold to be current."""
    kept = json.loads(scaling.KEPT.read_text())
    tables = "\n".join(scaling.tables(kept))
    return frozenset([*PAGE.read_text().splitlines(), *tables.splitlines()])


def mistakes(page: str, text: str, declared: dict[str, Any]) -> Iterator[Mistake]:
    """Numbers that have no source, pieces that are not on the page, and wrong numbers."""
    covered: list[tuple[int, int]] = []
    for piece, *sources in declared.get("results", []):
        found = _found(piece, text)
        if len(found) != 1:
            yield Mistake(page, f"{len(found)} places have the piece {piece!r}")
            continue
        covered += [found[0].span(number) for number in range(1, len(found[0].groups()) + 1)]
        yield from _compared(page, piece, found[0].groups(), sources)
    for piece in [*declared.get("other", []), *declared.get("by_hand", [])]:
        found = _found(piece, text)
        if not found:
            yield Mistake(page, f"no place has the piece {piece!r}")
        covered += [match.span() for match in found]
    covered += [match.span() for match in _IGNORED.finditer(text)]
    for match in NUMBER.finditer(text):
        if not any(first <= match.start() < last for first, last in covered):
            around = text[max(0, match.start() - 60) : match.end() + 30]
            yield Mistake(page, f"nothing says where {match[0]} comes from: ...{around}...")


def _found(piece: str, text: str) -> list[re.Match[str]]:
    return list(re.finditer(re.escape(piece).replace(r"\{\}", _HOLE), text))


def _compared(
    page: str, piece: str, written: tuple[str, ...], sources: list[str]
) -> Iterator[Mistake]:
    values = [value for source in sources for value in measured(source)]
    if len(values) != len(written):
        yield Mistake(page, f"{piece!r} has {len(written)} numbers, {sources} are {len(values)}")
        return
    for number, value in zip(written, values, strict=True):
        decimals = len(number.partition(".")[2])
        if abs(float(number) - value) > 0.5 * 10**-decimals + 1e-9:
            yield Mistake(
                page, f"{piece!r} says {number}, but {value:.{decimals + 2}f} is measured"
            )


def measured(source: str) -> list[float]:
    """The numbers that a source stands for."""
    rest, _, factor = source.partition(" * ")
    kind, _, cells = rest.partition(" ")
    if kind not in _KINDS:
        kind, cells = "", rest
    if kind == "sd":
        values = [cell.spread for cell in _cells(cells)]
    else:
        values = _values(cells)
        if kind:
            values = [_KINDS[kind](values)]
    return [float(factor or 1) * value for value in values]


_KINDS: dict[str, Any] = {"mean": statistics.fmean, "max": max, "min": min, "sd": None}


def _values(cells: str) -> list[float]:
    """Means of cells, or their differences or the ratio of their sums."""
    if cells.startswith("speed:"):
        rows = json.loads((RESULTS / "speed.json").read_text())["rows"]
        claim = cells.removeprefix("speed:")
        return [row["ratio"] for row in rows if fnmatchcase(row["claim"], claim)]
    if " / " in cells:
        ours, theirs = (_values(part) for part in cells.split(" / "))
        return [sum(ours) / sum(theirs)]
    if " - " in cells:
        ours, theirs = (_values(part) for part in cells.split(" - "))
        ours = ours * len(theirs) if len(ours) == 1 else ours
        return [one - other for one, other in zip(ours, theirs, strict=True)]
    if cells.isdigit():
        return [float(cells)]
    if cells.startswith("paper:"):
        name, row, column = cells.removeprefix("paper:").split("/")
        return [table(name).content["paper"][row][column]]
    return [cell.mean for cell in _cells(cells)]


def _cells(pattern: str) -> list[Cell]:
    """The cells whose row and column match, in the order of the table."""
    name, row, column = pattern.split("/")
    found = _collected(name)
    rows = [each for each in table(name).rows if fnmatchcase(each, row)]
    columns = list(dict.fromkeys(each for _, each in found))
    chosen = [
        found[each, other]
        for each in rows
        for other in columns
        if fnmatchcase(other, column) and (each, other) in found
    ]
    if not chosen:
        raise ValueError(f"no run of {pattern!r} is measured")
    return chosen


@cache
def _collected(name: str) -> dict[tuple[str, str], Cell]:
    """All cells of a table; of the paper's scale if nothing smaller was run."""
    content = table(name)
    runs = [run for run in content.runs("small") if finished(run)]
    if not runs and "paper" in content.content["scale"]:
        runs = [run for run in content.runs("paper") if finished(run)]
    return collect(content, runs)


def pages() -> list[str]:
    """README and the pages of docs, without those that are generated."""
    docs = (path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "leaderboard.md")
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *docs)]


def declared() -> dict[str, Any]:
    """The content of `numbers.toml`, by page."""
    return tomllib.loads(CLAIMS.read_text())
