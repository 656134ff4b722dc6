"""Callables of torchmetrics, called with `(scores, target)`.

The adapters are classes and not closures, because what is fitted for a metric must pickle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Resetting:
    """A copy of a torchmetrics object that forgets each set before the next."""

    own: Any

    def __call__(self, scores: Tensor, target: Tensor) -> Any:
        """What the object gives for one set."""
        self.own.reset()
        try:
            return self.own(scores, target)
        finally:
            self.own.reset()


@dataclass(frozen=True)
class OfProbabilities:
    """torchmetrics takes scores between 0 and 1 for probabilities, so it gets probabilities."""

    fn: Callable[..., Any]

    def __call__(self, scores: Any, target: Any) -> Any:
        """What the function gives for one set."""
        values = torch.as_tensor(scores).double()
        truth = torch.as_tensor(target).to(torch.int64)
        classes = values.dim() == truth.dim() + 1
        return self.fn(values.softmax(-1) if classes else values.sigmoid(), truth)


def torchmetrics_call(fn: Callable[..., Any], module: str) -> Callable[..., Any]:
    """How to call a function of one of torchmetrics' modules."""
    return OfProbabilities(fn) if ".classification" in module or ".retrieval" in module else fn
