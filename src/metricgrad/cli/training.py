"""`metricgrad train` and `metricgrad predict`: a table in, a model, its values on test data and a plain answer out."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from metricgrad.cli.app import app, refuse
from metricgrad.cli.evidence import gather, intervals
from metricgrad.cli.folder import RunFolder
from metricgrad.cli.parts import parts
from metricgrad.cli.reading import TARGET, numbers, read_table, split_target
from metricgrad.estimators import MetricClassifier
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.report import label, write_run
from metricgrad.surrogates.base import metric_config
from metricgrad.training import Fit

DataArgument = Annotated[
    Path | None, typer.Argument(help="CSV, Parquet or svmlight file; none takes digits from scikit-learn.")
]
TargetOption = Annotated[str, typer.Option(help="Column to predict.")]
MetricOption = Annotated[str, typer.Option(help="What the model is judged by; `metricgrad metrics` lists all.")]
HiddenOption = Annotated[str, typer.Option(help="Widths of hidden layers, such as 100,30,10; `none` is linear.")]
TestShareOption = Annotated[float, typer.Option(help="Of the rows, kept for testing.", min=0.01, max=0.9)]
DropOption = Annotated[str | None, typer.Option(help="Columns to leave out, such as id,date.")]
BudgetOption = Annotated[str | None, typer.Option(help="Time for training: 90s, 2m, 1h.")]
EpochsOption = Annotated[int, typer.Option(help="Of a training, at most.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Of everything random.")]
PositiveOption = Annotated[str | None, typer.Option(help="Which of two classes is the positive one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result, for machines.")]


@app.command(
    epilog="Examples: `metricgrad train` · `metricgrad train fraud.csv --target is_fraud --metric average_precision` · "
    "`metricgrad train data.parquet --target y --metric mcc --hidden none --budget 2m --out runs/mcc`"
)
def train(
    data: DataArgument = None,
    target: TargetOption = TARGET,
    metric: MetricOption = "f1",
    method: Annotated[str, typer.Option(help="`auto`, or the name of a loss: cross_entropy, uniloss, ...")] = "auto",
    hidden: HiddenOption = "100,30,10",
    test: Annotated[Path | None, typer.Option(help="A file with test data; none cuts a part off.")] = None,
    test_share: TestShareOption = 0.25,
    positive: PositiveOption = None,
    drop: DropOption = None,
    epochs: EpochsOption = 20,
    budget: BudgetOption = None,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME-METRIC unless given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model for a metric, and say whether that was better than training on cross-entropy."""
    try:
        name = "digits" if data is None else data.name.split(".")[0]
        asked = {
            "command": "train", "data": None if data is None else str(data), "target": target, "metric": metric,
            "method": method, "hidden": widths(hidden), "test": None if test is None else str(test),
            "test_share": test_share, "positive": positive, "epochs": epochs, "budget": seconds(budget), "seed": seed,
            "drop": drop,
        }  # fmt: skip
        chosen, read = to_metric(metric), parts(data, target, test, test_share, seed, drop)
        trained, tested = read.trained, read.tested
        folder = RunFolder(out or Path("runs") / f"{name}-{metric}", asked | {"sha256": read.sha256})
        unfinished = folder.result is None or folder.result["stopped"]
        if unfinished:
            model = classifier(asked, trained.y, method, progress=not as_json)
            model.fit(trained.x, trained.y, rows=trained.rows, folder=folder.checkpoints)
            model.save(folder.path / "model.safetensors")
            x, y = model.prepared(tested.x, tested.rows), model.encoded(tested.target)
            evidence: Any = gather(model.fit_, x, y)
            np.savez_compressed(folder.path / "evidence.npz", **evidence)
            rows = {"train": len(trained), "test": len(tested), "without_target": read.left_out}
            folder.finish(outcome(model, chosen, x, y) | {"rows": rows})
        elif not as_json:
            Console(stderr=True).print("this run is there already; here is its result", style="yellow")
        if unfinished or not (folder.path / "report.html").exists():  # a kill may come between result and report
            write_run(folder.path)
    except (ValueError, OSError, RuntimeError) as error:  # of which the last is training that diverged
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("stopped before there was a result; the same command goes on from here")
    result = folder.result
    assert result is not None
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    show(result, folder.path)


