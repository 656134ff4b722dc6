"""Speed of `mg.fit` against a loop by hand, and of reading a large file against pandas."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import csv
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TunedThresholdClassifierCV
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.timing import Row, best_of
from metricgrad.estimators import Preparation
from metricgrad.studies import load_split

SEED = 0
ITEMS = 48_000
WIDTH = 22  # features
BATCH = 256
STEPS = 150  # per epoch
EPOCHS = 5
RATE = 0.003
ROWS = 1_000_000
COLUMNS = 30
WIDE_SECONDS = 20.0
_MEMORY = """
import re, runpy, sys
from metricgrad import MetricClassifier
def memory(name):  # KiB, of this process alone
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
before = memory("VmRSS")
options = ["--method", "cross_entropy", "--hidden", "none", "--epochs", "1", "--json"]
sys.argv = ["metricgrad", "train", sys.argv[1], "--out", sys.argv[2], *options]
try:
    runpy.run_module("metricgrad", run_name="__main__")
except SystemExit as end:
    assert not end.code
print(memory("VmHWM") - before)
"""

_FIT_MEMORY = """
import re, torch
import metricgrad as mg
from torch import nn
def memory(name):  # KiB, of this process alone
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(150, 784)
y = (x[:, 0] > 0.8).long()
mg.fit(nn.Linear(784, 1), (x, y), metric="f1", epochs=1, progress=False)
layers = [nn.Linear(784, 1500), nn.ReLU(), nn.Linear(1500, 2200), nn.ReLU(), nn.Linear(2200, 1)]
model = nn.Sequential(*layers)
before = memory("VmRSS")
mg.fit(model, (x, y), metric="f1", epochs=1, batch=16, progress=False)
print(memory("VmHWM") - before, sum(each.nbytes for each in model.parameters()) / 1024)
"""


def network() -> nn.Sequential:
    """The perceptron that is trained, the same each time."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for before, after in itertools.pairwise((WIDTH, 100, 30, 10, 1)):
            layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fitting() -> Iterator[Row]:
    """The same training by `mg.fit` and by hand: loss, steps, schedule, validation every epoch."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(ITEMS, WIDTH, generator=generator)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 2).long()
    train = (x[: -ITEMS // 5], y[: -ITEMS // 5])
    valid = (x[-ITEMS // 5 :], y[-ITEMS // 5 :])
    for method, loss in (
        ("cross_entropy", mg.baselines.CrossEntropy()),
        ("soft_f_beta", mg.baselines.SoftFBeta()),
    ):
        # mg.fit trains losses other than cross-entropy twice, without and with a warm-up.
        starts = [0] if method == "cross_entropy" else [0, EPOCHS // 2]

        def ours(method: str = method) -> mg.Fit:
            return mg.fit(
                network(),
                train,
                valid,
                metric="f1",
                method=method,
                rate=RATE,
                epochs=EPOCHS,
                batch=BATCH,
                progress=False,
            )

        def yardstick(loss: Callable[..., Tensor] = loss, starts: list[int] = starts) -> None:
            for warm in starts:
                by_hand(network(), loss, train, valid, warm)

        spent, base = best_of(3, ours, yardstick)
        claim = f"mg.fit on {method}, MLP, {EPOCHS} epochs, against a loop by hand"
        yield Row(claim, spent, base, "s", spent / base, "at most 1.1", spent / base <= 1.1)


def fitting_large_models() -> Iterator[Row]:
    """The memory of a search for a perceptron of 18 MB, with five folds and all candidates."""
    command = [sys.executable, "-c", _FIT_MEMORY]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    spent, size = (float(each) / 1024 for each in printed.split())
    claim = f"mg.fit, memory, against the model's {size * 2**20 / 1e6:.0f} MB"
    yield Row(claim, spent, size, "MiB", spent / size, "at most 40", spent <= 40 * size)


def classifying() -> Iterator[Row]:
    """The classifier with all its defaults, on many rows and on many columns."""
    x, y = make_classification(10_000, 20, random_state=SEED)
    tuned = TunedThresholdClassifierCV(LogisticRegression(), scoring="f1")
    ours = mg.MetricClassifier("f1", random_state=SEED)
    spent, base = best_of(2, lambda: ours.fit(x, y), lambda: tuned.fit(x, y))
    claim = "MetricClassifier on 10,000 x 20, against logistic regression with a tuned threshold"
    yield Row(claim, spent, base, "s", spent / base, "at most 8", spent / base <= 8)
    x, y = make_classification(300, 5_000, n_informative=30, random_state=SEED)
    (spent,) = best_of(1, lambda: ours.fit(x, y))
    claim = f"MetricClassifier on 300 x 5,000, against {WIDE_SECONDS:.0f} seconds"
    share = spent / WIDE_SECONDS
    yield Row(claim, spent, WIDE_SECONDS, "s", share, "at most 1", share <= 1)


def by_hand(
    model: nn.Module,
    loss: Callable[..., Tensor],
    train: tuple[Tensor, ...],
    valid: tuple[Tensor, ...],
    warm: int,
) -> float:
    """A plain training loop; returns the best F1 on validation data, thresholds tuned."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    best = 0.0
    usual = nn.functional.binary_cross_entropy_with_logits
    for epoch in range(EPOCHS):
        model.train()
        first, last = (0, warm) if epoch < warm else (warm, EPOCHS)
        for step, batch in enumerate(torch.randperm(len(train[1]))[: STEPS * BATCH].split(BATCH)):
            done = (epoch - first + step / STEPS) / (last - first)
            for group in optimizer.param_groups:
                group["lr"] = RATE * (0.5 + 0.5 * math.cos(math.pi * done))
            scores = model(train[0][batch]).squeeze(-1)
            target = train[1][batch]
            value = usual(scores, target.float()) if epoch < warm else loss(scores, target)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(valid[0]).squeeze(-1)
        threshold = mg.best_threshold(scores, valid[1], "f1")
        best = max(best, float(mg.metric("f1", threshold=threshold)(scores, valid[1])))
    return best


def reading() -> Iterator[Row]:
    """A CSV file of a million rows: time before training, and memory of the whole command."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "million.csv"
        size = _write(path)

        def ours() -> None:
            split = load_split(path, seed=SEED)
            preparation = Preparation().fit(split.train.x, split.train.rows)
            for part in (split.train, split.test):
                preparation.transform(part.x, part.rows)

        spent, base = best_of(5, ours, lambda: pd.read_csv(path))
        claim = f"reading and preparing {ROWS:,} x {COLUMNS} of CSV, against pandas.read_csv"
        yield Row(claim, spent, base, "s", spent / base, "at most 2", spent / base <= 2)
        command = [sys.executable, "-c", _MEMORY, str(path), str(Path(folder) / "run")]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        most = int(printed.splitlines()[-1]) / 1024
        claim = f"metricgrad train on it, memory, against the table's {size:.0f} MiB"
        yield Row(claim, most, size, "MiB", most / size, "at most 4", most <= 4 * size)


def _write(path: Path) -> float:
    """Writes the file and returns the MiB of the DataFrame that pandas reads from it."""
    generator = np.random.default_rng(SEED)
    x = generator.standard_normal((ROWS, COLUMNS)).round(4)
    columns: dict[str, Any] = {f"x{number + 1}": x[:, number] for number in range(COLUMNS)}
    columns["target"] = (x[:, 0] + x[:, 1] * x[:, 2] > 2).astype(np.int64)
    csv.write_csv(pa.table(columns), path)
    return ROWS * (COLUMNS + 1) * 8 / 2**20
