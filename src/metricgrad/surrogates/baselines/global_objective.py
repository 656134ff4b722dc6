r"""Global objectives: a constraint on counts, relaxed by losses and held by Lagrange multipliers.

Recall at a precision of at least a, with a threshold b of its own and a multiplier l:

.. math:: \min_{f, b} \max_{l \ge 0} \; (1 + l) L^+ + l \frac{a}{1 - a} L^- - l P

where L+ and L- are the hinge (or logistic) losses of positives and negatives at s - b: upper bounds
of the counts of those on the wrong side. The area under a curve is a mean over such points, each
with its threshold and multiplier.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.surrogates.base import one_of
from metricgrad.surrogates.baselines.ranking import Binary

GlobalGoal = Literal["average_precision", "auc", "recall_at_precision"]


class GlobalObjective(Binary):
    r"""Losses with thresholds and multipliers that are trained along with the model.

    .. math:: \min_{s, b} \max_{\lambda \ge 0} \; L^+(b) + \lambda (L^-(b) - bound)

    L+ and L- are hinge-like bounds of missed positives and of negatives above a threshold b. Pass
    `loss.parameters()` to the optimizer, beside those of the model.

    Args:
        objective: `"average_precision"` (points of equal precision), `"auc"` (points of equal false
            positive rate) or `"recall_at_precision"`.
        at: The precision to hold, for recall at precision.
        points: Number of points of the curve.
        kind: The bound of a count: `"hinge"` or `"logistic"`.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.baselines.GlobalObjective(objective="recall_at_precision", at=0.5)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)

    Reference:
        Eban et al., Scalable Learning of Non-Decomposable Objectives, 2017, Eqn. 8 to 14.
    """

    def __init__(
        self,
        *,
        objective: GlobalGoal = "average_precision",
        at: float = 0.9,
        points: int = 20,
        kind: Literal["hinge", "logistic"] = "hinge",
    ) -> None:
        super().__init__(objective=objective, at=at, points=points, kind=kind)
        one_of("objective", objective, get_args(GlobalGoal))
        if not 0 < at < 1:
            raise ValueError(f"at must lie between 0 and 1; got {at}")
        number = 1 if objective == "recall_at_precision" else points
        self.threshold = nn.Parameter(torch.zeros(number))
        self.multiplier = nn.Parameter(torch.ones(number))

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The Lagrangian of every set, per positive; descending it raises the multipliers."""
        number = len(self.threshold)
        level = (torch.arange(number, device=scores.device, dtype=scores.dtype) + 0.5) / number
        if self.options["objective"] == "recall_at_precision":
            level = torch.full_like(level, self.options["at"])
        # A descent step on a parameter p of f(2 p.detach() - p) is an ascent step on f(p).
        held = (2 * self.multiplier.detach() - self.multiplier).clamp(min=0).to(scores.dtype)
        margin = scores.unsqueeze(-1) - self.threshold.to(scores.dtype)
        signed = torch.where(target.unsqueeze(-1), margin, -margin)
        if self.options["kind"] == "hinge":
            loss = (1 - signed).clamp(min=0)
        else:
            loss = F.softplus(-signed) / math.log(2)
        positive = target if where is None else target & where
        negative = ~target if where is None else ~target & where
        missed = torch.where(positive.unsqueeze(-1), loss, 0.0).sum(-2)
        taken = torch.where(negative.unsqueeze(-1), loss, 0.0).sum(-2)
        positives = positive.sum(-1, keepdim=True).to(scores.dtype)
        negatives = negative.sum(-1, keepdim=True).to(scores.dtype)
        if self.options["objective"] == "auc":
            value = ops.divide(missed, positives) + held * (ops.divide(taken, negatives) - level)
        else:
            value = (1 + held) * missed + held * level / (1 - level) * taken - held * positives
            value = ops.divide(value, positives.expand_as(value))
        return value.mean(-1)
