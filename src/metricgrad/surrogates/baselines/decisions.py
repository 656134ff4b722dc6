r"""Losses in place of a confusion matrix of decisions: of soft counts, and Lovasz's extension.

With p_i = sigmoid(slope * s_i), or the softmax for classes, soft counts are

.. math:: tp = \sum_i y_i p_i, \quad fp = \sum_i (1 - y_i) p_i, \quad fn = \sum_i y_i (1 - p_i)

with tn as the rest, and a metric's formula of counts takes them as it takes whole ones. AnyLoss
(Han et al., 2024) is this with chances amplified towards 0 and 1: sigmoid(amplification * (p -
1/2)).

Lovasz's extension of 1 - Jaccard is tight, convex in the errors, and found by one sort.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.confusion import FBeta, Jaccard
from metricgrad.metrics.counts import Counts
from metricgrad.surrogates.baselines.base import Baseline


class SoftDecisions(Baseline):
    """A metric's formula of soft counts, as a loss: a mean over classes, each against the rest."""

    def __init__(
        self, *, slope: float = 1.0, amplification: float | None = None, **options: float
    ) -> None:
        super().__init__(slope=slope, amplification=amplification, **options)

    @abstractmethod
    def of_counts(self, counts: Counts) -> Tensor:
        """The metric's formula."""

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """1 minus the metric of soft counts."""
        slope = self.options["slope"]
        amplification = self.options["amplification"]
        if scores.shape == target.shape:
            chance = (slope * scores).sigmoid()
            truth = target.to(scores.dtype)
        else:
            chance = (slope * scores).softmax(-1).movedim(-1, 0)
            truth = F.one_hot(target, scores.shape[-1]).movedim(-1, 0).to(scores.dtype)
        if amplification is not None:
            chance = (amplification * (chance - 0.5)).sigmoid()
        tp = ops.masked_sum(truth * chance, where)
        predicted = ops.masked_sum(chance, where)
        positives = ops.masked_sum(truth, where)
        items = ops.masked_sum(torch.ones_like(truth), where)
        counts = Counts(tp, predicted - tp, positives - tp, items - predicted - positives + tp)
        found = self.of_counts(counts)
        return 1 - (found if scores.shape == target.shape else found.mean(0))


class SoftFBeta(SoftDecisions):
    r"""Soft F-beta, of counts that add up chances instead of decisions.

    .. math:: 1 - \frac{(1 + \beta^2) tp}{(1 + \beta^2) tp + \beta^2 fn + fp}

    Args:
        beta: How much more recall counts than precision.
        amplification: How far AnyLoss drives chances to 0 and 1 (its paper: 73); None does not.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.SoftFBeta()(torch.tensor([30.0, -30.0]), torch.tensor([1, 0]))
        tensor(0.)

    Reference:
        Pastor-Pellicer et al., F-Measure as the Error Function to Train Neural Networks, 2013.
    """

    like = "f1"

    def __init__(
        self, *, beta: float = 1.0, slope: float = 1.0, amplification: float | None = None
    ) -> None:
        super().__init__(slope=slope, amplification=amplification, beta=beta)

    def of_counts(self, counts: Counts) -> Tensor:
        """F-beta."""
        return FBeta(beta=self.options["beta"]).of_counts(counts)


class SoftJaccard(SoftDecisions):
    r"""Soft Jaccard, of counts that add up chances instead of decisions.

    .. math:: 1 - \frac{tp}{tp + fp + fn}

    Args:
        amplification: How far AnyLoss drives chances to 0 and 1 (its paper: 73); None does not.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.SoftJaccard()(torch.tensor([30.0, -30.0]), torch.tensor([1, 0]))
        tensor(0.)

    Reference:
        Rahman and Wang, Optimizing Intersection-over-Union in Deep Neural Networks, 2016.
    """

    like = "jaccard"

    def of_counts(self, counts: Counts) -> Tensor:
        """The Jaccard index."""
        return Jaccard().of_counts(counts)


class SoftMcc(SoftDecisions):
    r"""Soft Matthews correlation, of counts that add up chances instead of decisions.

    .. math:: 1 - \frac{tp \, tn - fp \, fn}{\sqrt{(tp + fp)(tp + fn)(tn + fp)(tn + fn)}}

    Args:
        amplification: How far AnyLoss drives chances to 0 and 1 (its paper: 73); None does not.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.SoftMcc()(torch.tensor([30.0, -30.0]), torch.tensor([1, 0]))
        tensor(0.)

    Reference:
        Abhishek and Hamarneh, Matthews Correlation Coefficient Loss for Deep Convolutional
        Networks, 2021.
    """

    like = "mcc"

    def of_counts(self, counts: Counts) -> Tensor:
        """MCC, with a gradient of 0 where a margin is empty: the root has none there."""
        tp, fp, fn, tn = counts
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        safe = torch.where(product > 0, product, 1.0)
        return torch.where(product > 0, (tp * tn - fp * fn) / safe.sqrt(), 0.0)


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
