"""Losses of positives against negatives: their pairs, soft ranks, thresholds on the way."""

import math
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import one_of
from metricgrad.surrogates.base import counted
from metricgrad.surrogates.baselines.base import Baseline
from metricgrad.surrogates.baselines.pairs import chosen_scores, in_blocks

GlobalGoal = Literal["average_precision", "auc", "recall_at_precision"]


class Binary(Baseline):
    """A loss of positives against negatives: sets with one class have nothing to learn from."""

    like = "auc"
    kinds = ("binary", "labels")

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Binary scores; ValueError for more than two classes."""
        inputs = super().check(scores, target, where)
        if inputs.scores.shape != inputs.target.shape:
            raise ValueError(
                f"{type(self).__name__} takes binary scores [..., N] and a target of the same "
                f"shape; got scores {list(scores.shape)} and target {list(target.shape)}"
            )
        return inputs

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Sets with both classes."""
        live = counted(target, where)
        return (target & live).any(-1) & (~target & live).any(-1)


class PairwiseRanking(Binary):
    r"""A loss of every pair of a positive i and a negative j, for 1 - AUC.

    .. math:: \frac{1}{P M} \sum_{ij} \log(1 + e^{-c_{ij}}), \quad c_{ij} = s_i - s_j

    Args:
        kind: `"logistic"`, `"hinge"` (max(0, 1 - c)) or `"squared"` ((1 - c)^2).

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.PairwiseRanking()(torch.tensor([1.0, 1.0]), torch.tensor([1, 0]))
        tensor(0.6931)

    Reference:
        Burges et al., Learning to Rank using Gradient Descent, 2005; Learning Surrogate Losses,
        Sec. 4.3.
    """

    def __init__(self, *, kind: str = "logistic") -> None:
        super().__init__(kind=kind)
        one_of("kind", kind, ("logistic", "hinge", "squared"))

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over pairs."""
        live = counted(target, where)
        high, is_positive = chosen_scores(scores, target & live)
        low, is_negative = chosen_scores(scores, ~target & live)
        losses = in_blocks(partial(self._of_positives, counts=is_negative), high, low)
        number = (is_positive.sum(-1) * is_negative.sum(-1)).to(losses.dtype)
        return ops.divide(ops.masked_sum(losses, is_positive), number)

    def _of_positives(self, high: Tensor, low: Tensor, counts: Tensor) -> Tensor:
        """The sum over the negatives `[..., M]` that count, for some positives `[..., L]`."""
        difference = high.unsqueeze(-1) - low.unsqueeze(-2)
        match self.options["kind"]:
            case "logistic":
                loss = F.softplus(-difference)
            case "hinge":
                loss = (1 - difference).clamp(min=0)
            case _:
                loss = (1 - difference) ** 2
        return ops.masked_sum(loss, counts.unsqueeze(-2))


class SmoothAP(Binary):
    r"""1 - average precision of soft ranks.

    .. math:: 1 - \frac{1}{P} \sum_{i \in P}
        \frac{1 + \sum_{j \in P} \sigma_{ij}}{1 + \sum_j \sigma_{ij}}, \quad
        \sigma_{ij} = sigmoid(slope \, (s_j - s_i))

    Args:
        slope: Slope of the sigmoid; the paper takes 100, on scores between -1 and 1.

    Example:
        >>> import metricgrad as mg
        >>> scores = torch.tensor([2.0, 1.0, 0.0])
        >>> mg.baselines.SmoothAP(slope=100.0)(scores, torch.tensor([1, 0, 0]))
        tensor(0.)

    Reference:
        Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, 2020,
        Eqn. 6.
    """

    like = "average_precision"

    def __init__(self, *, slope: float = 1.0) -> None:
        super().__init__(slope=slope)

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Sets with positives."""
        return (target & counted(target, where)).any(-1)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over positives."""
        live = counted(target, where)
        high, is_positive = chosen_scores(scores, target & live)
        low, is_negative = chosen_scores(scores, ~target & live)
        # Padding stands above nothing.
        others = high.masked_fill(~is_positive, -torch.inf)
        low = low.masked_fill(~is_negative, -torch.inf)
        return 1 - ops.masked_mean(in_blocks(self._precision, high, others, low), is_positive)

    def _precision(self, high: Tensor, others: Tensor, low: Tensor) -> Tensor:
        """The precision at each of some positives `[..., L]`, which are among the others."""
        # A positive is half above itself, where its rank needs 1.
        positives = 0.5 + self._above(high, others)
        return positives / (positives + self._above(high, low))

    def _above(self, some: Tensor, others: Tensor) -> Tensor:
        """How many of the others stand above each of some scores, softly counted."""
        lead = others.unsqueeze(-2) - some.unsqueeze(-1)
        return (self.options["slope"] * lead).sigmoid().sum(-1)


class GlobalObjective(Binary):
    r"""Losses with thresholds and multipliers that are trained along with the model.

    .. math:: \min_{s, b} \max_{\lambda \ge 0} \;
        (1 + \lambda) L^+ + \lambda \frac{a}{1 - a} L^- - \lambda P

    This is recall at a precision of at least a, relaxed: L+ and L- bound the counts of positives
    and negatives on the wrong side of a threshold b, and a multiplier holds the constraint. The
    area under a curve is a mean over such points. Pass `loss.parameters()` to the optimizer, beside
    those of the model.

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
        positive = target & counted(target, where)
        negative = ~target & counted(target, where)
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
