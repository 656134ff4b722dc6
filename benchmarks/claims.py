"""What a table must show, and whether it does: `[[claims]]` of its TOML file.

row, column, at_least | at_most          a mean has a bound
row, column, above [by | times]          a row is not below others in a column
value, never_worse                       of all cells with this value none is significantly below 0
value, no_mean_below | mean_above        the means of all these cells, or the mean of them, has a bound
"""

import statistics
from typing import Any, NamedTuple

from benchmarks.table import Table
from metricgrad.cli.comparing import differences

_LEVEL = 0.05


class Cell(NamedTuple):
    """Values of the seeds of one row and column."""

    values: list[float]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / len(self.values) ** 0.5


Cells = dict[tuple[str, str], Cell]


def verdict(claim: dict[str, Any], cells: Cells, content: Table, digits: int) -> str:
    """What a claim asks, what was measured, and whether it holds.

    Args:
        claim: of a table: about one row and column, or with a `value` about all of them.
        cells: what was measured.
        content: the table.
        digits: to show.

    Returns:
        A sentence.
    """
    if "value" in claim:
        return _verdict_on_all(claim, cells, content, digits)
    column, row = claim["column"], claim["row"]
    place = claim.get("label") or content.columns[column]
    if (row, column) not in cells:
        return f"{place}: not measured yet"
    ours, name = cells[row, column], content.rows[row]["label"]
    for bound, sign in (("at_least", 1), ("at_most", -1)):
        if bound in claim:
            holds, asked = (
                sign * (ours.mean - claim[bound]) >= 0,
                f"{bound.replace('_', ' ')} {claim[bound]:.{digits}f}",
            )
            return f"{place}: {name} {asked}: {ours.mean:.{digits}f}, {_word(holds)}"
    others = [other for other in claim["above"] if (other, column) in cells]
    if not others:
        return f"{place}: not measured yet"
    if "times" in claim:
        rival = min(others, key=lambda other: cells[other, column].mean)
        times, label = ours.mean / cells[rival, column].mean, content.rows[rival]["label"]
        asked = f"at most {claim['times']:g} times {label}"
        return f"{place}: {name} {asked}: {times:.2f} times, {_word(times <= claim['times'])}"
    rival = max(others, key=lambda other: cells[other, column].mean)
    margin = ours.mean - cells[rival, column].mean
    asked = (
        f"at least {claim['by']} above"
        if "by" in claim
        else "not more than one standard error below"
    )
    allowed = (
        claim["by"]
        if "by" in claim
        else -((ours.error**2 + cells[rival, column].error ** 2) ** 0.5)
    )
    label = content.rows[rival]["label"]
    return f"{place}: {name} {asked} {label}: {margin:+.{digits}f}, {_word(margin >= allowed)}"


def _verdict_on_all(claim: dict[str, Any], cells: Cells, content: Table, digits: int) -> str:
    """A claim about one value of all rows and columns."""
    suffix = f"_{claim['value']}"
    found = {
        f"{content.rows[row]['label']} on {content.content['columns'][column.removesuffix(suffix)]['label']}": cell
        for (row, column), cell in cells.items()
        if column.endswith(suffix)
    }
    means = {name: cell.mean for name, cell in found.items()}
    if "mean_above" in claim:
        mean = statistics.fmean(means.values())
        asked = f"the mean over all {len(means)} cells is above {claim['mean_above']:g}"
        return f"{claim['value']}: {asked}: {mean:+.{digits}f}, {_word(mean > claim['mean_above'])}"
    if "no_mean_below" in claim:
        lowest = min(means, key=lambda name: means[name])
        asked = f"no mean of {len(means)} cells is below {claim['no_mean_below']:g}"
        return (
            f"{claim['value']}: {asked}: {means[lowest]:+.{digits}f} ({lowest}) is the lowest, "
            f"{_word(means[lowest] >= claim['no_mean_below'])}"
        )
    return f"{claim['value']}: {_tested(found)}"


def _tested(found: dict[str, Cell]) -> str:
    """Which cells differ from 0: paired t tests over seeds, corrected by Holm's rule over all cells."""
    seeds = min(
        len(cell.values) for cell in found.values()
    )  # a table under way has more of some cells
    whole = {name: cell.values[:seeds] for name, cell in found.items()}
    if seeds < 2:
        return "not measured yet"
    tested = differences({"cross_entropy": [0.0] * seeds, **whole}, True, test_share=0.0)
    shown = {name: each["mean"] for name, each in tested.items() if each["p"] < _LEVEL}
    worse, better = ([name for name in shown if sign * shown[name] > 0] for sign in (-1, 1))
    named = f" ({'; '.join(better)})" if better else ""
    return (
        f"none of {len(whole)} cells is significantly worse (paired over {seeds} seeds, Holm's correction): "
        f"{', '.join(worse) or 'none'} worse, {len(better)} better{named}, {_word(not worse)}"
    )


def _word(holds: bool) -> str:
    return "holds" if holds else "**does not hold**"
