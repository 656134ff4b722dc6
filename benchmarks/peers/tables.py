"""Peers on two classes in a table: the splits, network, budget and choices of `classification`.

Only what a peer needs differs: LibAUC brings its optimizer and sampler, and scikit-learn's
`TunedThresholdClassifierCV` trains its own models on the training part and tunes their threshold on
the validation part. Adam has the warm-up of LibAUC's losses, whose optimizers are for them alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, TunedThresholdClassifierCV
from torch import Tensor

from benchmarks import classification
from benchmarks.classification import Evaluation, Settings, Trial
from benchmarks.data import Data, load
from benchmarks.losses import cross_entropy
from benchmarks.peers import libauc
from benchmarks.pooling import points

_SCORING = {"f1": "f1", "mcc": "matthews_corrcoef"}
_WARM_RATE = 0.003


def run(
    settings: Settings,
    seed: int,
    folder: Path | None,
    known: list[dict[str, Any]],
    point: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains the grid of a row, or the point that was chosen for all seeds, and tests it."""
    if settings["method"].startswith("sklearn_"):
        return _sklearn(settings, load(settings["dataset"], folder, seed), point)
    training = _train_libauc if settings["method"] in libauc.NAMES else classification.train
    return classification.run(settings, seed, folder, known, point, training)


def _train_libauc(
    settings: Settings, point: dict[str, Any], data: Data, seed: int, steps: int
) -> Trial:
    """Trains a model on one of LibAUC's losses and keeps it at its best moment."""
    torch.manual_seed(seed)
    settings = {**settings, **point}
    model = classification.network(settings, data)
    peer = libauc.peer(model, data.train, settings)
    warm = steps // 2 if settings.get("start") == "warm" else 0
    adam = torch.optim.Adam(model.parameters(), _WARM_RATE)
    evaluation = Evaluation(settings)
    trial = Trial(point)
    every = max(1, steps // settings.get("evaluations", 20))
    total = 0.0
    for step, index in enumerate(libauc.batches(data.train, settings, steps, seed), start=1):
        factor = classification.decay(settings, step - 1, warm, steps)
        optimizer = adam if step <= warm else peer.optimizer
        rate = _WARM_RATE if step <= warm else settings["learning_rate"]
        optimizer.param_groups[0]["lr"] = rate * factor
        target = data.train.y[index]
        scores = model(data.train.x[index])
        if not scores.isfinite().all():
            break
        value = cross_entropy(scores, target) if step <= warm else peer.loss(scores, target, index)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += float(value.detach()) / every
        if step - warm in ((steps - warm) // 2, (steps - warm) * 3 // 4):
            peer.milestone()
        if step % every == 0 or step == steps:
            classification.validate(
                trial, model, data.valid, evaluation, step, total, eligible=step > warm
            )
            total = 0.0
    return trial


def _sklearn(settings: Settings, data: Data, point: dict[str, Any] | None) -> dict[str, Any]:
    """The grid of a model of scikit-learn, whose threshold is tuned by its own class."""
    trials = []
    models = []
    grid = points(dict(settings)) if point is None else [point]
    for each in grid:
        model = _fitted({**settings, **each}, data)
        models.append(model)
        trials.append({**each, "valid": _value(settings, model, data.valid.x, data.valid.y)})
    best = max(range(len(grid)), key=lambda number: trials[number]["valid"])
    return {
        "value": _value(settings, models[best], data.test.x, data.test.y),
        "valid": trials[best]["valid"],
        "chosen": grid[best],
        "trials": trials,
        "pooled": point is not None,
    }


def _fitted(settings: Settings, data: Data) -> ClassifierMixin:
    """A model of the training part; validation data tunes its threshold if there is one."""
    if settings["method"] == "sklearn_logistic":
        model: Any = LogisticRegression(C=settings["C"], max_iter=2000)
    else:
        options: dict[str, Any] = {"early_stopping": False, "random_state": 0}
        model = HistGradientBoostingClassifier(
            learning_rate=settings["learning_rate"], max_leaf_nodes=settings["leaves"], **options
        )
    if settings["metric"] not in _SCORING:
        return model.fit(data.train.x.numpy(), data.train.y.numpy())
    parts = np.concatenate([np.full(len(data.train.y), -1), np.zeros(len(data.valid.y), dtype=int)])
    tuned = TunedThresholdClassifierCV(
        model, scoring=_SCORING[settings["metric"]], cv=PredefinedSplit(parts), refit=False
    )
    x = torch.cat([data.train.x, data.valid.x]).numpy()
    return tuned.fit(x, torch.cat([data.train.y, data.valid.y]).numpy())


def _value(settings: Settings, model: Any, x: Tensor, y: Tensor) -> float:
    """The metric of a model's decisions, or of its scores if the metric is one of order."""
    if settings["metric"] in _SCORING:
        scores = torch.from_numpy(model.predict(x.numpy())).float() * 2 - 1
    else:
        scores = torch.from_numpy(model.predict_proba(x.numpy())[:, 1])
    return Evaluation(settings).value(scores, y, None)
