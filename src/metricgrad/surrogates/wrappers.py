r"""Surrogates made from surrogates: with a memory of past items, or with the ordinary loss added.

A metric of a set is about many items at once; a batch of 16 with one positive in a hundred hardly
ever has one. With a memory, the set is the batch and the most recent items before it. Past scores
are detached: they are compared with, and only the batch receives a gradient. They grow stale as the
model moves, so a memory should be no longer than it needs to be.

Learned losses do best beside the ordinary one, :math:`\ell + w \, \ell_{ordinary}` (ReLoss, Table
10): where the learned loss is flat or wrong, the ordinary loss still knows the way. A metric names
its ordinary loss (`metric.ordinary`): ListNet for graded documents, the squared error of heatmaps
for poses, and otherwise cross-entropy of items, which depend on its layout:

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
from metricgrad.metrics.checks import expand_where, whole
from metricgrad.metrics.mistakes import are_label_maps
from metricgrad.metrics.one_score import item_scores
from metricgrad.metrics.registry import metric_config
from metricgrad.metrics.rows import SAMPLE_WEIGHT
from metricgrad.surrogates.base import Surrogate, counted, wrong_shapes
from metricgrad.surrogates.baselines import CrossEntropy, HeatmapMSE, ListNet
from metricgrad.surrogates.calls import Call
from metricgrad.surrogates.remembering import Remembering

_Batch = tuple[Tensor, Tensor, Tensor | None]


def with_memory(loss: Surrogate, size: int = 4096) -> "WithMemory":
    r"""The same loss on sets that past items have joined.

    .. math:: \ell(B_t \cup \bar B_{t-1} \cup \dots), \quad
        \text{the batch and the last } size \text{ items before it}

    :math:`\bar B` are the scores and targets of past batches, without a gradient. The loss is
    called like the original one, with one flat set per call. In `eval()` mode, no past items join.

    Args:
        loss: The surrogate to call on the larger set, such as `mg.UniLoss("f1")`.
        size: How many past items are kept, the most recent ones.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.with_memory(mg.UniLoss("average_precision"), size=256)
        >>> for step in range(3):
        ...     value = loss(torch.randn(16, requires_grad=True), torch.arange(16) % 16 == 0)
        >>> loss.scores.shape
        torch.Size([48])
    """
    return WithMemory(loss, size)


class WithMemory(Remembering):
    """A surrogate whose sets past items join; made by `with_memory`."""

    kept = ("scores", "target")
    scores: Tensor  # `[M, ...]`, of the past items, the latest first
    target: Tensor  # `[M, ...]`

    def __init__(self, loss: Surrogate, size: int) -> None:
        super().__init__()
        whole("size", size, 1)
        self.loss = loss
        self.size = size
        self.readable = loss.readable
        self.weighs = loss.weighs
        self.scores = torch.zeros(0)
        self.target = torch.zeros(0)

    def shapes(self) -> Metric:
        """The metric whose shapes the loss takes."""
        return self.loss.shapes()

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of the joined set; what counts of the batch is remembered for the next one."""
        if not self.training:
            return self.loss.losses(scores, target, where)
        if where is not None and where.dim() > 1:
            raise ValueError(
                f"with_memory takes one flag per item as where; got shape {list(where.shape)}"
            )
        kept = slice(None) if where is None else where.to(torch.bool)
        now = item_scores(self.shapes(), scores, target)[kept]
        truth = target[kept]
        if len(self.scores):
            if self.scores.shape[1:] != now.shape[1:]:
                raise ValueError(
                    f"the memory holds items of shape {list(self.scores.shape[1:])}; got scores "
                    f"{list(scores.shape)}. Call forget() before another kind of data"
                )
            now = torch.cat([now, self.scores.to(now)])
            truth = torch.cat([truth, self.target.to(truth)])
        values, defined = self.loss.losses(now, truth, None)
        if values.dim():
            raise ValueError(
                "with_memory takes one flat set, without set dimensions; got scores "
                f"{list(scores.shape)}"
            )
        # Copies, because the batch is the caller's, who may use its memory again.
        self.scores = now[: self.size].detach().clone()
        self.target = truth[: self.size].detach().clone()
        return values, defined

    def _each(self, call: Call) -> tuple[Tensor, Tensor]:
        """As every loss; but past items belong to no group, and their rows are not kept."""
        if self.training and call.rows:
            raise ValueError(
                f"with_memory keeps scores and target of past items alone; got "
                f"{', '.join(call.rows)}. Call the loss without a memory"
            )
        if self.training and call.groups is not None:
            raise ValueError(
                "with_memory takes one flat set, which past items join, so it takes no groups; got "
                f"groups for scores {list(call.scores.shape)}. Call the loss without a memory"
            )
        return super()._each(call)

    def config(self) -> dict[str, Any]:
        """The loss's own description and the size."""
        return {"loss": self.loss.description(), "size": self.size}

    def forget(self) -> None:
        """Empties the memory."""
        self.scores = self.scores[:0].flatten()
        self.target = self.target[:0].flatten()


