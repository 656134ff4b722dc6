"""Images and their classes, trained on accuracy (UniLoss, Tables 2 and 3; ReLoss, Tables 2, 9, 13).

Networks for CIFAR-10, CIFAR-100 or pairs of digits are trained by SGD with momentum, on images that
are shifted and, unless they are digits, mirrored. `images.py` has the older tables of ReLoss alone.
ReLoss is learned elsewhere: the pretrained one, or its recipe with a seed of the row (`learning`);
or it learns from score sets of the network and the images that it is used for (`own_scores`).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import load
from benchmarks.image_nets import image_classifier
from benchmarks.images import alignment, augmented, row_loss
from benchmarks.long_tail import class_sets
from benchmarks.relations import learned_relation
from benchmarks.task import Examples, Keep, Loss, Task, as_they_are, run_task

LEARNED = ("pretrained", "reloss", "own_scores")
_PAPER: dict[str, Any] = {"penalty": 10.0, "smooth": "equal"}  # of ReLoss, Eqn. 8


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains a network on the loss of the row, and tests its accuracy in percent.

    `times` in the settings is how many times the epochs of the table a row has. A row that learns
    its loss with a seed of its own also measures how that loss ranks score sets.
    """
    settings = {**settings, "epochs": settings["epochs"] * settings.get("times", 1)}
    found = run_task(task(settings, seed, folder), settings, seed, known, keep)
    if "learning" in settings:
        found["values"] |= alignment(_taught(_recipe(settings)), seed)
    return found


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """The images and the network that the settings name, with the loss of the row."""
    data = load(settings["dataset"], folder, seed)
    classes = int(data.train.y.max()) + 1
    metric = mg.metric("accuracy")

    @cache
    def learned() -> mg.Surrogate:
        return learned_surrogate(settings, seed, folder)

    def loss(steps: int) -> Loss:
        if settings["method"] in LEARNED:
            return beside_entropy(learned(), settings)
        return beside_entropy(class_surrogate(settings, seed, steps), settings)

    def moved(batch: Examples, generator: torch.Generator) -> Examples:
        mirror = settings.get("mirror", True)
        return Examples(augmented(batch.x, generator, mirror=mirror), batch.target)

    return Task(
        metric=metric,
        values={"accuracy": lambda scores, part: 100 * float(metric(scores, part.target))},
        train=Examples(*data.train),
        valid=Examples(*data.valid),
        test=Examples(*data.test),
        network=lambda: image_classifier(settings, data.train.x, classes),
        ordinary=entropy,
        loss=loss,
        augment=moved if settings["augment"] else as_they_are,
        sets=class_sets,
    )


def entropy(scores: Tensor, batch: Examples) -> Tensor:
    """Cross-entropy of a batch."""
    return F.cross_entropy(scores, batch.target)


def beside_entropy(surrogate: mg.Surrogate | None, settings: Settings) -> Loss:
    """A surrogate plus cross-entropy with the weight `ordinary` of the settings."""
    if surrogate is None:
        return entropy
    weight = settings.get("ordinary", 0.0)

    def loss(scores: Tensor, batch: Examples) -> Tensor:
        value = surrogate(scores, batch.target)
        return value + weight * entropy(scores, batch) if weight else value

    return loss


def class_surrogate(settings: Settings, seed: int, steps: int) -> mg.Surrogate | None:
    """A loss that nothing was learned for; None if the row has cross-entropy alone."""
    options = settings.get("loss_options", {})
    generator = torch.Generator().manual_seed(seed)
    match settings["method"]:
        case "cross_entropy":
            return None
        case "uniloss":
            return mg.UniLoss("accuracy", generator=generator, **options)
        case "uniloss_published":
            return mg.UniLoss.as_published("accuracy", generator=generator, **options)
        case "metric_loss":
            return mg.MetricLoss("accuracy", steps=steps, generator=generator, **options)
        case method:
            raise ValueError(f"there is no method {method!r} for images of classes")


def learned_surrogate(settings: Settings, seed: int, folder: Path | None) -> mg.Surrogate:
    """A ReLoss: the one that ships, one of its recipe, or one of the network's own scores."""
    if settings["method"] == "pretrained":
        return mg.ReLoss.pretrained("accuracy")
    if settings["method"] == "reloss":
        return _taught(_recipe(settings))
    generator = torch.Generator().manual_seed(seed)
    net = mg.nets.Classification(monotone=False, generator=generator)
    plain = task({**settings, "method": "cross_entropy"}, seed, folder)
    return learned_relation(plain, settings, seed, mg.ReLoss("accuracy", net=net, **_PAPER))


def _recipe(settings: Settings) -> str:
    names = ("method", "learning", "learning_steps", "loss_options", "classes")
    return json.dumps({name: settings[name] for name in names})


@cache
def _taught(recipe: str) -> mg.Surrogate:
    """The loss of a recipe, learned once for all trainings of this process."""
    settings = json.loads(recipe)
    loss = row_loss(settings, settings["learning"])
    assert loss is not None
    return loss
