"""The command line on a small table, and a full disk: what tests of commands and files share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from metricgrad.cli import app

QUICK = ("--hidden", "none", "--epochs", "2")
limits_files = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the length of files by the operating system"
)


def run(*arguments: Any, drawn: bool = False) -> Any:
    """Runs a command; its pictures are empty unless `drawn`, as they take most of a quick run."""
    empty = patch("matplotlib.figure.Figure.savefig", lambda _, path, **options: path.touch())
    with nullcontext() if drawn else empty:
        return CliRunner().invoke(app, list(map(str, arguments)))


def table(number: int = 300, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(number, 3))
    kind = generator.choice(["a", "b"], number)
    y = np.where(x[:, 0] + (kind == "a") + 0.5 * generator.normal(size=number) > 1.2, "yes", "no")
    return pd.DataFrame(
        {"one": x[:, 0], "two": x[:, 1], "three": x[:, 2], "kind": kind, "label": y}
    )


def train(data: Path, *arguments: Any, drawn: bool = False) -> Any:
    asked = ("--target", "label", "--positive", "yes", *QUICK, *arguments)
    return run("train", data, *asked, drawn=drawn)


@contextmanager
def full_disk(length: int) -> Iterator[None]:
    """A file that grows beyond a length fails as on a full disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
