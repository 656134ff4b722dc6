r"""Losses of order: pairs of a positive and a negative, thresholds, soft ranks, whole lists.

A soft rank counts soft comparisons with all others; the highest score has rank 1:

.. math:: rank_i = 1 + \sum_{j \ne i} sigmoid(slope \, (s_j - s_i))

`RankLoss` alone counts from the other end.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.surrogates.base import counted, one_of
from metricgrad.surrogates.baselines.base import Baseline

GlobalGoal = Literal["average_precision", "auc", "recall_at_precision"]


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """`[..., N, N]`: first of i and second of j."""
    return first.unsqueeze(-1) & second.unsqueeze(-2)


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
        difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)
        match self.options["kind"]:
            case "logistic":
                loss = F.softplus(-difference)
            case "hinge":
                loss = (1 - difference).clamp(min=0)
            case _:
                loss = (1 - difference) ** 2
        pairs = _pairs(target & live, ~target & live)
        number = pairs.sum((-1, -2)).to(loss.dtype)
        return ops.divide(torch.where(pairs, loss, 0.0).sum((-1, -2)), number)


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
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        others = ~itself & live.unsqueeze(-2)
        above = (self.options["slope"] * (scores.unsqueeze(-2) - scores.unsqueeze(-1))).sigmoid()
        above = torch.where(others, above, 0.0)
        positives = 1 + (above * target.to(scores.dtype).unsqueeze(-2)).sum(-1)
        return 1 - ops.masked_mean(positives / (1 + above.sum(-1)), target & live)


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


class Graded(Baseline):
    """A loss of lists of graded documents."""

    like = "ndcg"
    kinds = ("binary", "labels", "grades")

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Lists with a relevant document."""
        return (target > 0).any(-1)

    def gains(self, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gains 2^grade - 1, `[..., N]`, and the DCG of the ideal order, `[..., 1]`."""
        gains = (torch.exp2(target) - 1) * counted(target, where)
        places = torch.arange(2, gains.shape[-1] + 2, device=gains.device, dtype=gains.dtype)
        ordered = gains.sort(-1, descending=True).values
        return gains, (ordered / torch.log2(places)).sum(-1, keepdim=True)


class ApproxNDCG(Graded):
    r"""1 - NDCG of soft ranks.

    .. math:: 1 - \frac{1}{DCG_{ideal}} \sum_i \frac{2^{y_i} - 1}{\log_2(1 + \tilde r_i)}

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.baselines.ApproxNDCG(slope=100.0)
        >>> loss(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]))
        tensor(0.)

    Reference:
        Qin, Liu and Li, A General Approximation Framework for Direct Optimization of Information
        Retrieval Measures, 2010; Bruch et al., 2019.
    """

    def __init__(self, *, slope: float = 1.0) -> None:
        super().__init__(slope=slope)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """1 - soft NDCG."""
        gains, ideal = self.gains(target, where)
        rank = ops.soft_rank(-scores, self.options["slope"], where).clamp(min=1)
        return 1 - ops.divide((gains / torch.log2(1 + rank)).sum(-1), ideal.squeeze(-1))


class LambdaLoss(Graded):
    r"""Pairs of different grades, each weighted by what exchanging the two changes in NDCG.

    .. math:: \sum_{g_i > g_j} |\Delta NDCG_{ij}| \, \log_2(1 + e^{-slope (s_i - s_j)})

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.LambdaLoss()(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
        tensor(0.3691)

    Reference:
        Burges, From RankNet to LambdaRank to LambdaMART, 2010; Wang et al., The LambdaLoss
        Framework, 2018.
    """

    def __init__(self, *, slope: float = 1.0) -> None:
        super().__init__(slope=slope)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The sum over pairs."""
        live = counted(target, where)
        gains, ideal = self.gains(target, where)
        with torch.no_grad():
            known = torch.where(live, scores, -torch.inf)
            rank = known.argsort(dim=-1, descending=True, stable=True).argsort(-1)
            discount = 1 / torch.log2(rank.to(scores.dtype) + 2)
            moved = discount.unsqueeze(-1) - discount.unsqueeze(-2)
            change = (gains.unsqueeze(-1) - gains.unsqueeze(-2)) * moved
            weight = ops.divide(change.abs(), ideal.unsqueeze(-1).expand_as(change))
            higher = (target.unsqueeze(-1) > target.unsqueeze(-2)) & _pairs(live, live)
        difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)
        loss = F.softplus(-self.options["slope"] * difference) / math.log(2)
        return torch.where(higher, weight * loss, 0.0).sum((-1, -2))


class ListNet(Graded):
    r"""Cross-entropy between the softmax of the grades and that of the scores.

    .. math:: -\sum_i softmax(g)_i \log softmax(s)_i \quad \text{(chances of standing first)}

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.ListNet()(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
        tensor(0.6931)

    Reference:
        Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, 2007, Eqn. 6
        and 7.
    """

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The cross-entropy of each list."""
        live = counted(target, where)
        wanted = torch.where(live, target, -torch.inf).softmax(-1)
        found = torch.where(live, scores, -torch.inf).log_softmax(-1)
        return -torch.where(live, wanted * found, 0.0).sum(-1)


class RankLoss(Baseline):
    r"""How far the target class y is from the top of the C classes, by its soft ascending rank.

    .. math:: \frac{1}{N} \sum_i |r_i - C|, \quad
        r_i = 1 + \sum_{c \ne y_i} sigmoid(slope \, (s_{i y_i} - s_{i c}))

    ReLoss takes this loss from Blondel et al., whose soft ranks are another function: the
    projection of the scores onto the convex hull of all rankings. Sums of sigmoids, as everywhere
    in this library, also tend to the ranks themselves as the slope grows. Binary scores are those
    of class 1, against 0 for class 0.

    Args:
        slope: Slope of the sigmoid.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.RankLoss()(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.)

    Reference:
        ReLoss, appendix, Eqn. 11; with other soft ranks, Blondel et al., Fast Differentiable
        Sorting and Ranking, 2020.
    """

    def __init__(self, *, slope: float = 1.0) -> None:
        super().__init__(slope=slope)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over items."""
        if scores.shape == target.shape:  # two classes: 0 has the score 0
            scores = torch.stack([torch.zeros_like(scores), scores], -1)
            target = target.long()
        ranks = ops.soft_rank(scores, self.options["slope"])
        rank = ranks.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return ops.masked_mean((scores.shape[-1] - rank).abs(), where)
