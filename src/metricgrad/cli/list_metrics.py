"""`metricgrad metrics`: every metric in a table, or one in full."""

import inspect
import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metricgrad.cli.app import app, examples, plain_errors

if TYPE_CHECKING:
    from metricgrad.metrics import Metric

_FAMILIES = ("binary", "multi-class", "multi-label", "ranking", "segmentation", "pose", "text")
_FAMILY_LETTERS: dict[str, str] = dict(zip(_FAMILIES, "BCLRSPT", strict=True))


@app.command(
    "metrics",
    epilog=examples(
        "metricgrad metrics", "metricgrad metrics ndcg", "metricgrad metrics --json | jq '.[].name'"
    ),
)
def list_metrics(
    name: Annotated[
        str | None,
        typer.Argument(help="A metric to describe in full: formula, options, reference."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the same facts, and all options, as JSON.")
    ] = False,
) -> None:
    """List every metric, or describe one in full.

    The table has each metric's family, range, direction, tie rule and reference.
    """
    from metricgrad.metrics import metric, metric_names

    with plain_errors():
        chosen = [metric(each) for each in ([name] if name else metric_names())]
    if as_json:
        typer.echo(json.dumps([_facts(each) for each in chosen], indent=2))
    elif name:
        _describe(chosen[0])
    else:
        _show_all(chosen)


def _facts(each: "Metric") -> dict[str, Any]:
    """What a metric states about itself, ready for JSON (an infinite bound is None)."""
    from metricgrad.metrics import metric_options

    return {
        "name": each.name,
        "families": list(each.families),
        "higher_is_better": each.higher_is_better,
        "best": each.best if math.isfinite(each.best) else None,
        "worst": each.worst if math.isfinite(each.worst) else None,
        "ties": each.ties,
        "undefined": each.undefined,
        "reference": each.reference,
        "options": {name: repr(value) for name, value in metric_options(type(each)).items()},
    }


def _arrows() -> tuple[str, str]:
    """Signs for higher and lower is better that the terminal can show."""
    return ("↑", "↓") if "utf" in (sys.stdout.encoding or "").lower() else ("+", "-")


def _range(each: "Metric") -> str:
    """Range and direction in a few characters: `0..1 ↑`."""
    ends = sorted([each.best, each.worst])
    low, high = (f"{end:.2g}" if math.isfinite(end) else "inf" for end in ends)
    up, down = _arrows()
    return f"{low}..{high} {up if each.higher_is_better else down}"


def _show_all(chosen: "list[Metric]") -> None:
    """Prints one row a metric, narrow enough for 80 columns, and a legend."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from metricgrad.metrics import TIE_RULES

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    for column in ("family", "range", "ties"):
        table.add_column(column, no_wrap=True)
    table.add_column("equals", overflow="fold")
    for each in chosen:
        family = " ".join(_FAMILY_LETTERS[family] for family in each.families)
        table.add_row(each.name, family, _range(each), each.ties, each.reference)
    legend = Table.grid(padding=(0, 2, 0, 0))
    letters = ", ".join(f"{letter} {family}" for family, letter in _FAMILY_LETTERS.items())
    legend.add_row("family", letters)
    up, down = _arrows()
    legend.add_row("range", f"{up} higher is better, {down} lower is better; with default options")
    for word in dict.fromkeys(each.ties for each in chosen):
        legend.add_row(word, TIE_RULES[word])
    Console().print(table, legend)


def _describe(each: "Metric") -> None:
    """One metric in full; options that it shares with others are documented by its base class."""
    from rich.console import Console

    from metricgrad.metrics import TIE_RULES, metric_options

    console = Console(highlight=False)
    console.print(f"[bold]{each.name}[/bold]  {_range(each)}  ({', '.join(each.families)})\n")
    console.print(inspect.getdoc(type(each)), markup=False)
    for base in type(each).__mro__[1:]:
        arguments = (base.__doc__ or "").partition("Args:\n")[2]
        if arguments:
            heading = f"\nOptions of {base.__name__}:\n"
            console.print(heading + inspect.cleandoc(arguments), markup=False)
            break
    console.print(f"\nequal scores: {TIE_RULES[each.ties]}", markup=False)
    console.print(f"undefined:    {each.undefined}", markup=False)
    known = metric_options(type(each)).items()
    options = "".join(f", {option}={default!r}" for option, default in known)
    console.print(f"\nmg.metric({each.name!r}{options})", markup=False, style="cyan")
