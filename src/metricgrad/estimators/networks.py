"""The networks of the estimators: fully connected layers, or a linear model."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of hidden layers as the user passed them: several, or one number."""
    several = (hidden,) if isinstance(hidden, int | np.integer) else hidden
    if not isinstance(several, Iterable) or not all(
        isinstance(width, int | np.integer) and width > 0 for width in several
    ):
        raise ValueError(
            "hidden must be widths of layers, such as (100, 30), or () for a linear model; "
            f"got {hidden!r}"
        )
    return tuple(int(width) for width in several)


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int) -> nn.Sequential:
    """Linear layers with ReLU between them, started as scikit-learn starts its networks.

    torch's own start has smaller weights. In a narrow last layer most units then begin next to 0,
    and a few steps towards the majority class can switch all of them off for good. A linear model
    keeps torch's start.

    Args:
        inputs: Features of an item, after preparation.
        hidden: Widths of the hidden layers; none gives a linear model.
        outputs: Scores of an item: 1 for two classes.
        seed: Decides the initial weights.

    Returns:
        The network.

    Example:
        >>> [tuple(each.shape) for each in perceptron(4, (8,), 1, 0).parameters()]
        [(8, 4), (8,), (1, 8), (1,)]
    """
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for before, after in itertools.pairwise((inputs, *hidden, outputs)):
            layer = nn.Linear(before, after)
            if hidden:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
