"""`metricgrad report`: the figures and the page of a run, drawn again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from metricgrad.cli.app import app, examples, plain_errors


@app.command("report", epilog=examples("metricgrad report runs/fraud-f1"))
def write_report(
    run: Annotated[Path, typer.Argument(help="Folder that train or compare has written.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the paths of page and figures as JSON.")
    ] = False,
) -> None:
    """Write the report of a finished run, a page with its figures."""
    from metricgrad import report

    with plain_errors():
        page = report.write(run)
    if as_json:
        pictures = sorted(str(each) for each in (run / "figures").glob("*.png"))
        typer.echo(json.dumps({"report": str(page), "pictures": pictures}, indent=2))
    else:
        typer.echo(str(page))
