"""Learning Surrogate Losses compared with the losses people use, with whole grids stacked.

A run trains one network for every point of its grid and, if the loss depends on the metric, for
every metric. Each is evaluated on validation data ten times. For every metric, the model, moment
and threshold that are best there are tested. All methods take the same number of steps on
stratified batches of the same size, with Adam and a learning rate that falls to 0 along half a
cosine wave. All points of a grid get the same batches in the same order.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.alternation import paper_network
from benchmarks.classification import Evaluation, Settings, predict
from benchmarks.data import Data, Part, load
from benchmarks.pooling import points
from metricgrad.training import Batches, Stack

LOSSES = {
    "cross_entropy": mg.baselines.CrossEntropy,
    "cost_sensitive": mg.baselines.CrossEntropy,
    "pairwise_ranking": mg.baselines.PairwiseRanking,
    "lovasz": mg.baselines.Lovasz,
}
OBJECTIVES = ("auc", "average_precision")
VARIANTS = {
    "sl_u": {"start": "universal", "refine": False},
    "sl_s": {"start": "scratch"},
    "sl_r": {"start": "universal"},
}


@dataclass
class Best:
    """The best moment on validation data, by one metric."""

    valid: float | None = None
    step: int = 0
    threshold: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class StackedTrial:
    """One of the trainings in a stack; `metric` is None if its loss serves all metrics."""

    point: dict[str, Any]
    metric: str | None
    model: nn.Module
    best: dict[str, Best]


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Trains the whole grid at once; the test values are losses, 1 - metric."""
    data = _data(settings, seed, folder)
    evaluations = {name: Evaluation({"metric": name}) for name in settings["metrics"]}
    if settings["method"] == "constant":
        return {"values": _constant(evaluations, data.test.y)}
    trials = _trials(settings, seed, data.train.x.shape[1])
    train = _learned if settings["method"] in VARIANTS else _direct
    for step in train(settings, trials, data.train, seed):
        for trial in trials:
            _validate(trial, data.valid, evaluations, step)
    values = {}
    chosen = {}
    for name, evaluation in evaluations.items():
        able = [
            trial
            for trial in trials
            if trial.metric in (None, name) and trial.best[name].valid is not None
        ]
        if not able:
            continue
        winner = max(able, key=lambda trial: trial.best[name].valid or -math.inf)
        best = winner.best[name]
        winner.model.load_state_dict(best.state)
        scores = predict(winner.model, data.test.x)
        values[name] = 1 - evaluation.value(scores, data.test.y, best.threshold)
        chosen[name] = {
            **winner.point,
            "step": best.step,
            "valid": best.valid,
            "threshold": best.threshold,
        }
    return {"values": values, "chosen": chosen, "trials": [_shown(trial) for trial in trials]}


def _constant(evaluations: Mapping[str, Evaluation], target: Tensor) -> dict[str, float]:
    """Losses of equal scores; for F1, whose best constant decides for the positive class, of 1."""
    return {
        name: 1 - each.value(torch.full((len(target),), float(name == "f1")), target, None)
        for name, each in evaluations.items()
    }


def _shown(trial: StackedTrial) -> dict[str, Any]:
    """A trial as the report has it: its point and its validation values."""
    metric = {"metric": trial.metric} if trial.metric else {}
    values = {name: best.valid for name, best in trial.best.items() if trial.metric in (None, name)}
    return {**trial.point, **metric, **values}


def _data(settings: Settings, seed: int, folder: Path | None) -> Data:
    """The parts, with classes exchanged if the paper has them so, and limited validation data."""
    data = load(settings["dataset"], folder, seed)
    if settings.get("exchange"):
        data = Data(*(Part(part.x, 1 - part.y) for part in data))
    return data._replace(valid=Part(*(each[: settings["valid_items"]] for each in data.valid)))


def _trials(settings: Settings, seed: int, features: int) -> list[StackedTrial]:
    metrics = (
        settings["metrics"]
        if settings["method"] in (*VARIANTS, "uniloss", "global_objective")
        else [None]
    )
    trials = []
    for point, metric in itertools.product(points(dict(settings)), metrics):
        if settings["method"] != "global_objective" or metric in OBJECTIVES:
            torch.manual_seed(seed)
            model = paper_network(features, settings["hidden"])
            best = {name: Best() for name in settings["metrics"]}
            trials.append(StackedTrial(point, metric, model, best))
    return trials


