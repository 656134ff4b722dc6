r"""Gradient and curvature of a metric by the scores of its items.

A booster asks for two numbers per row, the first and second derivative of its loss. The first is
the gradient of `UniLoss`: flip gains w times the slope of a relaxed comparison c,

.. math:: g = -k \sum_d w_d \, h'(k c_d) \, \frac{\partial c_d}{\partial s}

The second is that of the convex relaxation, the logistic loss of each comparison. Its derivative is
a sigmoid, whose derivative the sigmoid relaxation has as its first:

.. math:: \frac{\partial^2}{\partial s^2} \sum_d |w_d| \log(1 + e^{-k c_d}) =
    k^2 \sum_d |w_d| \, \sigma'(k c_d)

as every comparison is a difference of scores. So where a score is always on the same side of its
comparisons, the curvature is k times the gradient of `UniLoss` with sigmoids, without its sign. The
documents of a query are on both sides; `pair_curvature` adds those up.
"""

import torch
from torch import Tensor

from metricgrad.metrics.rows import Rows
from metricgrad.surrogates import UniLoss
from metricgrad.surrogates.calls import bound
from metricgrad.surrogates.pair_sums import pair_curvature


class Slopes:
    """The gradient and the curvature of a metric, for many sets at once."""

    def __init__(self, loss: UniLoss) -> None:
        self.loss = loss
        slope = loss.relaxation.slope
        self._slope = slope
        self._sigmoid = UniLoss(
            loss.metric, relaxation="sigmoid", slope=slope, generator=loss.generator
        )

    def of(
        self, scores: Tensor, target: Tensor, where: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Both derivatives of the sum over all sets, in the shape of the scores.

        Args:
            scores: `[S, L]`, or `[S, L, C]` for classes.
            target: `[S, L]`.
            where: `[S, L]`, True for what counts.
            rows: What else the metric takes of an item, `[S, L]` each.
        """
        gradient = _gradient(self.loss, scores, target, where, rows)
        metric = self.loss.metric
        if metric.layout == "grades":
            inputs = metric.check(scores, target, where)
            plan = metric.reexpress(scores.shape, inputs.target, inputs.where, scores.dtype)
            pairs = plan.pairwise()
            if pairs is not None:
                return gradient, pair_curvature(pairs, inputs.scores, self._slope)
        curvature = _gradient(self._sigmoid, scores, target, where, rows).abs()
        return gradient, self._slope * curvature


def _gradient(loss: UniLoss, scores: Tensor, target: Tensor, where: Tensor, rows: Rows) -> Tensor:
    leaf = scores.detach().requires_grad_()
    with torch.enable_grad(), bound(loss, rows):
        values, defined = loss.losses(leaf, target, where)
        total = torch.where(defined, values, 0.0).sum()
    return torch.autograd.grad(total, leaf)[0]
