"""Long-tailed CIFAR-10: the commonest class has 100 times as many images as the rarest.

The classes of the test part are equally common, as in most work on long tails, and so are those of
the validation part. What counts is macro F1 or balanced accuracy. The losses that people take for
this change the weights or the scores of classes by their shares p of the training images:

    class-balanced    weights (1 - b) / (1 - b^n) for a class of n images (Cui et al., 2019)
    focal             items that are nearly correct are ignored (Lin et al., 2017)
    logit-adjusted    scores plus log p, while training (Menon et al., 2021)
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import load
from benchmarks.images import augmented
from benchmarks.maps import channels_last
from benchmarks.resnet import ResNet
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, run_task, value_of

_CLASSES = 10
_SET = 128
_BALANCE = 0.9999  # b of the class-balanced loss


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains a ResNet on the loss of the row, and tests the metric of the column."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """CIFAR-10 with a long tail, and the loss that the settings name."""
    data = load("cifar10", folder, seed)
    everything = Examples(data.train.x, data.train.y)
    kept = long_tail(data.train.y, settings["imbalance"], torch.Generator().manual_seed(seed))
    train = everything.at(kept)
    number = train.target.bincount(minlength=_CLASSES)
    metric = mg.metric(settings["metric"])

    def augment(batch: Examples, generator: torch.Generator) -> Examples:
        return Examples(augmented(batch.x, generator), batch.target)

    return Task(
        metric=metric,
        values={"value": value_of(metric)},
        train=train,
        valid=Examples(*data.valid),
        test=Examples(*data.test),
        network=lambda: channels_last(ResNet(_CLASSES, settings["blocks"])),
        ordinary=lambda scores, batch: F.cross_entropy(scores, batch.target),
        loss=lambda steps: class_loss(settings, metric, number, steps),
        augment=augment,
        class_dim=-1,
        sets=class_sets,
    )


def long_tail(target: Tensor, imbalance: float, generator: torch.Generator) -> Tensor:
    """Indices of items whose classes get rarer: class c has a share of imbalance^(-c / (C - 1)).

    Example:
        >>> kept = long_tail(torch.arange(300) % 3, 100.0, torch.Generator())
        >>> (kept % 3).bincount()
        tensor([100,  10,   1])
    """
    classes = int(target.max()) + 1
    most = int(target.bincount().min())
    found = []
    for label in range(classes):
        number = max(1, round(most * imbalance ** (-label / (classes - 1))))
        items = (target == label).nonzero().squeeze(-1)
        found.append(items[torch.randperm(len(items), generator=generator)[:number]])
    return torch.cat(found)


def class_loss(settings: Settings, metric: mg.Metric, number: Tensor, steps: int) -> Loss:
    """The loss of a row, for a training part with so many items of each class."""
    options = settings.get("loss_options", {})
    match settings["method"]:
        case "cross_entropy":
            return lambda scores, batch: F.cross_entropy(scores, batch.target)
        case "class_balanced":
            weights = (1 - _BALANCE) / (1 - _BALANCE**number)
            weights = weights / weights.mean()
            return lambda scores, batch: F.cross_entropy(scores, batch.target, weights)
        case "logit_adjusted":
            shift = (number / number.sum()).log()
            return lambda scores, batch: F.cross_entropy(scores + shift, batch.target)
        case "focal":
            return _loss_of(mg.baselines.Focal())
        case "uniloss":
            return _loss_of(mg.UniLoss(metric, **options))
        case "metric_loss":
            return _loss_of(mg.MetricLoss(metric, steps=steps, **options))
        case method:
            raise ValueError(f"there is no method {method!r} for classes with a long tail")


def _loss_of(surrogate: mg.Surrogate) -> Loss:
    return lambda scores, batch: surrogate(scores, batch.target)


def class_sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
    """Sets of 128 random items: `[S, 128, C]` and `[S, 128]`."""
    number = len(scores) // _SET * _SET
    order = torch.randperm(len(scores), generator=generator)[:number].reshape(-1, _SET)
    return [(scores[order], part.target[order])]
