"""Options that commands share, and how their texts are read: `100,30,10`, `2m`, `2GB`."""

import re
from pathlib import Path
from typing import Annotated

import typer

_KINDS = ("linear", "network", "boosted")
_HIDDEN = (100, 30, 10)  # widths of a network's hidden layers

DataArgument = Annotated[
    Path | None,
    typer.Argument(
        help="CSV, Parquet or svmlight file, or a folder of Parquet files. Default: "
        "scikit-learn's digits; the task is to find eights, or odd digits with --target odd."
    ),
]
TargetOption = Annotated[str, typer.Option(help="Name of the column to predict.")]
MetricOption = Annotated[
    str,
    typer.Option(
        help="Metric to train for and report, with options as in fbeta:beta=2, or your own "
        "function, as in own.py:profit. `metricgrad metrics` lists the names."
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        help="Column that says which query a row belongs to, for ranking metrics such as ndcg."
    ),
]
AmountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column for the parameter `amount` of your own function, or cost=COLUMN for a "
        "parameter with another name. May be repeated. This column is not used as a feature.",
    ),
]
KeepOption = Annotated[
    str | None,
    typer.Option(help="--amount columns that are also used as features, separated by commas."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Kind of model: linear, network, boosted (trees); several, such as boosted,linear, or "
        "auto for all, of which the first is taken unless another is better on validation data. On "
        "tables with more than two columns per row, trees are grown only if asked for."
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="Library that grows boosted trees: lightgbm, xgboost or sklearn. Default: the first "
        "of them that is installed."
    ),
]
HiddenOption = Annotated[
    str | None,
    typer.Option(
        help="Widths of the network's hidden layers; `none` is a linear model. Default: 100,30,10."
    ),
]
TestShareOption = Annotated[
    float, typer.Option(help="Share of the rows that is held out for testing.", min=0.01, max=0.9)
]
DropOption = Annotated[
    str | None,
    typer.Option(
        help="Columns to leave out, separated by commas: id,date. Put a name that contains a comma "
        "in quotes."
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option(help="Time limit for training: 90s, 2m, 1h. Default: no limit.")
]
EpochsOption = Annotated[int, typer.Option(help="Maximum number of epochs per trial.", min=1)]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Memory that the run may use. A Parquet table that needs more is streamed in row "
        "groups. Default: 2GB."
    ),
]
SeedOption = Annotated[
    int, typer.Option(help="Seed for data splits, initial weights and batches.", min=0)
]
PositiveOption = Annotated[
    str | None,
    typer.Option(
        help="Class that counts as positive. Default: the rarer class if classes are names, the "
        "higher one if they are numbers."
    ),
]
OnOption = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where to train: `local`, or on a Ray cluster with `ray`, ray=HOST:6379 or "
        "ray://HOST:10001. `ray` uses RAY_ADDRESS, else a cluster running here, else starts one.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(help="Number of local processes, with one thread each. Default: 1."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, without tables or progress.")
]


def amount_columns(texts: list[str] | None) -> dict[str, str] | None:
    """Columns by parameter, from texts such as `value` (for `amount`) and `cost=price`."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, column = text.partition("=")
        if not (equals and name.strip().isidentifier()):  # a column may have = in its name
            name, column = "amount", text
        if name.strip() in found:
            raise ValueError(
                f"--amount gives {name.strip()!r} two columns, {found[name.strip()]!r} and "
                f"{column.strip()!r}; write another parameter as --amount cost=COLUMN"
            )
        found[name.strip()] = column.strip()
    return found or None


def model_and_widths(model: str | None, hidden: str | None) -> tuple[str | None, tuple[int, ...]]:
    """The kind of model, and the hidden layers of its network.

    If only --hidden is given, it says that the model is a network, or linear.
    """
    kinds = [] if model in (None, "auto") else [each.strip() for each in model.split(",")]
    if not set(kinds) <= set(_KINDS):
        raise ValueError(
            f"--model must be {', '.join(_KINDS)}, several of them such as boosted,linear, or auto "
            f"for all; got {model!r}"
        )
    if hidden is None:
        return model, _HIDDEN
    if kinds and "network" not in kinds:
        raise ValueError(f"--hidden is for networks; leave it out with --model {model}")
    return model or "network", layer_widths(hidden)


def layer_widths(text: str) -> tuple[int, ...]:
    """Widths of hidden layers from text such as `100,30,10`; `none` is a linear model."""
    if text.strip().lower() in ("none", ""):
        return ()
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(f"--hidden must be widths such as 100,30,10, or none; got {text!r}")
    return tuple(int(each) for each in text.split(","))


def seconds(text: str | None) -> float | None:
    """Seconds from text such as `90s`, `2m` or `1h`."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not found or not float(found[1]):
        raise ValueError(f"--budget must be a time such as 90s, 2m or 1h; got {text!r}")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def size(text: str | None) -> int | None:
    """Bytes from text such as `500MB`, `2GB` or `1.5GiB`; units are powers of 1,024."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG])i?B?\s*", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"--memory must be a size such as 500MB or 2GB; got {text!r}")
    return int(float(found[1]) * 1024 ** (1 + "KMG".index(found[2].upper())))
