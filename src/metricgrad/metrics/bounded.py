"""Metrics of order that keep one of precision and recall at a bound, and report the other.

Both are the best of all thresholds that keep the bound, so they are about a single point of the
precision-recall curve (`curves.py`). Where this point lies depends on few rows; `samples=K` of
`UniLoss` looks at K perturbed orders, so that more rows get a gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad.metrics.counts import Curve
from metricgrad.metrics.curves import CurveMetric
from metricgrad.metrics.order import PlaceRule


@dataclass(frozen=True, kw_only=True)
class RecallAtPrecision(CurveMetric):
    """The highest recall that any threshold reaches with at least the given precision.

    Args:
        min_precision: The precision that must be kept, above 0 and at most 1.

    Example:
        >>> scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
        >>> RecallAtPrecision(min_precision=0.6)(scores, torch.tensor([0, 1, 1, 0]))
        tensor(1.)

    Reference:
        `torchmetrics.functional.classification.binary_recall_at_fixed_precision`.
    """

    name = "recall_at_precision"
    ties = "together"
    needs_negatives = False
    undefined = "0 where positives are missing; such classes are left out of averages"
    reference = "torchmetrics recall_at_fixed_precision"

    min_precision: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_precision <= 1:
            raise ValueError(
                f"min_precision must be above 0 and at most 1; got {self.min_precision}"
            )

    def rule(self) -> PlaceRule:
        """max_r r / P over the places with r / (r + n_(r)) >= min_precision."""
        return PlaceRule(
            lambda r, n, p, m: torch.where(r / (r + n) >= self.min_precision, r / p, 0.0), "max"
        )

    def of_curve(self, curve: Curve) -> Tensor:
        """The largest tp of the vertices that are precise enough."""
        enough = curve.vertex & (curve.precision() >= self.min_precision)
        found = curve.tp.masked_fill(~enough, 0)
        highest = found.amax(-1) if found.shape[-1] else found.sum(-1)
        return curve.ratio(highest, curve.positives.squeeze(-1))


@dataclass(frozen=True, kw_only=True)
class PrecisionAtRecall(CurveMetric):
    """The highest precision that any threshold reaches with at least the given recall.

    Args:
        min_recall: The recall that must be kept, above 0 and at most 1.

    Example:
        >>> scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
        >>> PrecisionAtRecall(min_recall=0.5)(scores, torch.tensor([0, 1, 1, 0]))
        tensor(0.6667)

    Reference:
        `torchmetrics.functional.classification.binary_precision_at_fixed_recall`.
    """

    name = "precision_at_recall"
    ties = "together"
    needs_negatives = False
    undefined = "0 where positives are missing; such classes are left out of averages"
    reference = "torchmetrics precision_at_fixed_recall"

    min_recall: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_recall <= 1:
            raise ValueError(f"min_recall must be above 0 and at most 1; got {self.min_recall}")

    def rule(self) -> PlaceRule:
        """max_r r / (r + n_(r)) over the places with r / P >= min_recall."""
        return PlaceRule(
            lambda r, n, p, m: torch.where(r / p >= self.min_recall, r / (r + n), 0.0), "max"
        )

    def of_curve(self, curve: Curve) -> Tensor:
        """The highest precision of the vertices that find enough."""
        enough = curve.vertex & (curve.ratio(curve.tp, curve.positives) >= self.min_recall)
        found = torch.where(enough, curve.precision(), 0.0)
        return found.amax(-1) if found.shape[-1] else found.sum(-1)
