"""The networks of the estimators: fully connected, or linear."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of hidden layers, as the user passed them; ValueError for anything else."""
    several = (hidden,) if isinstance(hidden, int | np.integer) else hidden
    if not isinstance(several, Iterable) or not all(
        isinstance(w, int | np.integer) and w > 0 for w in several
    ):
        raise ValueError(
            f"hidden must be widths of layers, such as (100, 30), or () for a linear model; got {hidden!r}"
        )
    return tuple(int(width) for width in several)


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int) -> nn.Sequential:
    """Linear layers with ReLU between them; several are started as scikit-learn starts its networks.

    torch's own start has smaller weights; in a narrow last layer most units then begin next to 0,
    and a few steps towards the majority class can switch all of them off for good.

    Args:
        inputs: number of features.
        hidden: widths of the hidden layers; none is a linear model.
        outputs: number of scores.
        seed: of the weights.

    Returns:
        The network.
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
