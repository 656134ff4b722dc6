"""The command itself: what all its parts share."""

from typing import NoReturn

import typer
from rich.console import Console

app = typer.Typer(
    name="metricgrad",
    help="Train on the metric you report.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Train on the metric you report."""


def refuse(message: str) -> NoReturn:
    """Ends the command with one sentence of what is wrong, and exit code 2."""
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def examples(*commands: str) -> str:
    """What `--help` ends with: commands to copy, one to a line."""
    return "\n\n".join(["Examples:", *(f"`{command}`" for command in commands)])
