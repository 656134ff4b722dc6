"""Numbers as people write them: 0,94 and 1.234,5 beside 0.94 and 1,234.5.

pandas reads 1234.5. Spreadsheets and people also write decimal commas, and separate thousands by
commas, points, spaces or apostrophes. Such a column is text, and must not become categories in
silence. Its values say which mark is the decimal one:

    0,94    1234,5     1.234,56    1.234.567     the comma
    0.94    1,234.5    1,234,567   1,23,456.7    the point
    1,234   12,500     1.234                     either; other columns of the file decide
    1234    1 234                                neither is needed
"""

import re
from typing import Any, Literal

import pandas as pd

Mark = Literal[",", ".", "either", "neither"]

_SPACES = " '\N{RIGHT SINGLE QUOTATION MARK}\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"


def _pattern(decimal: str, groups: str) -> re.Pattern[str]:
    whole = rf"(?:{groups}|[1-9]\d{{0,2}}(?P<mark>[{_SPACES}])\d{{3}}(?:(?P=mark)\d{{3}})*|\d+)"
    number = rf"(?:{whole}(?:{decimal}\d*)?|{decimal}\d+)"
    return re.compile(rf"\s*[-+{_MINUS}]?{number}(?:[eE][-+]?\d+)?\s*")


_NUMBER = {
    ",": _pattern(",", r"[1-9]\d{0,2}(?:\.\d{3})+"),
    ".": _pattern(r"\.", r"[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}"),  # India writes 1,23,456
}
_SEPARATORS = {",": f"[.{_SPACES}]", ".": f"[,{_SPACES}]"}


def is_text(column: Any) -> bool:
    """Whether a pandas Series holds text, with or without missing values."""
    if column.dtype == object:
        return pd.api.types.infer_dtype(column, skipna=True) == "string"
    return pd.api.types.is_string_dtype(column.dtype)


def plain_numbers(column: Any) -> Any:
    """The numbers of a column that pandas can read by itself; None if there is other text in it."""
    read: Any = pd.to_numeric(column, errors="coerce")
    return None if (read.isna() & column.notna()).any() else read


def decimal_mark(column: Any) -> Mark | None:
    """The decimal mark of a column of text; None if not every value is a number."""
    values = [str(each) for each in column.dropna().unique()]
    fitting: list[Mark] = [mark for mark in (",", ".") if all(map(_NUMBER[mark].fullmatch, values))]
    if not values or not fitting:
        return None
    if len(fitting) == 1:
        return fitting[0]
    return "either" if any("," in each or "." in each for each in values) else "neither"


def looks_like_number(column: Any) -> Any:
    """Which values of a column of text are numbers, with either decimal mark; a Boolean Series."""
    found = {
        each: any(pattern.fullmatch(str(each)) for pattern in _NUMBER.values())
        for each in column.dropna().unique()
    }
    return column.map(found).eq(True)


def to_numbers(column: Any, mark: Mark) -> Any:
    """Text that is numbers with this decimal mark, as numbers."""
    decimal = "," if mark == "," else "."
    texts = column.str.replace(_SEPARATORS[decimal], "", regex=True)
    return pd.to_numeric(texts.str.replace(",", ".").str.replace(_MINUS, "-"))


def refusal(name: str, column: Any) -> str | None:
    """What is wrong with a column of text that is numbers, or nearly; None if it is other text."""
    known = column[column.notna()]
    wrong = known[~looks_like_number(known)]
    if not len(known) or 2 * len(wrong) >= len(known):
        return None
    if len(wrong):
        return (
            f"column {name!r} is numbers but for {len(wrong)} rows, such as {wrong.iloc[0]!r} in "
            f"row {row_number(wrong, 0)}; correct them, or leave them empty if they are missing"
        )
    comma = next((each for each in known if not _NUMBER["."].fullmatch(each)), None)
    point = next((each for each in known if not _NUMBER[","].fullmatch(each)), None)
    if comma is not None and point is not None:
        return (
            f"column {name!r} has decimal commas, as in {comma!r}, and decimal points, as in "
            f"{point!r}; write all of its numbers with points"
        )
    example = next((each for each in known if "," in each), None)
    if example is None:
        return None
    return (
        f"column {name!r} has numbers such as {example!r}, whose comma may be a decimal mark or "
        "separate thousands; write them with a decimal point and without separators"
    )


def row_number(column: Any, position: int) -> int:
    """The number of a row, from 1 on, in the table that a pandas Series was taken from.

    The index knows it, also after rows were left out, unless it has other things than numbers.
    """
    label = column.index[position]
    return 1 + int(label if pd.api.types.is_integer(label) else position)
