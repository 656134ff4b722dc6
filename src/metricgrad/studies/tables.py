"""What the columns of a table are: the target, features, amounts; numbers, dates or categories.

What is wrong with a column is said in one sentence, before anything is trained: one that does not
exist, text among numbers, a target that is the same in every row.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from metricgrad.estimators.columns import is_boolean
from metricgrad.estimators.table_checks import (
    refuse_dropped,
    refuse_many_classes,
    refuse_missing,
    refuse_one_class,
    refuse_unknown,
)
from metricgrad.estimators.written_numbers import (
    is_text,
    looks_like_number,
    plain_numbers,
    refusal,
)
from metricgrad.studies.table_files import TARGET, leaves_out_zeros

_CLASSES = 20  # a target of fractions with more values than this is not a class
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class LabelledTable:
    """Features `x`, target `y` and numbers of the rows by parameter of the metric.

    Rows without a target are left out, and counted.
    """

    x: Any
    y: Any
    left_out: int = 0
    amount_values: Mapping[str, np.ndarray] = field(default_factory=dict)


def with_columns(table: Any, columns: Any, path: Path) -> Any:
    """The table of a file with the columns of the training data, in their order."""
    missing = [name for name in columns if name not in table.columns]
    if missing and leaves_out_zeros(path):
        # A feature that is nowhere in an svmlight file is 0 throughout.
        table = table.assign(**dict.fromkeys(missing, 0.0))
    else:
        refuse_missing(path, missing)
    return table[list(columns)]


def column_names(text: str | None) -> list[str]:
    """Names of columns from text such as `id,date`; quotes hold one with a comma together."""
    cells = next(csv.reader([text or ""], skipinitialspace=True))
    return [each.strip() for each in cells if each.strip()]


def without_columns(table: Any, columns: str | None) -> Any:
    """The table without some columns, named in text such as `id,date`."""
    names = column_names(columns)
    refuse_dropped(names, table.columns)
    return table.drop(columns=names) if names else table


def bundled_table(target: str = TARGET) -> Any:
    """Handwritten digits, which come with scikit-learn. Which are an 8 ("target"), which "odd"?

    Eights are one in ten. Odd digits have no shape in common, so that a linear model cannot tell
    them all from even ones, and what it is trained on decides which it gives up.
    """
    x, digit = (np.asarray(part) for part in load_digits(return_X_y=True))
    targets = {TARGET: digit == 8, "odd": digit % 2 == 1}
    if target not in targets:
        raise ValueError(
            f"the bundled digits have no target {target!r}; pass --target {' or '.join(targets)}, "
            "or a file with that column"
        )
    names = [f"pixel {row},{column}" for row in range(8) for column in range(8)]
    return pd.DataFrame(x, columns=names).assign(**{target: targets[target].astype(int)})


def check_column(table: Any, target: str) -> None:
    """Raises ValueError, with the name that may be meant, where a table has no such column."""
    refuse_unknown(target, table.columns)


def split_target(table: Any, target: str, *, several: bool = True) -> tuple[Any, Any, int]:
    """Features, target, and the number of rows left out because they have no target.

    A target with a single value is refused where `several` are needed, as they are for training.
    """
    check_column(table, target)
    known = table[target].notna()
    missing = int((~known).sum())
    table = table[known] if missing else table
    y = table[target]
    if several:
        refuse_one_class(target, y.drop_duplicates().tolist(), len(y))
    if is_text(y) and looks_like_number(y).all() and (told := refusal(target, y)) is not None:
        raise ValueError(told)
    if y.dtype.kind == "f" and (y == y.round()).all():
        y = y.astype(np.int64)
    elif y.dtype.kind == "f" and y.nunique() > _CLASSES:
        refuse_many_classes(target, f"{y.nunique():,}", str(y.iloc[0]))
    return parsed(table.drop(columns=target)), y, missing


def refuse_unseen(found: Any, trained: Any, path: Path) -> None:
    """Raises ValueError for classes of a test file, an array, that training does not have."""
    unseen = sorted(set(found.tolist()) - set(trained.tolist()), key=str)
    if unseen:
        raise ValueError(
            f"{path} has classes that the training data does not have: "
            f"{', '.join(map(repr, unseen))}"
        )


def parsed(table: Any) -> Any:
    """The table with text that is numbers, or dates such as 2024-01-31, converted to them."""
    changed: dict[Any, Any] = {}
    for name in table.columns:
        column = table[name]
        text = column.dtype == object or pd.api.types.is_string_dtype(column.dtype)
        if not text or is_boolean(column):
            continue
        if (numbers := plain_numbers(column)) is not None:
            changed[name] = numbers
        elif (dates := dates_of(column)) is not None:
            changed[name] = dates
        elif is_text(column) and (told := refusal(name, column)) is not None:
            raise ValueError(told)
    return table.assign(**changed) if changed else table


def dates_of(column: Any) -> Any:
    """Text as times, if all of it is dates that begin with the year; None otherwise."""
    known = column.dropna()
    if not len(known) or not _DATE.match(str(known.iloc[0])):
        return None
    found = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    return None if (found.isna() & column.notna()).any() else found
