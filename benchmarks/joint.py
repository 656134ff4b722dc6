"""One setting of Algorithm 1, looked at closely: does the surrogate know where the metric improves?

A run trains the paper's network for several metrics at once, stacked, and chooses nothing: the last
model counts. For a metric of decisions, the threshold is tuned on validation data. The values are,
with the name of the metric before them:

    test     1 - metric on test data
    first    the share of items that the surrogate pushes the right way, positives up and negatives
             down, both kinds counting alike, when the model begins to move, or after 10 iterations
    last     the same at the end
    misfit   the surrogate's distance from the metric at the end
    spread   the standard deviation of the model's scores at the end
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from benchmarks.alternation import paper_network
from benchmarks.classification import Evaluation, Settings, predict
from benchmarks.data import Part, load
from benchmarks.surrogate_training import VARIANTS, universal
from metricgrad.training import Batches

_SETS = 100  # on which a surrogate is looked at
_EARLY = 10  # iterations after which it is, without a head start


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Trains for all metrics at once; the names of the values are METRIC_KIND."""
    data = load(settings["dataset"], folder, seed)
    train = data.train
    metrics = settings["metrics"]
    training = training_of(settings, train, seed)
    training.advance(max(settings.get("head_start", 0), _EARLY), progress=False)
    first = [_right_way(training, number, train, settings, seed) for number in range(len(metrics))]
    means = training.advance(settings["iterations"] - training.iteration, progress=False)
    values: dict[str, float] = {}
    for number, name in enumerate(metrics):
        evaluation = Evaluation({"metric": name})
        model = training.models[number].eval()
        _, threshold = evaluation.tuned(predict(model, data.valid.x), data.valid.y)
        scores = predict(model, data.test.x)
        value = evaluation.value(scores, data.test.y, threshold)
        higher = mg.metric(name).higher_is_better
        values[f"{name}_test"] = 1 - value if higher else value
        values[f"{name}_first"] = first[number]
        values[f"{name}_last"] = _right_way(training, number, train, settings, seed)
        values[f"{name}_misfit"] = float(means.misfit[number])
        values[f"{name}_spread"] = float(scores.std())
    return {"values": values}


def training_of(settings: Settings, train: Part, seed: int) -> mg.StackedTraining:
    """The stacked training that the settings ask for, before its first iteration."""
    variant = VARIANTS[settings["method"]]
    models = []
    losses = []
    for name in settings["metrics"]:
        torch.manual_seed(seed)
        models.append(paper_network(train.x.shape[1], normed=settings.get("normed", False)))
        losses.append(mg.BilevelLoss(name, generator=torch.Generator().manual_seed(seed)))
        if variant["start"] == "universal":
            losses[-1].load_state_dict(universal(name, settings["batch"], seed))
            losses[-1].universal = True
    return mg.StackedTraining(
        models,
        losses,
        train.x,
        train.y,
        model_rate=settings["model_rate"],
        loss_rate=settings["loss_rate"],
        loss_steps=settings["loss_steps"],
        clip=settings["clip"],
        batch=settings["batch"],
        balanced=settings.get("balanced", False),
        head_start=settings.get("head_start", 0),
        decay=settings["iterations"],
        generator=torch.Generator().manual_seed(seed),
        **variant,
    )


def _right_way(
    training: mg.StackedTraining, number: int, train: Part, settings: Settings, seed: int
) -> float:
    """The share of items whose gradient moves positives up and negatives down."""
    batches = Batches(train.y, settings["batch"], True, settings.get("balanced", False))
    index = batches.draw(_SETS, torch.Generator().manual_seed(seed))
    scores = predict(training.models[number].eval(), train.x[index.flatten()])
    scores = scores.reshape(index.shape).requires_grad_()
    target = train.y[index]
    training.losses[number].per_set(scores, target).sum().backward()
    return _share_right(scores.grad, target)


def _share_right(gradient: Tensor | None, target: Tensor) -> float:
    """The mean of the shares among positives and among negatives, so that one half is chance."""
    assert gradient is not None
    right = (gradient * (1 - 2 * target) > 0).double()
    return float(right[target == 1].mean() + right[target == 0].mean()) / 2
