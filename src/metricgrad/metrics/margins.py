r"""Margins: by how much one of many scores wins, and their soft forms.

A class is predicted if its score exceeds the best other one, and a joint is found if the best pixel
near it exceeds the best one elsewhere. That margin decides the bit. But each rival could be the
best one if the scores were a little different. So a soft bit may be about all of them: with a
slope k, it takes the soft maximum of the rivals in place of the best one.

.. math:: s_c - \frac{1}{k} \log \sum_{j \ne c} e^{k s_j}

The sigmoid of k times this margin is the softmax of k s: the chance that the class is the highest
if every score has Gumbel noise of scale 1/k. At k = 1 it is the model's own probability, and the
gradient reaches all classes, as that of cross-entropy does.
"""

import torch
from torch import Tensor


def best_other_margin(scores: Tensor) -> Tensor:
    """Every class's score minus the best score of the other classes, `[..., C]`."""
    top, index = scores.topk(2, dim=-1)
    is_best = torch.arange(scores.shape[-1], device=scores.device) == index[..., :1]
    return scores - torch.where(is_best, top[..., 1:], top[..., :1])


def own_margin(scores: Tensor, target: Tensor, k: int) -> Tensor:
    """The target's score minus the k-th best of the others, `[...]` from scores `[..., C]`."""
    index = target.unsqueeze(-1)
    others = scores.scatter(-1, index, -torch.inf).topk(k, dim=-1).values[..., -1]
    return scores.gather(-1, index).squeeze(-1) - others


def soft_other_margin(scores: Tensor, slope: float) -> Tensor:
    r"""Every class's score minus the soft maximum of the other classes' scores, `[..., C]`.

    .. math:: s_c - \frac{1}{k} \log \sum_{j \ne c} e^{k s_j}

    The sigmoid of k times this margin is the softmax of k s.
    """
    scaled = slope * scores
    top = scaled.argmax(-1, keepdim=True)
    # Large scores would swallow the logarithms; the margin is the same without what they share.
    scaled = scaled - scaled.gather(-1, top).detach()
    # Of the highest class, the others are summed without it: 1 - p would lose their digits.
    beside_top = scaled.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    every = scaled.logsumexp(-1, keepdim=True)
    is_top = torch.arange(scores.shape[-1], device=scores.device) == top
    share = (scaled - every).masked_fill(is_top, -1.0).exp()
    return (scaled - torch.where(is_top, beside_top, every + torch.log1p(-share))) / slope


def soft_own_margin(scores: Tensor, slope: float, *, target: Tensor) -> Tensor:
    """The target's score minus the soft maximum of the others, `[...]` from scores `[..., C]`."""
    index = target.unsqueeze(-1)
    others = (slope * scores).scatter(-1, index, -torch.inf).logsumexp(-1)
    return scores.gather(-1, index).squeeze(-1) - others / slope


def best_pixel_margin(pixels: Tensor, near: Tensor) -> Tensor:
    """The best pixel within the radius minus the best one outside, `[...]` from pixels `[..., HW]`.

    Without pixels on one side the decision is settled: 1 if all are within, -1 if none is.
    """
    inside = pixels.masked_fill(~near, -torch.inf).amax(-1)
    outside = pixels.masked_fill(near, -torch.inf).amax(-1)
    settled = near.all(-1) | ~near.any(-1)
    margin = torch.where(settled, 0.0, inside) - torch.where(settled, 0.0, outside)
    return torch.where(settled, 2.0 * near.all(-1) - 1, margin)


def soft_pixel_margin(pixels: Tensor, near: Tensor, slope: float) -> Tensor:
    """The same with soft maxima: log sum exp(slope * pixel) / slope of both sides."""
    scaled = slope * pixels
    settled = near.all(-1) | ~near.any(-1)
    # A side without pixels is settled; it takes all of them, as a sum of none has no gradient.
    inside = scaled.masked_fill(~(near | settled.unsqueeze(-1)), -torch.inf).logsumexp(-1)
    outside = scaled.masked_fill(near & ~settled.unsqueeze(-1), -torch.inf).logsumexp(-1)
    return torch.where(settled, 2.0 * near.all(-1) - 1, (inside - outside) / slope)
