"""Learning Surrogate Losses compared with the losses people use, with whole grids stacked.

A run trains one network for every point of its grid and, if the loss depends on the metric, for
every metric. With `stacked` in the settings, it does so for that many seeds at once, and its values
are lists with one value per seed. Each network is evaluated on validation data ten times. For every
metric, the model, moment and threshold that are best there are tested. All methods take the same
number of steps on batches of the same size, with Adam and a learning rate that falls to 0 along
half a cosine wave (`surrogate_training.py`).

Values are losses on the scale of 0 to 1, (best - metric) / (best - worst): 1 - AUC, the error rate
as it is, and (1 - MCC) / 2 as in the paper. `copies` in the settings shows a value a second time,
under another name, beside other values of the paper.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternation import paper_network
from benchmarks.classification import Evaluation, Settings, predict
from benchmarks.data import Data, Part, load
from benchmarks.pooling import points
from benchmarks.surrogate_training import (
    VARIANTS,
    Best,
    Joined,
    StackedTrial,
    direct,
    learned,
)

OBJECTIVES = ("auc", "average_precision")
_OF_METRIC = (*VARIANTS, "uniloss", "metric_loss", "global_objective")
Evaluations = Mapping[str, Evaluation]


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Trains the whole grid at once; the test values are losses."""
    seeds = range(settings["stacked"]) if "stacked" in settings else [seed]
    data = [_data(settings, each, folder) for each in seeds]
    evaluations = {name: Evaluation({"metric": name}) for name in settings["metrics"]}
    if settings["method"] == "constant":
        found = [{"values": _constant(evaluations, part)} for part in data]
        return _result(settings, found)
    trials = [
        trial
        for place, each in enumerate(seeds)
        for trial in trials_of(settings, each, place, data[0].train.x.shape[1])
    ]
    train = learned if settings["method"] in VARIANTS else direct
    for step in train(settings, trials, Joined([part.train for part in data])):
        for trial in trials:
            validate(trial, data[trial.place].valid, evaluations, step)
    found = [
        _tested([trial for trial in trials if trial.place == place], part.test, evaluations)
        for place, part in enumerate(data)
    ]
    return {**_result(settings, found), "trials": [_shown(trial, settings) for trial in trials]}


def _result(settings: Settings, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Values, and what was chosen: of one seed, or lists with one entry per seed."""
    if "stacked" not in settings:
        return found[0]
    values = {name: [each["values"][name] for each in found] for name in found[0]["values"]}
    for name, original in settings.get("copies", {}).items():
        if original in values:
            values[name] = values[original]
    chosen = [each["chosen"] for each in found if "chosen" in each]
    return {"values": values, **({"chosen": chosen} if chosen else {})}


def _tested(trials: list[StackedTrial], test: Part, evaluations: Evaluations) -> dict[str, Any]:
    """The test values of the models, moments and thresholds that are best in validation."""
    values = {}
    chosen = {}
    for name, evaluation in evaluations.items():
        winner = None
        for trial in trials:
            value = trial.best[name].valid if trial.metric in (None, name) else None
            if value is not None and (
                winner is None or evaluation.better(value, winner.best[name].valid)
            ):
                winner = trial
        if winner is None:
            continue
        best = winner.best[name]
        winner.model.load_state_dict(best.state)
        scores = predict(winner.model.eval(), test.x)
        values[name] = as_loss(evaluation, evaluation.value(scores, test.y, best.threshold))
        chosen[name] = {
            **winner.point,
            "step": best.step,
            "valid": best.valid,
            "threshold": best.threshold,
        }
    return {"values": values, "chosen": chosen}


def as_loss(evaluation: Evaluation, value: float) -> float:
    """A metric's value as a loss: 0 at the best, 1 at the worst."""
    metric = evaluation.metric()
    return (metric.best - value) / (metric.best - metric.worst)


def _constant(evaluations: Evaluations, data: Data) -> dict[str, float]:
    """Losses of equal scores, all positive or all negative, whichever is better in validation."""

    def value(evaluation: Evaluation, score: float, part: Part) -> float:
        scores = torch.full((len(part.y),), score)
        return as_loss(evaluation, evaluation.value(scores, part.y, None))

    found = {}
    for name, each in evaluations.items():
        score = min((-1.0, 1.0), key=lambda score, each=each: value(each, score, data.valid))
        found[name] = value(each, score, data.test)
    return found


def _shown(trial: StackedTrial, settings: Settings) -> dict[str, Any]:
    """A trial as the report has it: its point and its validation values."""
    seed = {"seed": trial.seed} if "stacked" in settings else {}
    metric = {"metric": trial.metric} if trial.metric else {}
    values = {name: best.valid for name, best in trial.best.items() if trial.metric in (None, name)}
    return {**seed, **trial.point, **metric, **values}


def _data(settings: Settings, seed: int, folder: Path | None) -> Data:
    """The parts, with classes exchanged if the paper has them so, and limited validation data."""
    data = load(settings["dataset"], folder, seed)
    if settings.get("exchange"):
        data = Data(*(Part(part.x, 1 - part.y) for part in data))
    return data._replace(valid=Part(*(each[: settings["valid_items"]] for each in data.valid)))


def trials_of(settings: Settings, seed: int, place: int, features: int) -> list[StackedTrial]:
    """A trial for every point of the grid and, if the loss depends on the metric, every metric."""
    metrics = settings["metrics"] if settings["method"] in _OF_METRIC else [None]
    trials = []
    for point, metric in itertools.product(points(dict(settings)), metrics):
        if settings["method"] != "global_objective" or metric in OBJECTIVES:
            torch.manual_seed(seed)
            normed = settings.get("normed", False)
            model = paper_network(features, settings["hidden"], normed=normed)
            best = {name: Best() for name in settings["metrics"]}
            trials.append(StackedTrial(point, metric, model, best, seed, place))
    return trials


def validate(trial: StackedTrial, valid: Part, evaluations: Evaluations, step: int) -> None:
    """Keeps the model for each metric by which it is the best so far."""
    trial.model.eval()
    scores = predict(trial.model, valid.x)
    if not scores.isfinite().all():
        return
    for name, evaluation in evaluations.items():
        if trial.metric in (None, name):
            value, threshold = evaluation.tuned(scores, valid.y)
            if evaluation.better(value, trial.best[name].valid):
                state = {key: weight.clone() for key, weight in trial.model.state_dict().items()}
                trial.best[name] = Best(value, step, threshold, state)
