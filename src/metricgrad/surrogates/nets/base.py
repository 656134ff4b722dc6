"""What the networks of learned losses have in common: layers, and what they get of an item.

A network of whole sets gets target and score, for each label or class:

    binary, grades   the target and the score
    labels           for each label, its target and its score
    classes          for each class, whether it is the target, and its log-odds by softmax
    maps             the same as classes; the pixels of all images are the items
    text, poses      places and joints are the items (`places.py`)

Each label, class or text is a set of its own for the network, and a value is the mean over them.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import expand_where
from metricgrad.metrics.counts import one_hot
from metricgrad.metrics.mistakes import are_label_maps
from metricgrad.surrogates.base import wrong_shapes
from metricgrad.surrogates.nets.places import (
    shown_joints,
    shown_spans,
    shown_tokens,
    span_inputs,
    token_inputs,
)


class LossNet(nn.Module, ABC):
    """A network that maps the scores and target of a set to one number.

    Args:
        **options: What a saved loss needs to build the network again, ready for JSON.

    Example:
        >>> import metricgrad as mg
        >>> class WeightedErrors(mg.nets.LossNet):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(2))
        ...
        ...     def forward(self, metric, inputs):
        ...         errors = (inputs.scores.sigmoid() - inputs.target.float()).abs()
        ...         weights = self.weight[inputs.target.long()]
        ...         return mg.ops.masked_mean(weights * errors, inputs.where)
        >>> loss = mg.ReLoss("f1", net=WeightedErrors())
        >>> learned = loss.learn(steps=2, progress=False)
        >>> loss(torch.zeros(4), torch.tensor([0, 1, 0, 1])).shape
        torch.Size([])
    """

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


def elu_layers(widths: Sequence[int], generator: torch.Generator | None) -> nn.Sequential:
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


class Elements(NamedTuple):
    """What the network gets of sets, and how a mean over items weighs it."""

    items: Tensor  # `[..., N, 2]`, target and score; `[..., C, N, 2]` for labels and classes
    weights: Tensor  # `[..., 1, N]` or `[..., C, 1, N]`: 1 / N, 0 for what does not count
    many: bool  # whether there is a dimension of labels or classes

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
        """The mean over the labels or classes that have items, `[...]` from `[..., C]`."""
        if not self.many:
            return values
        return ops.masked_mean(values, (self.weights > 0).any(-1).squeeze(-1))


def set_inputs(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
    """Inputs as `to_elements` takes them: as the metric does, but for text, which it decodes."""
    match metric.layout:
        case "tokens":
            token_inputs(metric, scores, target, where)
        case "spans":
            span_inputs(metric, scores, target, where)
        case _:
            return metric.check(scores, target, where)
    return Inputs(scores.to(ops.float_dtype(scores)), target, where)


def to_elements(metric: Metric, inputs: Inputs, dtype: torch.dtype) -> Elements:
    """What a set network of that dtype gets of inputs that `set_inputs` has checked."""
    scores, target, where = _as_items(metric, inputs)
    known = metric.set_dims in (None, (1, 1), (2, 1), (2, 2), (4, 3))
    many = metric.layout in ("labels", "tokens", "spans")
    if known and scores.shape[:-1] == target.shape and not target.is_floating_point():
        many = True
        target = one_hot(target, scores.shape[-1])
        scores = ops.log_odds(scores).to(scores.dtype)
        where = None if where is None else where.unsqueeze(-1)
    elif not known or scores.shape != target.shape:
        takes = (
            "a set network takes scores and target [..., N], items with labels [..., N, C], or "
            "scores [..., N, C] with classes [..., N]; for other shapes, pass mg.ReLoss a network "
            "of your own, net=..."
        )
        raise wrong_shapes(takes, metric, scores, target)
    items = torch.stack([target.to(scores.dtype), scores], -1).to(dtype)
    if where is None:
        weights = items.new_full((), 1 / max(1, scores.shape[-1 - many])).expand(scores.shape)
    else:
        where = (where.unsqueeze(-1) if where.dim() < scores.dim() else where).expand(scores.shape)
        weights = where.to(items.dtype) / where.sum(-1 - many, keepdim=True).clamp(min=1)
        # The target of a user's function may hold anything where it does not count.
        items = items.masked_fill(~where.unsqueeze(-1), 0.0)
    if many:
        items = items.transpose(-2, -3)
        weights = weights.transpose(-1, -2)
    return Elements(items, weights.unsqueeze(-2), many)


def _as_items(metric: Metric, inputs: Inputs) -> Inputs:
    """Scores and target of items, whatever the layout; texts are in the place of labels."""
    scores, target, where = inputs
    maps = are_label_maps(scores.shape, target.shape) and scores.shape[:-1] != target.shape
    match metric.layout:
        case "tokens":
            return _turned(shown_tokens(token_inputs(metric, *inputs)))
        case "spans":
            return _turned(shown_spans(span_inputs(metric, *inputs)))
        case "heatmaps":
            return shown_joints(metric, inputs)
        case "maps" | "any" if metric.layout == "maps" or maps:
            where = expand_where(where, target.shape, target.dim() - 2)
            pixels = scores.movedim(-3, -1).flatten(-4, -2)
            return Inputs(pixels, target.flatten(-3), None if where is None else where.flatten(-3))
        case _:
            return inputs


def _turned(inputs: Inputs) -> Inputs:
    """The last two dimensions exchanged, so that texts stand where labels do."""
    scores, target, where = inputs
    assert where is not None
    return Inputs(scores.mT, target.mT, where.mT)
