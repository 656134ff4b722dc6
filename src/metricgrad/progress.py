"""Progress bars for work of more than a few seconds, shown only on a terminal that has rich."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[..., None]


@contextmanager
def progress(title: str, total: int, shown: bool = True) -> Iterator[Tell]:
    """Yields `tell(advance, note)`, which advances a bar of `total` steps and replaces its note."""
    if not (shown and sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield lambda advance=1, note="": None
        return
    from rich import progress as parts
    from rich.console import Console

    name = parts.TextColumn("{task.description}")
    last = parts.TextColumn("{task.fields[note]}")
    count = (parts.MofNCompleteColumn(), parts.TimeRemainingColumn())
    columns = (name, parts.BarColumn(), *count, last)
    with parts.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=total, note="")
        yield lambda advance=1, note="": bars.update(bar, advance=advance, note=note)
