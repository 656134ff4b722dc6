"""The metric of a command, and the columns that it takes besides scores and target.

`--metric` has a name with options, or a function in a user's file:

    f1, fbeta:beta=2                       a metric of the library
    own.py:profit                          the function `profit` in the file own.py
    own.py:cost:higher_is_better=false     the same with options of `mg.from_function`

The file is run when a command reads its option, and only then: neither a run folder nor a saved
model makes anybody run a file.

`profit(scores, target, amount)` takes an amount of every row. `--amount` says which column that is:

    --amount value                  the parameter `amount` gets the column `value`
    --amount cost=price             the parameter `cost` gets the column `price`; repeatable

What a column gives to the metric is often known only afterwards, such as what a customer spent. So
it is not a feature, unless `--keep` names it.
"""

import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.metrics import Metric, metric_options
from metricgrad.metrics import metric as to_metric
from metricgrad.studies.tables import check_column, column_names

_OWN = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)(?::(?P<options>.*))?")
_CARRIED: dict[Path, str] = {}  # source of files that may be on another machine
_STATED = {"higher_is_better": True, "best": 1.0, "worst": 0.0}  # options of a function, by kind
# What the estimators mean by these is fixed.
_TAKEN = ("X", "x", "y", "self", "scores", "target", "rows", "folder")


def named_metric(text: str) -> Metric:
    """A metric from the text of `--metric`; ValueError that repeats it where there is none."""
    try:
        own = _OWN.fullmatch(text.strip())
        if own is not None:
            fn = _function(Path(own["path"]), own["name"])
            options = _options(own["options"] or "")
            return _with_options(functools.partial(_from_function, fn), options, _STATED)
        if re.search(r"\.py\b", text):
            raise ValueError("name a function in the file, as in own.py:profit")
        name, _, rest = text.partition(":")
        known = metric_options(type(to_metric(name.strip())))
        options = _options(rest)
        return _with_options(functools.partial(to_metric, name.strip()), options, known)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--metric {text}: {error}") from None


def without_file(text: str) -> str:
    """The text of `--metric` without the file of a function: `profit` for own.py:profit."""
    own = _OWN.fullmatch(text.strip())
    return text if own is None else ":".join(filter(None, own.group("name", "options")))


def own_file(text: str) -> Path | None:
    """The file that `--metric` names a function of; None for a metric of the library."""
    own = _OWN.fullmatch(text.strip())
    return None if own is None else Path(own["path"])


def own_source(text: str) -> str | None:
    """The text of that file, to make the metric on another machine; None for a metric by name."""
    path = own_file(text)
    return None if path is None else path.read_text(encoding="utf-8")


@contextmanager
def carried_source(text: str, source: str | None) -> Iterator[None]:
    """Makes the metric from what `own_source` read, whether or not this machine has the file."""
    path = own_file(text)
    if path is None or source is None:
        yield
        return
    _CARRIED[path] = source
    try:
        yield
    finally:
        del _CARRIED[path]


def _options(text: str) -> dict[str, Any]:
    """Options from text such as `beta=2,average=micro`."""
    options: dict[str, Any] = {}
    for each in filter(None, text.split(",")):
        option, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"options are written as in fbeta:beta=2; got {each!r}")
        try:
            options[option.strip()] = json.loads(value.lower())
        except ValueError:
            options[option.strip()] = value.strip()
    return options


def _with_options(
    make: Callable[..., Metric], options: dict[str, Any], known: dict[str, Any]
) -> Metric:
    """A metric with its options; ValueError for one of another kind than its default."""
    for option in options.keys() & known.keys():
        value = options[option]
        flag = isinstance(known[option], bool)
        if flag and not isinstance(value, bool):
            raise ValueError(f"{option} must be true or false; got {value!r}")
        number = isinstance(known[option], int | float) and not flag
        if number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{option} must be a number; got {value!r}")
    return make(**options)


def _from_function(fn: Any, **options: Any) -> Metric:
    """A function with what is said of it, or a `Metric` that the file made itself."""
    unknown = [option for option in options if option not in _STATED]
    if unknown:
        raise TypeError(
            f"a function has no option {', '.join(unknown)}; it takes {', '.join(_STATED)}"
        )
    return to_metric(fn, **options)


def _function(path: Path, name: str) -> Any:
    """What a file calls `name`; ValueError where it has no such function."""
    if path not in _CARRIED and not path.is_file():
        raise ValueError(f"there is no file {path}")
    source = _CARRIED.get(path) or path.read_text(encoding="utf-8")
    found = vars(_module(str(path), source))
    if name in found and callable(found[name]):
        return found[name]
    own = [each for each, thing in found.items() if callable(thing) and not each.startswith("_")]
    near = difflib.get_close_matches(name, own, 1)
    known = f"did you mean {near[0]}?" if near else f"it has {', '.join(own) or 'none'}"
    raise ValueError(f"{path} has no function {name}; {known}")


@functools.cache
def _module(path: str, source: str) -> ModuleType:
    """A file as a module; run once as long as its text does not change."""
    module = ModuleType(f"metricgrad_own_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and others look their module up
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:  # it is the user's own code, and may raise anything
        raise ValueError(f"{path} raises {type(error).__name__}: {error}") from error
    return module


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
