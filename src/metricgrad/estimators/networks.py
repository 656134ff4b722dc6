"""The networks of the estimators: fully connected, or linear."""

import itertools

import torch
from torch import nn


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int) -> nn.Sequential:
    """Linear layers with ReLU between them.

    Args:
        inputs: number of features.
        hidden: widths of the hidden layers; none is a linear model.
        outputs: number of scores.
        seed: of the weights.

    Returns:
        The network.
    """
    if not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(f"hidden must be widths of layers, such as (100, 30); got {hidden!r}")
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for before, after in itertools.pairwise((inputs, *hidden, outputs)):
            layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
