"""What the networks of learned losses have in common, and the layers they are made of."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs


class LossNet(nn.Module, ABC):
    """A network of sets; its options are what rebuilds it, ready for JSON."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs as the network takes them: as the metric's formula does, by default."""
        return metric.check(scores, target, where)

    @abstractmethod
    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The raw loss of every set, `[...]`."""

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def perceptron(widths: Sequence[int], generator: torch.Generator | None) -> nn.Sequential:
    """Linear layers of these widths with ELU between them."""
    layers: list[nn.Module] = []
    with drawn_from(generator):
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
    return nn.Sequential(*layers[:-1])


@contextmanager
def drawn_from(generator: torch.Generator | None) -> Iterator[None]:
    """Lets modules draw their weights from a generator; None leaves the global one in place."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
