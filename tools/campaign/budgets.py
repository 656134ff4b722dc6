"""Whether a time budget holds: `fit` and `train` must end within 1.2 times the seconds given.

The data is large enough that the same call without a budget would take several times as long. The
cases run one at a time, but on a machine that is busy otherwise they say little.
"""

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import metricgrad as mg
from tools.campaign.case import Case, Outcome, child, command

BUDGETS = (10.0, 20.0, 40.0)
ALLOWED = 1.2
ROWS = 20_000
COLUMNS = 30


def cases(size: int, seed: int) -> list[Case]:
    """Every budget, with `fit` and with `train`."""
    found = []
    for budget in BUDGETS:
        found.append(Case(f"fit in {budget:.0f} s", partial(check_fit, budget, seed)))
        found.append(Case(f"train in {budget:.0f} s", partial(check_train, budget, seed)))
    return found


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A table with one positive in ten, which a linear model does not solve."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    noise = rng.normal(size=ROWS)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] + noise > 2.2).astype(np.int64)


def check_fit(budget: float, seed: int) -> Outcome:
    """`mg.fit` with everything that `auto` tries."""
    x, y = data(seed)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(COLUMNS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    options: dict[str, Any] = {"budget": budget, "epochs": 200, "progress": False, "seed": seed}
    started = time.monotonic()
    mg.fit(torch.nn.Sequential(*layers), (x, y), metric="f1", **options)
    return outcome(time.monotonic() - started, budget)


def check_train(budget: float, seed: int) -> Outcome:
    """`metricgrad train --budget`, with reading, testing and the report."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    x, y = data(seed)
    pd.DataFrame(x).assign(target=y).to_csv(folder / "data.csv", index=False)
    options = ("--epochs", 200, "--budget", f"{budget:.0f}s", "--out", folder / "run")
    try:
        ended = child(command("train", folder / "data.csv", *options), limit=20 * budget)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = ended.complaint(codes=(0,))
    return Outcome("", [wrong]) if wrong else outcome(ended.seconds, budget)


def outcome(seconds: float, budget: float) -> Outcome:
    """Whether the budget held."""
    late = [f"{seconds:.1f} s, {seconds / budget:.2f} times the budget"]
    return Outcome(f"{seconds:.1f} s", late if seconds > ALLOWED * budget else [])
