"""How well losses rank score sets as a metric does, on real scores (ReLoss, Tables 1 and 13).

Networks are trained on cross-entropy, and their scores on training data are collected along the
way. ReLoss learns from these sets and from made-up ones. The rank correlations are measured on sets
of test data, scored by a second network that no loss has learned from.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings, network
from benchmarks.data import Data, Part, load
from benchmarks.losses import cross_entropy
from benchmarks.resnet import ResNet

Sets = list[tuple[Tensor, Tensor]]


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Learns each kind of loss once and gives the rank correlations of all of them.

    A number `networks` in the settings is the seed of networks and score sets, so that losses
    learned with several seeds are compared on the same scores.
    """
    stored, held = _networks(json.dumps(settings), settings.get("networks", seed), folder)
    losses: dict[str, mg.Surrogate] = {"ordinary": mg.baselines.CrossEntropy()}
    for name, options in settings["losses"].items():
        generator = torch.Generator().manual_seed(seed)
        losses[name] = learned_loss(
            settings["metric"], stored, options, settings["learning_steps"], generator
        )
    losses["pretrained"] = mg.ReLoss.pretrained(settings["metric"])
    values: dict[str, float] = {}
    for name, loss in losses.items():
        found = mg.rank_correlation(
            loss, settings["metric"], held, generator=torch.Generator().manual_seed(seed)
        )
        values |= {f"{name}_spearman": found.spearman, f"{name}_kendall": found.kendall}
    # The share of the ordinary loss's disagreement with the metric that a learned loss still has.
    for name in (*settings["losses"], "pretrained"):
        values[f"{name}_left"] = (1 - values[f"{name}_spearman"]) / (
            1 - values["ordinary_spearman"]
        )
    return {"values": values}


@cache
def _networks(settings: str, seed: int, folder: Path | None) -> tuple[Sets, Sets]:
    """Score sets of training data to learn from, and another network's sets of test data."""
    chosen = json.loads(settings)
    data = load(chosen["dataset"], folder, seed)
    stored = along_training(chosen, data, data.train, seed)
    held = along_training(chosen, data, data.test, seed + 1000)
    return stored, held


def learned_loss(
    metric: str, stored: Sets, options: dict[str, Any], steps: int, generator: torch.Generator
) -> mg.ReLoss:
    """A ReLoss that has learned from stored and made-up sets, and is frozen.

    `options` are those of ReLoss, of its network (`sees`, `width`, `layers`, `monotone`) and of its
    learning (`relabel`, `share`).
    """
    options = dict(options)
    shape = {
        name: options.pop(name)
        for name in ("sees", "width", "layers", "monotone")
        if name in options
    }
    learning = {name: options.pop(name) for name in ("relabel", "share") if name in options}
    net = mg.nets.Classification(**shape, generator=generator) if shape else None
    loss = mg.ReLoss(metric, net=net, generator=generator, **options)
    loss.learn(stored, steps=steps, progress=False, generator=generator, **learning)
    return loss


def along_training(settings: Settings, data: Data, part: Part, seed: int) -> Sets:
    """Score sets of one part of the data, taken while a network is trained on cross-entropy."""
    torch.manual_seed(seed)
    model = image_network(settings, data)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), settings["learning_rate"], momentum=0.9)
    moments = settings["moments"]
    found = []
    for step in range(max(moments) + 1):
        if step in moments:
            chosen = torch.randperm(len(part.y), generator=generator)[: settings["items"]]
            batches = [(part.x[index], part.y[index]) for index in chosen.split(512)]
            found.append(mg.collect_scores(model, batches, size=settings["set"]))
        batch = torch.randint(len(data.train.y), (settings["batch"],), generator=generator)
        value = cross_entropy(model(data.train.x[batch]), data.train.y[batch])
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    return found


def image_network(settings: Settings, data: Data) -> nn.Module:
    """A ResNet if the settings give its number of blocks, otherwise a fully connected network."""
    if "blocks" in settings:
        return ResNet(int(data.train.y.max()) + 1, settings["blocks"])
    return network(settings, data)
