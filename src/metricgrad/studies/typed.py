"""Whether a value that was read from JSON is of the type that a record states.

Records are dataclasses, and Python does not check what their fields hold. A number that is text, in
a file that was damaged or edited, would fail much later, in the middle of a page.
"""

import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


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
