"""The set network of BilevelLoss as a function of its weights, so that many can run at once.

g and h are perceptrons with leaky ReLUs; between them stands the mean over the items of a set.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.surrogates.nets.base import Elements

Layers = list[Tensor]
Hidden = tuple[tuple[int, ...], tuple[int, ...]]


def set_network(elements: Elements, g: Layers, h: Layers) -> Tensor:
    """h(mean_i g(y_i, s_i)), Eqn. 2, for every set `[...]`, not yet on the metric's scale.

    g and h are weight `[in, out]` and bias `[out]` of one layer after the other. For R networks at
    once, they are `[R, in, out]` and `[R, 1, out]`, and elements have a leading dimension R.
    """
    components = elements.items
    for weight, bias in _by_layer(g):
        components = F.leaky_relu(_linear(components, weight, bias))
    indicators = elements.weights @ components
    for weight, bias in _by_layer(h[:-2]):
        indicators = F.leaky_relu(_linear(indicators, weight, bias))
    values = _linear(indicators, *h[-2:]).squeeze((-1, -2))
    return elements.mean_of_labels(values)


def _by_layer(parameters: Layers) -> Iterator[tuple[Tensor, Tensor]]:
    """Weight and bias of every layer."""
    return zip(parameters[::2], parameters[1::2], strict=True)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight + bias, of one network or of R at once."""
    if x.dim() == weight.dim():
        return torch.addmm(bias, x, weight) if x.dim() == 2 else torch.baddbmm(bias, x, weight)
    flat = x.reshape(*weight.shape[:-2], -1, x.shape[-1])
    return _linear(flat, weight, bias).view(*x.shape[:-1], weight.shape[-1])


def new_layers(widths: tuple[int, ...], generator: torch.Generator | None) -> nn.ParameterList:
    """Weights and biases of linear layers, drawn as `nn.Linear` does, but from the generator."""
    parameters = nn.ParameterList()
    for inputs, outputs in itertools.pairwise(widths):
        bound = inputs**-0.5
        for size in ((inputs, outputs), (outputs,)):
            drawn = nn.init.uniform_(torch.empty(size), -bound, bound, generator=generator)
            parameters.append(drawn)
    return parameters


def checked_widths(hidden: Any) -> Hidden:
    """Widths of g and h; TypeError or ValueError for anything else."""
    paired = isinstance(hidden, Sequence) and len(hidden) == 2
    if not paired or not all(isinstance(part, Sequence) and len(part) for part in hidden):
        raise ValueError(
            f"hidden must be the widths of g and of h, such as ((30, 30), (10, 10)); got {hidden!r}"
        )
    for width in itertools.chain(*hidden):
        whole("a width in hidden", width, 1)
    return tuple(hidden[0]), tuple(hidden[1])
