r"""Where many classes are cut: one number per class, added to its scores, for the best metric.

For two classes one threshold decides (`threshold.py`). With C classes the highest score wins, and a
model trained on cross-entropy gives rare classes too little for macro F1 or mean IoU. Adding o_c to
the scores of class c moves its borders with all other classes at once:

    decision = argmax_c  s_c + o_c          for labels:  s_c + o_c > threshold, label by label

Coordinate ascent finds the offsets. If all but o_c are fixed, an item is decided for c from one
value of o_c on, so one sort and cumulative counts give the metric at every cut (`leads.py`). The
classes are visited in turn until nothing changes.

The best offset of a class with twenty items is mostly chance. So the best one is found for a number
of bootstrap draws. With the mean m and the variance v of these, measured from the mean of the other
classes (from 0 for labels), the class gets

    m * m^2 / (m^2 + 2 v)

which is nearly the mean where the draws agree, and nearly nothing where they do not. The variance
counts twice because the offsets of the other classes, which are fixed meanwhile, are uncertain too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Metric
from metricgrad.metrics.checks import shape, to_tensor, whole
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import Pooling, pooled
from metricgrad.metrics.leads import ClassItems, DecidedItems, LabelItems, Lead, choose_cuts
from metricgrad.metrics.maps import SegmentationMetric
from metricgrad.metrics.registry import metric as to_metric
from metricgrad.metrics.rows import at

_LAYOUTS = ("binary", "labels", "maps", "any")  # that may have classes or labels
_MOST = 1_000_000  # items, or pixels, that are looked at if there are draws
_TRIED = 100  # offsets that are tried for a function in a sweep
_GAINS = 24  # draws that tell how much of its gain is chance
_EQUAL = 1e-9  # a smaller difference is rounding
_NextOffset = Callable[[int, Lead, Tensor], Tensor]  # class, its lead, cuts -> 0-dim


@torch.no_grad()
def best_offsets(
    scores: Any,
    target: Any,
    metric: Any,
    *,
    where: Any = None,
    draws: int = 32,
    candidates: int = 64,
    sweeps: int = 2,
    **rows: Any,
) -> Tensor:
    r"""One number per class or label, added to its scores, that makes a metric best.

    .. math:: o^* = argmax_o \; m(\hat y(o), y), \qquad \hat y_i(o) = argmax_c \, s_{ic} + o_c

    or the minimum, if lower is better. Bootstrap draws with mean m and variance v then shrink each
    offset to :math:`m \cdot m^2 / (m^2 + 2 v)`.

    Args:
        scores: `[N, C]`, or label maps `[N, C, H, W]`; one set.
        target: `[N]` class indices, `[N, C]` labels of 0 and 1 for a metric with `multilabel=True`,
            or `[N, H, W]`.
        metric: A name, a `Metric` or a callable that decides by the highest class, or at
            score > 0 for labels. Metrics of counts are answered from one sort per class; others,
            such as your own functions, by trying.
        where: The shape of the target, True for what counts; None counts everything.
        draws: Bootstrap draws that shrink offsets which may be chance, on a million items or pixels
            at most. 0 gives the plain maximum, which overfits classes with few items.
        candidates: Cuts between items that are looked at for one class, denser where its own items
            are. With more than there are items every step is exact.
        sweeps: How often each class is visited at most; it ends when nothing changes.
        **rows: Weights of the items, `sample_weight`, or other arguments of your own function, by
            name: `[N]`.

    Returns:
        `[C]`, with mean 0 unless the target has labels: adding the same number to all classes
        changes no decision. A class without items gets about the mean of the others. For label maps
        of one score a pixel, `[1]`.

    Example:
        >>> import metricgrad as mg
        >>> scores = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [2.0, 0.0, 1.5], [1.0, 0, 0]])
        >>> target = torch.tensor([0, 1, 2, 0])
        >>> offsets = mg.best_offsets(scores, target, "f1", draws=0)
        >>> offsets
        tensor([-0.5000,  0.2500,  0.2500])
        >>> mg.metric("f1")(scores, target), mg.metric("f1")(scores + offsets, target)
        (tensor(0.6000), tensor(1.))

    Reference:
        Cyclic optimisation: Fan and Lin, "A Study on Threshold Selection for Multi-label
        Classification", 2007. Bootstrap draws: Breiman, "Bagging Predictors", 1996.
    """
    chosen = to_metric(metric)
    chosen = chosen.with_rows(rows) if rows else chosen
    scores = to_tensor("scores", scores)
    target = to_tensor("target", target)
    where = None if where is None else to_tensor("where", where)
    whole("draws", draws, 0)
    whole("candidates", candidates, 2)
    whole("sweeps", sweeps, 1)
    if not takes_offsets(chosen, scores, target):
        raise ValueError(_refusal(chosen, scores, target))
    inputs = chosen.check(scores.to(ops.float_dtype(scores)), target, where)
    search = _Search(candidates, sweeps, draws, _MOST if draws else None)
    return _of_scores(scores, _found(chosen, inputs, search))


def takes_offsets(metric: Metric, scores: Tensor, target: Tensor) -> bool:
    """Whether a metric decides one set of such scores by class or by label."""
    if metric.decided_by == "order" or metric.layout not in _LAYOUTS:
        return False
    if metric.layout == "labels":
        return scores.dim() == 2 and scores.shape == target.shape
    classes = 1 if metric.layout == "maps" else 2  # a map of one score a pixel has two classes
    one_set = scores.dim() == 1 - metric.class_dim and scores.shape[1] >= classes
    return one_set and scores.shape[:1] + scores.shape[2:] == target.shape


def stable_offsets(scores: Tensor, target: Tensor, metric: Metric) -> Tensor:
    """Offsets `[C]` from a quicker search, for trials, which tune them after every epoch."""
    classes = scores.shape[1]
    candidates = min(64, max(16, 640 // classes))
    most = max(5_000, 10_000_000 // classes**2)
    search = _Search(candidates, sweeps=2, most=most)
    return _of_scores(scores, _found(metric, metric.check(scores, target, None), search))


def _of_scores(scores: Tensor, offsets: Tensor) -> Tensor:
    """Offsets `[C]` of the scores that were passed; those of two classes as one, o1 - o0."""
    return offsets.diff() if scores.shape[1] < len(offsets) else offsets


class _Search(NamedTuple):
    """How thorough to be; `best_offsets` describes it."""

    candidates: int
    sweeps: int
    draws: int = 16
    most: int | None = None  # items, or pixels, that are looked at; None for all


@torch.no_grad()
def _found(metric: Metric, inputs: Inputs, search: _Search) -> Tensor:
    """The offsets of checked inputs."""
    scores, target, where = inputs
    pooling: Pooling | None = None
    weight: Tensor | None = None
    if isinstance(metric, ConfusionMetric):
        weight = metric.item_weights(target.shape, where)
    if isinstance(metric, ConfusionMetric) and scores.dim() == 1:  # two classes, as s1 - s0
        counted, weight = (None if part is None else part.unsqueeze(-1) for part in (where, weight))
        column = Inputs(metric.margin(scores).unsqueeze(-1), target.unsqueeze(-1), counted)
        half = _ascend(LabelItems(column, weight), pooled(metric.of_counts), metric, search) / 2
        return torch.cat([-half, half])
    if isinstance(metric, ConfusionMetric) and metric.multilabel:
        items = LabelItems(inputs._replace(scores=metric.margin(scores)), weight)
        return _ascend(items, metric.label_pooling(), metric, search)
    if isinstance(metric, ConfusionMetric) and metric.counts_classes:
        pooling = metric.class_pooling()
    elif isinstance(metric, SegmentationMetric) and not metric.per_image:
        pooling = metric.pooling()
    if metric.layout == "labels":
        items = LabelItems(inputs)
    else:
        items = ClassItems(inputs, search.most, weight)
    if pooling is None:
        return _by_trying(items, metric, inputs, search)
    return _ascend(items, pooling, metric, search)


def _ascend(items: DecidedItems, pooling: Pooling, metric: Metric, search: _Search) -> Tensor:
    """Coordinate ascent on a value of counts."""
    generator = torch.Generator().manual_seed(0)

    def next_offset(c: int, lead: Lead, cuts: Tensor) -> Tensor:
        values = pooling(items.counts(c, lead, cuts, search.draws, generator))
        gains = (values if metric.higher_is_better else -values).to(cuts.device)
        if not search.draws:
            return _best(gains, -cuts, items.offsets[c])[0]
        return _shrunk(_best(gains, -cuts, items.centre(c)), items.centre(c))

    return _swept(items, search.sweeps, search.candidates, next_offset)


def _by_trying(items: DecidedItems, metric: Metric, inputs: Inputs, search: _Search) -> Tensor:
    """Coordinate ascent on any metric; all offsets are shrunk where their gain may be chance."""
    scores, target, where = inputs
    spread = (-1, *[1] * (scores.dim() - 2))

    def value(offsets: Tensor, drawn: Tensor | slice = slice(None)) -> Tensor:
        counted = None if where is None else where[drawn]
        own = metric.with_rows(at(metric.rows, drawn))
        found = own.evaluate(scores[drawn] + offsets.reshape(spread), target[drawn], counted)
        return found.double() if metric.higher_is_better else -found.double()

    def next_offset(c: int, lead: Lead, cuts: Tensor) -> Tensor:
        tried = items.offsets.repeat(len(cuts), 1)
        tried[:, c] = -cuts
        gains = torch.stack([value(each) for each in tried])
        return _best(gains.unsqueeze(0), -cuts, items.offsets[c])[0]

    offsets = _swept(items, search.sweeps, max(4, _TRIED // len(items.scores)), next_offset)
    if not search.draws:
        return offsets
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(scores), (_GAINS, len(scores)), generator=generator)
    none = torch.zeros_like(offsets)
    gains = torch.stack([value(offsets, drawn) - value(none, drawn) for drawn in draws])
    if not gains.isfinite().any():
        return none
    gain = (value(offsets) - value(none)) ** 2
    certain = gain / (gain + gains[gains.isfinite()].var(correction=0)).clamp(min=_EQUAL**2)
    return offsets * certain.nan_to_num(0.0).to(offsets.dtype)


def _swept(items: DecidedItems, sweeps: int, candidates: int, next_offset: _NextOffset) -> Tensor:
    """The offsets after every class was visited in turn, until nothing changes."""
    for _ in range(sweeps):
        before = items.offsets.clone()
        for c in range(len(before)):
            lead = items.lead(c)
            if lead.positive.any():
                own = -items.offsets[c : c + 1]  # staying is a candidate, too
                cuts = torch.cat([choose_cuts(lead, candidates), own]).unique()
                items.move(c, next_offset(c, lead, cuts))
            else:
                items.move(c, items.centre(c))
        if torch.equal(before, items.offsets):
            break
    return items.offsets - items.offsets.mean() if isinstance(items, ClassItems) else items.offsets


def _best(gains: Tensor, offsets: Tensor, to: Tensor) -> Tensor:
    """The offset `[D]` of the highest gain `[D, K]`; of ties the nearest to a given one."""
    gains = gains.nan_to_num(nan=-torch.inf)
    equal = gains >= gains.amax(-1, keepdim=True) - _EQUAL
    return offsets[(offsets - to).abs().masked_fill(~equal, torch.inf).argmin(-1)]


def _shrunk(offsets: Tensor, centre: Tensor) -> Tensor:
    """The mean of the draws' offsets `[D]`, moved to the centre as far as they disagree."""
    away = offsets - centre
    square = away.mean().square()
    uncertain = 2 * away.var(correction=0)
    return centre + away.mean() * square / (square + uncertain).clamp(min=_EQUAL)


def _refusal(metric: Metric, scores: Tensor, target: Tensor) -> str:
    """Why there are no offsets, and what to pass instead."""
    got = f"got scores {shape(scores)} and target {shape(target)}"
    if metric.decided_by == "order":
        return (
            f"{metric.name} depends only on the order of the scores, so it has no best offsets; "
            "pass a metric of decisions such as 'f1' or 'mcc'"
        )
    if metric.layout not in _LAYOUTS:
        return f"{metric.name} has no classes to choose from, so it has no best offsets; {got}"
    if metric.has_threshold and metric.layout != "labels" and scores.shape == target.shape:
        return (
            "scores of two classes have one threshold: pass them to best_threshold, or labels "
            f"with a metric that has multilabel=True; {got}"
        )
    maps = "scores [N, C, H, W] with target [N, H, W]"
    known = {"labels": "scores and target [N, C]", "maps": maps}
    wanted = known.get(metric.layout, "scores [N, C] with target [N]")
    return f"offsets belong to one set, {wanted} for {metric.name}; {got}"
