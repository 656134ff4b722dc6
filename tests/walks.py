"""Traces the walks of docs/architecture.md: prints the files that each call crosses, as JSON.

Run as a script, in a process of its own: what a test has called before is remembered here and
there, and would not be crossed again.
"""

import importlib
import json
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from typer.testing import CliRunner

import metricgrad as mg
from metricgrad.cli import app
from metricgrad.training import fit_trees

SOURCE = Path(mg.__file__).parent
# Short questions that files ask each other, which nobody would follow.
QUESTIONS = {
    *("as_text", "column_names", "fits_trees", "is_dataset", "is_sparse", "modes_kept"),
    *("portable", "tree_methods", "widths"),
}
_FUNCTION = 1  # the flag of code that is neither a module nor the body of a class


def crossed(call: Callable[[], object]) -> list[str]:
    """The files whose functions a call runs, in the order in which it comes to them."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename not in found and code.co_flags & _FUNCTION:
            ours = code.co_filename.startswith(str(SOURCE))
            if ours and QUESTIONS.isdisjoint(code.co_qualname.split(".")):
                found[code.co_filename] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [Path(each).relative_to(SOURCE).as_posix() for each in found]


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """A metric of one's own."""
    return (torch.where(target > 0, 5.0, -1.0) * (scores > 0)).sum(-1)


def train(*options: str) -> None:
    """`metricgrad train data.csv`, with little to learn."""
    done = CliRunner().invoke(app, ["train", "data.csv", "--epochs", "1", *options])
    assert done.exit_code == 0, (done.output, done.exception)


def main() -> None:
    """Prints the files of every walk."""
    for each in pkgutil.walk_packages([str(SOURCE)], "metricgrad."):
        if not each.name.endswith("__main__"):
            importlib.import_module(each.name)
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(64, generator=source, requires_grad=True)
    target = (torch.rand(64, generator=source) < 0.3).long()
    loss = mg.UniLoss("average_precision")
    walks = {
        "batch": crossed(lambda: loss(scores, target).backward()),
        "function": crossed(lambda: mg.UniLoss(profit)(scores, target).backward()),
    }
    fit_trees._MOST = 30
    fit_trees._LEAVES = (7,)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        x = np.random.default_rng(0).normal(size=(120, 2))
        table = pd.DataFrame(x, columns=["one", "two"]).assign(kind=["a", "b"] * 60)
        table.assign(target=(x.sum(1) > 0).astype(int)).to_csv("data.csv", index=False)
        walks["trees"] = crossed(lambda: train("--model", "boosted", "--out", "trees"))
        walks["network"] = crossed(lambda: train("--method", "focal", "--out", "network"))
    print(json.dumps(walks))


if __name__ == "__main__":
    main()
