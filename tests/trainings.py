"""Training a model and its learned loss together: what the tests of it share."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg

X = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
Y = (
    X @ torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0, 0.0])
    + torch.randn(600, generator=torch.Generator().manual_seed(1))
    > 2
)
TASKS: dict[str, tuple[mg.Metric, Tensor]] = {
    "binary": (mg.metric("f1", threshold=0.1), Y),
    "classes": (mg.metric("accuracy"), X[:, :3].argmax(-1)),
    "labels": (mg.metric("f1", multilabel=True), X[:, :3] > 1),
}
QUICK: dict[str, Any] = {"steps": 20, "pool": 128, "size": 40, "progress": False}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(
    seed: int = 0, *, outputs: int = 1, norm: bool = True, dropout: float = 0.0
) -> nn.Sequential:
    """A small model, as the paper's in kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extras = [nn.BatchNorm1d(8)] * norm + [nn.Dropout(dropout)] * bool(dropout)
        return nn.Sequential(nn.Linear(6, 8), *extras, nn.LeakyReLU(), nn.Linear(8, outputs))


def fresh(metric: Any = "f1", seed: int = 0) -> mg.BilevelLoss:
    return mg.BilevelLoss(metric, generator=seeded(seed))


def joint(model: nn.Module | None = None, loss: Any = None, **options: Any) -> mg.JointTraining:
    model = network(norm=False) if model is None else model
    x, y = options.pop("data", (X, Y))
    settings = {"start": "scratch", "batch": 40, "generator": seeded(5), **options}
    return mg.JointTraining(model, loss or fresh(), x, y, **settings)


def learned() -> mg.BilevelLoss:
    loss = fresh()
    loss.learn_universal(**QUICK, generator=seeded())
    return loss


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )


def accuracy(scores: Tensor, target: Tensor) -> float:
    return ((scores > 0) == target).float().mean().item()


def failing(after: int, *faults: Callable[[], Any]) -> tuple[mg.Metric, list[Callable[[], Any]]]:
    """Accuracy, and after so many calls the first fault, until there is none any more."""
    calls, left = itertools.count(1), list(faults)
    return mg.from_function(
        lambda s, y: left[0]() if next(calls) > after and left else accuracy(s, y)
    ), left


def explode() -> float:
    raise KeyError("no such thing")
