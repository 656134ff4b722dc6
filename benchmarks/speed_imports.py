"""How long a user waits for `import metricgrad` and for `metricgrad --help`.

Each command runs in a process of its own. Public names are imported on first use, so there is a row
for the import alone and one for a script that uses a loss and `mg.fit`.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.timing import Row, within

ROUNDS = 7


def imports() -> Iterator[Row]:
    """The import against that of torch, and the help against the import of typer and rich."""
    torch = _python("-c", "import torch")
    yield within(
        "import metricgrad, against import torch",
        _python("-c", "import metricgrad"),
        torch,
        1.15,
        ROUNDS,
    )
    yield within(
        "import metricgrad and use its losses, against import torch",
        _python("-c", "import metricgrad as mg; mg.UniLoss; mg.fit"),
        torch,
        1.25,
        ROUNDS,
    )
    yield within(
        "metricgrad --help, against import typer, rich",
        _python("-m", "metricgrad", "--help"),
        _python("-c", "import typer, rich"),
        1.5,
        ROUNDS,
    )


def _python(*arguments: str) -> Callable[[], object]:
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=True, capture_output=True)
