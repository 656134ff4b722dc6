"""`metricgrad train`: a table in; a model, its values on test data and a plain answer out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metricgrad.cli import options
from metricgrad.cli.app import app, command_line, examples, plain_errors, print_suspicions

if TYPE_CHECKING:
    from metricgrad.studies import RunResult

_SHOWN = 8  # columns that are listed


@app.command(
    epilog=examples(
        "metricgrad train",
        "metricgrad train fraud.csv --target is_fraud --metric average_precision",
        "metricgrad train fraud.csv --target is_fraud --model auto --budget 5m",
        "metricgrad train search.csv --target grade --metric ndcg:k=10 --group query",
        "metricgrad train customers.csv --metric own.py:profit --amount value",
        "metricgrad train data.parquet --metric fbeta:beta=2 --model linear --budget 2m",
        "metricgrad train folder-of-parquet --metric f1 --memory 2GB",
        "torchrun --nproc-per-node 4 -m metricgrad train fraud.csv --target is_fraud",
    )
)
def train(
    data: options.DataArgument = None,
    target: options.TargetOption = "target",
    metric: options.MetricOption = "f1",
    method: Annotated[
        str, typer.Option(help="Loss to train on, such as uniloss; `auto` searches for the best.")
    ] = "auto",
    model: options.ModelOption = None,
    engine: options.EngineOption = None,
    hidden: options.HiddenOption = None,
    test: Annotated[
        Path | None,
        typer.Option(help="File or folder with test data, used instead of a share of the rows."),
    ] = None,
    test_share: options.TestShareOption = 0.25,
    group: options.GroupOption = None,
    positive: options.PositiveOption = None,
    drop: options.DropOption = None,
    amount: options.AmountOption = None,
    keep: options.KeepOption = None,
    epochs: options.EpochsOption = 20,
    budget: options.BudgetOption = None,
    memory: options.MemoryOption = None,
    seed: options.SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run. Default: runs/DATA-METRIC.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Train a model for a metric, and compare it with cross-entropy.

    Several processes train together if torchrun starts them.
    """
    from metricgrad import processes, report, studies

    interrupted = "Stopped before there was a result; the same command continues from here."
    with plain_errors(interrupted), processes.joined_by_torchrun():
        kind, layers = options.model_and_widths(model, hidden)
        settings = studies.RunSettings(
            data=None if data is None else str(data),
            target=target,
            metric=metric,
            method=method,
            model=kind,
            engine=engine,
            hidden=layers,
            test=None if test is None else str(test),
            test_share=test_share,
            positive=positive,
            epochs=epochs,
            budget=options.seconds(budget),
            seed=seed,
            drop=drop,
            group=group,
            amounts=options.amount_columns(amount),
            keep=keep,
            memory=options.size(memory),
        )
        run = studies.train(settings, out, command=command_line(), progress=not as_json)
        if not processes.is_first():
            return
        if not run.fresh and not as_json:
            typer.secho("This run is finished already. Its result:", fg="yellow", err=True)
        page = run.folder / "report.html"
        if run.fresh or not page.exists():  # a kill may have come between result and report
            report.write(run.folder)
    if as_json:
        typer.echo(json.dumps(run.result.to_json(), indent=2))
    else:
        _show(run.result, page)


def _show(result: "RunResult", page: Path) -> None:
    """Prints the finalists, the verdict, and what the user may want to do next."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from metricgrad.training.labels import label

    console = Console(highlight=False, markup=False)
    if result.models:
        console.print(f"Model: {result.models[0].name}.")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (label(result.metric), "validation", "test", ""):
        table.add_column(column, justify="right" if column in ("validation", "test") else "left")
    for each in result.finalists:
        tuned = each.role == "cross_entropy" and each.threshold is not None
        name = each.label + (", threshold tuned" if tuned else "")
        chosen = "chosen" if each.role == result.chosen else ""
        table.add_row(name, f"{each.validation:.4f}", f"{each.test:.4f}", chosen)
    console.print(table)
    console.print(result.told())
    if result.models_verdict:
        console.print(result.models_verdict, style="dim")
    if result.told() != result.verdict:
        console.print(f"Validation data: {result.verdict}", style="dim")
    if result.positive_share is not None:
        negative, positive = result.classes
        told = f"Positive is {positive}, {100 * result.positive_share:.1f} % of the test rows."
        if result.positive_share > 0.5:
            told += f" Pass --positive {negative} for the other class."
        console.print(told)
    if result.columns:
        shown = ", ".join(result.columns[:_SHOWN])
        more = "" if len(result.columns) <= _SHOWN else ", ... (the report lists them all)"
        console.print(f"Trained on {len(result.columns)} columns: {shown}{more}.", style="dim")
    print_suspicions(console, result.suspicious)
    if result.rows.validation is not None:
        console.print(f"Streamed: {result.rows.told()}, drawn at random.", style="dim")
    if result.stopped:
        told = "Stopped early: this is the best model so far. The same command continues."
        console.print(told, style="yellow")
    console.print(f"{page}, after {result.seconds} s", style="dim")
