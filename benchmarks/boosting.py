"""The task of tables of boosted trees: an objective and an engine, on tables or queries.

A run grows trees for every point of its grid, looks at the validation metric at some numbers of
trees, and reports the test value of the best point with its number of trees. For a metric with a
threshold, the threshold is tuned on validation scores, for every method alike. Trees on log loss
and on rankings serve all metrics of a run, so they grow once.

With `start`, trees on the metric continue those on log loss: from so much of their best number on,
until they are as many.

Objectives of ranking need queries. A table has none, so their rows are dealt into groups of 1,024,
as many as our sets have. Their libraries compare only the first 30 or so of a query with the rest
unless told otherwise (`truncation`), which would leave most of such a group out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
import torch
import xgboost as xgb

import metricgrad as mg
from benchmarks import own
from benchmarks.data import load
from benchmarks.pooling import points
from benchmarks.rankings import Queries, mq2008

Settings = Mapping[str, Any]
_GROUP = 1024
_OURS = "metric"
_ORDINARY = {"lightgbm": "binary", "xgboost": "binary:logistic"}
_RANKING = ("lambdarank", "rank:map", "rank:pairwise", "rank:ndcg")
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of what is missing to as many trees as log loss has


class Rows(NamedTuple):
    """Columns `[N, F]`, target `[N]` and, for rankings, ids of queries `[N]` in order."""

    x: np.ndarray
    y: np.ndarray
    ids: np.ndarray | None = None


class Goal(NamedTuple):
    """A metric that trees are chosen and tested by."""

    name: str
    metric: mg.Metric
    decides: bool  # whether its threshold is tuned
    options: Settings  # of our objective

    def value(self, scores: np.ndarray, rows: Rows) -> float:
        """The metric of a table, or its mean over queries."""
        return float(self.metric(scores, rows.y, groups=rows.ids).mean())

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one > other if self.metric.higher_is_better else one < other


class Forest(NamedTuple):
    """The first trees of a booster, which continue others or start from nothing."""

    booster: Any
    trees: int
    before: "Forest | None" = None

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Raw scores."""
        if isinstance(self.booster, lgb.Booster):
            found = self.booster.predict(x, raw_score=True, num_iteration=self.trees)
        else:
            matrix = xgb.DMatrix(x)
            found = self.booster.predict(
                matrix, output_margin=True, iteration_range=(0, self.trees)
            )
        return np.asarray(found) if self.before is None else self.before.scores(x) + found


class Choice(NamedTuple):
    """What validation data chose among forests."""

    valid: float
    threshold: float
    forest: Forest

    def described(self) -> dict[str, Any]:
        """For the report."""
        before = self.forest.before
        start = {} if before is None else {"start": before.trees}
        return {
            **start, "trees": self.forest.trees, "threshold": self.threshold, "valid": self.valid
        }  # fmt: skip


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Grows the trees of every point of the grid, and tests the best one for each metric."""
    train, valid, test = _parts(settings, seed, folder)
    goals = _goals(settings)
    trials: list[dict[str, Any]] = []
    best: dict[str, Choice] = {}
    for point in points(dict(settings)):
        for goal, forests in _grown({**settings, **point}, goals, seed, train, valid):
            choice = _chosen(goal, forests, valid)
            named = {"metric": goal.name} if goal.name else {}
            trials.append({**named, **point, **choice.described()})
            if goal.name not in best or goal.better(choice.valid, best[goal.name].valid):
                best[goal.name] = choice
    values = {
        goal.name: goal.value(
            best[goal.name].forest.scores(test.x) - best[goal.name].threshold, test
        )
        for goal in goals
    }
    if "metrics" not in settings:
        return {"value": values[""], "valid": best[""].valid, "trials": trials}
    return {"values": values, "trials": trials}


def _goals(settings: Settings) -> list[Goal]:
    """The metrics of a run: one, or several by name."""
    found = []
    for name, each in settings.get("metrics", {"": settings}).items():
        metric = own.metric(each["metric"], **each.get("metric_options", {}))
        decides = metric.layout != "grades" and own.decides(each["metric"], metric)
        options = {**settings.get("objective_options", {}), **each.get("objective_options", {})}
        found.append(Goal(name, metric, decides, options))
    return found


def _chosen(goal: Goal, forests: list[Forest], valid: Rows) -> Choice:
    """The best forest on validation data, with its threshold."""
    found: Choice | None = None
    for forest in forests:
        scores = forest.scores(valid.x)
        threshold = 0.0
        if goal.decides:
            threshold = float(mg.best_threshold(scores, valid.y, goal.metric, candidates=200))
        value = goal.value(scores - threshold, valid)
        if found is None or goal.better(value, found.valid):
            found = Choice(value, threshold, forest)
    assert found is not None
    return found


def _grown(
    settings: Settings, goals: list[Goal], seed: int, train: Rows, valid: Rows
) -> Iterator[tuple[Goal, list[Forest]]]:
    """For each metric the forests to choose from, at one point of the grid."""
    objective = settings["objective"]
    ours = objective == _OURS
    common: list[Forest] = []
    if not ours or settings.get("start"):
        asked = _ORDINARY[settings["engine"]] if ours else objective
        booster = _grow(asked, settings, train, max(settings["trees"]))
        common = [Forest(booster, trees) for trees in settings["trees"]]
    for goal in goals:
        if not ours:
            yield goal, common
            continue
        before = None
        trees = settings["trees"]
        if common:
            ordinary = _chosen(goal, common, valid).forest
            before = ordinary._replace(trees=round(settings["start"] * ordinary.trees))
            missing = ordinary.trees - before.trees
            trees = sorted({max(1, round(share * missing)) for share in _SHARES})
        booster = _grow(
            _ours(goal.metric, goal.options, settings, seed, train), settings, train, max(trees),
            None if before is None else before.scores(train.x),
        )  # fmt: skip
        yield goal, [Forest(booster, number, before) for number in trees]


def _ours(metric: Any, options: Settings, settings: Settings, seed: int, train: Rows) -> Any:
    """The metric as an objective, or with the same curvature for all rows."""
    generator = torch.Generator().manual_seed(seed)
    objective = mg.boosting.objective(metric, groups=train.ids, generator=generator, **options)
    if settings.get("curvature") != "constant":
        return objective

    def flat(scores: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
        gradient, curvature = objective(scores, data)
        return gradient, np.full_like(curvature, curvature.mean())

    return flat


def _grow(
    objective: Any, settings: Settings, train: Rows, trees: int, start: np.ndarray | None = None
) -> Any:
    """A booster of LightGBM or XGBoost with so many trees."""
    ids = train.ids
    if ids is None and objective in _RANKING:
        ids = np.arange(len(train.y)) // _GROUP  # the split has shuffled the rows
    sizes = None if ids is None else np.unique(ids, return_counts=True)[1]
    if settings["engine"] == "lightgbm":
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
    if "truncation" in settings:
        params["lambdarank_num_pair_per_sample"] = settings["truncation"]
    return xgb.train({**params, "objective": objective}, matrix, trees)


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
