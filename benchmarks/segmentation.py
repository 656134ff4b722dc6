"""CamVid: a small U-Net trained on mean IoU and on the losses people use for label maps.

A set is a batch of images: the metric counts the pixels of all of them together. Baselines take the
pixels of a batch as the items of one set.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import Part
from benchmarks.maps import CLASSES, UNet, camvid, channels_last
from benchmarks.relations import learned_relation
from benchmarks.shown import label_maps
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, run_task, value_of

_SIDE = 32  # of the squares that pixels are put into where a loss is learned from them
_SETS = 32  # that one scored part gives
_IMAGES = 8  # of which a set has its pixels


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains the U-Net on the loss of the row, and tests mean IoU and Dice."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The U-Net and CamVid, with the loss that the settings name."""
    width, height = settings["size"]
    data = camvid(folder, (width, height))
    train = _examples(data.train)

    def loss(steps: int) -> Loss:
        if settings["method"] == "reloss":
            return _learned(settings, seed, folder)
        return map_loss(settings, train, steps)

    metric = mg.metric("mean_iou")
    return Task(
        metric=metric,
        values={"mean_iou": value_of(metric), "dice": value_of(mg.metric("dice"))},
        train=train,
        valid=_examples(data.valid),
        test=_examples(data.test),
        network=lambda: channels_last(UNet(settings["width"])),
        ordinary=pixel_cross_entropy(None),
        loss=loss,
        augment=mirrored,
        class_dim=-3,
        sets=pixel_sets,
        shown=label_maps(settings),
    )


def _examples(part: Part) -> Examples:
    known = part.y < CLASSES
    return Examples(part.x, part.y.where(known, 0), known)


def mirrored(batch: Examples, generator: torch.Generator) -> Examples:
    """Each image and its labels, mirrored with a probability of one half."""
    assert batch.where is not None
    chosen = torch.rand(len(batch), generator=generator) < 0.5

    def flipped(values: Tensor) -> Tensor:
        flags = chosen.reshape(-1, *[1] * (values.dim() - 1))
        return torch.where(flags, values.flip(-1), values)

    return Examples(flipped(batch.x), flipped(batch.target), flipped(batch.where))


def map_loss(settings: Settings, train: Examples, steps: int) -> Loss:
    """The loss of a row; `ordinary` in the settings is the weight of cross-entropy beside it."""
    options = settings.get("loss_options", {})
    ordinary = pixel_cross_entropy(None)
    match settings["method"]:
        case "cross_entropy":
            return ordinary
        case "weighted_cross_entropy":
            return pixel_cross_entropy(_median_weights(train))
        case "dice":
            soft = mg.baselines.SoftFBeta()
            return _with(lambda scores, batch: soft(*pixels(scores, batch)), settings)
        case "lovasz":
            lovasz = mg.baselines.Lovasz()
            return _with(lambda scores, batch: lovasz(*pixels(scores, batch)), settings)
        case "uniloss":
            ours = mg.UniLoss("mean_iou", **options)
            return lambda scores, batch: ours(scores, batch.target, batch.where)
        case "metric_loss":
            swapped = mg.MetricLoss("mean_iou", steps=steps, **options)
            return lambda scores, batch: swapped(scores, batch.target, batch.where)
        case method:
            raise ValueError(f"there is no method {method!r} for label maps")


def _with(loss: Loss, settings: Settings) -> Loss:
    weight = settings.get("ordinary", 0.0)
    if not weight:
        return loss
    ordinary = pixel_cross_entropy(None)
    return lambda scores, batch: loss(scores, batch) + weight * ordinary(scores, batch)


def pixel_cross_entropy(weights: Tensor | None) -> Loss:
    """Cross-entropy of the pixels that count, with a weight for each class."""

    def loss(scores: Tensor, batch: Examples) -> Tensor:
        assert batch.where is not None
        target = batch.target.masked_fill(~batch.where, CLASSES)
        return F.cross_entropy(scores, target, weights, ignore_index=CLASSES)

    return loss


def _median_weights(train: Examples) -> Tensor:
    """The median share of a class divided by its own, as SegNet weighs classes."""
    assert train.where is not None
    shares = train.target[train.where].bincount(minlength=CLASSES).float()
    return shares.median() / shares.clamp(min=1)


def pixels(scores: Tensor, batch: Examples) -> tuple[Tensor, Tensor, Tensor]:
    """Label maps as the items of one set: scores `[P, C]`, target `[P]`, where `[P]`."""
    assert batch.where is not None
    return scores.movedim(1, -1).flatten(0, -2), batch.target.flatten(), batch.where.flatten()


def _squares(scores: Tensor, batch: Examples, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random pixels that count, as a map: scores `[1, C, 32, 32]` and target `[1, 32, 32]`."""
    items, target, where = pixels(scores, batch)
    known = where.nonzero().squeeze(-1)
    drawn = known[torch.randint(len(known), (_SIDE, _SIDE), generator=generator)]
    return items[drawn].movedim(-1, 0).unsqueeze(0), target[drawn].unsqueeze(0)


def pixel_sets(scores: Tensor, part: Examples, generator: torch.Generator) -> ScoreSets:
    """Sets of random pixels, each from a batch of images: `[S, 1, C, 32, 32]` and their labels."""
    found = []
    for _ in range(_SETS):
        few = torch.randperm(len(part), generator=generator)[:_IMAGES]
        found.append(_squares(scores[few], part.at(few), generator))
    return [(torch.stack([s for s, _ in found]), torch.stack([y for _, y in found]))]


def _learned(settings: Settings, seed: int, folder: Path | None) -> Loss:
    """ReLoss of mean IoU, learned from a network that cross-entropy trained, and cross-entropy."""
    relation = learned_relation(
        task({**settings, "method": "cross_entropy"}, seed, folder),
        settings,
        seed,
        mg.ReLoss("mean_iou", generator=torch.Generator().manual_seed(seed)),
    )
    generator = torch.Generator().manual_seed(seed)
    return _with(lambda scores, batch: relation(*_squares(scores, batch, generator)), settings)
