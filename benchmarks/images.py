"""Image classifiers trained on learned losses (ReLoss, Tables 2, 8, 10 to 12 and 14).

A small ResNet for CIFAR-10 or a fully connected network for MNIST is trained by SGD with momentum,
half a cosine wave of learning rates, and images that are mirrored and shifted. The learning rate is
chosen on validation data after a share of the budget, and the test accuracy is that of the best
epoch on validation data. Losses are learned as those that ship, some with other settings: from
made-up sets and from scikit-learn's digits, never from the data of the table.
"""

import copy
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.alignment import image_network
from benchmarks.classification import Settings, Trial, predict
from benchmarks.data import Data, Part, load
from metricgrad.training import digit_scores, teach


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Chooses a learning rate, trains a network, and measures how the loss ranks score sets."""
    data = load(settings["dataset"], folder, seed)
    base = row_loss(settings, seed)
    rates = settings["grid"]["learning_rate"]
    short = max(1, round(settings["screen"] * settings["epochs"]))
    screened = {rate: train(settings, base, rate, data, seed, short).valid or 0.0 for rate in rates}
    best = max(screened, key=lambda rate: screened[rate])
    trial = train(settings, base, best, data, seed, settings["epochs"])
    model = image_network(settings, data)
    model.load_state_dict(trial.state)
    return {
        "values": {"accuracy": 100 * accuracy(model, data.test), **alignment(base, seed)},
        "valid": trial.valid,
        "chosen": {"learning_rate": best, "epoch": trial.step},
        "trials": [
            {"learning_rate": rate, "step": short, "valid": value}
            for rate, value in screened.items()
        ],
        "curve": {"columns": ["epoch", "loss", "valid"], "rows": trial.curve},
    }


def row_loss(settings: Settings, seed: int) -> mg.Surrogate | None:
    """The loss of a row, learned if it has to be; None if the row has cross-entropy alone."""
    kind = settings["method"]
    options = dict(settings.get("loss_options", {}))
    if kind == "cross_entropy":
        return None
    if kind == "rank_loss":
        return mg.baselines.RankLoss(rank="pairwise", **options)  # as the results were made
    if kind == "uniloss":
        return mg.UniLoss("accuracy", **options)
    shape = {
        name: options.pop(name)
        for name in ("sees", "width", "layers", "monotone")
        if name in options
    }
    generator = torch.Generator().manual_seed(seed)
    net = mg.nets.Classification(**shape, generator=generator) if shape else None
    if kind == "embeddings":  # this network takes only one number of classes
        net = mg.nets.Embeddings(settings["classes"], generator=generator)
        options["classes"] = [settings["classes"]]
    steps = options.pop("steps", settings["learning_steps"])
    return teach("accuracy", steps=steps, seed=seed, progress=False, net=net, **options).loss


def alignment(base: mg.Surrogate | None, seed: int) -> dict[str, float]:
    """Rank correlations with accuracy in percent, on networks that no loss has learned from."""
    held = digit_scores(True, range(2, 4), progress=False)
    loss = mg.baselines.CrossEntropy() if base is None else base
    found = mg.rank_correlation(
        loss, "accuracy", held, generator=torch.Generator().manual_seed(seed)
    )
    return {"spearman": 100 * found.spearman, "kendall": 100 * found.kendall}


def train(
    settings: Settings, base: mg.Surrogate | None, rate: float, data: Data, seed: int, epochs: int
) -> Trial:
    """Trains one network and keeps it at its best epoch on validation data."""
    torch.manual_seed(seed)
    base = copy.deepcopy(base)  # alternate training changes the loss
    model = image_network(settings, data)
    trial = Trial({"learning_rate": rate})
    optimizer = torch.optim.SGD(
        model.parameters(),
        rate,
        momentum=0.9,
        weight_decay=settings["weight_decay"],
        nesterov=True,
        fused=True,
    )
    generator = torch.Generator().manual_seed(seed)
    steps = len(data.train.y) // settings["batch"]
    stored = []
    for epoch in range(1, epochs + 1):
        losses = []
        order = torch.randperm(len(data.train.y), generator=generator)
        for index in order[: steps * settings["batch"]].split(settings["batch"]):
            done = (epoch - 1 + len(losses) / steps) / epochs
            for group in optimizer.param_groups:
                group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * done))
            images = data.train.x[index]
            if settings["augment"]:
                images = augmented(images, generator)
            scores = model(images)
            target = data.train.y[index]
            if not scores.isfinite().all():
                return trial  # The training has diverged; its best epoch before that still counts.
            value = objective(settings, base, scores, target)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        found = accuracy(model, data.valid)
        trial.curve.append([epoch, round(torch.stack(losses).mean().item(), 6), round(found, 6)])
        if trial.valid is None or found > trial.valid:
            trial.valid = found
            trial.step = epoch
            trial.state = {name: value.clone() for name, value in model.state_dict().items()}
        if settings.get("alternate") and isinstance(base, mg.ReLoss) and epoch < epochs:
            relearn(base, model, data, settings, generator, stored)
    return trial


def objective(
    settings: Settings, base: mg.Surrogate | None, scores: Tensor, target: Tensor
) -> Tensor:
    """The learned loss plus cross-entropy with the weight `ordinary` of the settings."""
    weight = settings.get("ordinary", 1.0 if base is None else 0.0)
    value = scores.new_zeros(()) if base is None else base(scores, target)
    return value + weight * F.cross_entropy(scores, target) if weight else value


def relearn(
    loss: mg.ReLoss,
    model: nn.Module,
    data: Data,
    settings: Settings,
    generator: torch.Generator,
    stored: list[Any],
) -> None:
    """Learns a little more, from the network's scores of this and earlier epochs (Table 11)."""
    chosen = torch.randperm(len(data.train.y), generator=generator)[:4096]
    batches = [(data.train.x[index], data.train.y[index]) for index in chosen.split(512)]
    # Earlier sets are kept because those of a good network alone hardly differ in accuracy.
    stored.append(mg.collect_scores(model, batches, size=settings["batch"]))
    loss.learn(
        stored, steps=settings["alternate"], rate=1e-3, sets=32, progress=False, generator=generator
    )


def augmented(images: Tensor, generator: torch.Generator, *, mirror: bool = True) -> Tensor:
    """Images shifted by up to 4 pixels, and if wanted half of them mirrored."""
    padded = F.pad(images, (4, 4, 4, 4))
    down, right = torch.randint(9, (2, len(images), 1, 1), generator=generator).unbind(0)
    rows = down + torch.arange(images.shape[-2]).unsqueeze(-1)
    columns = right + torch.arange(images.shape[-1])
    mirrored = torch.rand(len(images), 1, 1, generator=generator) < 0.5
    columns = torch.where(mirrored & mirror, columns.flip(-1), columns)
    items = torch.arange(len(images))[:, None, None]
    return padded.permute(0, 2, 3, 1)[items, rows, columns].permute(0, 3, 1, 2)


def accuracy(model: nn.Module, part: Part) -> float:
    """The share of correct predictions in `eval()` mode; leaves the model in `train()` mode."""
    model.eval()
    found = torch.cat([predict(model, images) for images in part.x.split(1024)])
    model.train()
    return float(mg.metric("accuracy")(found, part.y))
