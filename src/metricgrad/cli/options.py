"""Options that commands share, and what their texts stand for: `fbeta:beta=2`, `100,30,10`, `2m`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric

DataArgument = Annotated[
    Path | None,
    typer.Argument(help="CSV, Parquet or svmlight file; none takes digits from scikit-learn."),
]
TargetOption = Annotated[str, typer.Option(help="Column to predict.")]
MetricOption = Annotated[
    str,
    typer.Option(
        help="What the model is judged by, options behind it: fbeta:beta=2. `metricgrad metrics` lists all."
    ),
]
HiddenOption = Annotated[
    str, typer.Option(help="Widths of hidden layers, such as 100,30,10; `none` is linear.")
]
TestShareOption = Annotated[
    float, typer.Option(help="Of the rows, kept for testing.", min=0.01, max=0.9)
]
DropOption = Annotated[str | None, typer.Option(help="Columns to leave out, such as id,date.")]
BudgetOption = Annotated[str | None, typer.Option(help="Time for training: 90s, 2m, 1h.")]
EpochsOption = Annotated[int, typer.Option(help="Of a training, at most.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Of everything random.", min=0)]
PositiveOption = Annotated[
    str | None, typer.Option(help="Which of two classes is the positive one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result, for machines.")]


def named_metric(text: str) -> Metric:
    """A metric by its name, with options behind it: `f1`, `fbeta:beta=2`, `partial_auc:max_fpr=0.1`."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for each in filter(None, rest.split(",")):
        option, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"--metric takes options as in fbeta:beta=2; got {text!r}")
        try:
            options[option.strip()] = json.loads(value)
        except ValueError:
            options[option.strip()] = value.strip()
    return to_metric(name.strip(), **options)


def folder_name(data: str, metric: str) -> str:
    """Of a run, unless one is given."""
    return f"{data}-{re.sub(r'[^0-9A-Za-z_.]+', '-', metric)}"


def widths(text: str) -> list[int]:
    """Widths of hidden layers from text such as `100,30,10`; `none` is a linear model."""
    if text.strip().lower() in ("none", ""):
        return []
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(f"--hidden must be widths such as 100,30,10, or none; got {text!r}")
    return [int(each) for each in text.split(",")]


def seconds(text: str | None) -> float | None:
    """Seconds from text such as `90s`, `2m` or `1h`."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not found or not float(found[1]):
        raise ValueError(f"--budget must be a time such as 90s, 2m or 1h; got {text!r}")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def chosen_class(positive: str | None, y: Any) -> Any:
    """The class of a target that text such as `1` or `yes` stands for."""
    if positive is None:
        return None
    by_name = {str(each): each for each in y.unique()}
    if positive not in by_name:
        raise ValueError(f"--positive must be one of {', '.join(sorted(by_name))}; got {positive}")
    return by_name[positive]
