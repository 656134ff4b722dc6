"""The tasks of the swap table: data in batches, a network, the ordinary loss, and a fair test.

The test value has its decision tuned on validation data: a threshold for a binary metric that has
one, one offset per class for classes and label maps, nothing for metrics of order.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings, predict
from benchmarks.data import Part, load
from benchmarks.images import augmented
from benchmarks.maps import CLASSES, UNet, camvid, channels_last
from benchmarks.rankings import mq2008
from benchmarks.resnet import ResNet

_CIFAR_CLASSES = 10
_HALF = torch.bfloat16  # of images' networks, which then take two thirds of the time


class Batch(NamedTuple):
    """Inputs, targets, and what counts of them."""

    x: Tensor
    target: Tensor
    where: Tensor | None = None


@dataclass(frozen=True)
class Task:
    """What a training needs to know of its data."""

    metric: mg.Metric
    steps: int  # batches of an epoch
    network: Callable[[], nn.Module]
    batches: Callable[[torch.Generator], Iterator[Batch]]
    ordinary: Callable[[Batch, Tensor], Tensor]
    tested: Callable[[nn.Module], float]


def tables(settings: Settings, folder: Path | None, seed: int) -> Task:
    """Two classes in a table; a linear model or a network with two hidden layers."""
    data = load(settings["dataset"], folder, seed)
    rows = settings["rows"]
    train = Part(data.train.x[:rows], data.train.y[:rows])  # the split has shuffled them
    metric = mg.metric(settings["metric"])

    def network() -> nn.Module:
        widths = [train.x.shape[1], *settings["hidden"], 1]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1], nn.Flatten(0))

    def tested(model: nn.Module) -> float:
        scores = predict(model, data.test.x)
        if metric.has_threshold:
            valid = predict(model, data.valid.x)
            scores = scores - mg.best_threshold(valid, data.valid.y, metric)
        return float(metric(scores, data.test.y))

    def ordinary(batch: Batch, scores: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, batch.target.to(scores.dtype))

    batches, steps = _shuffled(train, settings["batch"])
    return Task(metric, steps, network, batches, ordinary, tested)


def images(settings: Settings, folder: Path | None, seed: int) -> Task:
    """CIFAR-10 and a small ResNet; images are shifted and mirrored."""
    data = load("cifar10", folder, seed)
    metric = mg.metric(settings["metric"])
    rows = settings["rows"]
    plain, steps = _shuffled(Part(data.train.x[:rows], data.train.y[:rows]), settings["batch"])

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        for batch in plain(generator):
            yield Batch(augmented(batch.x, generator), batch.target)

    def tested(model: nn.Module) -> float:
        valid = _in_parts(model, data.valid.x)
        offsets = mg.best_offsets(valid, data.valid.y, metric)
        return float(metric(_in_parts(model, data.test.x) + offsets, data.test.y))

    return Task(
        metric,
        steps,
        lambda: channels_last(ResNet(_CIFAR_CLASSES, settings["blocks"])),
        batches,
        lambda batch, scores: F.cross_entropy(scores, batch.target),
        tested,
    )


def maps(settings: Settings, folder: Path | None, seed: int) -> Task:
    """CamVid at half its stored size and a small U-Net; images are mirrored."""
    data = camvid(folder)
    metric = mg.metric("mean_iou")
    plain, steps = _shuffled(data.train, settings["batch"])

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        for batch in plain(generator):
            mirrored = bool(torch.rand((), generator=generator) < 0.5)
            x = batch.x.flip(-1) if mirrored else batch.x
            target = batch.target.flip(-1) if mirrored else batch.target
            known = target < CLASSES
            yield Batch(x, target.where(known, 0), known)

    def ordinary(batch: Batch, scores: Tensor) -> Tensor:
        assert batch.where is not None
        return F.cross_entropy(
            scores, batch.target.masked_fill(~batch.where, CLASSES), ignore_index=CLASSES
        )

    def tested(model: nn.Module) -> float:
        valid = _in_parts(model, data.valid.x, 32)
        known = data.valid.y < CLASSES
        offsets = mg.best_offsets(valid, data.valid.y.where(known, 0), metric, where=known)
        scores = _in_parts(model, data.test.x, 32) + offsets.reshape(-1, 1, 1)
        known = data.test.y < CLASSES
        return float(metric(scores, data.test.y.where(known, 0), where=known))

    return Task(
        metric, steps, lambda: channels_last(UNet(settings["width"])), batches, ordinary, tested
    )


def rankings(settings: Settings, folder: Path | None, seed: int) -> Task:
    """MQ2008 and a small network; the seed is the official fold."""
    data = mq2008(folder, seed % 5)
    metric = mg.metric("ndcg", k=10)
    loss = mg.baselines.ListNet()

    def network() -> nn.Module:
        hidden = settings["hidden"]
        return nn.Sequential(
            nn.Linear(data.train.x.shape[-1], hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
            nn.Flatten(-2),
        )

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(data.train.x), generator=generator)
        for index in order.split(settings["batch"]):
            yield Batch(data.train.x[index], data.train.grades[index], data.train.where[index])

    def tested(model: nn.Module) -> float:
        return float(metric(model(data.test.x), data.test.grades, where=data.test.where).mean())

    def ordinary(batch: Batch, scores: Tensor) -> Tensor:
        return loss(scores, batch.target, batch.where)

    steps = -(-len(data.train.x) // settings["batch"])
    return Task(metric, steps, network, batches, ordinary, tested)


TASKS: dict[str, Any] = {"tables": tables, "images": images, "maps": maps, "rankings": rankings}


def _shuffled(part: Part, size: int) -> tuple[Callable[[torch.Generator], Iterator[Batch]], int]:
    """Whole batches of a part in random order, and how many they are."""
    steps = len(part.y) // size

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(part.y), generator=generator)[: steps * size]
        for index in order.split(size):
            yield Batch(part.x[index], part.y[index])

    return batches, steps


def _in_parts(model: nn.Module, x: Tensor, size: int = 1024) -> Tensor:
    return torch.cat([scored(model, part) for part in x.split(size)])


def scored(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of a network, whose convolutions are computed in half precision if it has any."""
    with torch.autocast("cpu", _HALF, enabled=x.dim() == 4):
        return model(x).float()
