r"""Lovasz's extension of the Jaccard index: tight, convex in the errors, found by one sort.

With errors m in descending order and J_k the Jaccard loss if the k largest errors were mistakes,
the extension is sum_k m_(k) (J_k - J_(k-1)).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.surrogates.baselines.base import Baseline


def lovasz_extension(errors: Tensor, truth: Tensor, where: Tensor | None) -> Tensor:
    """The extension of 1 - Jaccard, `[...]`, at errors `[..., N]` of 0 or more."""
    if where is not None:
        errors = torch.where(where, errors, 0.0)
        truth = truth & where
    ordered, order = errors.sort(-1, descending=True)
    hit = truth.gather(-1, order).to(errors.dtype)
    missed = (1 - hit) if where is None else (1 - hit) * where.gather(-1, order)
    positives = hit.sum(-1, keepdim=True)
    jaccard = 1 - ops.divide(positives - hit.cumsum(-1), positives + missed.cumsum(-1))
    steps = torch.diff(jaccard, dim=-1, prepend=torch.zeros_like(jaccard[..., :1]))
    return (ordered * steps).sum(-1)


class Lovasz(Baseline):
    r"""The Lovasz hinge for binary scores, the Lovasz softmax for classes, for 1 - Jaccard.

    .. math:: \sum_i e_{(i)} \, (J_i - J_{i - 1}), \quad e_{(1)} \ge e_{(2)} \ge \dots

    J_i is 1 - Jaccard if just the i largest errors are mistakes. Errors are max(0, 1 - s y) with y
    of +-1, or |1[y = c] - softmax(s)_c|, averaged over the classes that are present.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.Lovasz()(torch.tensor([2.0, -2.0, 0.0]), torch.tensor([1, 0, 1]))
        tensor(0.5000)

    Reference:
        Berman, Triki and Blaschko, The Lovasz-Softmax Loss, 2018, Eqn. 8 to 12.
    """

    like = "jaccard"

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The extension."""
        if scores.shape == target.shape:
            errors = (1 - torch.where(target, scores, -scores)).clamp(min=0)
            return lovasz_extension(errors, target, where)
        truth = F.one_hot(target, scores.shape[-1]).bool().movedim(-1, 0)
        chance = scores.softmax(-1).movedim(-1, 0)
        counted = None if where is None else where.expand(truth.shape)
        values = lovasz_extension((truth.to(chance.dtype) - chance).abs(), truth, counted)
        present = (truth if counted is None else truth & counted).any(-1)
        return ops.masked_mean(values.movedim(0, -1), present.movedim(0, -1))
