"""Records that JSON files hold: whether their values have the stated types, and facts on columns.

Records are dataclasses, and Python does not check what their fields hold. A number that is text, in
a file that was damaged or edited, would fail much later, in the middle of a page. So whatever is
read from a file passes `checked`.

A run tells which columns of its table were left out, look suspicious or matter most. These records
are parts of results (`results.py`), and are stored under the names of their fields.
"""

import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Suspicion = Literal["id", "leak", "constant"]
_SUSPECTED = {"leak": "gives the target away", "id": "looks like an id", "constant": "constant"}


def checked(record: Record) -> Record:
    """The record; ValueError, with the field, if a value is not of its type."""
    hints = get_type_hints(type(record))
    named: Any = record
    for each in fields(named):
        value = getattr(record, each.name)
        if not fits(value, hints[each.name]):
            raise ValueError(f"{each.name} cannot be {value!r:.40}")
    return record


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as records state them; lists may stand for tuples."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        several = isinstance(value, list | tuple) and len(value) == len(parts)
        return several and all(map(fits, value, parts))
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(each, parts[1]) for each in value.values())
    if origin is not None:
        return isinstance(value, list | tuple) and all(fits(each, parts[0]) for each in value)
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        known = isinstance(value, numbers) and not isinstance(value, bool)
        return known and abs(value) <= sys.float_info.max  # JSON may hold NaN and longer numbers
    return isinstance(value, kind)


@dataclass(frozen=True)
class DroppedColumn:
    """A column of the file that is not a feature; the reason is the option that says so."""

    name: str
    reason: str


@dataclass(frozen=True)
class SuspiciousColumn:
    """A feature that may do harm, with the reason as a sentence without its full stop."""

    name: str
    kind: Suspicion
    reason: str

    @property
    def label(self) -> str:
        """What it is suspected of, as tables and sentences have it."""
        return _SUSPECTED[self.kind]


@dataclass(frozen=True)
class ImportantColumns:
    """The columns that matter most: how much the metric falls when each of them is shuffled.

    Attributes:
        means: Mean fall of the metric over the shuffles of a column, the largest first.
        spreads: Standard deviation of that fall over the shuffles, in the same order.
        rows: Test rows that were shuffled; of queries, documents.
        shuffles: How often each column was shuffled.
    """

    names: list[str]
    means: list[float]
    spreads: list[float]
    rows: int
    shuffles: int


def column_facts(stored: dict[str, Any]) -> dict[str, Any]:
    """The records of a file by field, as far as it has any: older files do not.

    Raises ValueError or TypeError where the file is damaged.
    """
    found: dict[str, Any] = {}
    for name, kind in (("dropped", DroppedColumn), ("suspicious", SuspiciousColumn)):
        found[name] = [checked(kind(**each)) for each in stored.get(name, [])]
    if stored.get("importances") is not None:
        important = checked(ImportantColumns(**stored["importances"]))
        if not len(important.names) == len(important.means) == len(important.spreads):
            raise ValueError(f"importances of {important.names!r:.40} have another length")
        found["importances"] = important
    return found
