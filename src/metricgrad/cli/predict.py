"""`metricgrad predict`: predictions for a table, by a model that `train` saved."""

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer

from metricgrad.cli import options
from metricgrad.cli.app import app, examples, plain_errors


@app.command(
    epilog=examples(
        "metricgrad predict runs/fraud-f1 new.csv --out predictions.csv",
        "metricgrad predict runs/fraud-f1 new.csv --id customer --out predictions.csv",
    )
)
def predict(
    model: Annotated[
        Path, typer.Argument(help="Folder that train has written, or a model.safetensors file.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, Parquet or svmlight file with the columns of the training data, or a folder "
            "of Parquet files."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write. Default: print to the terminal.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column with the true classes or grades, to evaluate the model."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column that says which query a row belongs to, for a model that ranks."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Your own function that the model was trained for, as in own.py:profit."),
    ] = None,
    amount: options.AmountOption = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Columns to copy, unchanged, to the front of the predictions, separated by commas:"
            " id,date. May be repeated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the predictions as JSON instead of CSV.")
    ] = False,
) -> None:
    """Predict the rows of a table with a model that `train` has saved."""
    from metricgrad import studies
    from metricgrad.storage import complete_file

    with plain_errors():
        if out is not None and out.exists():
            raise ValueError(f"{out} exists already; choose another --out")
        amounts = studies.AmountColumns.of(options.amount_columns(amount), None)
        found = studies.predict(model, data, target, group, metric, amounts, ",".join(ids or []))
        told: dict[str, Any] = {"rows": 0, "out": None if out is None else str(out)}
        if out is not None:
            with (
                complete_file(out) as partial,
                _opened(partial, packed=out.suffix == ".gz") as file,
            ):
                told["rows"] = _write(found.parts, file)
        elif as_json:
            whole = list(found.parts)
            told["rows"] = sum(map(len, whole))
            told["predictions"] = [row for part in whole for row in _records(part)]
        else:
            _write(found.parts, sys.stdout)
        if found.measured is not None:
            each = found.measured
            told |= {"metric": each.metric, "value": each.value, "rows_with_truth": each.rows}
            if not as_json:
                typer.echo(f"{each.metric}: {each.value:.4f} on {each.rows} rows", err=True)
        if as_json:
            typer.echo(json.dumps(told, indent=2))


def _records(part: Any) -> list[dict[str, Any]]:
    """Rows as JSON has them."""
    return json.loads(part.to_json(orient="records", date_format="iso"))


def _opened(path: Path, *, packed: bool) -> IO[str]:
    """A text file to write to; its temporary name does not say whether it is gzipped."""
    if packed:
        return cast(IO[str], gzip.open(path, "wt", encoding="utf-8", newline=""))
    return path.open("w", encoding="utf-8", newline="")


def _write(parts: Iterable[Any], file: IO[str]) -> int:
    """Writes predictions as CSV, part after part; the number of rows."""
    rows = 0
    for part in parts:
        part.to_csv(file, index=False, header=not rows)
        rows += len(part)
    return rows
