"""The application that commands register with, and how commands speak: errors, hints, examples."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from metricgrad.studies import SuspiciousColumn

_SHOWN = 8  # columns that a line names

app = typer.Typer(
    name="metricgrad",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help appears in half the time of one that rich draws
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from metricgrad import __version__

        typer.echo(f"metricgrad {__version__}")
        raise typer.Exit


@app.callback()
def root(
    show: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train on the metric you report."""


def refuse(message: str, code: int = 2) -> NoReturn:
    """Ends the command with one sentence that says what is wrong; 1 stands for work left to do."""
    typer.secho(message, fg="red", err=True)
    raise typer.Exit(code)


@contextmanager
def plain_errors(interrupted: str = "Stopped.") -> Iterator[None]:
    """Turns errors into one sentence each; RuntimeError is training that diverged.

    A reader that has seen enough (`metricgrad predict ... | head`) is no error: typer ends quietly.
    """
    try:
        yield
        sys.stdout.flush()  # a closed pipe is noticed here, not when Python exits
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        refuse(interrupted)


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["metricgrad", *sys.argv[1:]])


def examples(*commands: str) -> str:
    """What `--help` ends with: commands to copy, one to a line."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExamples:\n{lines}"  # \b keeps the lines as they are


def print_suspicions(console: "Console", found: "Sequence[SuspiciousColumn]") -> None:
    """Prints a line about leaks and ids, and a quiet one about constants, which do no harm."""
    harmful = [each for each in found if each.kind != "constant"]
    constants = [each.name for each in found if each.kind == "constant"]
    if harmful:
        named = _listed([f"{each.name} ({each.label})" for each in harmful])
        told = (
            f"Suspicious columns: {named}. Unless they are known for new rows and help to predict "
            f"them, leave them out: {_drop([each.name for each in harmful])}"
        )
        console.print(told, style="yellow", markup=False)
    if constants:
        told = f"Columns with a single value: {_listed(constants)}."
        console.print(told, style="dim", markup=False)


def _listed(names: list[str]) -> str:
    more = "" if len(names) <= _SHOWN else ", ... (the report lists them all)"
    return ", ".join(names[:_SHOWN]) + more


def _drop(names: list[str]) -> str:
    """The option that leaves columns out; a name with a comma is in quotes."""
    quoted = [f'"{name}"' if "," in name else name for name in names]
    return f"--drop {shlex.quote(','.join(quoted))}"
