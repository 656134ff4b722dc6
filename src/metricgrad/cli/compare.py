"""`metricgrad compare`: several losses on one table and metric, over repeated splits."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metricgrad.cli import options
from metricgrad.cli.app import app, command_line, examples, plain_errors, print_suspicions, refuse

if TYPE_CHECKING:
    from metricgrad.studies import ComparisonResult


@app.command(
    epilog=examples(
        "metricgrad compare --metric mcc",
        "metricgrad compare fraud.csv --target is_fraud --methods auto,focal --splits 10",
        "metricgrad compare fraud.csv --target is_fraud --model boosted",
        "metricgrad compare search.csv --target grade --metric ndcg:k=10 --group query",
        "metricgrad compare fraud.csv --target is_fraud --methods all --splits 20 --on ray",
    )
)
def compare(
    data: options.DataArgument = None,
    target: options.TargetOption = "target",
    metric: options.MetricOption = "f1",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Losses to compare with the ordinary one, such as auto,uniloss,focal; `all` takes "
            "every loss that fits the data. Default: the usual losses for the metric."
        ),
    ] = None,
    splits: Annotated[
        int, typer.Option(help="Number of random splits into training and test rows.", min=2)
    ] = 5,
    model: options.ModelOption = None,
    engine: options.EngineOption = None,
    hidden: options.HiddenOption = None,
    test_share: options.TestShareOption = 0.25,
    group: options.GroupOption = None,
    positive: options.PositiveOption = None,
    drop: options.DropOption = None,
    amount: options.AmountOption = None,
    keep: options.KeepOption = None,
    epochs: options.EpochsOption = 20,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the comparison. Default: runs/DATA-METRIC-compared."),
    ] = None,
    on: options.OnOption = "local",
    jobs: options.JobsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Compare losses with tuned cross-entropy, over repeated splits."""
    from metricgrad import report, studies

    try:
        with plain_errors("Stopped; the same command continues from here."):
            kind, layers = options.model_and_widths(model, hidden)
            settings = studies.ComparisonSettings(
                data=None if data is None else str(data),
                target=target,
                metric=metric,
                splits=splits,
                model=kind,
                engine=engine,
                hidden=layers,
                test_share=test_share,
                positive=positive,
                epochs=epochs,
                budget=options.seconds(budget),
                seed=seed,
                drop=drop,
                group=group,
                amounts=options.amount_columns(amount),
                keep=keep,
            )
            folder, result = studies.compare(
                settings,
                methods,
                out,
                command=command_line(),
                progress=not as_json,
                executor=studies.executor_for(on, jobs),
            )
            page = report.write(folder)
    except studies.UnfinishedError as error:
        refuse(str(error), code=1)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        _show(result, page)


def _show(result: "ComparisonResult", page: Path) -> None:
    """Prints every method's mean, and its difference from the ordinary loss."""
    from statistics import fmean, stdev

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from metricgrad.training.labels import label

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("trained on", label(result.metric), "spread", "gain", "±", "p", ""):
        table.add_column(column, justify="left" if column in ("trained on", "") else "right")
    for name, values in result.values.items():
        cells = [label(name), f"{fmean(values):.4f}", f"{stdev(values):.4f}"]
        found = result.differences.get(name)
        if found is not None:
            cells += [f"{found.mean:+.4f}", f"{found.error:.4f}", f"{found.p:.3f}"]
            cells.append(found.verdict)
        table.add_row(*cells)
    console.print(table)
    arrow = "higher" if result.higher_is_better else "lower"
    console.print(
        f"Test values over {result.splits} splits; {arrow} is better. "
        f"Gains are over {result.yardstick}."
    )
    print_suspicions(console, result.suspicious)
    console.print(str(page), style="dim")
