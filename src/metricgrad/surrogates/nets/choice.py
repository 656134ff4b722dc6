"""Which network a learned loss takes for a metric, unless it is given one."""

import torch

from metricgrad.metrics import Metric
from metricgrad.surrogates.nets.base import LossNet
from metricgrad.surrogates.nets.items import Classification, SetNetwork
from metricgrad.surrogates.nets.text import Sequence, Spans


def default_net(metric: Metric, generator: torch.Generator | None) -> LossNet:
    """The network for a metric's layout."""
    match metric.layout:
        case "spans":
            return Spans(generator=generator)
        case "tokens":
            return Sequence(generator=generator)
        case "binary" if metric.mean_of_items:
            return Classification(generator=generator)
        case _:
            # The order of scores does not change with their scale, so the network need not see it.
            return SetNetwork(standardise=metric.decided_by == "order", generator=generator)