@app.command(epilog="Example: `metricgrad predict runs/fraud-f1 new.csv --out predictions.csv`")
def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a run, or its model.safetensors.")],
    data: Annotated[Path, typer.Argument(help="CSV, Parquet or svmlight file with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write; none prints to the terminal.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the truth, to measure the model on.")] = None,
) -> None:
    """Predict the rows of a table with a model that `train` made."""
    try:
        loaded = MetricClassifier.load(model / "model.safetensors" if model.is_dir() else model)
        table = read_table(data)
        names = list(vars(loaded).get("feature_names_in_", []))
        if not names:  # trained on an array: columns by their places
            names = [name for name in table.columns if name != target]
            if len(names) != loaded.n_features_in_:
                raise ValueError(f"{data} has {len(names)} columns; the model was trained on {loaded.n_features_in_}")
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise ValueError(f"{data} has no column {', '.join(map(repr, missing))}, which the model was trained on")
        x: Any = numbers(table[names])
        x = x if "feature_names_in_" in vars(loaded) else x.to_numpy()
        found = pd.DataFrame({"prediction": loaded.predict(x)})
        chances = loaded.predict_proba(x)
        for number, each in enumerate(loaded.classes_):
            found[f"probability of {each}"] = chances[:, number].round(6)
        if target is not None:
            known = table[target].notna().to_numpy() if target in table.columns else slice(None)
            _, y, _ = split_target(table, target, several=False)
            value = loaded.trained_.measure(loaded.prepared(x[known]), loaded.encoded(y.to_numpy()))
            Console(stderr=True).print(f"{loaded.trained_.metric.name}: {value:.4f} on {len(y)} rows", highlight=False)
        if out is not None and out.exists():
            raise ValueError(f"{out} is there already; choose another --out")
        found.to_csv(sys.stdout if out is None else out, index=False)
    except (ValueError, OSError) as error:
        refuse(str(error))


def classifier(asked: dict[str, Any], y: Any, method: str, *, progress: bool) -> MetricClassifier:
    """The classifier that was asked for."""
    settings = {name: asked[name] for name in ("metric", "hidden", "epochs", "budget")}
    settings |= {"positive": chosen_class(asked["positive"], y), "random_state": asked["seed"]}
    return MetricClassifier(method=method, progress=progress, **settings)


def chosen_class(positive: str | None, y: Any) -> Any:
    """The class of a target that text such as `1` or `yes` stands for."""
    if positive is None:
        return None
    by_name = {str(each): each for each in y.unique()}
    if positive not in by_name:
        raise ValueError(f"--positive must be one of {', '.join(sorted(by_name))}; got {positive}")
    return by_name[positive]


def outcome(model: MetricClassifier, metric: Metric, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The result of a run on test data, ready for JSON."""
    found, decision = model.fit_, model.fit_.decision
    entries = {"cross_entropy": decision.ordinary, "challenger": decision.challenger}
    winner = "challenger" if decision.winner is decision.challenger else "cross_entropy"
    bounds = intervals(found, x, y)
    finalists = {
        name: {
            "method": str(entry.contender),
            "validation": entry.value,
            "test": found.finalists[name].measure(x, y),
            "interval": bounds[name],
            "threshold": None if entry.threshold is None else entry.threshold.tolist(),
            "rate": entry.rate,
            "epoch": entry.epoch,
            "curve": [[None if value != value else value for value in row] for row in entry.curve.tolist()],
        }
        for name, entry in entries.items()
        if entry is not None
    }
    return {
        "command": shlex.join(["metricgrad", *sys.argv[1:]]),
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "metric_config": metric_config(found.metric),
        "classes": [str(each) for each in model.target_.ordered],
        "finalists": finalists,
        "chosen": winner,
        "gain": decision.gain,
        "test_gain_interval": bounds.get("gain"),
        "luck": decision.luck,
        "again": decision.again,
        "folds": found.folds,
        "verdict": found.verdict(),
        "tried": tried(found),
        "seconds": round(found.seconds, 1),
        "stopped": found.stopped,
    }  # fmt: skip


def tried(found: Fit) -> list[dict[str, Any]]:
    """Every entrant with its value on validation data."""
    return [
        {
            "method": str(entry.contender),
            "rate": entry.rate,
            "epochs": entry.epochs,
            "epoch": entry.epoch,
            "value": entry.value,
        }
        for entry in found.entries
    ]


def show(result: dict[str, Any], folder: Path) -> None:
    """Prints a result."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (result["metric"], "validation", "test", ""):
        table.add_column(column, justify="right" if column in ("validation", "test") else "left")
    for name, each in result["finalists"].items():
        called, mark = label(name, each), "chosen" if name == result["chosen"] else ""
        called += ", threshold tuned" if called == "cross-entropy" and each["threshold"] is not None else ""
        table.add_row(called, f"{each['validation']:.4f}", f"{each['test']:.4f}", mark)
    console.print(table)
    console.print(result["verdict"], highlight=False, markup=False)
    if result["stopped"]:
        console.print("stopped early: this is the best so far; the same command goes on", style="yellow")
    console.print(f"{folder / 'report.html'}, after {result['seconds']} s", style="dim", highlight=False)


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
