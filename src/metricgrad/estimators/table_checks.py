"""What is wrong with a table, said in the same sentence wherever the table is kept.

A table is a DataFrame in memory, or it is streamed from Parquet files (`parquet_tables.py`). Both
are checked in different places, but for the same mistakes: these functions raise the ValueError.
"""

import difflib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

_SHOWN = 12  # columns that an error lists


def refuse_repeated(names: Iterable[str]) -> None:
    """Refuses two columns of the same name; spaces around it make no other name."""
    repeated = [name for name, count in Counter(map(str.strip, names)).items() if count > 1]
    if repeated:
        raise ValueError(
            f"several columns are called {', '.join(map(repr, repeated))}; give every column a "
            "different name, or remove the copy"
        )


def refuse_unknown(name: str, columns: Iterable[Any]) -> None:
    """Refuses a column that is not there, with the name that may be meant."""
    known = list(columns)
    if name in known:
        return
    names = [str(each) for each in known]
    near = difflib.get_close_matches(name, names, 1)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"there is no column {name!r} among {shown}.{hint}")


def refuse_missing(path: Path, missing: Iterable[str]) -> None:
    """Refuses a file without columns that training had."""
    names = ", ".join(map(repr, missing))
    if names:
        raise ValueError(f"{path} has no column {names}, which the training data has")


def refuse_dropped(names: Iterable[str], columns: Iterable[str]) -> None:
    """Refuses names of columns to leave out that the table does not have."""
    known = set(columns)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"--drop names {', '.join(map(repr, unknown))}, which the table does not have"
        )


def refuse_one_class(target: str, values: list[Any], rows: int) -> None:
    """Refuses a target whose distinct `values` in all rows are fewer than two."""
    if len(values) < 2:
        only = repr(values[0]) if values else "nothing"
        raise ValueError(
            f"column {target!r} is {only} in all {rows} rows; pass a target with several values"
        )


def refuse_many_classes(target: str, number: str, example: str) -> NoReturn:
    """Refuses a target with too many values to be classes, such as `example`."""
    raise ValueError(
        f"column {target!r} has {number} values such as {example}, too many for classes; turn it "
        "into classes, at a threshold for example"
    )


def refuse_rare_class(target: str, value: Any, rows: int) -> NoReturn:
    """Refuses a class that cannot have training rows as well as test rows."""
    raise ValueError(
        f"class {value!r} of column {target!r} is in {rows} rows only, too few to train and to "
        "test on; leave it out, or pass test rows of their own (--test on the command line)"
    )


def refuse_huge(name: str, values: np.ndarray) -> NoReturn:
    """Refuses a column whose mean or spread no float can hold."""
    raise ValueError(
        f"column {name!r} has numbers as large as {np.abs(values).max():.3g}; divide it by a power "
        "of ten"
    )
