r"""Gradient and curvature of a metric by the scores of its items.

A booster asks for two numbers per row, the first and second derivative of its loss. The first is
the gradient of `UniLoss`: gains w times the slope of a relaxed comparison c,

.. math:: g = -k \sum_d w_d \, h'(k c_d) \, \frac{\partial c_d}{\partial s}

The second is that of the convex relaxation, the logistic loss of each comparison, with the gains as
they are:

.. math:: \frac{\partial^2}{\partial s^2} \sum_d |w_d| \log(1 + e^{-k c_d}) =
    k^2 \sum_d |w_d| \, \sigma'(k c_d) \left( \frac{\partial c_d}{\partial s} \right)^2

It is positive for every relaxation. A metric of order has both from one pass over its pairs.

Comparisons of a metric of ours are better won. A function of the user's own may have some that are
better lost, such as the contact of a customer who is not worth it: these are turned round, so that
every weight is positive. The logistic loss of a negative weight would have no minimum.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.reexpression import Reexpression
from metricgrad.metrics.rows import Rows
from metricgrad.surrogates import UniLoss
from metricgrad.surrogates.calls import bound
from metricgrad.surrogates.pair_sums import pair_slopes

Gains = Literal["flip", "swap"]


class Slopes(NamedTuple):
    """The gradient and the curvature of a metric, for many sets at once."""

    loss: UniLoss
    gains: Gains

    def of(
        self, scores: Tensor, target: Tensor, where: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Both derivatives of the sum over all sets, in the shape of the scores.

        Args:
            scores: `[S, L]`, or `[S, L, C]` for classes.
            target: `[S, L]`, 0 and 1, class indices or grades.
            where: `[S, L]`, True for what counts.
            rows: What else the metric takes of an item, `[S, L]` each.
        """
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad(), bound(self.loss, rows):
            inputs = self.loss.check(leaf, target, where)
            plan = self.loss.plan(inputs)
            pairs = plan.pairwise()
            if pairs is None:
                return self._of_comparisons(plan, inputs.scores, leaf)
            ranked = pairs.ranked(inputs.scores)
        slopes = pair_slopes(pairs, ranked.detach(), self.loss.relaxation, self.gains == "swap")
        if ranked.dim() == 3:  # one score a class, items first
            ranked = ranked.mT.flatten(-2)
            slopes = [each.mT.flatten(-2) for each in slopes]
        gradient = -self._upward(_passed_on(ranked, slopes[0], leaf))
        return gradient, _squared(ranked, slopes[1], leaf)

    def _of_comparisons(
        self, plan: Reexpression, scores: Tensor, leaf: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same from every comparison, where the metric is not a sum over pairs."""
        if self.gains == "swap":
            raise ValueError(
                "swap gains are for metrics of the order of scores, with at most 64 grades; "
                f"{self.loss.metric.name} is not one of them; pass gains='flip'"
            )
        comparisons, live = plan.comparisons(scores)
        slope = self.loss.relaxation.slope
        with torch.no_grad():
            bits = comparisons > 0
            value = plan.from_bits(bits)
            counts = live & plan.defined().unsqueeze(-1)
            gains = torch.where(counts, plan.flip_gains(bits), 0.0).to(scores.dtype)
            direct = plan.direct()
            scale = plan.scale()
            if scale is not None:
                gains = gains / scale.unsqueeze(-1)
            better = self._upward(gains)
            turn = torch.where(better < 0, -slope, slope)
            first, second = self.loss.relaxation.weighted_slopes(turn * comparisons, better.abs())
        share = _share(comparisons, leaf)
        gradient = -share * _passed_on(comparisons, turn * first, leaf)
        if direct is not None:
            unit = torch.ones_like(value) if scale is None else 1 / scale
            gradient = gradient - self._upward(_passed_on(direct, unit, leaf))
        return gradient, slope**2 * share**2 * _squared(comparisons, second, leaf)

    def _upward(self, change: Tensor) -> Tensor:
        """A change of the metric, positive where it is for the better."""
        return change if self.loss.metric.higher_is_better else -change


def _passed_on(outputs: Tensor, slope: Tensor, leaf: Tensor) -> Tensor:
    """The derivative by the leaf of sum(slope * outputs)."""
    (found,) = torch.autograd.grad(
        outputs, leaf, slope.to(outputs.dtype), retain_graph=True, materialize_grads=True
    )
    return found


def _squared(outputs: Tensor, curvature: Tensor, leaf: Tensor) -> Tensor:
    """The sum over the outputs, `[S, D]`, of their curvature times the squared derivative.

    An item has as many outputs in a row as it has comparisons, and they are taken one by one, so
    that each score is in one output at a time. Comparisons of items with each other, which a
    function of the user's own may have, and NDCG with more than 64 grades, are taken together. That
    is exact where a score is on the same side of all of its comparisons, as positives and negatives
    are, and too small elsewhere.
    """
    each = _each(outputs, leaf)
    if not each:
        return _passed_on(outputs, curvature, leaf).abs()
    total = torch.zeros_like(leaf)
    roots = curvature.sqrt()
    for first in range(each):
        total += _passed_on(outputs[..., first::each], roots[..., first::each], leaf).square()
    return total


def _share(outputs: Tensor, leaf: Tensor) -> Tensor:
    """What a score takes of the comparisons it is in: 1, or less for one that many refer to.

    The score at the cut of a best tenth is compared with those of all items. Together they would
    give this one row more weight than all others have, and the leaf that holds it would not move.
    So it takes their average. Where items are compared with each other, every score takes all.
    """
    each = _each(outputs, leaf)
    if not each:
        return torch.ones_like(leaf)
    moved = _passed_on(outputs, torch.ones_like(outputs), leaf).abs()
    return each / moved.clamp(min=each)


def _each(outputs: Tensor, leaf: Tensor) -> int:
    """Comparisons of every item, `[S, items * each]`; 0 where they compare each other."""
    classes = leaf[0, 0].numel()
    each, rest = divmod(outputs.shape[-1], leaf.shape[1])
    return each if not rest and each <= classes**2 else 0
