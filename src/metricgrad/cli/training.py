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
from sklearn.model_selection import train_test_split

from metricgrad.cli.app import app, refuse
from metricgrad.cli.evidence import gather, intervals
from metricgrad.cli.folder import RunFolder, digests
from metricgrad.cli.reading import TARGET, bundled, numbers, read_table, split_target
from metricgrad.estimators import MetricClassifier
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.report import write_run
from metricgrad.surrogates.base import metric_config
from metricgrad.training import Fit

Data = tuple[Any, Any]  # features and target, of pandas
DataArgument = Annotated[
    Path | None, typer.Argument(help="CSV, Parquet or svmlight file; none takes digits from scikit-learn.")
]
TargetOption = Annotated[str, typer.Option(help="Column to predict.")]
MetricOption = Annotated[str, typer.Option(help="What the model is judged by; `metricgrad metrics` lists all.")]
HiddenOption = Annotated[str, typer.Option(help="Widths of hidden layers, such as 100,30,10; `none` is linear.")]
TestShareOption = Annotated[float, typer.Option(help="Of the rows, kept for testing.", min=0.01, max=0.9)]
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
            "sha256": digests(data, test),
        }  # fmt: skip
        chosen = to_metric(metric)
        (x, y), (x_test, y_test), left_out = parts(data, target, test, test_share, seed)
        folder = RunFolder(out or Path("runs") / f"{name}-{metric}", asked)
        if folder.result is None:
            model = classifier(asked, y, method, progress=not as_json).fit(x, y, folder=folder.checkpoints)
            model.save(folder.path / "model.safetensors")
            evidence: Any = gather(model, x_test, y_test.to_numpy())
            np.savez_compressed(folder.path / "evidence.npz", **evidence)
            folder.finish(outcome(model, chosen, (x_test, y_test), len(y), left_out))
            write_run(folder.path)
        elif not as_json:
            Console(stderr=True).print("this run is there already; here is its result", style="yellow")
    except (ValueError, OSError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("stopped before there was anything to keep")
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
        names = list(loaded.feature_names_in_)
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise ValueError(f"{data} has no column {', '.join(map(repr, missing))}, which the model was trained on")
        x = numbers(table[names])
        found = pd.DataFrame({"prediction": loaded.predict(x)})
        chances = loaded.predict_proba(x)
        for number, each in enumerate(loaded.classes_):
            found[f"probability of {each}"] = chances[:, number].round(6)
        if target is not None:
            _, y, _ = split_target(table, target)
            value = loaded.trained_.measure(loaded.prepared(x.loc[y.index]), loaded.encoded(y.to_numpy()))
            Console(stderr=True).print(f"{loaded.trained_.metric.name}: {value:.4f} on {len(y)} rows", highlight=False)
        if out is not None and out.exists():
            raise ValueError(f"{out} is there already; choose another --out")
        found.to_csv(sys.stdout if out is None else out, index=False)
    except (ValueError, OSError) as error:
        refuse(str(error))


def parts(data: Path | None, target: str, test: Path | None, test_share: float, seed: int) -> tuple[Data, Data, int]:
    """Training and test data, and how many rows had no target."""
    x, y, left_out = split_target(bundled() if data is None else read_table(data), target)
    if test is not None:
        x_test, y_test, more = split_target(read_table(test), target)
        return (x, y), (x_test, y_test), left_out + more
    try:
        split: Any = train_test_split(np.arange(len(y)), test_size=test_share, stratify=y, random_state=seed)
    except ValueError:
        rarest = y.value_counts()
        raise ValueError(
            f"class {rarest.index[-1]!r} of column {target!r} is in {int(rarest.iloc[-1])} rows only, too few to train "
            "and to test on; leave it out, or pass --test"
        ) from None
    # In the order of the file: rows are copied one after the other, which is many times faster.
    train, held = (np.sort(rows) for rows in split)
    return (x.iloc[train], y.iloc[train]), (x.iloc[held], y.iloc[held]), left_out


def classifier(asked: dict[str, Any], y: Any, method: str, *, progress: bool) -> MetricClassifier:
    """The classifier that was asked for."""
    positive = asked["positive"]
    if positive is not None:
        by_name = {str(each): each for each in y.unique()}
        if positive not in by_name:
            raise ValueError(f"--positive must be one of {', '.join(sorted(by_name))}; got {positive}")
        positive = by_name[positive]
    settings = {name: asked[name] for name in ("metric", "hidden", "epochs", "budget")}
    settings |= {"method": method, "positive": positive, "random_state": asked["seed"], "progress": progress}
    return MetricClassifier(**settings)


def outcome(model: MetricClassifier, metric: Metric, test: Data, rows: int, left_out: int) -> dict[str, Any]:
    """The result of a run, ready for JSON."""
    x, y, found = *test, model.fit_
    prepared, target, decision = model.prepared(x), model.encoded(y.to_numpy()), model.fit_.decision
    entries = {"cross_entropy": decision.ordinary, "challenger": decision.challenger}
    winner = "challenger" if decision.winner is decision.challenger else "cross_entropy"
    bounds = intervals(model, x, y.to_numpy())
    finalists = {
        name: {
            "method": str(entry.contender),
            "validation": entry.value,
            "test": found.finalists[name].measure(prepared, target),
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
        "rows": {"train": rows, "test": len(y), "without_target": left_out},
        "metric_config": metric_config(found.metric),
        "classes": [str(each) for each in model.target_.ordered],
        "finalists": finalists,
        "chosen": winner,
        "gain": decision.gain,
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
        label = "cross-entropy, threshold tuned" if name == "cross_entropy" else each["method"]
        table.add_row(
            label, f"{each['validation']:.4f}", f"{each['test']:.4f}", "chosen" if name == result["chosen"] else ""
        )
    console.print(table)
    console.print(result["verdict"], highlight=False, markup=False)
    if result["stopped"]:
        console.print("stopped early: this is the best so far", style="yellow")
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
