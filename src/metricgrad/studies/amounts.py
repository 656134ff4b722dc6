"""Amounts, costs and weights of the rows of a table, for a user's own metric that takes them.

`profit(scores, target, amount)` takes an amount of every row besides scores and target. A command
says which column that is:

    --amount value                  the parameter `amount` gets the column `value`
    --amount cost=price             the parameter `cost` gets the column `price`; repeatable

What a column gives to the metric is often known only afterwards, such as what a customer spent. So
it is not a feature, unless `--keep` names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.metrics import Metric
from metricgrad.studies.tables import check_column, column_names

# What the estimators mean by these is fixed.
_TAKEN = ("X", "x", "y", "self", "scores", "target", "rows", "folder")


@dataclass(frozen=True)
class AmountColumns:
    """Which column each parameter of a metric gets.

    Attributes:
        columns: A column for each parameter, by its name.
        keep: Those of these columns that models are trained on, too.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Sequence[str] = ()

    @classmethod
    def of(cls, columns: Mapping[str, str] | None, keep: str | None) -> "AmountColumns":
        """Columns by parameter, and text such as `amount,price`; ValueError where they disagree."""
        columns = columns or {}
        kept = column_names(keep)
        others = [name for name in kept if name not in columns.values()]
        if others:
            raise ValueError(
                f"--keep names {', '.join(map(repr, others))}, which --amount does not; all "
                "columns but those of --amount are kept anyway"
            )
        return cls(columns, kept)

    def refuse_misfit(self, metric: Metric) -> None:
        """Raises ValueError unless these are what a metric takes besides scores and target."""
        names = metric.row_names
        unknown = [name for name in self.columns if name not in names.every]
        missing = [name for name in names.required if name not in self.columns]
        typed = " ".join(self._option(name) for name in unknown)
        if unknown and not names:
            raise ValueError(
                f"{metric.name} takes scores and target alone; leave out {typed}, or pass --metric "
                f"own.py:f for your own function f(scores, target, {unknown[0]}) in a file"
            )
        if unknown:
            raise ValueError(
                f"{metric.name} has no parameter {', '.join(unknown)}, which {typed} is for; it "
                f"takes {', '.join(names.every)}: pass {' '.join(map(_wanted, names.every))}"
            )
        if missing:
            raise ValueError(
                f"{metric.name} takes {', '.join(missing)} besides scores and target; pass "
                f"{' '.join(map(_wanted, missing))}, the column that has it for each row"
            )
        for name in _TAKEN:
            if name in self.columns:
                raise ValueError(
                    f"{metric.name} has a parameter {name!r}, which has another meaning here; call "
                    "it something else"
                )

    def read(self, table: Any, target: str) -> dict[str, np.ndarray]:
        """The numbers of the rows that have a target, by parameter; ValueError if one is none."""
        if target in self.columns.values():
            raise ValueError(f"--target and --amount must be two columns; got {target!r} for both")
        check_column(table, target)
        known = table[target].notna().to_numpy()
        return {name: _numbers(table, column, known) for name, column in self.columns.items()}

    def features(self, table: Any) -> Any:
        """The table without the columns that are not features."""
        names = [name for name in self.columns.values() if name not in self.keep]
        return table.drop(columns=names, errors="ignore") if names else table

    def _option(self, name: str) -> str:
        """The option as the user may have typed it."""
        parameter = "" if name == "amount" else f"{name}="
        return f"--amount {parameter}{self.columns[name]}"


NO_AMOUNTS = AmountColumns()


def _wanted(name: str) -> str:
    return "--amount COLUMN" if name == "amount" else f"--amount {name}=COLUMN"


def _numbers(table: Any, column: str, known: np.ndarray) -> np.ndarray:
    """A column as numbers; ValueError with the first row that has none."""
    check_column(table, column)
    given = table[column]
    numbers: Any = pd.to_numeric(given, errors="coerce")
    values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    if pd.api.types.is_datetime64_any_dtype(given.dtype):  # pandas would count nanoseconds
        values = np.full(len(values), np.nan)
    wrong = np.flatnonzero(known & ~np.isfinite(values))
    if len(wrong):
        row = int(wrong[0])
        is_what = "empty" if given.isna().iloc[row] else repr(str(given.iloc[row]))
        others = f" (of {len(wrong)} rows without a number)" if len(wrong) > 1 else ""
        raise ValueError(
            f"column {column!r}, which --amount names, is {is_what} in row {row + 1}{others}; the "
            "metric needs a number in every row that has a target"
        )
    return values[known]
