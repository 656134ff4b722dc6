"""Swap one line: the same training with another loss and nothing else changed.

A run trains a network on every loss, at every learning rate and schedule of its settings, and keeps
the last epoch: nothing is tuned for anybody, except the decision (a threshold, or one offset per
class), which is tuned on validation data for every loss. What counts is the difference from the
ordinary loss in the same setting.

    ordinary            cross-entropy, or ListNet for graded documents
    uniloss             mg.UniLoss(metric)
    metric_loss         mg.MetricLoss(metric)
    metric_loss_steps   mg.MetricLoss(metric, steps=...)
    hand_made           what people take today: soft F1, smooth AP, Lovasz, LambdaLoss, ...
"""

import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.swap_tasks import TASKS, Batch, Task, scored

LOSSES = ("ordinary", "uniloss", "metric_loss", "metric_loss_steps", "hand_made")
Loss = Callable[[Batch, Tensor], Tensor]


def run(
    settings: Settings,
    seed: int,
    folder: Path | None,
    known: list[dict[str, Any]],
    keep: Callable[[list[dict[str, Any]]], None],
) -> dict[str, Any]:
    """Trains every loss in every setting, and averages what it gains on the ordinary loss.

    `known` has the settings that are done, in order; `keep` stores all that are done so far.
    """
    task = TASKS[settings["kind"]](settings, folder, seed)
    trials = list(known)
    points = list(itertools.product(settings["schedules"], settings["rates"]))
    for schedule, rate in points[len(trials) :]:
        values = {
            name: train(task, settings, name, rate, schedule, seed)
            for name in LOSSES
            if name != "hand_made" or "hand_made" in settings
        }
        trials.append({"schedule": schedule, "learning_rate": rate, **values})
        keep(trials)
    ordinary = statistics.fmean(trial["ordinary"] for trial in trials)
    gains = {
        name: statistics.fmean(trial[name] - trial["ordinary"] for trial in trials)
        for name in LOSSES[1:]
        if name in trials[0]
    }
    return {"values": {"ordinary": ordinary, **gains}, "trials": trials}


def train(
    task: Task, settings: Settings, name: str, rate: float, schedule: str, seed: int
) -> float:
    """The test value of the last epoch, with the decision tuned on validation data."""
    torch.manual_seed(seed)
    model = task.network()
    steps = settings["epochs"] * task.steps
    loss = loss_of(name, task, settings, steps)
    optimizer = _optimizer(settings, model, rate)
    generator = torch.Generator().manual_seed(seed)
    done = 0
    for _ in range(settings["epochs"]):
        for batch in task.batches(generator):
            if schedule == "cosine":
                for group in optimizer.param_groups:
                    group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * done / steps))
            optimizer.zero_grad(set_to_none=True)
            loss(batch, scored(model, batch.x)).backward()
            optimizer.step()
            done += 1
    model.eval()
    with torch.no_grad():
        return task.tested(model)


def loss_of(name: str, task: Task, settings: Settings, steps: int) -> Loss:
    """A loss by name; it takes a batch and the scores of the network."""
    if name == "ordinary":
        return task.ordinary
    made: mg.Surrogate
    match name:
        case "uniloss":
            made = mg.UniLoss(task.metric)
        case "metric_loss":
            made = mg.MetricLoss(task.metric)
        case "metric_loss_steps":
            made = mg.MetricLoss(task.metric, steps=steps)
        case _:
            made = getattr(mg.baselines, settings["hand_made"])()
            if settings["kind"] == "maps":
                return lambda batch, scores: made(*_pixels(batch, scores))
    return lambda batch, scores: made(scores, batch.target, batch.where)


def _pixels(batch: Batch, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Label maps as one set of pixels that count."""
    assert batch.where is not None
    return scores.movedim(1, -1).flatten(0, -2), batch.target.flatten(), batch.where.flatten()


def _optimizer(settings: Settings, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if settings["optimizer"] == "adam":
        return torch.optim.Adam(model.parameters(), rate, fused=True)
    return torch.optim.SGD(
        model.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
