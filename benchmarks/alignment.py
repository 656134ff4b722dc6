"""How well losses rank models as metrics do, on real scores (ReLoss, Table 1 and Table 13).

Networks are trained on cross-entropy, and their scores of training data taken along the way: that
is what ReLoss learns from, besides made-up sets. The rank correlations are over sets of test data,
scored along the training of a network that was not learned from.
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
    """One learning of each kind of loss, and the rank correlations of all.

    Args:
        settings: the data set, metric, network and steps.
        seed: of the losses, and of the networks and sets too unless the settings have a seed for
            `networks`.
        folder: where the data sets are.
        known: not used.

    Returns:
        `values`: Spearman's and Kendall's correlation of each loss with the metric.
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
    # What is left of the ordinary loss's disagreement.
    for name in (*settings["losses"], "pretrained"):
        values[f"{name}_left"] = (1 - values[f"{name}_spearman"]) / (
            1 - values["ordinary_spearman"]
        )
    return {"values": values}


@cache
def _networks(settings: str, seed: int, folder: Path | None) -> tuple[Sets, Sets]:
    """Score sets of training data to learn from, and of test data and another network to be judged on."""
    chosen = json.loads(settings)
    data = load(chosen["dataset"], folder, seed)
    return along_training(chosen, data, data.train, seed), along_training(
        chosen, data, data.test, seed + 1000
    )


def learned_loss(
    metric: str, stored: Sets, options: dict[str, Any], steps: int, generator: torch.Generator
) -> mg.ReLoss:
    """A ReLoss, learned from stored sets and made-up ones.

    Args:
        metric: its metric.
        stored: score sets of models.
        options: of ReLoss; `sees`, `width`, `layers` and `monotone` of its network, `relabel` of
            its learning.
        steps: of learning.
        generator: source of randomness.

    Returns:
        The loss, frozen.
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
    """Score sets of one part of the data, taken along the training of one network on cross-entropy."""
    torch.manual_seed(seed)
    model = image_network(settings, data)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), settings["learning_rate"], momentum=0.9)
    moments, found = settings["moments"], []
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
    """A ResNet where the settings name its blocks, else fully connected."""
    if "blocks" in settings:
        return ResNet(int(data.train.y.max()) + 1, settings["blocks"])
    return network(settings, data)
