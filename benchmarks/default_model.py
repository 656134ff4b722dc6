"""`metricgrad train` as it is, against scikit-learn's models with their thresholds tuned.

All three get the same rows of a CSV file. scikit-learn's `TunedThresholdClassifierCV` fits a model
on five folds, takes the best threshold on the others, and fits the model again on all training
rows. Times are CPU time of one process on one thread: the whole of `metricgrad train`, from reading
the file to the report, against both models of scikit-learn together, without reading the file.
"""

import os
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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

_MODELS = {
    "trees": HistGradientBoostingClassifier(random_state=0),
    "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Test F1 of all three on one split, and the times they took."""
    x, y = whole_table(settings["dataset"], folder)
    kept = np.random.default_rng(0).permutation(len(y))[: settings["rows"]]
    with TemporaryDirectory() as place:
        path = Path(place) / "table.csv"
        names = [f"x{number + 1}" for number in range(x.shape[1])]
        pd.DataFrame(x[kept], columns=names).assign(target=y[kept]).to_csv(path, index=False)
        asked = RunSettings(data=str(path), metric="f1", seed=seed)
        before = _cpu_seconds()
        out = Path(place) / "run"
        found = train(asked, out, command="metricgrad train table.csv", progress=False)
        write(out)
        own_seconds = _cpu_seconds() - before
        split = load_split(path, "target", None, asked.test_share, seed)
    values = {"train": found.result.winner.test}
    x = split.train.x.to_numpy()[split.train.rows]
    target = split.train.y.to_numpy()[split.train.rows]
    test = split.test.x.to_numpy()[split.test.rows]
    before = _cpu_seconds()
    for name, model in _MODELS.items():
        tuned = TunedThresholdClassifierCV(model, scoring="f1")
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            tuned.fit(x, target)
        values[name] = float(f1_score(split.test.target, tuned.predict(test)))
    times = own_seconds / (_cpu_seconds() - before)
    gain = values["train"] - max(values[name] for name in _MODELS)
    return {
        "values": {**values, "gain": gain, "times": times},
        "model": found.result.models[0].name,
    }


def _cpu_seconds() -> float:
    """Seconds of this process, and of others that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
