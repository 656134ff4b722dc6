"""Columns that look wrong for training: ids, columns that give the target away, constants.

They are listed, never dropped: only the user knows what a column means. Only training rows are
looked at, 50,000 of them where a table has more.

    constant       one value in all training rows, or none at all
    id             text that is different in 95 % of the rows; or whole numbers that are, and that
                   count the rows, are spread evenly, or are called an id. Measured numbers crowd
                   somewhere, numbers that were handed out do not.
    leak           the column gives the target away: alone it tells every class from the others
                   with an AUC of .99 or more. In scikit-learn's breast cancer, iris, wine and
                   digits the best column has .97.

For the last, a column is cut into groups: its categories, or 256 ranges of its numbers, of at least
ten rows each, and one for missing values. The score of a row is the share of the class among the
other rows of its group. Leaving out the row itself matters: a group of one says nothing, so an id
predicts nothing.
"""

import re
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.estimators.columns import Kind, columns_of, some_rows
from metricgrad.estimators.features import as_text
from metricgrad.studies.records import SuspiciousColumn

_MOST_ROWS = 50_000
_DISTINCT = 0.95  # share of the rows that have a value of their own, of an id
_FEWEST = 100  # rows, below which evenly spread numbers are chance
_EVEN = 1.5  # the distance from an even spread, times the root of the number of rows,
_NEARLY_EVEN = 0.05  # or the distance itself: numbers that were handed out have gaps
_AUC = 0.99
_RANGES = 256
_IN_A_RANGE = 10  # rows, at least
_CLASS = 10  # rows of a class, below which nothing is said about it
_CALLED_ID = re.compile(r"(?:^|[\W_])(?i:id|uuid|guid)$|[a-z]I[dD]$")
_GRADES = 20  # of more grades, it counts which are above 0


def suspicious_columns(x: Any, y: Any, rows: np.ndarray | None = None) -> list[SuspiciousColumn]:
    """What is suspicious among the columns of a table.

    Args:
        x: The features, a DataFrame whose index numbers the rows of the file.
        y: The classes, or grades, of all rows.
        rows: Numbers of the training rows; None takes all.

    Returns:
        At most one suspicion for each column, in their order.

    Example:
        >>> y = np.arange(200) % 2
        >>> table = pd.DataFrame({"number": range(200), "copy": np.where(y, "b", "a"), "same": 1})
        >>> [(each.name, each.kind) for each in suspicious_columns(table, y)]
        [('number', 'id'), ('copy', 'leak'), ('same', 'constant')]
    """
    every = np.arange(len(x)) if rows is None else rows
    if not len(every):
        return []
    taken = every
    if len(every) > _MOST_ROWS:
        taken = np.sort(np.random.default_rng(0).permutation(every)[:_MOST_ROWS])
    classes = _class_numbers(np.asarray(y)[taken])
    places = np.asarray(x.index)[taken]
    found = []
    for name, kind, values in columns_of(x):
        some = some_rows(values, taken)
        codes, distinct = _codes(some)
        groups = codes if kind == "categories" else _ranges(some)
        if distinct == 1 and (taken is every or _codes(some_rows(values, every))[1] == 1):
            found.append(SuspiciousColumn(name, "constant", "it has a single value"))
        elif told := _given_away(groups, distinct, classes):
            found.append(SuspiciousColumn(name, "leak", told))
        elif distinct >= _DISTINCT * len(some) and (told := _handed_out(name, kind, some, places)):
            found.append(SuspiciousColumn(name, "id", f"{told} different in nearly every row"))
    return found


def _class_numbers(y: np.ndarray) -> np.ndarray:
    """The classes of rows as numbers; of many grades, whether they are above 0."""
    numbers, values = pd.factorize(y)
    return (y > 0).astype(int) if y.dtype.kind == "f" and len(values) > _GRADES else numbers


def _codes(values: Any) -> tuple[np.ndarray, int]:
    """A number for each distinct value, and how many there are; missing is one of them."""
    plain = values if isinstance(values, np.ndarray) else as_text(values)
    codes, distinct = pd.factorize(plain, use_na_sentinel=False)
    return codes, len(distinct)


def _ranges(values: np.ndarray) -> np.ndarray:
    """Numbers in ranges with about the same number of rows; missing ones are apart."""
    missing = pd.isna(values)
    known = np.sort(values[~missing])
    if not len(known):
        return np.zeros(len(values), dtype=np.int64)
    number = min(_RANGES, max(1, len(known) // _IN_A_RANGE))
    ends = np.unique(known[np.linspace(0, len(known) - 1, number + 1).astype(int)[1:]])
    return np.where(missing, len(ends), np.searchsorted(ends, values))


def _given_away(groups: np.ndarray, distinct: int, classes: np.ndarray) -> str:
    """How well groups of rows tell every class from the others, if they do; else nothing.

    `distinct` is the number of values that the column has.
    """
    if 2 * len(np.unique(groups)) > len(groups):  # most rows have no others to be judged by
        return ""
    number = int(classes.max()) + 1
    counts = np.bincount(groups * number + classes, minlength=(groups.max() + 1) * number)
    counts = counts.reshape(-1, number).astype(np.float64)
    rows = counts.sum(1)
    tested = np.flatnonzero(counts.sum(0) >= _CLASS)
    lowest = 1.0
    for each in tested:
        lowest = min(lowest, _auc(counts[:, each], rows))
        if lowest < _AUC:
            break
    if len(tested) < 2 or lowest < _AUC:
        return ""
    if distinct == number and (np.count_nonzero(counts, axis=1) <= 1).all():
        return "it is the target under other names"
    return f"it predicts the target by itself (AUC {np.floor(1000 * lowest) / 1000:.3f})"


def _auc(positives: np.ndarray, rows: np.ndarray) -> float:
    """The AUC of a class, by its share among the other rows of a group: both `[groups]`."""
    others = np.maximum(rows - 1, 1)
    share = positives.sum() / rows.sum()
    alone = rows == 1
    of_positives = np.where(alone, share, (positives - 1) / others)
    of_negatives = np.where(alone, share, positives / others)
    order = np.argsort(of_negatives)
    below = np.concatenate([[0.0], np.cumsum((rows - positives)[order])])
    ends = [np.searchsorted(of_negatives[order], of_positives, side) for side in ("left", "right")]
    won = (below[ends[0]] + below[ends[1]]) / 2
    return float(positives @ won / (positives.sum() * below[-1]))


def _handed_out(name: str, kind: Kind, values: Any, places: np.ndarray) -> str:
    """Why distinct values look like an id, as the beginning of a sentence; else nothing."""
    if kind == "categories":
        return "it is text that is"
    known = values[~pd.isna(values)].astype(np.float64)
    if kind != "numbers" or not np.isfinite(known).all() or (known % 1).any():
        return ""
    if len(known) == len(values) and (known - places == known[0] - places[0]).all():
        return "it counts the rows, and is"
    if _CALLED_ID.search(name):
        return "it is called an id, and is"
    if len(known) < _FEWEST:
        return ""
    even = np.sort(known / np.abs(known).max())  # which no difference makes too large
    even = (even - even[0]) / (even[-1] - even[0])
    distance = np.abs(even - np.linspace(0, 1, len(even))).max()
    near = max(_NEARLY_EVEN, _EVEN / np.sqrt(len(even)))
    return "it is evenly spread, and is" if distance < near else ""
