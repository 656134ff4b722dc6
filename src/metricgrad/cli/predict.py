"""`metricgrad predict`: predictions for a table, by a model that `train` saved."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from metricgrad.cli import options
from metricgrad.cli.app import app, examples, plain_errors


@app.command(epilog=examples("metricgrad predict runs/fraud-f1 new.csv --out predictions.csv"))
def predict(
    model: Annotated[
        Path, typer.Argument(help="Folder that train has written, or a model.safetensors file.")
    ],
    data: Annotated[
        Path,
        typer.Argument(help="CSV, Parquet or svmlight file with the columns of the training data."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; prints to the terminal unless given.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column with the true classes, or grades, to measure the model on."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column that says which query a row belongs to, for a model that ranks."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Function that the model was trained for, as in own.py:profit, to measure it by."
        ),
    ] = None,
    amount: options.AmountOption = None,
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
        amounts = studies.AmountColumns.of(options.amounts(amount), None)
        found = studies.predict(model, data, target, group, metric, amounts)
        told: dict[str, Any] = {"rows": len(found.table), "out": None if out is None else str(out)}
        if found.measured is not None:
            each = found.measured
            told |= {"metric": each.metric, "value": each.value, "rows_with_truth": each.rows}
            if not as_json:
                typer.echo(f"{each.metric}: {each.value:.4f} on {each.rows} rows", err=True)
        if out is not None:
            packed = "gzip" if out.suffix == ".gz" else None  # the temporary name does not say it
            with complete_file(out) as partial:
                found.table.to_csv(partial, index=False, compression=packed)
        elif as_json:
            told["predictions"] = json.loads(found.table.to_json(orient="records"))
        else:
            found.table.to_csv(sys.stdout, index=False)
        if as_json:
            typer.echo(json.dumps(told, indent=2))
