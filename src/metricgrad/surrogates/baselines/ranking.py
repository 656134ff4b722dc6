r"""Losses of graded lists and of the rank of a class: soft ranks, pairs, whole lists.

A soft rank counts soft comparisons with all others; the highest score has rank 1:

.. math:: rank_i = 1 + \sum_{j \ne i} sigmoid(slope \, (s_j - s_i))

`RankLoss` alone counts from the other end.
"""

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import one_of
from metricgrad.metrics.order import padded_places
from metricgrad.surrogates.base import counted
from metricgrad.surrogates.baselines.base import Baseline
from metricgrad.surrogates.baselines.pairs import in_blocks


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
        live = counted(target, where)
        gains, ideal = self.gains(target, where)
        places, relevant = padded_places(gains > 0)
        above = in_blocks(partial(self._above, counts=live), scores.gather(-1, places), scores)
        # An item is half above itself, where its rank needs 1.
        discounted = gains.gather(-1, places) / torch.log2(1 + (above + 0.5).clamp(min=1))
        return 1 - ops.divide(ops.masked_sum(discounted, relevant), ideal.squeeze(-1))

    def _above(self, some: Tensor, others: Tensor, counts: Tensor) -> Tensor:
        """How many of the others that count stand above each of some items, softly counted."""
        lead = others.unsqueeze(-2) - some.unsqueeze(-1)
        return ops.masked_sum((self.options["slope"] * lead).sigmoid(), counts.unsqueeze(-2))


class LambdaLoss(Graded):
    r"""Pairs of different grades, each weighted by how much NDCG changes if the two are swapped.

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
        """The sum over pairs, of which the better item is relevant."""
        live = counted(target, where)
        gains, ideal = self.gains(target, where)
        known = torch.where(live, scores.detach(), -torch.inf)
        rank = known.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        discounts = 1 / torch.log2(rank.to(scores.dtype) + 2)
        places, relevant = padded_places(gains > 0)
        rows = torch.stack([each.gather(-1, places) for each in (scores, gains, discounts)], -2)
        pairs = partial(self._of_relevant, gains=gains, discounts=discounts, counts=live)
        losses = ops.masked_sum(in_blocks(pairs, rows, scores), relevant)
        return ops.divide(losses, ideal.squeeze(-1))

    def _of_relevant(
        self, rows: Tensor, others: Tensor, gains: Tensor, discounts: Tensor, counts: Tensor
    ) -> Tensor:
        """The sum over all less relevant items, for scores, gains and discounts `[..., 3, L]`."""
        score, gain, discount = rows.unsqueeze(-1).unbind(-3)
        change = (gain - gains.unsqueeze(-2)).clamp(min=0)
        change = change * (discount - discounts.unsqueeze(-2)).abs()
        loss = F.softplus(-self.options["slope"] * (score - others.unsqueeze(-2))) / math.log(2)
        return ops.masked_sum(change * loss, counts.unsqueeze(-2))


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

    .. math:: \frac{1}{N} \sum_i |r_{i y_i} - C|, \quad
        r_i = \arg\min_{r \in P} \| r - slope \, s_i \|^2

    P is the convex hull of all rankings of C classes, and the ranks are those of Blondel et al.,
    from whom ReLoss takes this loss (`mg.ops.projected_rank`). With `rank="pairwise"` they are sums
    of sigmoids, :math:`r_{i y} = 1 + \sum_{c \ne y} sigmoid(slope \, (s_{i y} - s_{i c}))`
    (`mg.ops.soft_rank`). Both tend to the ranks themselves as the slope grows. Binary scores are
    those of class 1, against 0 for class 0.

    Args:
        slope: How closely soft ranks follow the steps of the true ones; higher is closer.
        rank: `"projection"`, as in the paper, or `"pairwise"`.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.RankLoss()(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.)

    Reference:
        ReLoss, appendix, Eqn. 11; Blondel et al., Fast Differentiable Sorting and Ranking, 2020.
    """

    def __init__(
        self, *, slope: float = 1.0, rank: Literal["projection", "pairwise"] = "projection"
    ) -> None:
        super().__init__(slope=slope, rank=rank)
        one_of("rank", rank, ("projection", "pairwise"))

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over items."""
        if scores.shape == target.shape:  # two classes: 0 has the score 0
            scores = torch.stack([torch.zeros_like(scores), scores], -1)
            target = target.long()
        ranking = ops.soft_rank if self.options["rank"] == "pairwise" else ops.projected_rank
        ranks = ranking(scores, self.options["slope"])
        rank = ranks.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return ops.masked_mean((scores.shape[-1] - rank).abs(), where)