def with_ordinary(
    loss: Surrogate, weight: float = 1.0, ordinary: Surrogate | None = None
) -> "WithOrdinary":
    r"""A loss plus the ordinary one, :math:`\ell + w \, \ell_{ordinary}`.

    Args:
        loss: The surrogate that keeps the weight 1, usually a learned one such as `mg.ReLoss`.
        weight: Weight of the ordinary loss, w.
        ordinary: The loss to add; None adds the ordinary loss of the loss's metric: cross-entropy
            in the metric's shapes, ListNet for graded documents, squared error for heatmaps.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.with_ordinary(mg.ReLoss.pretrained("accuracy"), weight=1.0)
        >>> loss(torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3).backward()

    Reference:
        ReLoss, Sec. 4.3 and Table 10.
    """
    return WithOrdinary(loss, weight, ordinary_beside(loss.metric, ordinary))


class WithOrdinary(Surrogate):
    """The weighted sum of two surrogates; made by `with_ordinary`."""

    def __init__(self, loss: Surrogate, weight: float, ordinary: Surrogate) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"weight must be 0 or more; got {weight}")
        self.loss = loss
        self.weight = weight
        self.ordinary = ordinary
        self.weighs = loss.weighs and ordinary.weighs

    def shapes(self) -> Metric:
        """The metric whose shapes the loss takes."""
        return self.loss.shapes()

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum for every set, and whether either is defined there."""
        values, defined = self.loss.losses(scores, target, where)
        more, also = self.ordinary.losses(scores, target, where)
        total = torch.where(defined, values, 0.0) + self.weight * torch.where(also, more, 0.0)
        return total, defined | also

    def config(self) -> dict[str, Any]:
        """Both losses' own descriptions, and the weight."""
        return {
            "loss": self.loss.description(),
            "weight": self.weight,
            "ordinary": self.ordinary.description(),
        }


def ordinary_beside(metric: Metric | None, given: Surrogate | None) -> Surrogate:
    """The loss that a user gives to stand beside a metric, or else the customary one."""
    if given is None:
        given = CrossEntropy() if metric is None else ordinary_for(metric)
        if given is None:
            raise ValueError(f"{metric} has no usual loss; pass the one to add: ordinary=...")
    if not isinstance(given, Surrogate):
        raise TypeError(
            f"ordinary must be a surrogate, such as mg.baselines.Focal(); got {given!r}"
        )
    return given


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
            return CrossEntropy() if metric.layout in ("binary", "any") else Ordinary(metric)


def takes_ordinary(
    metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None = None
) -> bool:
    """Whether the ordinary loss has a value for every set that the metric takes.

    Metrics of the library take nothing else, but for text, whose references may be longer or
    shorter than what was decoded. A user's function may have targets of any kind; cross-entropy
    needs 0 and 1, or classes, of items or of pixels.
    """
    if metric.layout == "tokens":
        ids = target[..., 0, :] if target.dim() == scores.dim() else target
        return ids.shape == scores.shape[:-1] and bool((ids < scores.shape[-1]).all())
    if metric.portable:
        return True
    maps = are_label_maps(scores.shape, target.shape) and target.shape != scores.shape[:-1]
    classes = scores.movedim(-3, -1) if maps else scores
    if target.shape == scores.shape:
        fits = (target == 0) | (target == 1)
        known = metric.layout == "labels" or metric.set_dims in (None, (1, 1))
    elif target.shape == classes.shape[:-1]:
        fits = (target >= 0) & (target < classes.shape[-1]) & (target == target.long())
        known = metric.set_dims in (None, (4, 3) if maps else (2, 1))
    else:
        return False
    if where is not None:
        known = known and (not maps or where.shape == target.shape)
        fits = fits | ~where[(..., *[None] * (target.dim() - where.dim()))]
    return known and bool(fits.all())


