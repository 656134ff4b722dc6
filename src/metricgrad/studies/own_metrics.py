"""Metrics by the text of `--metric`: a name with options, or a function in a user's file.

    f1, fbeta:beta=2                       a metric of the library
    own.py:profit                          the function `profit` in the file own.py
    own.py:cost:higher_is_better=false     the same with options of `mg.from_function`

The file is run when a command reads its option, and only then: neither a run folder nor a saved
model makes anybody run a file.
"""

import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from metricgrad.metrics import Metric, metric_options
from metricgrad.metrics import metric as to_metric

_OWN = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)(?::(?P<options>.*))?")
_CARRIED: dict[Path, str] = {}  # source of files that may be on another machine
_STATED = {"higher_is_better": True, "best": 1.0, "worst": 0.0}  # options of a function, by kind


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
