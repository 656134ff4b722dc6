"""Metrics in plain torch that the library does not have, as a user of `mg.reexpress` writes them.

They take one set, `(scores, target)`; those with decisions decide at score > 0. A table's settings
name one of these metrics or one of the library's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg

EARNED = 8.0  # for each customer who responds
COST = 1.0  # for each contact


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """What the list earns per customer if the best tenth of it is contacted."""
    contacted = scores.topk(len(scores) // 10).indices
    return (EARNED * target[contacted] - COST).sum() / len(scores)


def precision_at_recall(scores: Tensor, target: Tensor) -> Tensor:
    """The best precision at a recall of at least 0.8."""
    hits = target[scores.argsort(descending=True)].float()
    found = hits.cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1, device=hits.device)
    return torch.where(found >= 0.8 * hits.sum(), precision, 0).max()


def fowlkes_mallows(scores: Tensor, target: Tensor) -> Tensor:
    """The geometric mean of precision and recall."""
    predicted = scores > 0
    positive = target == 1
    right = (predicted & positive).sum()
    return right / (predicted.sum() * positive.sum()).clamp(min=1).sqrt()


def p4(scores: Tensor, target: Tensor) -> Tensor:
    """The harmonic mean of precision, recall, specificity and NPV (Sitarz, 2022)."""
    predicted = scores > 0
    positive = target == 1
    tp = (predicted & positive).sum()
    tn = (~predicted & ~positive).sum()
    wrong = (predicted != positive).sum()
    return 4 * tp * tn / (4 * tp * tn + (tp + tn) * wrong).clamp(min=1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    function.__name__: function for function in (profit, precision_at_recall, fowlkes_mallows, p4)
}
DECIDING = ("fowlkes_mallows", "p4")


def metric(name: str, threshold: float = 0.0, **options: Any) -> mg.Metric:
    """A metric by name: one of these, re-expressed, or one of the library's with its options."""
    if name not in FUNCTIONS or options:
        return mg.metric(name, **options, **({"threshold": threshold} if threshold else {}))
    function = FUNCTIONS[name]
    best = None if name == "profit" else 1.0
    return mg.reexpress(
        lambda scores, target: function(scores - threshold, target), best=best, name=name
    )


def decides(name: str, chosen: mg.Metric) -> bool:
    """Whether a metric has a threshold to tune."""
    return name in DECIDING or (chosen.layout == "binary" and chosen.has_threshold)