def _validate(
    trial: StackedTrial, valid: Part, evaluations: Mapping[str, Evaluation], step: int
) -> None:
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


def _loss(settings: Settings, point: Mapping[str, Any], metric: str | None) -> mg.Surrogate:
    method = settings["method"]
    options = {name: value for name, value in point.items() if name != "learning_rate"}
    if method == "uniloss":
        return mg.UniLoss(metric, **options)
    if method == "global_objective":
        return mg.baselines.GlobalObjective(
            objective="auc" if metric == "auc" else "average_precision", **options
        )
    return LOSSES[method](**options)


def _direct(
    settings: Settings, trials: list[StackedTrial], train: Part, seed: int
) -> Iterator[int]:
    """Trains on losses that do not learn; yields the step whenever it is time to validate."""
    rates = [trial.point["learning_rate"] for trial in trials]
    side = Stack([trial.model for trial in trials], torch.tensor(rates).unsqueeze(-1), None)
    losses = [_loss(settings, trial.point, trial.metric) for trial in trials]
    own = [
        {"params": list(loss.parameters()), "lr": rate}
        for loss, rate in zip(losses, rates, strict=True)
    ]
    optimizer = torch.optim.Adam(own) if any(group["params"] for group in own) else None
    # Trials with the same loss become sets of one call.
    alike: dict[str, list[int]] = {}
    for number, loss in enumerate(losses):
        alike.setdefault(repr(loss) if optimizer is None else str(number), []).append(number)
    batches = Batches(train.y, settings["batch"], True)
    generator = torch.Generator().manual_seed(seed)
    steps = settings["iterations"] * settings["model_steps"]
    for step in range(1, steps + 1):
        share = 0.5 + 0.5 * math.cos(math.pi * (step - 1) / steps)
        (index,) = batches.draw(1, generator)
        trials[0].model.train()
        scores = side(train.x[index].expand(len(trials), -1, -1))
        target = train.y[index].expand(len(trials), -1)
        if optimizer is not None:
            optimizer.zero_grad()
        values = [
            losses[group[0]].per_set(scores[group], target[group]) for group in alike.values()
        ]
        side.descend(torch.cat(values), share)
        if optimizer is not None:
            optimizer.step()
        if step % (steps // settings["evaluations"]) == 0:
            side.part()
            yield step


def _learned(
    settings: Settings, trials: list[StackedTrial], train: Part, seed: int
) -> Iterator[int]:
    """Trains by Algorithm 1; yields the step whenever it is time to validate."""
    variant = VARIANTS[settings["method"]]
    losses = []
    for trial in trials:
        loss = mg.BilevelLoss(trial.metric, generator=torch.Generator().manual_seed(seed))
        if variant["start"] == "universal":
            loss.load_state_dict(universal(trial.metric or "", settings["batch"], seed))
            loss.universal = True
        losses.append(loss)
    joint = mg.StackedTraining(
        [trial.model for trial in trials],
        losses,
        train.x,
        train.y,
        model_rates=[trial.point["learning_rate"] for trial in trials],
        loss_rates=[trial.point.get("loss_rate", settings["loss_rate"]) for trial in trials],
        batch=settings["batch"],
        model_steps=settings["model_steps"],
        loss_steps=settings["loss_steps"],
        decay=settings["iterations"],
        generator=torch.Generator().manual_seed(seed),
        **variant,
    )
    for _ in range(settings["evaluations"]):
        joint.advance(settings["iterations"] // settings["evaluations"], progress=False)
        yield joint.iteration * settings["model_steps"]


@functools.cache
def universal(metric: str, size: int, seed: int) -> dict[str, Tensor]:
    """The weights of a universal surrogate, learned once for all data sets."""
    loss = mg.BilevelLoss(metric, generator=torch.Generator().manual_seed(seed))
    loss.learn_universal(size=size, progress=False, generator=torch.Generator().manual_seed(seed))
    return loss.state_dict()
