"""Learning Surrogate Losses against what people use: all points of a grid trained at once, stacked into one model.

A run trains one network for every point of its grid, and where the loss depends on the metric, for
every metric. Each is looked at on validation data ten times; for every metric the best model,
moment and threshold there are tested. All methods make the same number of steps on stratified
batches of the same size, with Adam and a learning rate that falls to 0 along half a cosine wave;
points of a grid see the same data in the same order.
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
from benchmarks.classification import Judge, Settings, predict
from benchmarks.data import Data, Part, load
from benchmarks.pooling import points
from metricgrad import training

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
class Trial:
    """One training: its point of the grid, the metric it is trained for (None for any), and its best moments."""

    point: dict[str, Any]
    metric: str | None
    model: nn.Module
    best: dict[str, Best]


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """One run.

    Args:
        settings: the merged settings of a table.
        seed: of the cut, the weights and the batches.
        folder: where the data sets are.
        known: not used; the points of a grid are trained together.

    Returns:
        `values` on test data by metric, as losses 1 - metric; the chosen points, and all with their
        validation values.
    """
    data, judges = (
        _data(settings, seed, folder),
        {name: Judge({"metric": name}) for name in settings["metrics"]},
    )
    if settings["method"] == "constant":
        scores = {
            name: torch.zeros(len(data.test.y)) + (1.0 if name == "f1" else 0.0) for name in judges
        }
        return {
            "values": {
                name: 1 - judge.value(scores[name], data.test.y, None)
                for name, judge in judges.items()
            }
        }
    trials = _trials(settings, seed, data.train.x.shape[1])
    train = _learned if settings["method"] in VARIANTS else _direct
    for step in train(settings, trials, data.train, seed):
        for trial in trials:
            _look(trial, data.valid, judges, step)
    values, chosen = {}, {}
    for name, judge in judges.items():
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
        values[name] = 1 - judge.value(
            predict(winner.model, data.test.x), data.test.y, best.threshold
        )
        chosen[name] = {
            **winner.point,
            "step": best.step,
            "valid": best.valid,
            "threshold": best.threshold,
        }
    shown = [{**trial.point, **({"metric": trial.metric} if trial.metric else {}),
              **{name: best.valid for name, best in trial.best.items() if trial.metric in (None, name)}}
             for trial in trials]  # fmt: skip
    return {"values": values, "chosen": chosen, "trials": shown}


def _data(settings: Settings, seed: int, folder: Path | None) -> Data:
    """The parts, with the classes exchanged where the paper has them so, and no more validation items than asked."""
    data = load(settings["dataset"], folder, seed)
    if settings.get("exchange"):
        data = Data(*(Part(part.x, 1 - part.y) for part in data))
    return data._replace(valid=Part(*(each[: settings["valid_items"]] for each in data.valid)))


def _trials(settings: Settings, seed: int, features: int) -> list[Trial]:
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
            trials.append(
                Trial(point, metric, model, {name: Best() for name in settings["metrics"]})
            )
    return trials


def _look(trial: Trial, valid: Part, judges: Mapping[str, Judge], step: int) -> None:
    """Keeps the model wherever it is the best so far on validation data."""
    trial.model.eval()
    scores = predict(trial.model, valid.x)
    if not scores.isfinite().all():
        return
    for name, judge in judges.items():
        if trial.metric in (None, name):
            value, threshold = judge.tuned(scores, valid.y)
            if judge.better(value, trial.best[name].valid):
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


def _direct(settings: Settings, trials: list[Trial], train: Part, seed: int) -> Iterator[int]:
    """Trains with losses that are given; yields the number of steps whenever the models are to be looked at."""
    rates = [trial.point["learning_rate"] for trial in trials]
    side = training.Stack(
        [trial.model for trial in trials], torch.tensor(rates).unsqueeze(-1), None
    )
    losses = [_loss(settings, trial.point, trial.metric) for trial in trials]
    own = [
        {"params": list(loss.parameters()), "lr": rate}
        for loss, rate in zip(losses, rates, strict=True)
    ]
    optimizer = torch.optim.Adam(own) if any(group["params"] for group in own) else None
    alike: dict[str, list[int]] = {}  # trials with the same loss are sets of one call
    for number, loss in enumerate(losses):
        alike.setdefault(repr(loss) if optimizer is None else str(number), []).append(number)
    batches, generator = (
        training.Batches(train.y, settings["batch"], True),
        torch.Generator().manual_seed(seed),
    )
    steps = settings["iterations"] * settings["model_steps"]
    for step in range(1, steps + 1):
        share = 0.5 + 0.5 * math.cos(math.pi * (step - 1) / steps)
        (index,) = batches.draw(1, generator)
        trials[0].model.train()
        scores = side(train.x[index].expand(len(trials), -1, -1))
        target = train.y[index].expand(len(trials), -1)
        if optimizer is not None:
            optimizer.zero_grad()
        side.descend(
            torch.cat(
                [losses[group[0]].per_set(scores[group], target[group]) for group in alike.values()]
            ),
            share,
        )
        if optimizer is not None:
            optimizer.step()
        if step % (steps // settings["evaluations"]) == 0:
            side.part()
            yield step


def _learned(settings: Settings, trials: list[Trial], train: Part, seed: int) -> Iterator[int]:
    """Trains by Algorithm 1; yields the number of steps whenever the models are to be looked at."""
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
    """The weights of a universal surrogate; one of each is enough for all data sets."""
    loss = mg.BilevelLoss(metric, generator=torch.Generator().manual_seed(seed))
    loss.learn_universal(size=size, progress=False, generator=torch.Generator().manual_seed(seed))
    return loss.state_dict()
