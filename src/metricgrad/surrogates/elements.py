"""What a network of whole sets sees of an item: target and score, for each label or class where there are several.

    binary, grades   the target and the score
    labels           for each label, its target and its score
    classes          for each class, whether it is the target, and the log-odds that softmax gives it
    label maps       the same; the pixels of all images are the items

Each label or class is a set of its own for the network, and a value is the mean over them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import shape
from metricgrad.metrics.counts import one_hot


class Elements(NamedTuple):
    """What the network sees of sets, and how a mean over items weighs it.

    Attributes:
        items: `[..., N, 2]`, target and score; `[..., C, N, 2]` for labels and classes.
        weights: `[..., 1, N]` or `[..., C, 1, N]`, of the mean over items: 1 / N, 0 for what does
            not count.
        many: whether there is a dimension of labels or classes.
    """

    items: Tensor
    weights: Tensor
    many: bool

    def some(self, index: Any) -> "Elements":
        """Those of some of the sets."""
        return Elements(self.items[index], self.weights[index], self.many)

    def each(self) -> "list[Elements]":
        """Those of each set, where they have one dimension."""
        return [Elements(*parts, self.many) for parts in zip(self.items, self.weights, strict=True)]

    def defined(self) -> Tensor:
        """Sets with anything in them, `[...]`."""
        found = (self.weights > 0).flatten(-2).any(-1)
        return found.any(-1) if self.many else found

    def mean_of_labels(self, values: Tensor) -> Tensor:
        """The mean over the labels or classes with anything that counts, `[...]` from `[..., C]`."""
        return (
            ops.masked_mean(values, (self.weights > 0).any(-1).squeeze(-1)) if self.many else values
        )


def is_multilabel(metric: Metric) -> bool:
    """Whether sets of a metric are items with labels."""
    return getattr(metric, "multilabel", getattr(metric, "set_dims", None) == (2, 2))


def to_elements(metric: Metric, inputs: Inputs, dtype: torch.dtype) -> Elements:
    """What a set network sees of checked inputs.

    Args:
        metric: whose `check` they passed.
        inputs: scores, target and what counts.
        dtype: of the network.

    Returns:
        Elements of every set.
    """
    scores, target, where = inputs
    if "segmentation" in metric.families:
        scores, target = scores.movedim(-3, -1).flatten(-4, -2), target.flatten(-3)
        where = None if where is None else where.flatten(-3)
    known = getattr(metric, "set_dims", None) in (None, (1, 1), (2, 1), (2, 2))
    if known and scores.shape == target.shape:
        many = is_multilabel(metric)
    elif known and scores.shape[:-1] == target.shape and not target.is_floating_point():
        many, target, scores = (
            True,
            one_hot(target, scores.shape[-1]),
            ops.log_odds(scores).to(scores.dtype),
        )
        where = None if where is None else where.unsqueeze(-1)
    else:
        raise ValueError(
            "a set network takes scores and target [..., N], items with labels [..., N, C], or scores [..., N, C] with "
            f"classes [..., N]; got scores {shape(scores)} and target {shape(target)} for {metric.name}"
        )
    items = torch.stack([target.to(scores.dtype), scores], -1).to(dtype)
    if where is None:
        weights = items.new_full((), 1 / max(1, scores.shape[-1 - many])).expand(scores.shape)
    else:
        where = (where.unsqueeze(-1) if where.dim() < scores.dim() else where).expand(scores.shape)
        weights = where.to(items.dtype) / where.sum(-1 - many, keepdim=True).clamp(min=1)
        items = items.masked_fill(
            ~where.unsqueeze(-1), 0.0
        )  # a function's target may hold anything there
    if many:
        items, weights = items.transpose(-2, -3), weights.transpose(-1, -2)
    return Elements(items, weights.unsqueeze(-2), many)
