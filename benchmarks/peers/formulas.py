r"""Losses of libraries that cannot be installed beside ours, written from their papers.

AnyLoss (Han et al., 2024) counts with amplified probabilities,

.. math:: A(p) = 1 / (1 + e^{-L (p - 1/2)}), \quad F_1 = 2 TP / (2 TP + FP + FN)

The others are those of allRank, for lists of documents `[Q, N]` with grades; `where` is False for
padding. All of them take logits and return a 0-dim mean.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_FAR = -1e9  # a score below all others


def any_loss(scores: Tensor, target: Tensor, *, amplification: float = 73.0) -> Tensor:
    """1 - F1 of amplified probabilities; 73 is the authors' amplification."""
    chosen = torch.sigmoid(amplification * (torch.sigmoid(scores) - 0.5))
    positive = target.to(scores.dtype)
    hits = (chosen * positive).sum()
    return 1 - 2 * hits / (chosen.sum() + positive.sum()).clamp(min=1e-8)


def list_mle(scores: Tensor, grades: Tensor, where: Tensor) -> Tensor:
    """The likelihood of the order of the grades under Plackett and Luce (Xia et al., 2008).

    Documents of one grade keep the order in which they came.
    """
    order = grades.masked_fill(~where, -1.0).argsort(dim=-1, descending=True, stable=True)
    live = where.gather(-1, order)
    ranked = scores.gather(-1, order).masked_fill(~live, _FAR)
    rest = ranked.flip(-1).logcumsumexp(-1).flip(-1)
    return (rest - ranked).masked_fill(~live, 0.0).sum(-1).mean()


def rank_net(scores: Tensor, grades: Tensor, where: Tensor) -> Tensor:
    """The logistic loss of all pairs with different grades (Burges et al., 2005)."""
    above = (
        (grades[..., :, None] > grades[..., None, :]) & where[..., :, None] & where[..., None, :]
    )
    pairs = F.softplus(scores[..., None, :] - scores[..., :, None])
    return pairs[above].mean() if above.any() else scores.sum() * 0


def squared_error(scores: Tensor, grades: Tensor, where: Tensor) -> Tensor:
    """The squared error of grades from scores, the pointwise loss."""
    return (scores - grades)[where].square().mean()


def neural_ndcg(
    scores: Tensor, grades: Tensor, where: Tensor, *, temperature: float = 1.0, k: int = 10
) -> Tensor:
    """1 - NDCG@k of documents sorted by NeuralSort (Pobrotyn and Bialobrzeski, 2021).

    NeuralSort's rows are softmax distributions over documents; Sinkhorn's steps make its columns
    sum to 1, too.
    """
    ranked = _sorted_softly(scores, where, temperature)
    gains = (2.0**grades - 1).masked_fill(~where, 0.0)
    discounts = 1 / torch.log2(torch.arange(k, device=scores.device) + 2.0)
    k = min(k, scores.shape[-1])
    found = (ranked @ gains[..., None]).squeeze(-1)[..., :k]
    ideal = gains.sort(dim=-1, descending=True).values[..., :k]
    dcg = (found * discounts[:k]).sum(-1)
    best = (ideal * discounts[:k]).sum(-1)
    counts = best > 0
    return 1 - (dcg[counts] / best[counts]).mean() if counts.any() else scores.sum() * 0


def _sorted_softly(scores: Tensor, where: Tensor, temperature: float) -> Tensor:
    """A soft permutation `[Q, N, N]` whose row r weighs the documents that may have rank r."""
    both = where[..., :, None] & where[..., None, :]
    gaps = (scores[..., :, None] - scores[..., None, :]).abs().masked_fill(~both, 0.0).sum(-1)
    count = where.sum(-1, keepdim=True)
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    factors = (count + 1 - 2 * ranks).to(scores.dtype)
    logits = factors[..., :, None] * scores[..., None, :] - gaps[..., None, :]
    logits = (logits / temperature).masked_fill(~where[..., None, :], -math.inf)
    live = (ranks <= count)[..., :, None]
    soft = logits.softmax(-1).masked_fill(~live, 0.0)
    for _ in range(20):
        soft = _normalised(_normalised(soft, -2), -1)
    return soft


def _normalised(soft: Tensor, dim: int) -> Tensor:
    """Sums of 1 along a dimension, except where nothing but padding is summed."""
    total = soft.sum(dim, keepdim=True)
    return soft / total.where(total > 1e-10, 1.0)
