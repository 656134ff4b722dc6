"""Functions, sets and helpers that the tests of watching share."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import WatchedMetric

Function = Callable[..., Any]

SCORES = torch.tensor([2.0, -1.0, 0.5, -0.3, 1.2, -0.8], dtype=torch.float64)
TARGET = torch.tensor([1, 0, 0, 1, 1, 0])
CLASS_SCORES = torch.tensor(
    [[0.3, 1.0, -0.5], [2.0, 0.1, 0.4], [0.0, -0.2, 0.9], [-1.0, 0.6, 0.5]]
).double()
CLASS_TARGET = torch.tensor([1, 0, 1, 2])


def f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted, positive = scores > 0, target == 1
    return 2 * (predicted & positive).sum() / (predicted.sum() + positive.sum()).clamp(min=1)


def auc(scores: Tensor, target: Tensor) -> Tensor:
    return (scores[target == 1].unsqueeze(1) > scores[target == 0]).double().mean()


def precision_of_picked(scores: Tensor, target: Tensor) -> Tensor:
    return target[scores > 0].double().mean()


def accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(-1) == target).double().mean()


def watched(fn: Function, **options: Any) -> WatchedMetric:
    metric = mg.reexpress(fn, **options)
    assert isinstance(metric, WatchedMetric)
    return metric


def gradient(metric: Any, scores: Tensor, target: Tensor, **options: Any) -> Tensor:
    scores = scores.detach().clone().requires_grad_()
    mg.UniLoss(metric, **options)(scores, target).backward()
    assert scores.grad is not None
    return scores.grad


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def line_of(fn: Function, code: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    return next(number for number, line in enumerate(lines, first) if line.strip() == code)


def confident_mistakes(scores: Tensor, target: Tensor) -> Tensor:
    """Bits times smooth values, smooth values alone, and bits alone."""
    chance = scores.sigmoid()
    wrong = (scores > 0) != (target == 1)
    return (wrong * chance**2).mean() + 0.1 * (chance - target).abs().sum() + wrong.double().mean()
