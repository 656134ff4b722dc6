"""Where to cut: the threshold at which a metric of decisions is best, found exactly.

Only N + 1 thresholds differ in what they decide: one above all scores, one between each pair of
neighbours, one below all. One walk down the sorted scores gives the counts for all of them
(`walk.py`), and the metric's formula of counts their values, in O(N log N). Choose on validation
scores, never on test scores.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape, to_tensor, whole
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import Counts
from metricgrad.metrics.curves import CurveMetric
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.order import padded_places
from metricgrad.metrics.ranking import RankingMetric
from metricgrad.metrics.registry import metric as to_metric
from metricgrad.metrics.walk import Curve, walk_down


@torch.no_grad()
def best_threshold(
    scores: Any, target: Any, metric: Any, *, where: Any = None, candidates: int = 1024
) -> Tensor:
    """The threshold at which a metric is best: a score above it is a positive decision.

    Args:
        scores: `[..., N]`, or `[..., N, C]` for a metric with `multilabel=True`.
        target: same shape, 0 and 1.
        metric: a name, a `Metric` or a callable that decides at score > 0. Metrics of the confusion
            matrix are answered exactly; others by trying thresholds between neighbouring scores.
        where: same shape, True for what counts; None counts all.
        candidates: thresholds tried for functions, spread evenly; exact if there are no more than
            these.

    Returns:
        `[...]`, one threshold per set, half-way between two scores or beyond all of them; of
        equally good ones the nearest to the metric's own. For labels `[..., C]`, one per label, or
        `[...]` if the average is micro.

    Example:
        >>> import metricgrad as mg
        >>> scores, target = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 1, 0, 0])
        >>> mg.best_threshold(scores, target, "f1")
        tensor(2.5000)
        >>> mg.metric("f1", threshold=mg.best_threshold(scores, target, "f1"))(scores, target)
        tensor(1.)
    """
    chosen = to_metric(metric)
    scores, target = to_tensor("scores", scores), to_tensor("target", target)
    where = None if where is None else to_tensor("where", where)
    if isinstance(chosen, ConfusionMetric):
        return _exact(chosen, scores, target, where)
    if not isinstance(chosen, FunctionMetric):
        ranks = isinstance(chosen, CurveMetric | RankingMetric)
        why = (
            "depends on the order of the scores alone"
            if ranks
            else "does not decide at a threshold"
        )
        raise ValueError(
            f"{chosen.name} {why}, so it has no best threshold; pass a metric such as 'f1' or 'mcc'"
        )
    return _by_trying(chosen, scores, target, where, candidates)


def _exact(metric: ConfusionMetric, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
    scores, target, where = metric.check(scores, target, where)
    if scores.dim() != target.dim():
        raise ValueError(
            f"{metric.name} of {scores.shape[-1]} classes takes the highest score, so there is no threshold to tune; "
            f"got scores {shape(scores)} and target {shape(target)}"
        )
    if metric.multilabel:
        scores, target, where = scores.mT, target.mT, None if where is None else where.mT
        if metric.average == "micro":
            scores, target, where = (
                scores.flatten(-2),
                target.flatten(-2),
                None if where is None else where.flatten(-2),
            )
    curve = walk_down(scores, target, where)

    def with_none(counts: Tensor) -> Tensor:
        return F.pad(counts, (1, 0)).to(scores.dtype)

    tp, fp = with_none(curve.tp), with_none(curve.fp)
    values = metric.of_counts(Counts(tp, fp, curve.positives - tp, curve.negatives - fp))
    allowed = F.pad(curve.vertex, (1, 0), value=True)
    return _best(
        cuts(curve), values if metric.higher_is_better else -values, allowed, _own(metric, scores)
    )


@torch.no_grad()
def bagged_threshold(
    scores: Tensor, target: Tensor, metric: ConfusionMetric, draws: int, generator: torch.Generator
) -> Tensor:
    """The median of the best thresholds of bootstrap draws: of few items it is less a matter of luck than the best one.

    The scores are sorted once; a draw is how often each item is in it, and its counts are
    cumulative sums of that.

    Args:
        scores: `[N]`.
        target: `[N]`, 0 and 1.
        metric: of binary scores.
        draws: how many.
        generator: of the draws.

    Returns:
        0-dim.
    """
    curve = walk_down(scores, target > 0, None)
    hits = curve.tp.diff(prepend=curve.tp.new_zeros(1)).to(scores.dtype)
    drawn = torch.randint(len(scores), (draws, len(scores)), generator=generator)
    times = scores.new_zeros(draws, len(scores)).scatter_add_(
        1, drawn, scores.new_ones(()).expand_as(drawn)
    )
    tp, fp = (F.pad((times * kind).cumsum(-1), (1, 0)) for kind in (hits, 1 - hits))
    values = metric.of_counts(Counts(tp, fp, tp[:, -1:] - tp, fp[:, -1:] - fp))
    allowed = F.pad(curve.vertex, (1, 0), value=True).expand_as(values)
    thresholds = cuts(curve).expand_as(values)
    found = _best(
        thresholds, values if metric.higher_is_better else -values, allowed, _own(metric, scores)
    )
    return found.quantile(0.5)


def _own(metric: ConfusionMetric, scores: Tensor) -> Tensor:
    """The metric's own threshold, shaped to stand beside `cuts`; 0 where one threshold is to replace several."""
    own = torch.as_tensor(metric.threshold, dtype=scores.dtype, device=scores.device)
    return (
        own.unsqueeze(-1)
        if metric.average != "micro" or not own.dim()
        else torch.zeros_like(own[:1])
    )


