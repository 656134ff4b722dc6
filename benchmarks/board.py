"""Which loss wins where: the cells of all tables that take part, compared seed by seed.

A cell is one metric of one model on one data set. A table takes part by a `[leaderboard]` in its
TOML file, which says what its rows are, or with `methods = "values"` its values:

    ordinary = {cross_entropy = "cross-entropy"}        the ordinary loss, and its name on the board
    ours = {uniloss = "UniLoss"}                        losses of this library
    others = {soft_f1 = "soft F1"}                      baselines and peers
    tuned = false            nothing was tuned for any loss (left out: tuned on validation data)
    structured = true        one output depends on others: rankings, label maps, poses, text
    values = ["f1"]          the values that count (left out: all)
    metrics = {camvid = "mean IoU"}      the metric, by value, row or column (left out: the setting)
    gains = true             all values but that of the ordinary loss are differences from it
    unit = 0.01              the values are percentages

or by `left_out = "a sentence"`. A loss whose seeds are not all measured is not yet in its cell.

Two losses tie in a cell if the 95 % interval of their paired difference contains 0 and the mean
difference is below .005. If not, the sign of the mean difference decides.
"""

import json
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from scipy.stats import t as student

from benchmarks.runner import finished
from benchmarks.table import Run, Table

SMALL = 0.005  # a difference that nobody would act on
Seeds = dict[int, float]


class Difference(NamedTuple):
    """The mean paired difference over seeds, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    @property
    def result(self) -> str:
        """What it counts as."""
        if not self.clear and abs(self.mean) < SMALL:
            return "tie"
        return "win" if self.mean > 0 else "loss"


def difference(ours: Seeds, theirs: Seeds) -> Difference:
    """Our values less theirs, over the seeds that both have, of which there are at least two."""
    each = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    mean = statistics.fmean(each)
    reach = statistics.stdev(each) / len(each) ** 0.5 * float(student.ppf(0.975, len(each) - 1))
    return Difference(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Contest:
    """One cell: the values of each loss by seed, where higher is always better."""

    table: str
    label: str
    dataset: str
    metric: str
    linear: bool
    structured: bool
    tuned: bool
    ordinary: str  # the name of the ordinary loss
    ours: tuple[str, ...]
    values: dict[str, Seeds]  # by name on the board
    runs: dict[str, Run]  # the first run of each

    def against_ordinary(self, name: str) -> Difference:
        """A loss less the ordinary one."""
        return difference(self.values[name], self.values[self.ordinary])

    def best_rival(self) -> str:
        """The best of the losses that are not ours; test values decide, which is hard on ours."""
        rivals = [name for name in self.values if name not in self.ours]
        return max(rivals, key=lambda name: statistics.fmean(self.values[name].values()))

    def rank(self, name: str) -> float:
        """One more than the number of better losses; equal ones share the mean of their ranks."""
        means = {
            each: round(statistics.fmean(seeds.values()), 4) for each, seeds in self.values.items()
        }
        better = sum(mean > means[name] for mean in means.values())
        equal = sum(mean == means[name] for mean in means.values())
        return better + (equal + 1) / 2


def contests(content: Table) -> list[Contest]:
    """The cells of a table that have the ordinary loss and at least one other."""
    declared = content.content.get("leaderboard", {})
    if "ordinary" not in declared:
        return []
    names = {**declared["ordinary"], **declared.get("ours", {}), **declared.get("others", {})}
    by_cell: dict[tuple[str, str], dict[str, tuple[Seeds, Run]]] = {}
    for first, values in _measured(content).values():
        for value, seeds in values.items():
            if value not in declared.get("values", values):
                continue
            if declared.get("methods") == "values":
                method, cell = value, (first.row, first.column)
            else:
                method, cell = first.row, (first.column, value)
            if method in names:
                by_cell.setdefault(cell, {})[method] = (seeds, first)
    ordinary = next(iter(declared["ordinary"]))
    return [
        _contest(content, declared, cell, names, found)
        for cell, found in by_cell.items()
        if ordinary in found and len(found) > 1
    ]


def _measured(content: Table) -> dict[tuple[str, str], tuple[Run, dict[str, Seeds]]]:
    """By row and column: the first run, and by value the number of each seed, if all are there."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for run in content.runs("paper" if _only_paper(content) else "small"):
        runs.setdefault((run.row, run.column), []).append(run)
    found = {}
    for key, those in runs.items():
        if len(those) < 2 or not all(map(finished, those)):
            continue
        values: dict[str, Seeds] = {}
        for run in those:
            result = json.loads(run.path.read_text())["result"]
            for name, value in result.get("values", {"": result.get("value")}).items():
                values.setdefault(name, {})[run.seed] = value
        found[key] = (those[0], values)
    return found


def _only_paper(content: Table) -> bool:
    """Whether a table was run at the paper's scale alone."""
    return "paper" in content.content["scale"] and not any(
        run.path.exists() for run in content.runs("small")
    )


def _contest(
    content: Table,
    declared: dict[str, Any],
    cell: tuple[str, str],
    names: dict[str, str],
    found: dict[str, tuple[Seeds, Run]],
) -> Contest:
    ordinary = next(iter(declared["ordinary"]))
    sign = -1 if content.content.get("best") == "low" else 1
    unit = declared.get("unit", 1.0) * sign
    values = {}
    for name, (seeds, _) in found.items():
        base = found[ordinary][0] if declared.get("gains") and name != ordinary else {}
        values[names[name]] = {
            seed: unit * (value + base.get(seed, 0.0)) for seed, value in seeds.items()
        }
    settings = found[ordinary][1].configuration
    return Contest(
        content.name,
        _label(content, declared, cell),
        settings.get("dataset", ""),
        _metric(declared, cell, settings),
        settings.get("hidden") == [],
        declared.get("structured", False) or cell[0] in declared.get("structured_rows", ()),
        declared.get("tuned", True),
        names[ordinary],
        tuple(declared.get("ours", {}).values()),
        values,
        {names[name]: first for name, (_, first) in found.items()},
    )


def _label(content: Table, declared: dict[str, Any], cell: tuple[str, str]) -> str:
    """What the table calls the cell."""
    columns = content.content.get("columns", {})
    if declared.get("methods") == "values":
        row, column = cell
        parts = [content.rows[row]["label"], columns.get(column, {}).get("label", "")]
    else:
        column, value = cell
        model = {True: "linear", False: "network"}[columns.get(column, {}).get("hidden") == []]
        known = column.rsplit("_", 1)[-1] in ("linear", "mlp") and value
        parts = [
            columns.get(column, {}).get("label", ""),
            model if known else "",
            content.content.get("values", {}).get(value, ""),
        ]
    return ", ".join(part for part in parts if part)


def _metric(declared: dict[str, Any], cell: tuple[str, str], settings: dict[str, Any]) -> str:
    """The name of the cell's metric."""
    given = declared.get("metrics", {})
    for key in reversed(cell):
        if key in given:
            return given[key]
    metrics = settings.get("metrics", {})
    if isinstance(metrics, dict) and cell[1] in metrics:
        name = metrics[cell[1]]["metric"]
    elif cell[1] in metrics:
        name = cell[1]
    else:
        name = settings["metric"]
    return {"average_precision": "AP", "auc": "AUC", "f1": "F1", "mcc": "MCC"}.get(
        name, name.replace("_", " ")
    )
