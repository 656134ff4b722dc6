"""The task of tables of boosted trees: an objective, an engine and a metric, on tables or queries.

A run grows trees for every point of its grid, looks at the validation metric at some numbers of
trees, and reports the test value of the best point with its number of trees. For a metric with a
threshold, the threshold is tuned on validation scores, for every method alike. `start` trees are
grown on log loss before those on the metric.

Objectives of ranking need queries. A table has none, so their rows are dealt into groups of 1,024,
as many as our sets have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
import torch
import xgboost as xgb

import metricgrad as mg
from benchmarks import own
from benchmarks.data import load
from benchmarks.pooling import known as known_trial
from benchmarks.pooling import points
from benchmarks.rankings import Queries, mq2008

Settings = Mapping[str, Any]
_GROUP = 1024
_OURS = "metric"
_ORDINARY = {"lightgbm": "binary", "xgboost": "binary:logistic"}
_RANKING = ("lambdarank", "rank:map", "rank:pairwise", "rank:ndcg")


class Rows(NamedTuple):
    """Columns `[N, F]`, target `[N]` and, for rankings, ids of queries `[N]` in order."""

    x: np.ndarray
    y: np.ndarray
    ids: np.ndarray | None = None


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Grows the trees of every point of the grid, and tests the best one on validation data."""
    train, valid, test = _parts(settings, seed, folder)
    trials = []
    best: dict[str, Any] = {}
    found = None
    metric = own.metric(settings["metric"], **settings.get("metric_options", {}))
    for point in points(dict(settings)):
        trial = known_trial(known, point)
        booster = None
        if trial is None:
            booster = Trees({**settings, **point}, seed, train)
            trial = {**point, **_looked_at(settings, booster, valid, metric)}
        trials.append(trial)
        if not best or (trial["valid"] > best["valid"]) == metric.higher_is_better:
            best = trial
            found = booster
    if found is None:
        found = Trees({**settings, **best}, seed, train)
    scores = found.scores(test.x, best["trees"])
    return {
        "value": _value(metric, scores - best["threshold"], test),
        "valid": best["valid"],
        "chosen": best,
        "trials": trials,
    }


def _looked_at(
    settings: Settings, booster: "Trees", valid: Rows, metric: mg.Metric
) -> dict[str, Any]:
    """The best number of trees, with its threshold and validation value."""
    found: dict[str, Any] = {}
    for trees in settings["trees"]:
        scores = booster.scores(valid.x, trees)
        threshold = 0.0
        if valid.ids is None and own.decides(settings["metric"], metric):
            threshold = float(mg.best_threshold(scores, valid.y, metric, candidates=200))
        value = _value(metric, scores - threshold, valid)
        if not found or (value > found["valid"]) == metric.higher_is_better:
            found = {"trees": trees, "threshold": threshold, "valid": value}
    return found


def _value(metric: mg.Metric, scores: np.ndarray, rows: Rows) -> float:
    """The metric of a table, or its mean over queries."""
    return float(metric(scores, rows.y, groups=rows.ids).mean())


class Trees:
    """A booster on one objective, with the trees that it started from."""

    def __init__(self, settings: Settings, seed: int, train: Rows) -> None:
        self.engine = settings["engine"]
        self.first = None
        start = None
        if settings.get("start"):
            first = _ORDINARY[self.engine]
            self.first = _grow(self.engine, first, settings, train, settings["start"])
            start = _scores(self.first, train.x, None)
        objective = settings["objective"]
        if objective == _OURS:
            objective = _ours(settings, seed, train)
        self.booster = _grow(self.engine, objective, settings, train, max(settings["trees"]), start)

    def scores(self, x: np.ndarray, trees: int) -> np.ndarray:
        """Raw scores with so many trees."""
        scores = _scores(self.booster, x, trees)
        return scores if self.first is None else scores + _scores(self.first, x, None)


def _ours(settings: Settings, seed: int, train: Rows) -> Any:
    """The metric as an objective, or with the same curvature for all rows."""
    metric = own.metric(settings["metric"], **settings.get("metric_options", {}))
    options = settings.get("objective_options", {})
    generator = torch.Generator().manual_seed(seed)
    objective = mg.boosting.objective(metric, groups=train.ids, generator=generator, **options)
    if settings.get("curvature") != "constant":
        return objective

    def flat(scores: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
        gradient, curvature = objective(scores, data)
        return gradient, np.full_like(curvature, curvature.mean())

    return flat


def _grow(
    engine: str,
    objective: Any,
    settings: Settings,
    train: Rows,
    trees: int,
    start: np.ndarray | None = None,
) -> Any:
    """A booster of LightGBM or XGBoost with so many trees."""
    ids = train.ids
    if ids is None and objective in _RANKING:
        ids = np.arange(len(train.y)) // _GROUP  # the split has shuffled the rows
    sizes = None if ids is None else np.unique(ids, return_counts=True)[1]
    if engine == "lightgbm":
        data = lgb.Dataset(train.x, train.y, group=sizes, init_score=start)
        params = {
            "objective": objective, "learning_rate": settings["learning_rate"], "verbose": -1,
            "num_leaves": settings["leaves"], "num_threads": 1, "seed": 0,
            "lambdarank_truncation_level": settings.get("truncation", 30),
        }  # fmt: skip
        return lgb.train(params, data, trees)
    params = {
        "learning_rate": settings["learning_rate"], "max_leaves": settings["leaves"],
        "max_depth": 0, "grow_policy": "lossguide", "tree_method": "hist", "nthread": 1,
    }  # fmt: skip
    matrix = xgb.DMatrix(train.x, train.y, qid=ids, base_margin=start)
    if callable(objective):
        return xgb.train({**params, "base_score": 0.0}, matrix, trees, obj=objective)
    return xgb.train({**params, "objective": objective}, matrix, trees)


def _scores(booster: Any, x: np.ndarray, trees: int | None) -> np.ndarray:
    """Raw scores of all trees, or of the first."""
    if isinstance(booster, lgb.Booster):
        return np.asarray(booster.predict(x, raw_score=True, num_iteration=trees))
    return booster.predict(xgb.DMatrix(x), output_margin=True, iteration_range=(0, trees or 0))


def _parts(settings: Settings, seed: int, folder: Path | None) -> list[Rows]:
    """Training, validation and test rows; the seed of a ranking is its fold."""
    if settings["dataset"] == "mq2008":
        return [_documents(part) for part in mq2008(folder, seed)]
    data = load(settings["dataset"], folder, seed)
    parts = [Rows(part.x.numpy(), part.y.numpy()) for part in data]
    most = settings.get("rows")
    return [Rows(parts[0].x[:most], parts[0].y[:most]), *parts[1:]]


def _documents(queries: Queries) -> Rows:
    """The documents of all queries, one after another."""
    ids = np.repeat(np.arange(len(queries.where)), queries.where.sum(1).numpy())
    grades = queries.grades[queries.where].numpy()
    return Rows(queries.x[queries.where].numpy(), grades.astype(int), ids)
