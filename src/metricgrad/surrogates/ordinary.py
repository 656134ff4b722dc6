r"""What people train on where a metric of some kind decides: cross-entropy, for every shape of scores.

.. math:: \ell = -\frac{1}{N} \sum_i \log softmax(s_i)_{y_i}

where an item i is

binary, classes   cross-entropy as it is
labels, grades    of every label; of relevant or not
maps of classes   of every pixel
text              of every place that has a token, of the first reference where there are several
start and end     of both, over the places of a text
poses             the squared error of heatmaps
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics import Metric, decode_spans
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import shape
from metricgrad.metrics.registry import metric_config, metric_from_config
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.baselines import CrossEntropy, HeatmapMSE
from metricgrad.surrogates.elements import is_multilabel

Parts = tuple[Tensor, Tensor, Tensor | None]


def ordinary_for(metric: Metric) -> Surrogate | None:
    """The ordinary loss for a metric's kind of scores.

    Args:
        metric: the metric.

    Returns:
        The loss; None where nothing is usual, as for text with a decoder of one's own.
    """
    if "pose" in metric.families:
        return HeatmapMSE()
    decode = getattr(metric, "decode", None)
    if "text" in metric.families and decode is not None and decode is not decode_spans:
        return None
    return CrossEntropy() if _kind(metric) is None else Ordinary(metric)


class Ordinary(Surrogate):
    """Cross-entropy of scores in the shapes of a metric; made by `ordinary_for`.

    Args:
        metric: whose shapes they are.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of every set, and whether there is anything to learn from it."""
        kind = _kind(self.metric)
        parts: Parts = (
            (scores, target, where) if kind is None else kind(self.metric, scores, target, where)
        )
        return CrossEntropy().losses(*parts)

    def config(self) -> dict[str, Any]:
        """The metric."""
        return {"metric": metric_config(self.metric)}

    @classmethod
    def from_config(cls, config: dict[str, Any], metric: Any) -> "Ordinary":
        """The loss that `config` describes; a metric given replaces the stored one."""
        return cls(metric_from_config(config["metric"]) if metric is None else to_metric(metric))


def _kind(metric: Metric) -> Any:
    """How scores and target of a metric become classes and items; None where they are."""
    if "text" in metric.families:
        return _tokens if getattr(metric, "decode", None) is None else _start_and_end
    if "segmentation" in metric.families:
        return _pixels
    if is_multilabel(metric):
        return _labels
    return _relevance if "ranking" in metric.families and "binary" not in metric.families else None


def _pixels(_metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    where = None if where is None else where.flatten(-3)
    return scores.movedim(-3, -1).flatten(-4, -2), target.flatten(-3), where


def _labels(_metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """`where` has a flag per item or per label."""
    if where is not None:
        where = (
            (where.unsqueeze(-1) if where.dim() < scores.dim() else where)
            .expand(scores.shape)
            .flatten(-2)
        )
    return scores.flatten(-2), target.flatten(-2), where


def _relevance(_metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    return scores, target > 0, where


def _tokens(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    ids = target[..., 0, :] if target.dim() == scores.dim() else target
    if ids.shape != scores.shape[:-1]:
        raise ValueError(
            f"cross-entropy takes scores [..., N, T, V] and a target id for each place [..., N, T]; got scores "
            f"{shape(scores)} and target {shape(target)} for {metric.name}"
        )
    counted = (ids >= 0) & (ids != getattr(metric, "padding", -1))
    counted = counted if where is None else counted & where
    return scores.flatten(-3, -2), ids.clamp(min=0).flatten(-2), counted.flatten(-2)


def _start_and_end(_metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Parts:
    """Two items for every text: its places are the classes, the answer's first and last position the targets."""
    length = scores.shape[-2]
    places = torch.arange(length, device=scores.device)
    counted = (
        torch.ones_like(scores[..., 0], dtype=torch.bool)
        if where is None
        else where.expand(scores.shape[:-1])
    )
    hidden = scores.masked_fill(~counted.unsqueeze(-1), torch.finfo(scores.dtype).min / 4)
    inside = (target.unsqueeze(-2) == places.unsqueeze(-1)).any(-1) & counted
    first = torch.where(inside, places, length).amin(-1)
    last = torch.where(inside, places, -1).amax(-1)
    ends = torch.stack([first.clamp(max=length - 1), last.clamp(min=0)], -1)
    known = inside.any(-1, keepdim=True).expand(ends.shape)
    return hidden.movedim(-1, -2).flatten(-3, -2), ends.flatten(-2), known.flatten(-2)
