"""Small trainings with `mg.fit`: what the tests of it share."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import metricgrad as mg
from tests.trainings import seeded

Data = tuple[Tensor, Tensor]


def made(number: int = 400, seed: int = 0, noise: float = 0.5) -> Data:
    """About one in six is positive, and a linear model gets most of them."""
    x = torch.randn(number, 5, generator=seeded(seed))
    return x, (x[:, 0] + noise * torch.randn(number, generator=seeded(seed + 1)) > 1).long()


def linear(outputs: int = 1, features: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, outputs)


def quick(model: nn.Module, data: Any, valid: Any = None, **options: Any) -> mg.Fit:
    return mg.fit(
        model,
        data,
        valid,
        **{"metric": "f1", "epochs": 4, "rate": 0.1, "progress": False, **options},
    )


def weights(found: mg.Fit) -> list[Tensor]:
    return list(found.model.state_dict().values())


def same(one: mg.Fit, other: mg.Fit) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


class Squares(Dataset[Data]):
    """Items that no tensor holds."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, index: int) -> Data:
        return self.data[0][index], self.data[1][index]
