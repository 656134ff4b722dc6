"""`metricgrad report`: the pictures and the page of a run, drawn again."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from metricgrad.cli.app import app, examples, refuse
from metricgrad.report import write_comparison, write_run


@app.command(epilog=examples("metricgrad report runs/fraud-f1"))
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run of train or compare.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written, for machines.")
    ] = False,
) -> None:
    """Write the report of a run: one HTML file, and its pictures as PNG."""
    needed = [name for name in ("config.json", "result.json") if not (run / name).is_file()]
    if needed:
        refuse(f"{run} has no {' and '.join(needed)}; pass the folder of a run that is finished")
    try:
        command = json.loads((run / "config.json").read_text())["asked"]["command"]
        path = (write_comparison if command == "compare" else write_run)(run)
    except (ValueError, OSError, KeyError, TypeError) as error:
        refuse(f"{run} is no whole run: {error}")
    if as_json:
        pictures = sorted(str(each) for each in (run / "figures").glob("*.png"))
        typer.echo(json.dumps({"report": str(path), "pictures": pictures}, indent=2))
    else:
        Console().print(str(path), highlight=False, soft_wrap=True)
