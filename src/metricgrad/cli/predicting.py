"""`metricgrad predict`: a model that `train` made, on the rows of a table."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console

from metricgrad.cli import options
from metricgrad.cli.app import app, examples, refuse
from metricgrad.cli.reading import like, numbers, read_table, split_target
from metricgrad.estimators import MetricClassifier


@app.command(epilog=examples("metricgrad predict runs/fraud-f1 new.csv --out predictions.csv"))
def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a run, or its model.safetensors.")],
    data: Annotated[
        Path,
        typer.Argument(help="CSV, Parquet or svmlight file with the columns of the training data."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; none prints to the terminal.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of the truth, to measure the model on.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Predict the rows of a table with a model that `train` made."""
    try:
        loaded = MetricClassifier.load(model / "model.safetensors" if model.is_dir() else model)
        table = read_table(data)
        names = list(vars(loaded).get("feature_names_in_", []))
        if not names:  # trained on an array: columns by their places
            names = [name for name in table.columns if name != target]
            if len(names) != loaded.n_features_in_:
                raise ValueError(
                    f"{data} has {len(names)} columns; the model was trained on {loaded.n_features_in_}"
                )
        x: Any = numbers(like(table, names, data))
        x = x if "feature_names_in_" in vars(loaded) else x.to_numpy()
        found = pd.DataFrame({"prediction": loaded.predict(x)})
        chances = loaded.predict_proba(x)
        for number, each in enumerate(loaded.classes_):
            found[f"probability of {each}"] = chances[:, number].round(6)
        told: dict[str, Any] = {"rows": len(found), "out": None if out is None else str(out)}
        if target is not None:
            known = table[target].notna().to_numpy() if target in table.columns else slice(None)
            _, y, _ = split_target(table, target, several=False)
            value = loaded.trained_.measure(loaded.prepared(x[known]), loaded.encoded(y.to_numpy()))
            told |= {
                "metric": loaded.trained_.metric.name,
                "value": value,
                "rows_with_truth": len(y),
            }
            if not as_json:
                message = f"{told['metric']}: {value:.4f} on {len(y)} rows"
                Console(stderr=True).print(message, highlight=False)
        if out is not None and out.exists():
            raise ValueError(f"{out} is there already; choose another --out")
        if out is not None:
            found.to_csv(out, index=False)
        elif as_json:
            told["predictions"] = json.loads(str(found.to_json(orient="records")))
        else:
            found.to_csv(sys.stdout, index=False)
        if as_json:
            typer.echo(json.dumps(told, indent=2))
    except (ValueError, OSError) as error:
        refuse(str(error))
