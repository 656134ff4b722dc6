"""What `train` and `compare` print about suspicious columns, and what to do about them."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from metricgrad.studies import SuspiciousColumn

_SHOWN = 8  # columns in a line


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
