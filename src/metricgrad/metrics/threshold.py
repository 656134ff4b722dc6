"""Where to cut: the threshold at which a metric of decisions is best, found exactly.

Only N + 1 thresholds differ in what they decide: one above all scores, one between each pair of
neighbours, one below all. One walk down the sorted scores gives the counts for all of them
(`counts.py`), and the metric's formula of counts gives their values, in O(N log N). Choose a
threshold on validation scores, never on test scores.

The best threshold of few items is noisy. `stable_threshold` therefore takes the median of the best
thresholds of bootstrap draws while there are few enough items for that to be cheap.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Metric
from metricgrad.metrics.checks import shape, to_tensor, whole
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import Counts, Curve, walk_down
from metricgrad.metrics.one_score import as_items
from metricgrad.metrics.order import padded_places
from metricgrad.metrics.registry import metric as to_metric

_FEWEST_DRAWS = 8
_MOST_DRAWS = 64
_DRAWN_ITEMS = 250_000  # items of all draws together
_TRIED = 200  # thresholds that are tried for a function


@torch.no_grad()
def best_threshold(
    scores: Any,
    target: Any,
    metric: Any,
    *,
    where: Any = None,
    candidates: int = 1024,
    **rows: Any,
) -> Tensor:
    r"""The threshold at which a metric is best: a score above it is a positive decision.

    .. math:: t^* = argmax_t \; m([s_1 > t], \dots, [s_N > t]; \; y)

    or the minimum, if lower is better.

    Args:
        scores: `[..., N]` or `[..., N, 1]`, or `[..., N, C]` for a metric with `multilabel=True`.
        target: The same shape, or `[..., N]`; 0 and 1.
        metric: A name, a `Metric` or a callable that decides at score > 0. Metrics of the confusion
            matrix are answered exactly; others by trying thresholds between neighbouring scores.
        where: The same shape, True for what counts; None counts everything.
        candidates: How many thresholds are tried for a function, spread evenly over its sorted
            scores. The answer is exact if there are no more different scores than these.
        **rows: Weights of the items, `sample_weight`, or other arguments of your own function, by
            name: `[..., N]`.

    Returns:
        `[...]`, one threshold per set, half-way between two scores or beyond all of them. Of
        equally good thresholds it is the one nearest to the metric's own. For labels `[..., C]`,
        one per label, or `[...]` if the average is micro.

    Example:
        >>> import metricgrad as mg
        >>> scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
        >>> target = torch.tensor([1, 1, 0, 0])
        >>> mg.best_threshold(scores, target, "f1")
        tensor(2.5000)
        >>> mg.metric("f1", threshold=mg.best_threshold(scores, target, "f1"))(scores, target)
        tensor(1.)
    """
    chosen = to_metric(metric)
    chosen = chosen.with_rows(rows) if rows else chosen
    scores = to_tensor("scores", scores)
    target = to_tensor("target", target)
    where = None if where is None else to_tensor("where", where)
    scores, target, where = as_items(chosen, scores, target, where)
    if not chosen.has_threshold:
        by_order = chosen.decided_by == "order"
        why = "depends only on the order of the scores" if by_order else "does not use a threshold"
        raise ValueError(
            f"{chosen.name} {why}, so it has no best threshold; pass a metric such as 'f1' or 'mcc'"
        )
    if isinstance(chosen, ConfusionMetric):
        return _exact(chosen, scores, target, where)
    return _by_trying(chosen, scores, target, where, candidates)


@torch.no_grad()
def stable_threshold(scores: Tensor, target: Tensor, metric: Metric) -> Tensor:
    """The best threshold; for few items the median over bootstrap draws, which is less noisy.

    It is 0-dim for scores `[N]`, and `[C]` for labels `[N, C]` unless their average is micro.
    """
    draws = min(_MOST_DRAWS, _DRAWN_ITEMS // len(scores))
    if draws < _FEWEST_DRAWS or not isinstance(metric, ConfusionMetric):
        return best_threshold(scores, target, metric, candidates=_TRIED)
    weight = metric.item_weights(target.shape, None)
    if scores.dim() > 1 and metric.average == "micro":
        scores = scores.flatten()
        target = target.flatten()
        weight = None if weight is None else weight.flatten()
    generator = torch.Generator().manual_seed(0)
    if scores.dim() == 1:
        return bagged_threshold(scores, target, metric, draws, generator, weight)
    found = []
    for label, (own, truth) in enumerate(zip(scores.unbind(-1), target.unbind(-1), strict=True)):
        mass = None if weight is None else weight[:, label]
        found.append(bagged_threshold(own, truth, metric, draws, generator, mass))
    return torch.stack(found)


@torch.no_grad()
def bagged_threshold(
    scores: Tensor,
    target: Tensor,
    metric: ConfusionMetric,
    draws: int,
    generator: torch.Generator,
    weight: Tensor | None = None,
) -> Tensor:
    """The median, 0-dim, of the best thresholds of bootstrap draws of binary scores `[N]`.

    The scores are sorted once; a draw is how often each item is in it, and its counts are
    cumulative sums of that.
    """
    where = None if weight is None else weight > 0
    curve = walk_down(scores, target > 0 if where is None else (target > 0) & where, where, weight)
    hits, misses = (
        each.diff(prepend=each.new_zeros(1)).to(scores.dtype) for each in (curve.tp, curve.fp)
    )
    drawn = torch.randint(len(scores), (draws, len(scores)), generator=generator)
    once = scores.new_ones(()).expand_as(drawn)
    times = scores.new_zeros(draws, len(scores)).scatter_add_(1, drawn, once)
    tp = F.pad((times * hits).cumsum(-1), (1, 0))
    fp = F.pad((times * misses).cumsum(-1), (1, 0))
    values = metric.of_counts(Counts(tp, fp, tp[:, -1:] - tp, fp[:, -1:] - fp))
    allowed = F.pad(curve.vertex, (1, 0), value=True).expand_as(values)
    found = _best(metric, cuts(curve).expand_as(values), values, allowed, _own(metric, scores))
    return found.quantile(0.5)


def cuts(curve: Curve) -> Tensor:
    """Thresholds `[..., N + 1]`: above all scores, then below each; non-vertices mean nothing."""
    ordered = curve.scores
    if not ordered.shape[-1]:
        return ordered.new_zeros(*ordered.shape[:-1], 1)
    counted = curve.counted
    above = ordered[..., :1]
    below = ordered.gather(-1, (counted - 1).clamp(min=0))
    middle = ordered[..., 1:] / 2 + ordered[..., :-1] / 2
    # Neighbouring floats have nothing between them; the lower one itself then separates them.
    between = (middle < ordered[..., :-1]) & (middle >= ordered[..., 1:])
    middle = torch.where(between, middle, ordered[..., 1:])
    last = torch.minimum(below - 1, torch.nextafter(below, torch.full_like(below, -torch.inf)))
    positions = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    inner = torch.where(positions == counted, last, torch.cat([middle, last], -1))
    highest = torch.maximum(above + 1, torch.nextafter(above, torch.full_like(above, torch.inf)))
    return torch.cat([highest, inner], -1).masked_fill(counted == 0, 0.0)


def _exact(metric: ConfusionMetric, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
    """The best threshold of a formula of counts."""
    scores, target, where = metric.check(scores, target, where)
    if scores.dim() != target.dim():
        raise ValueError(
            f"{metric.name} of {scores.shape[-1]} classes takes the highest score, so there is no "
            f"threshold to tune; got scores {shape(scores)} and target {shape(target)}"
        )
    weight = metric.item_weights(target.shape, where)
    if metric.multilabel:
        scores = scores.mT
        target = target.mT
        where, weight = (None if part is None else part.mT for part in (where, weight))
        if metric.average == "micro":
            scores = scores.flatten(-2)
            target = target.flatten(-2)
            where, weight = (None if part is None else part.flatten(-2) for part in (where, weight))
    curve = walk_down(scores, target, where, weight)
    dtype = torch.promote_types(curve.tp.dtype, scores.dtype)
    tp = F.pad(curve.tp, (1, 0)).to(dtype)
    fp = F.pad(curve.fp, (1, 0)).to(dtype)
    values = metric.of_counts(Counts(tp, fp, curve.positives - tp, curve.negatives - fp))
    allowed = F.pad(curve.vertex, (1, 0), value=True)
    return _best(metric, cuts(curve), values, allowed, _own(metric, scores))


def _by_trying(
    metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None, candidates: int
) -> Tensor:
    """The best of so many thresholds of a metric that decides at 0, found by moving the scores."""
    whole("candidates", candidates, 2)
    scores, target, where = metric.check(scores.to(ops.float_dtype(scores)), target, where)
    if scores.shape != target.shape:
        raise ValueError(
            f"a threshold belongs to binary scores [..., N]; got scores {shape(scores)} and "
            f"target {shape(target)}"
        )
    curve = walk_down(scores, (target != 0) if where is None else (target != 0) & where, where)
    places, live = padded_places(F.pad(curve.vertex, (1, 0), value=True))
    number = live.sum(-1, keepdim=True)
    size = min(candidates, places.shape[-1])
    spread = torch.linspace(0, 1, size, dtype=torch.float64, device=scores.device)
    tried = places.gather(-1, (spread * (number - 1)).round().to(torch.int64))
    thresholds = cuts(curve).gather(-1, tried)
    cut = thresholds.unsqueeze(-2).unbind(-1)
    values = torch.stack([metric.evaluate(scores - each, target, where) for each in cut], -1)
    everywhere = torch.ones_like(tried, dtype=torch.bool)
    return _best(metric, thresholds, values, everywhere, torch.zeros_like(thresholds[..., :1]))


def _own(metric: ConfusionMetric, scores: Tensor) -> Tensor:
    """The metric's own threshold, shaped to stand beside `cuts`; 0 where one replaces several."""
    own = torch.as_tensor(metric.threshold, dtype=scores.dtype, device=scores.device)
    if own.dim() and metric.average == "micro":
        return torch.zeros_like(own[:1])
    return own.unsqueeze(-1)


def _best(
    metric: Metric, thresholds: Tensor, values: Tensor, allowed: Tensor, own: Tensor
) -> Tensor:
    """The allowed threshold of the best value, `[..., N + 1]`; of ties the nearest to `own`."""
    gains = (values if metric.higher_is_better else -values).nan_to_num(nan=-torch.inf)
    gains = gains.masked_fill(~allowed, -torch.inf)
    equal = (gains == gains.amax(-1, keepdim=True)) & allowed
    limit = torch.finfo(thresholds.dtype).max
    distance = (thresholds.clamp(-limit, limit) / 2 - own.clamp(-limit, limit) / 2).abs()
    nearest = distance.masked_fill(~equal, torch.inf).argmin(-1, keepdim=True)
    return thresholds.gather(-1, nearest).squeeze(-1)
