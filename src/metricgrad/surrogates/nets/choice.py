"""Which network a learned loss has: the one for its metric's layout, or the one a file names."""

from typing import Any

import torch

from metricgrad.metrics import Metric
from metricgrad.surrogates.nets.base import LossNet
from metricgrad.surrogates.nets.items import Classification, Embeddings, SetNetwork
from metricgrad.surrogates.nets.maps import Heatmaps
from metricgrad.surrogates.nets.text import Sequence, Spans

_NETS: dict[str, type[LossNet]] = {
    cls.__name__: cls for cls in (Classification, SetNetwork, Embeddings, Heatmaps, Sequence, Spans)
}


def default_net(metric: Metric, generator: torch.Generator | None) -> LossNet:
    """The network for a metric's layout."""
    match metric.layout:
        case "spans":
            return Spans(generator=generator)
        case "tokens":
            return Sequence(generator=generator)
        case "heatmaps":
            raise ValueError(
                f"a network for {metric.name} must know the maps' size; pass "
                "net=mg.nets.Heatmaps((64, 48))"
            )
        case "binary" if metric.mean_of_items:
            return Classification(generator=generator)
        case _:
            # The order of scores does not change with their scale, so the network need not see it.
            return SetNetwork(standardise=metric.decided_by == "order", generator=generator)


def stored_net(kind: str, options: dict[str, Any] | None) -> LossNet:
    """The network that a file names, without its weights; ValueError if it was the user's own."""
    if options is None:
        raise ValueError(
            f"the file's network is a module of yours, {kind}, which no file can hold; pass one of "
            "its kind: load_surrogate(path, net=...)"
        )
    return _NETS[kind](**options)
