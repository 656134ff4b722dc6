"""`metricgrad train`: a table in, a model, its values on test data and a plain answer out."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from metricgrad.cli import options
from metricgrad.cli.app import app, examples, refuse
from metricgrad.cli.evidence import gather, intervals
from metricgrad.cli.folder import RunFolder
from metricgrad.cli.parts import parts
from metricgrad.cli.reading import TARGET
from metricgrad.estimators import MetricClassifier
from metricgrad.metrics import Metric
from metricgrad.metrics.registry import metric_config
from metricgrad.report import label, write_run
from metricgrad.training import Fit


@app.command(
    epilog=examples(
        "metricgrad train",
        "metricgrad train fraud.csv --target is_fraud --metric average_precision",
        "metricgrad train data.parquet --metric fbeta:beta=2 --hidden none --budget 2m",
    )
)
def train(
    data: options.DataArgument = None,
    target: options.TargetOption = TARGET,
    metric: options.MetricOption = "f1",
    method: Annotated[
        str, typer.Option(help="`auto`, or the name of a loss: cross_entropy, uniloss, ...")
    ] = "auto",
    hidden: options.HiddenOption = "100,30,10",
    test: Annotated[
        Path | None, typer.Option(help="A file with test data; none cuts a part off.")
    ] = None,
    test_share: options.TestShareOption = 0.25,
    positive: options.PositiveOption = None,
    drop: options.DropOption = None,
    epochs: options.EpochsOption = 20,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/NAME-METRIC unless given.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Train a model for a metric, and say whether that was better than training on cross-entropy."""
    try:
        name = "digits" if data is None else data.name.split(".")[0]
        asked = {
            "command": "train", "data": None if data is None else str(data), "target": target, "metric": metric,
            "method": method, "hidden": options.widths(hidden), "test": None if test is None else str(test),
            "test_share": test_share, "positive": positive, "epochs": epochs, "budget": options.seconds(budget),
            "seed": seed, "drop": drop,
        }  # fmt: skip
        chosen, read = (
            options.named_metric(metric),
            parts(data, target, test, test_share, seed, drop),
        )
        trained, tested = read.trained, read.tested
        folder = RunFolder(
            out or Path("runs") / options.folder_name(name, metric), asked | {"sha256": read.sha256}
        )
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
            Console(stderr=True).print(
                "this run is there already; here is its result", style="yellow"
            )
        if (
            unfinished or not (folder.path / "report.html").exists()
        ):  # a kill may come between result and report
            write_run(folder.path)
    except (
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # of which the last is training that diverged
        refuse(str(error))
    except KeyboardInterrupt:
        refuse("stopped before there was a result; the same command goes on from here")
    result = folder.result
    assert result is not None
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    show(result, folder.path)


def classifier(asked: dict[str, Any], y: Any, method: str, *, progress: bool) -> MetricClassifier:
    """The classifier that was asked for."""
    settings = {name: asked[name] for name in ("hidden", "epochs", "budget")}
    settings |= {
        "metric": options.named_metric(asked["metric"]),
        "positive": options.chosen_class(asked["positive"], y),
        "random_state": asked["seed"],
    }
    return MetricClassifier(method=method, progress=progress, **settings)


def outcome(model: MetricClassifier, metric: Metric, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The result of a run on test data, ready for JSON."""
    found, decision = model.fit_, model.fit_.decision
    trials = {"cross_entropy": decision.ordinary, "challenger": decision.challenger}
    winner = "challenger" if decision.winner is decision.challenger else "cross_entropy"
    bounds = intervals(found, x, y)
    finalists = {
        name: {
            "method": str(trial.candidate),
            "validation": trial.value,
            "test": found.finalists[name].measure(x, y),
            "interval": bounds[name],
            "threshold": None if trial.threshold is None else trial.threshold.tolist(),
            "rate": trial.rate,
            "epoch": trial.epoch,
            "curve": [
                [None if value != value else value for value in row] for row in trial.curve.tolist()
            ],
        }
        for name, trial in trials.items()
        if trial is not None
    }
    return {
        "command": shlex.join(["metricgrad", *sys.argv[1:]]),
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "metric_config": metric_config(found.metric),
        "classes": [str(each) for each in model.target_.ordered],
        "positive_share": float(y.double().mean()) if model.target_.kind == "binary" else None,
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
    """Every trial with its value on validation data."""
    return [
        {
            "method": str(trial.candidate),
            "rate": trial.rate,
            "epochs": trial.epochs,
            "epoch": trial.epoch,
            "value": trial.value,
        }
        for trial in found.trials
    ]


def show(result: dict[str, Any], folder: Path) -> None:
    """Prints a result."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (result["metric"], "validation", "test", ""):
        table.add_column(column, justify="right" if column in ("validation", "test") else "left")
    for name, each in result["finalists"].items():
        called, mark = label(name, each), "chosen" if name == result["chosen"] else ""
        called += (
            ", threshold tuned"
            if called == "cross-entropy" and each["threshold"] is not None
            else ""
        )
        table.add_row(called, f"{each['validation']:.4f}", f"{each['test']:.4f}", mark)
    console.print(table)
    console.print(result["verdict"], highlight=False, markup=False)
    share, classes = result["positive_share"], result["classes"]
    if share is not None:
        other = f"; --positive {classes[0]} for the other" if share > 0.5 else ""
        console.print(
            f"positive is {classes[1]}, {100 * share:.1f} % of test rows{other}",
            highlight=False,
            markup=False,
        )
    if result["stopped"]:
        console.print(
            "stopped early: this is the best so far; the same command goes on", style="yellow"
        )
    console.print(
        f"{folder / 'report.html'}, after {result['seconds']} s", style="dim", highlight=False
    )
