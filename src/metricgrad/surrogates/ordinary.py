r"""The ordinary loss: what people train on where a metric decides, for every layout of scores.

A metric names it (`metric.ordinary`): ListNet for graded documents, the squared error of heatmaps
for poses, and otherwise cross-entropy,

.. math:: \ell = -\frac{1}{N} \sum_i \log softmax(s_i)_{y_i}

where an item i depends on the layout (`metric.layout`):

    binary, any   an item of the set
    labels        a label of an item
    maps          a pixel
    tokens        a position that has a token, of the first reference where there are several
    spans         the start and the end of an answer, with the positions of the text as classes
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import shape
from metricgrad.metrics.registry import metric_config, metric_from_config
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.baselines import CrossEntropy, HeatmapMSE, ListNet

Parts = tuple[Tensor, Tensor, Tensor | None]


def ordinary_for(metric: Metric) -> Surrogate | None:
    """The ordinary loss for a metric's scores; None where nothing is customary."""
    match metric.ordinary:
        case None:
            return None
        case "list_net":
            return ListNet()
        case "heatmap_mse":
            return HeatmapMSE()
        case _:
            plain = metric.layout in ("binary", "any")
            return CrossEntropy() if plain else Ordinary(metric)


class Ordinary(Surrogate):
    """Cross-entropy of scores in the shapes of a metric; made by `ordinary_for`."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of every set, and whether there is anything to learn from it."""
        return CrossEntropy().losses(*_items(self.metric, scores, target, where))

    def config(self) -> dict[str, Any]:
        """The metric."""
        return {"metric": metric_config(self.metric)}

    @classmethod
    def from_config(cls, config: dict[str, Any], metric: Any) -> "Ordinary":
        """The loss that `config` describes; a metric given replaces the stored one."""
        return cls(metric_from_config(config["metric"]) if metric is None else to_metric(metric))


def _items(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """Scores and target of a metric's layout as items and classes."""
    match metric.layout:
        case "labels":
            return _labels(scores, target, where)
        case "grades":  # files written before ListNet took its place have it
            return scores, target > 0, where
        case "maps":
            pixels = scores.movedim(-3, -1).flatten(-4, -2)
            return pixels, target.flatten(-3), None if where is None else where.flatten(-3)
        case "tokens":
            return _tokens(metric, scores, target, where)
        case "spans":
            return _start_and_end(scores, target, where)
        case _:
            return scores, target, where


def _labels(scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """`where` has a flag per item or per label."""
    if where is not None:
        where = where.unsqueeze(-1) if where.dim() < scores.dim() else where
        where = where.expand(scores.shape).flatten(-2)
    return scores.flatten(-2), target.flatten(-2), where


def _tokens(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """Every position is an item, the vocabulary its classes."""
    ids = target[..., 0, :] if target.dim() == scores.dim() else target
    if ids.shape != scores.shape[:-1]:
        raise ValueError(
            "cross-entropy takes scores [..., N, T, V] and a target id for each place [..., N, T]; "
            f"got scores {shape(scores)} and target {shape(target)} for {metric.name}"
        )
    counted = (ids >= 0) & (ids != padding_of(metric))
    counted = counted if where is None else counted & where
    return scores.flatten(-3, -2), ids.clamp(min=0).flatten(-2), counted.flatten(-2)


def padding_of(metric: Metric) -> int:
    """The id that is padding for a metric of tokens, besides all negative ones; -1 for none."""
    padding = getattr(metric, "padding", None)
    return -1 if padding is None else padding


def _start_and_end(scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """Two items for every text: its positions are the classes, the answer's ends the targets."""
    length = scores.shape[-2]
    places = torch.arange(length, device=scores.device)
    counted = torch.ones_like(scores[..., 0], dtype=torch.bool)
    counted = counted if where is None else where.expand(scores.shape[:-1])
    hidden = scores.masked_fill(~counted.unsqueeze(-1), torch.finfo(scores.dtype).min / 4)
    inside = (target.unsqueeze(-2) == places.unsqueeze(-1)).any(-1) & counted
    first = torch.where(inside, places, length).amin(-1)
    last = torch.where(inside, places, -1).amax(-1)
    ends = torch.stack([first.clamp(max=length - 1), last.clamp(min=0)], -1)
    known = inside.any(-1, keepdim=True).expand(ends.shape)
    return hidden.movedim(-1, -2).flatten(-3, -2), ends.flatten(-2), known.flatten(-2)
