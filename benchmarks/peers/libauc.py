"""LibAUC's losses with the optimizers and the sampler that they need.

They are used as the documentation does: scores pass through a sigmoid, batches are those of
`DualSampler`, and AUCM's regulariser is updated after half and after three quarters of the steps.
AUCM's version 2, which the documentation recommends, divides by the number of positives, and the
average precision loss asserts that there is one; with `DualSampler` every batch has some. Its
module imports torchvision, which does not load on a CPU's torch, so its rule is written out here.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.data import Part

Settings = Mapping[str, Any]
NAMES = ("libauc_aucm", "libauc_ap", "libauc_pauc")


class LibAUC(Protocol):
    """A loss with its optimizer; `index` says which rows of the training part are in the batch."""

    optimizer: torch.optim.Optimizer

    def loss(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch of logits."""
        ...

    def milestone(self) -> None:
        """Called after half and after three quarters of the steps."""
        ...


class Aucm:
    """AUCM and PESG."""

    def __init__(self, model: nn.Module, train: Part, settings: Settings) -> None:
        losses = import_module("libauc.losses")
        self.made = losses.AUCMLoss(version=settings.get("version", "v2"))
        self.optimizer: Any = import_module("libauc.optimizers").PESG(
            model.parameters(),
            loss_fn=self.made,
            lr=settings["learning_rate"],
            verbose=False,
        )

    def loss(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """AUCM takes probabilities and no index."""
        return self.made(torch.sigmoid(scores), target)

    def milestone(self) -> None:
        """Makes the average of the weights so far what they are drawn to."""
        self.optimizer.update_regularizer()


class Indexed:
    """A loss that keeps a moving average for every row: APLoss and SOAP, or pAUC and SOPAs."""

    def __init__(self, model: nn.Module, train: Part, settings: Settings) -> None:
        losses = import_module("libauc.losses")
        optimizers = import_module("libauc.optimizers")
        options = {"data_len": len(train.y), "gamma": settings.get("gamma", 0.9)}
        if settings["method"] == "libauc_ap":
            self.made: Any = losses.APLoss(**options, margin=settings.get("margin", 1.0))
            kind = optimizers.SOAP
        else:
            self.made = losses.pAUC_DRO_Loss(**options, Lambda=settings.get("temperature", 1.0))
            kind = optimizers.SOPAs
        self.optimizer: Any = kind(
            model.parameters(), lr=settings["learning_rate"], mode="adam", verbose=False
        )

    def loss(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """These take probabilities, as in the tutorials."""
        return self.made(torch.sigmoid(scores), target, index)

    def milestone(self) -> None:
        """There is no regulariser."""


def peer(model: nn.Module, train: Part, settings: Settings) -> LibAUC:
    """The loss of the settings' method, for a model and its training part."""
    kind = Aucm if settings["method"] == "libauc_aucm" else Indexed
    return kind(model, train, settings)


def batches(train: Part, settings: Settings, steps: int, seed: int) -> Iterator[Tensor]:
    """Rows of each step's batch by the rule of `DualSampler`: a share of them positive.

    Positives and negatives are each gone through in random order, again and again.
    """
    generator = torch.Generator().manual_seed(seed)
    positives = round(settings["batch"] * settings.get("sampling_rate", 0.5))
    sides = ((1, positives), (0, settings["batch"] - positives))
    streams = [_endless(torch.where(train.y == side)[0], size, generator) for side, size in sides]
    for _ in range(steps):
        yield torch.cat([next(stream) for stream in streams])


def _endless(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Parts of `size` rows in random order; what is left at the end begins the next round."""
    left = rows[:0]
    while True:
        while len(left) < size:
            left = torch.cat([left, rows[torch.randperm(len(rows), generator=generator)]])
        yield left[:size]
        left = left[size:]
