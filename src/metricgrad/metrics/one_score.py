"""Scores with a trailing dimension of 1: the only place that decides what such a column means.

A model with one output returns `[N, 1]`, and targets often come in that shape, too. Metrics,
losses, thresholds and trainings ask here, so that all of them read the same sets:

    scores [..., N, 1], target [..., N]      N items, one score each
    scores and target [..., N, 1]            N items, too, as torch's own losses take them

The second is never N sets of one item: nothing can be ranked or averaged there. Queries, some of
which have a single document, are passed as one flat set with `groups`, or padded with `where`.

Labels are left alone (`[..., N, 1]` is N items with one label), and so are maps, joints, text and
functions that have said what makes one of their sets. Two scores for each item are classes, which
`ClassificationMetric` takes as s1 - s0.
"""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from metricgrad.metrics.base import Metric


def item_scores(metric: "Metric | None", scores: Tensor, target: Tensor) -> Tensor:
    """Scores `[..., N, 1]` of a target `[..., N]` as `[..., N]`; others unchanged.

    Leading dimensions may be sets or models, so scores and target `[..., 1]` stay as they are.
    Without a metric, items have one score each.
    """
    if (metric is None or metric.one_score_each) and scores.shape == (*target.shape, 1):
        return scores.squeeze(-1)
    return scores


def as_items(
    metric: "Metric | None", scores: Tensor, target: Tensor, where: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores, target and `where` that a user passed, without a column of 1."""
    if scores.shape[-1:] != (1,) or not (metric is None or metric.one_score_each):
        return scores, target, where
    flags = where if where is None or where.shape != scores.shape else where.squeeze(-1)
    if scores.shape == (*target.shape, 1):
        return scores.squeeze(-1), target, flags
    if scores.shape != target.shape or scores.dim() < 2:
        return scores, target, where
    return scores.squeeze(-1), target.squeeze(-1), flags


def item_target(target: Tensor, metric: "Metric | None" = None) -> Tensor:
    """Targets of data, whose first dimension is its items: `[items, 1]` as `[items]`."""
    column = target.dim() == 2 and target.shape[1] == 1
    return target.squeeze(1) if column and (metric is None or metric.one_score_each) else target
