"""Mean ranks and wins of rows over columns, the `[[standings]]` of a table's TOML file.

caption, rows       whose losses are compared, cell by cell
columns, values     the cells: COLUMN_VALUE; every value has a number of its own
kind = "ranks"      the mean over columns of 1 + how many rows are lower; equal ones share the best
kind = "wins"       in how many columns a row is lowest; a tie of k rows gives each 1/k
paper.ROW.VALUE     what the paper printed

Losses are compared as they are shown, rounded to the digits of the table. Where the paper has all
losses, they are counted in the same way, too, as printed counts may differ from printed losses.
"""

import math
from typing import Any

import numpy as np
from scipy.stats import studentized_range

from benchmarks.claims import Cells
from benchmarks.table import Table

Losses = dict[tuple[str, str], float]  # by row and cell


def standings(content: Table, cells: Cells, digits: int) -> list[str]:
    """The Markdown of all standings of a table; cells that are missing anywhere do not count."""
    ours = {key: cell.mean for key, cell in cells.items()}
    printed = {
        (row, column): value
        for row, values in content.content.get("paper", {}).items()
        for column, value in values.items()
    }
    lines: list[str] = []
    for each in content.content.get("standings", []):
        labels = [content.content["values"][value] for value in each["values"]]
        found = counted(each, ours, digits)
        if not found:
            continue
        lines += ["", f"**{each['caption']}**", ""]
        lines += [f"| method | {' | '.join(labels)} |", "| --- |" + " ---: |" * len(labels)]
        again = counted(each, printed, digits)
        for row in each["rows"]:
            lines.append(_line(content.rows[row]["label"], found[row], each["values"]))
            own = each.get("paper", {}).get(row)
            if own:
                lines.append(_line("*the paper*", own, each["values"]))
            if own and again:
                lines.append(_line("*counted from the paper's losses*", again[row], each["values"]))
    return lines


def _line(label: str, numbers: dict[str, float], values: list[str]) -> str:
    shown = [f"{numbers[value]:.2f}" if value in numbers else "" for value in values]
    return f"| {label} | {' | '.join(shown)} |"


def counted(each: dict[str, Any], losses: Losses, digits: int) -> dict[str, dict[str, float]]:
    """Mean ranks or wins of all rows for every value, over the columns in which all rows have one.

    A value that no column has is left out.
    """
    found: dict[str, dict[str, float]] = {row: {} for row in each["rows"]}
    for value in each["values"]:
        ranks = ranks_of(each["rows"], each["columns"], value, losses, digits)
        if not len(ranks):
            continue
        best = ranks == 1
        numbers = ranks.mean(0) if each["kind"] == "ranks" else (best / best.sum(1)[:, None]).sum(0)
        for row, number in zip(each["rows"], numbers.tolist(), strict=True):
            found[row][value] = number
    return found if any(found.values()) else {}


def ranks_of(
    rows: list[str], columns: list[str], value: str, losses: Losses, digits: int
) -> np.ndarray:
    """One plus the number of rows that are lower, `[columns, rows]`."""
    known = [
        [round(losses[row, f"{column}_{value}"], digits) for row in rows]
        for column in columns
        if all((row, f"{column}_{value}") in losses for row in rows)
    ]
    table = np.array(known).reshape(len(known), len(rows))
    return 1 + (table[:, :, None] > table[:, None, :]).sum(2)


def critical_difference(methods: int, blocks: int, level: float = 0.05) -> float:
    """How far mean ranks of two methods differ by chance (Nemenyi's test; Demsar, 2006, Sec. 3.2).

    q * sqrt(k (k + 1) / (6 n)) for k methods on n data sets.
    """
    quantile = float(studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * blocks))
