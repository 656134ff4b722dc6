"""What a table must show, the `[[claims]]` of its TOML file, and whether it does.

row, column, at_least | at_most      the mean of a cell has a bound
row, column, above [by | times]      a row is not below other rows in a column
row, column, below                   a row is below other rows in a column
value, never_worse                   no cell with this value is significantly below 0
value, no_mean_below | no_mean_above the mean of every cell with this value has a bound
value, within_errors                 no mean of a cell is further below 0 than so many of its
                                     standard errors
value, mean_above                    the mean over all cells with this value has a bound
value, share_of, at_least            the sum over all cells, as a share of another value's, which
                                     has to be above 0

With `rows`, only rows count whose name contains these letters. With `against`, the name of another
row, a value is the difference from that row in the same column, seed by seed.
"""

import statistics
from typing import Any, NamedTuple

from benchmarks.table import Table
from metricgrad.studies import paired_differences

_LEVEL = 0.05


class Cell(NamedTuple):
    """The values of one row and column, one per seed."""

    values: list[float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.spread / len(self.values) ** 0.5


Cells = dict[tuple[str, str], Cell]


def verdict(claim: dict[str, Any], cells: Cells, content: Table, digits: int) -> str:
    """A sentence: what a claim asks for, what was measured, and whether it holds."""
    if "value" in claim:
        return _verdict_on_all(claim, cells, content, digits)
    column = claim["column"]
    row = claim["row"]
    label = claim.get("label") or content.columns[column]
    if (row, column) not in cells:
        return f"{label}: not measured yet"
    ours = cells[row, column]
    subject = f"{label}: {content.rows[row]['label']}"
    for bound, sign in (("at_least", 1), ("at_most", -1)):
        if bound in claim:
            asked = f"{bound.replace('_', ' ')} {claim[bound]:.{digits}f}"
            holds = sign * (ours.mean - claim[bound]) >= 0
            return f"{subject} {asked}: {ours.mean:.{digits}f}, {_word(holds)}"
    others = {
        content.rows[other]["label"]: cells[other, column]
        for other in claim.get("above", claim.get("below", ()))
        if (other, column) in cells
    }
    if not others:
        return f"{label}: not measured yet"
    if "times" in claim:
        rival = min(others, key=lambda other: others[other].mean)
        times = ours.mean / others[rival].mean
        asked = f"at most {claim['times']:g} times {rival}"
        return f"{subject} {asked}: {times:.2f} times, {_word(times <= claim['times'])}"
    if "below" in claim:
        rival = min(others, key=lambda other: others[other].mean)
        less = others[rival].mean - ours.mean
        return f"{subject} below {rival}: by {less:.{digits}f}, {_word(less > 0)}"
    rival = max(others, key=lambda other: others[other].mean)
    margin = ours.mean - others[rival].mean
    if "by" in claim:
        asked = f"at least {claim['by']} above"
        allowed = claim["by"]
    else:
        asked = "not more than one standard error below"
        allowed = -((ours.error**2 + others[rival].error ** 2) ** 0.5)
    return f"{subject} {asked} {rival}: {margin:+.{digits}f}, {_word(margin >= allowed)}"


def _verdict_on_all(claim: dict[str, Any], cells: Cells, content: Table, digits: int) -> str:
    """The sentence for a claim about one value in all rows and columns."""
    name = claim["value"]
    rival = claim.get("against")
    if rival is not None:
        cells = _differences(cells, rival)
        name = f"{content.content['values'][name]}, less that of {content.rows[rival]['label']}"
    found = _cells_of(claim["value"], claim.get("rows", ""), cells, content)
    if not found:
        return f"{name}: not measured yet"
    means = {label: cell.mean for label, cell in found.items()}
    if "share_of" in claim:
        other = _cells_of(claim["share_of"], claim["rows"], cells, content)
        asked = f"at least {claim['at_least']:.0%} of {claim['share_of']} in {len(means)} cells"
        whole = sum(cell.mean for cell in other.values())
        if whole <= 0:  # A share of a loss would hold the more, the worse both are.
            sums = f"{sum(means.values()):+.{digits}f} and {whole:+.{digits}f}"
            return f"{name}: {asked}: nothing to share, the sums are {sums}"
        share = sum(means.values()) / whole
        return f"{name}: {asked}: {share:.0%}, {_word(share >= claim['at_least'])}"
    if "mean_above" in claim:
        mean = statistics.fmean(means.values())
        asked = f"the mean over all {len(means)} cells is above {claim['mean_above']:g}"
        return f"{name}: {asked}: {mean:+.{digits}f}, {_word(mean > claim['mean_above'])}"
    if "no_mean_below" in claim:
        lowest = min(means, key=lambda each: means[each])
        asked = f"no mean of {len(means)} cells is below {claim['no_mean_below']:g}"
        return (
            f"{name}: {asked}: {means[lowest]:+.{digits}f} ({lowest}) is the lowest, "
            f"{_word(means[lowest] >= claim['no_mean_below'])}"
        )
    if "no_mean_above" in claim:
        highest = max(means, key=lambda each: means[each])
        asked = f"no mean of {len(means)} cells is above {claim['no_mean_above']:g}"
        return (
            f"{name}: {asked}: {means[highest]:.{digits}f} ({highest}) is the highest, "
            f"{_word(means[highest] <= claim['no_mean_above'])}"
        )
    if "within_errors" in claim:
        return f"{name}: {_within(found, claim['within_errors'], digits)}"
    return f"{name}: {_tested(found)}"


def _within(found: dict[str, Cell], errors: float, digits: int) -> str:
    """Which cells are further below 0 than so many of their standard errors."""
    below = [
        f"{name} {cell.mean:+.{digits}f} ± {cell.error:.{digits}f}"
        for name, cell in found.items()
        if cell.mean < -errors * cell.error
    ]
    number = "one standard error" if errors == 1 else f"{errors:g} standard errors"
    return (
        f"no mean of {len(found)} cells is more than {number} below 0: "
        f"{'; '.join(below) or 'none'}, {_word(not below)}"
    )


def _cells_of(value: str, rows: str, cells: Cells, content: Table) -> dict[str, Cell]:
    """The cells that have one value, by label, in the rows whose name contains some letters."""
    columns = content.content.get("columns")
    if columns is None:
        names = {value: ""}
    else:
        names = {f"{name}_{value}": f" on {column['label']}" for name, column in columns.items()}
    return {
        f"{content.rows[row]['label']}{names[column]}": cell
        for (row, column), cell in cells.items()
        if column in names and rows in row
    }


def _differences(cells: Cells, rival: str) -> Cells:
    """Each cell minus that of another row in the same column, seed by seed."""
    found: Cells = {}
    for (row, column), cell in cells.items():
        other = cells.get((rival, column))
        if other is not None:
            pairs = zip(cell.values, other.values, strict=False)  # one may have run further
            found[row, column] = Cell([ours - theirs for ours, theirs in pairs])
    return found


def _tested(found: dict[str, Cell]) -> str:
    """Which cells differ from 0, by paired t tests over seeds with Holm's correction."""
    # While a table is running, some cells have more seeds than others.
    seeds = min(len(cell.values) for cell in found.values())
    whole = {name: cell.values[:seeds] for name, cell in found.items()}
    if seeds < 2:
        return "not measured yet"
    tested = paired_differences({"cross_entropy": [0.0] * seeds, **whole}, True, test_share=0.0)
    shown = {name: each.mean for name, each in tested.items() if each.p < _LEVEL}
    worse = [name for name in shown if shown[name] < 0]
    better = [name for name in shown if shown[name] > 0]
    named = f" ({'; '.join(better)})" if better else ""
    return (
        f"none of {len(whole)} cells is significantly worse "
        f"(paired over {seeds} seeds, Holm's correction): "
        f"{', '.join(worse) or 'none'} worse, {len(better)} better{named}, {_word(not worse)}"
    )


def _word(holds: bool) -> str:
    return "holds" if holds else "**does not hold**"
