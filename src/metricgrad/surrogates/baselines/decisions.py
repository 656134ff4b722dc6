r"""Losses of soft decisions: a confusion matrix of chances in place of one of decisions.

With p_i = sigmoid(slope * s_i), or the softmax for classes, soft counts are

.. math:: tp = \sum_i y_i p_i, \quad fp = \sum_i (1 - y_i) p_i, \quad fn = \sum_i y_i (1 - p_i), \quad tn = ...

and a metric's formula of counts takes them as it takes whole ones. AnyLoss (Han et al., 2024) is
this with chances amplified towards 0 and 1: sigmoid(amplification * (p - 1/2)).
"""

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.confusion import ConfusionMetric, FBeta
from metricgrad.metrics.counts import Counts
from metricgrad.surrogates.baselines.base import Baseline


class SoftDecisions(Baseline):
    """A metric's formula of soft counts, as a loss; many classes one against the rest, the mean of their values.

    Args:
        slope: of the sigmoid.
        amplification: AnyLoss's, which chances get towards 0 and 1; None leaves them (its paper
            takes 73).
    """

    def __init__(
        self, *, slope: float = 1.0, amplification: float | None = None, **options: float
    ) -> None:
        super().__init__(slope=slope, amplification=amplification, **options)
        if not slope > 0:
            raise ValueError(f"slope must be above 0; got {slope}")

    @property
    def metric(self) -> ConfusionMetric:
        """The metric whose formula takes the soft counts."""
        found = to_metric(self.like)
        assert isinstance(found, ConfusionMetric)
        return found

    def of_counts(self, counts: Counts) -> Tensor:
        """The metric's formula."""
        return self.metric.of_counts(counts)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """1 minus the metric of soft counts."""
        slope, amplification = self.options["slope"], self.options["amplification"]
        if scores.shape == target.shape:
            chance, truth = (slope * scores).sigmoid(), target.to(scores.dtype)
        else:
            chance = (slope * scores).softmax(-1).movedim(-1, 0)
            truth = (
                torch.nn.functional.one_hot(target, scores.shape[-1])
                .movedim(-1, 0)
                .to(scores.dtype)
            )
        if amplification is not None:
            chance = (amplification * (chance - 0.5)).sigmoid()
        tp, predicted = ops.masked_sum(truth * chance, where), ops.masked_sum(chance, where)
        positives, items = (
            ops.masked_sum(truth, where),
            ops.masked_sum(torch.ones_like(truth), where),
        )
        counts = Counts(tp, predicted - tp, positives - tp, items - predicted - positives + tp)
        found = self.of_counts(counts)
        return 1 - (found if scores.shape == target.shape else found.mean(0))


class SoftFBeta(SoftDecisions):
    r"""Soft F-beta: (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp).

    Args:
        beta: how much more recall counts than precision.
        slope: of the sigmoid.
        amplification: AnyLoss's; None for none.

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

    @property
    def metric(self) -> ConfusionMetric:
        """F-beta."""
        return FBeta(beta=self.options["beta"])


class SoftJaccard(SoftDecisions):
    """Soft Jaccard: tp / (tp + fp + fn)."""

    like = "jaccard"


class SoftMcc(SoftDecisions):
    """Soft Matthews correlation: (tp tn - fp fn) / sqrt of the product of the four margins."""

    like = "mcc"

    def of_counts(self, counts: Counts) -> Tensor:
        """MCC, with a gradient of 0 where a margin is empty: the root has none there."""
        tp, fp, fn, tn = counts
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        safe = torch.where(product > 0, product, 1.0)
        return torch.where(product > 0, (tp * tn - fp * fn) / safe.sqrt(), 0.0)