class Ordinary(Surrogate):
    """Cross-entropy of scores in the shapes of a metric; made by `ordinary_for`."""

    weighs = True

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = to_metric(metric)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of every set, and whether there is anything to learn from it."""
        if self.metric.layout == "maps":  # the metric knows which pixels are ignored
            scores, target, where = self.metric.check(scores, target, where)
        entropy = CrossEntropy()
        weight = self.metric.rows.get(SAMPLE_WEIGHT)
        if weight is not None:  # a weight per item; the labels of an item share it
            shared = weight.unsqueeze(-1).expand(*weight.shape, scores.shape[-1])
            entropy.bind({SAMPLE_WEIGHT: shared.flatten(-2)})
        return entropy.losses(*_items(self.metric, scores, target, where))

    def config(self) -> dict[str, Any]:
        """The metric."""
        return {"metric": metric_config(self.metric)}


def _items(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> _Batch:
    """Scores and target of a metric's layout as items and classes."""
    match metric.layout:
        case "labels":
            if where is not None:  # a flag per item or per label
                where = where.unsqueeze(-1) if where.dim() < scores.dim() else where
                where = where.expand(scores.shape).flatten(-2)
            return scores.flatten(-2), target.flatten(-2), where
        case "grades":  # files written before ListNet took its place have it
            return scores, target > 0, where
        case "maps":
            pixels = scores.movedim(-3, -1).flatten(-4, -2)
            where = expand_where(where, target.shape, target.dim() - 2)
            return pixels, target.flatten(-3), None if where is None else where.flatten(-3)
        case "tokens":
            return _tokens(metric, scores, target, where)
        case "spans":
            return _start_and_end(scores, target, where)
        case _:
            return scores, target, where


def _tokens(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> _Batch:
    """Every position is an item, the vocabulary its classes."""
    ids = target[..., 0, :] if target.dim() == scores.dim() else target
    if ids.shape != scores.shape[:-1]:
        takes = "scores [..., N, T, V] and a target id for each place [..., N, T]"
        raise wrong_shapes(f"cross-entropy takes {takes}", metric, scores, target)
    live = has_token(metric, ids) & counted(ids, expand_where(where, ids.shape, ids.dim() - 1))
    return scores.flatten(-3, -2), ids.clamp(min=0).flatten(-2), live.flatten(-2)


def has_token(metric: Metric, ids: Tensor) -> Tensor:
    """Which ids are tokens: those that are neither negative nor the metric's padding."""
    return ids >= 0 if metric.padding is None else (ids >= 0) & (ids != metric.padding)


def _start_and_end(scores: Tensor, target: Tensor, where: Tensor | None) -> _Batch:
    """Two items for every text: its positions are the classes, the answer's ends the targets."""
    length = scores.shape[-2]
    places = torch.arange(length, device=scores.device)
    live = counted(scores[..., 0], expand_where(where, scores.shape[:-1], scores.dim() - 2))
    hidden = scores.masked_fill(~live.unsqueeze(-1), torch.finfo(scores.dtype).min / 4)
    inside = (target.unsqueeze(-2) == places.unsqueeze(-1)).any(-1) & live
    first = torch.where(inside, places, length).amin(-1)
    last = torch.where(inside, places, -1).amax(-1)
    ends = torch.stack([first.clamp(max=length - 1), last.clamp(min=0)], -1)
    known = inside.any(-1, keepdim=True).expand(ends.shape)
    return hidden.movedim(-1, -2).flatten(-3, -2), ends.flatten(-2), known.flatten(-2)
