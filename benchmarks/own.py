"""Metrics of the benchmarks' own, in plain torch: what a user of `mg.reexpress` would write. The library has none.

They take one set, `(scores, target)`, and decide at score > 0 where they decide. A name in a
table's settings may be one of these or one of the library's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg

EARNED, COST = 8.0, 1.0  # for each customer who responds, and for each contact


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """Earnings for each customer of the list, if the best tenth of it is contacted."""
    contacted = scores.topk(len(scores) // 10).indices
    return (EARNED * target[contacted] - COST).sum() / len(scores)


def precision_at_recall(scores: Tensor, target: Tensor) -> Tensor:
    """The best precision with a recall of at least 0.8."""
    hits = target[scores.argsort(descending=True)].float()
    found = hits.cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1, device=hits.device)
    return torch.where(found >= 0.8 * hits.sum(), precision, 0).max()


def fowlkes_mallows(scores: Tensor, target: Tensor) -> Tensor:
    """The geometric mean of precision and recall."""
    predicted, positive = scores > 0, target == 1
    right = (predicted & positive).sum()
    return right / (predicted.sum() * positive.sum()).clamp(min=1).sqrt()


def p4(scores: Tensor, target: Tensor) -> Tensor:
    """The harmonic mean of precision, recall, specificity and negative predictive value (Sitarz, 2022)."""
    predicted, positive = scores > 0, target == 1
    tp, tn = (predicted & positive).sum(), (~predicted & ~positive).sum()
    wrong = (predicted != positive).sum()
    return 4 * tp * tn / (4 * tp * tn + (tp + tn) * wrong).clamp(min=1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    function.__name__: function for function in (profit, precision_at_recall, fowlkes_mallows, p4)
}
DECIDING = ("fowlkes_mallows", "p4")


def metric(name: str, threshold: float = 0.0, **options: Any) -> mg.Metric:
    """A metric by name: one of these, re-expressed, or one of the library's.

    Args:
        name: of the metric.
        threshold: at which it decides.
        **options: the library metric's own.

    Returns:
        The metric.
    """
    if name not in FUNCTIONS:
        return mg.metric(name, **options, **({"threshold": threshold} if threshold else {}))
    function = FUNCTIONS[name]
    best = None if name == "profit" else 1.0
    return mg.reexpress(
        lambda scores, target: function(scores - threshold, target), best=best, name=name
    )


def decides(name: str, chosen: mg.Metric) -> bool:
    """Whether a metric has a threshold to tune."""
    return name in DECIDING or ("binary" in chosen.families and hasattr(chosen, "threshold"))
