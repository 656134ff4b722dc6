"""Progress bars for work of more than a few seconds, where someone is looking: on a terminal that has rich."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[..., None]


@contextmanager
def progress(title: str, total: int, shown: bool = True) -> Iterator[Tell]:
    """A bar to advance while work is done.

    Args:
        title: what is being done.
        total: number of steps.
        shown: False shows nothing; nor does a place that is no terminal.

    Yields:
        `tell(advance, note)`: moves the bar on and changes the note behind it.
    """
    if not (shown and sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield lambda advance=1, note="": None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True
    ) as bars:
        bar = bars.add_task(title, total=total, note="")
        yield lambda advance=1, note="": bars.update(bar, advance=advance, note=note)
