"""Losses of installed peers that drop into an ordinary training: AP-Perf, torchsort.

AP-Perf solves a min-max game for every batch, in NumPy: at a batch of 50 a step takes a good part
of a second. torchsort gives soft ranks; average precision on them is a textbook's formula.
"""

from collections.abc import Callable
from importlib import import_module

from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def ap_perf() -> Loss:
    """F1 by adversarial prediction, as AP-Perf defines it itself."""
    metric = import_module("ap_perf.common_metrics").f1_score
    layer = import_module("ap_perf").MetricLayer(metric)

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return layer(scores, target.to(scores.dtype)).sum() / len(scores)

    return loss


def torchsort_ap(strength: float) -> Loss:
    """1 - average precision of torchsort's soft ranks; `strength` smooths them."""
    torchsort = import_module("torchsort")

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        positive = target.bool()
        if not positive.any():
            return scores.sum() * 0
        ranks = torchsort.soft_rank(-scores[None], regularization_strength=strength)[0]
        own = torchsort.soft_rank(-scores[positive][None], regularization_strength=strength)[0]
        return 1 - (own / ranks[positive]).mean()

    return loss
