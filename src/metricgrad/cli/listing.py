"""`metricgrad metrics`: every metric, or one in full."""

import inspect
import json
import math
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from metricgrad.cli.app import app, examples, refuse
from metricgrad.metrics import TIE_RULES, Metric, metric, metric_names, metric_options


@app.command(
    epilog=examples(
        "metricgrad metrics", "metricgrad metrics ndcg", "metricgrad metrics --json | jq '.[].name'"
    )
)
def metrics(
    name: Annotated[
        str | None, typer.Argument(help="One metric, in full: formula, options, reference.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List every metric: family, range, direction, tie rule, reference."""
    try:
        chosen = [metric(each) for each in ([name] if name else metric_names())]
    except ValueError as error:
        refuse(str(error))
    if as_json:
        typer.echo(json.dumps([facts(each) for each in chosen], indent=2))
    elif name:
        _describe(chosen[0])
    else:
        Console().print(_table(chosen), _legend(chosen))


def facts(each: Metric) -> dict[str, Any]:
    """What a metric states of itself, ready for JSON (an infinite bound is None)."""
    options = {option: repr(default) for option, default in metric_options(type(each)).items()}
    return {
        "name": each.name,
        "families": list(each.families),
        "higher_is_better": each.higher_is_better,
        "best": each.best if math.isfinite(each.best) else None,
        "worst": each.worst if math.isfinite(each.worst) else None,
        "ties": each.ties,
        "undefined": each.undefined,
        "reference": each.reference,
        "options": options,
    }


def value_range(each: Metric) -> str:
    """Range and direction in a few characters: `0..1 ↑`."""
    low, high = sorted([each.best, each.worst])
    bounds = [f"{bound:.2g}" if math.isfinite(bound) else "inf" for bound in (low, high)]
    up, down = arrows()
    return f"{bounds[0]}..{bounds[1]} {up if each.higher_is_better else down}"


def arrows() -> tuple[str, str]:
    """Signs for higher and lower is better, as far as the terminal can show them."""
    return ("↑", "↓") if "utf" in (sys.stdout.encoding or "").lower() else ("+", "-")


_FAMILY_LETTERS = {
    "binary": "B",
    "multi-class": "C",
    "multi-label": "L",
    "ranking": "R",
    "segmentation": "S",
    "pose": "P",
    "text": "T",
}


def _legend(chosen: list[Metric]) -> Table:
    legend = Table.grid(padding=(0, 2, 0, 0))
    legend.add_row(
        "family", ", ".join(f"{letter} {family}" for family, letter in _FAMILY_LETTERS.items())
    )
    up, down = arrows()
    legend.add_row("range", f"{up} higher is better, {down} lower is better; with default options")
    for word in dict.fromkeys(each.ties for each in chosen):
        legend.add_row(word, TIE_RULES[word])
    return legend


def _table(chosen: list[Metric]) -> Table:
    """One row a metric, narrow enough for 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("family", no_wrap=True)
    table.add_column("range", no_wrap=True)
    table.add_column("ties", no_wrap=True)
    table.add_column("equals", overflow="fold")
    for each in chosen:
        family = " ".join(_FAMILY_LETTERS[family] for family in each.families)
        table.add_row(each.name, family, value_range(each), each.ties, each.reference)
    return table


def _describe(each: Metric) -> None:
    """One metric in full; options that it shares with others are explained by the classes it is made of."""
    console = Console(highlight=False)
    console.print(f"[bold]{each.name}[/bold]  {value_range(each)}  ({', '.join(each.families)})\n")
    console.print(inspect.getdoc(type(each)), markup=False)
    for base in type(each).__mro__[1:]:
        arguments = (base.__doc__ or "").partition("Args:\n")[2]
        if arguments:
            console.print(
                f"\nOptions of {base.__name__}:\n{inspect.cleandoc(arguments)}", markup=False
            )
            break
    console.print(
        f"\nequal scores: {TIE_RULES[each.ties]}\nundefined:    {each.undefined}", markup=False
    )
    options = ", ".join(
        f"{option}={default!r}" for option, default in metric_options(type(each)).items()
    )
    console.print(
        f"\nmg.metric({each.name!r}{', ' if options else ''}{options})", markup=False, style="cyan"
    )