def _best(thresholds: Tensor, gains: Tensor, allowed: Tensor, own: Tensor) -> Tensor:
    """The allowed threshold of the highest gain, all `[..., N + 1]`; of equal ones the nearest to `own`."""
    gains = gains.masked_fill(~allowed, -torch.inf)
    equal = (gains == gains.amax(-1, keepdim=True)) & allowed
    limit = torch.finfo(thresholds.dtype).max
    distance = (thresholds.clamp(-limit, limit) / 2 - own.clamp(-limit, limit) / 2).abs()
    nearest = distance.masked_fill(~equal, torch.inf).argmin(-1, keepdim=True)
    return thresholds.gather(-1, nearest).squeeze(-1)


def cuts(curve: Curve) -> Tensor:
    """Thresholds `[..., N + 1]`: above all scores, then below each; those that are not vertices mean nothing."""
    ordered = curve.scores
    if not ordered.shape[-1]:
        return ordered.new_zeros(*ordered.shape[:-1], 1)
    counted = curve.positives + curve.negatives
    above, below = ordered[..., :1], ordered.gather(-1, (counted - 1).clamp(min=0))
    middle = ordered[..., 1:] / 2 + ordered[..., :-1] / 2
    # Neighbouring floats have nothing between them; the lower one itself then separates them.
    middle = torch.where(
        (middle < ordered[..., :-1]) & (middle >= ordered[..., 1:]), middle, ordered[..., 1:]
    )
    last = torch.minimum(below - 1, torch.nextafter(below, torch.full_like(below, -torch.inf)))
    positions = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    inner = torch.cat([middle, last], -1)
    inner = torch.where(positions == counted, last, inner)
    highest = torch.maximum(above + 1, torch.nextafter(above, torch.full_like(above, torch.inf)))
    return torch.cat([highest, inner], -1).masked_fill(counted == 0, 0.0)


def _by_trying(
    metric: FunctionMetric, scores: Tensor, target: Tensor, where: Tensor | None, candidates: int
) -> Tensor:
    whole("candidates", candidates, 2)
    scores, target, where = metric.check(scores.to(ops.float_dtype(scores)), target, where)
    if scores.shape != target.shape or metric.set_dims not in (None, (1, 1)):
        raise ValueError(
            f"a threshold belongs to binary scores [..., N]; got scores {shape(scores)} and target {shape(target)}"
        )
    curve = walk_down(scores, (target != 0) if where is None else (target != 0) & where, where)
    places, live = padded_places(F.pad(curve.vertex, (1, 0), value=True))
    number = live.sum(-1, keepdim=True)
    spread = torch.linspace(
        0, 1, min(candidates, places.shape[-1]), dtype=torch.float64, device=scores.device
    )
    tried = places.gather(-1, (spread * (number - 1)).round().to(torch.int64))
    thresholds = cuts(curve).gather(-1, tried)
    shifted = [
        metric.evaluate(scores - each.unsqueeze(-1), target, where)
        for each in thresholds.unbind(-1)
    ]
    values = torch.stack(shifted, -1)
    gains = (values if metric.higher_is_better else -values).nan_to_num(nan=-torch.inf)
    return _best(
        thresholds,
        gains,
        torch.ones_like(tried, dtype=torch.bool),
        torch.zeros_like(thresholds[..., :1]),
    )
