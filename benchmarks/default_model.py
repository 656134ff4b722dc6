"""`metricgrad train` as it is, or with `--model`, against scikit-learn with its thresholds tuned.

All get the same rows of a CSV file. scikit-learn's `TunedThresholdClassifierCV` fits a model on
five folds, takes the best threshold on the others, and fits the model again on all training rows.
Times are CPU time of one process on one thread: the whole of `metricgrad train`, from reading the
file to the report, and both models of scikit-learn together, without reading the file.
"""

import os
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.classification import Settings
from benchmarks.data import whole_table
from metricgrad.report import write
from metricgrad.studies import RunSettings, load_split, train

_TARGET = "target"
_MODELS = {
    "trees": HistGradientBoostingClassifier(random_state=0),
    "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Test F1 on one split: of one kind of model, or of the default beside scikit-learn's."""
    with TemporaryDirectory() as place:
        path = _written(settings, folder, Path(place))
        asked = RunSettings(data=str(path), metric="f1", model=settings.get("model"), seed=seed)
        found = _of_command(asked, Path(place) / "run")
        if "model" in settings:
            values = {"f1": found.value, "seconds": found.seconds}
            return {"values": values, "model": found.model}
        theirs, seconds = _of_sklearn(asked)
    gain = found.value - max(theirs.values())
    values = {"train": found.value, **theirs, "gain": gain, "times": found.seconds / seconds}
    return {"values": values, "model": found.model}


class _Measured(NamedTuple):
    value: float
    seconds: float
    model: str  # as the command names it


def _written(settings: Settings, folder: Path | None, place: Path) -> Path:
    """A CSV file with so many rows of a data set, drawn at random, alike for all seeds."""
    x, y = whole_table(settings["dataset"], folder)
    kept = np.random.default_rng(0).permutation(len(y))[: settings["rows"]]
    names = [f"x{number + 1}" for number in range(x.shape[1])]
    path = place / "table.csv"
    pd.DataFrame(x[kept], columns=names).assign(**{_TARGET: y[kept]}).to_csv(path, index=False)
    return path


def _of_command(asked: RunSettings, out: Path) -> _Measured:
    """`metricgrad train`, with its report."""
    before = _cpu_seconds()
    found = train(asked, out, command="metricgrad train table.csv", progress=False)
    write(out)
    seconds = _cpu_seconds() - before
    return _Measured(found.result.winner.test, seconds, found.result.models[0].name)


def _of_sklearn(asked: RunSettings) -> tuple[dict[str, float], float]:
    """F1 of both models of scikit-learn on the same split, and their CPU time."""
    assert asked.data is not None
    split = load_split(Path(asked.data), _TARGET, None, asked.test_share, asked.seed)
    x = split.train.x.to_numpy()[split.train.rows]
    target = split.train.y.to_numpy()[split.train.rows]
    test = split.test.x.to_numpy()[split.test.rows]
    found = {}
    before = _cpu_seconds()
    for name, model in _MODELS.items():
        tuned = TunedThresholdClassifierCV(model, scoring="f1")
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            tuned.fit(x, target)
        found[name] = float(f1_score(split.test.target, tuned.predict(test)))
    return found, _cpu_seconds() - before


def _cpu_seconds() -> float:
    """Seconds of this process, and of others that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
