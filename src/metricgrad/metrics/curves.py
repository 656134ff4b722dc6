"""Metrics of order: areas under the ROC and precision-recall curves, and the equal error rate.

Walk down the scores from the highest, counting the positives (tp) and negatives (fp) passed
(`counts.py`). The ROC curve is (fp / negatives, tp / positives), the precision-recall curve is
(tp / positives, tp / (tp + fp)). Every metric here is one expression over the vertices of such a
curve and, for surrogates, a rule of lost comparisons (`order.py`).

Many classes are ranked one against the rest by the log-odds of their softmax, which have the order
of the probabilities but do not saturate; labels are ranked by their own scores.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.counts import ClassificationMetric, Curve, one_hot, walk_down
from metricgrad.metrics.order import Cycles, PlaceRule, make_pairs
from metricgrad.metrics.reexpression import Compare, Reexpression, itself
from metricgrad.metrics.weighted_order import weighed


@dataclass(frozen=True, kw_only=True)
class CurveMetric(ClassificationMetric):
    """An expression over the vertices of a set's curve."""

    families = ("binary", "multi-class", "multi-label")
    decided_by = "order"
    needs_negatives = True
    undefined = "0 where positives or negatives are missing; such classes are left out of averages"

    @abstractmethod
    def of_curve(self, curve: Curve) -> Tensor:
        """The expression, `[...]`."""

    @abstractmethod
    def rule(self) -> PlaceRule:
        """The same as a function of the comparisons that the positives lost."""

    def binary(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The expression over each set's curve."""
        weight = self.item_weights(target.shape, where)
        return self.of_curve(walk_down(scores, target, where, weight))

    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Every class ranked against the rest by the log-odds of its softmax probability."""
        positive, where = _against_rest(scores.shape[-1], target, where)
        return self.multi_label(ops.log_odds(scores), positive, where)

    def multi_label(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Every label ranked by its own scores, leaving out labels without a value."""
        weight = self.item_weights(target.shape, where)
        if self.average == "micro":
            where, weight = (None if part is None else part.flatten(-2) for part in (where, weight))
            curve = walk_down(scores.flatten(-2), target.flatten(-2), where, weight)
            return self.of_curve(curve)
        where, weight = (None if part is None else part.mT for part in (where, weight))
        curve = walk_down(scores.mT, target.mT, where, weight)
        share = self._shares(curve.positives, curve.negatives, curve.dtype).squeeze(-1)
        return ops.divide((self.of_curve(curve) * share).sum(-1), share.sum(-1))

    def _shares(self, positives: Tensor, negatives: Tensor, dtype: torch.dtype) -> Tensor:
        """What the classes weigh in their average; 0 for those without a value of their own."""
        defined = (positives > 0) & ((negatives > 0) | (not self.needs_negatives))
        share = defined.to(dtype)
        return share * positives.to(dtype) if self.average == "weighted" else share

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """Positives against negatives, class by class where there are classes."""
        task = self.task(shape, target.shape)
        rule = self.rule()._replace(needs_negatives=self.needs_negatives)
        convert = itself
        if task == "multiclass":
            convert = ops.log_odds
            target, where = _against_rest(shape[-1], target, where)
        weight = self.item_weights(target.shape, where)
        if task == "binary":
            return weighed(make_pairs(itself, target, where, rule, dtype), weight)
        if self.average == "micro":
            where, weight = (None if part is None else part.flatten(-2) for part in (where, weight))
            pairs = make_pairs(
                lambda scores: convert(scores).flatten(-2), target.flatten(-2), where, rule, dtype
            )
            return weighed(pairs, weight)
        where, weight = (None if part is None else part.mT for part in (where, weight))
        target = target.mT
        mass = weight
        if mass is None:
            mass = (torch.ones_like(target) if where is None else where).to(dtype)
        positives = torch.where(target, mass, 0.0).sum(-1)
        share = self._shares(positives, mass.sum(-1) - positives, dtype)
        share = ops.divide(share, share.sum(-1, keepdim=True))
        ranked: Compare = lambda scores: convert(scores).mT  # noqa: E731
        return weighed(make_pairs(ranked, target, where, rule, dtype, share), weight)


def _against_rest(
    classes: int, target: Tensor, where: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Class indices as positives `[..., N, C]`, and the mask in the same shape."""
    positive = one_hot(target, classes)
    if where is None:
        return positive, None
    where = where.unsqueeze(-1).expand_as(positive)
    return positive & where, where


@dataclass(frozen=True, kw_only=True)
class Auc(CurveMetric):
    """Area under the ROC curve: the share of (positive, negative) pairs in the right order.

    Example:
        >>> Auc()(torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 1, 0, 0]))
        tensor(0.7500)

    Reference:
        `sklearn.metrics.roc_auc_score` (multi-class: `multi_class="ovr"` on softmax probabilities).
    """

    name = "auc"
    ties = "half"
    reference = "sklearn roc_auc_score"

    def rule(self) -> PlaceRule:
        """sum_r (1 - n_(r) / N) / P."""
        return PlaceRule(lambda r, n, p, m: (1 - n / m) / p, by_place=False)

    def of_curve(self, curve: Curve) -> Tensor:
        """Trapezoids between vertices, in whole numbers until the last division."""
        doubled = curve.sum((curve.fp - curve.fp_before) * (curve.tp + curve.tp_before))
        return curve.ratio(doubled, 2 * (curve.positives * curve.negatives).squeeze(-1))


@dataclass(frozen=True, kw_only=True)
class PartialAuc(CurveMetric):
    """Area under the ROC curve up to a false-positive rate, scaled to 0.5 for chance and 1 at best.

    With A the area left of f = `max_fpr`: (1 + (A - f^2 / 2) / (f - f^2 / 2)) / 2 (McClish, 1989).

    Args:
        max_fpr: The false-positive rate at which the curve is cut, above 0 and at most 1.

    Example:
        >>> PartialAuc(max_fpr=0.5)(torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 1, 0, 0]))
        tensor(0.6667)

    Reference:
        `sklearn.metrics.roc_auc_score(max_fpr=...)`.
    """

    name = "partial_auc"
    ties = "segment"
    reference = "sklearn roc_auc_score(max_fpr)"

    max_fpr: float = 0.1
    worst: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.max_fpr <= 1:
            raise ValueError(f"max_fpr must be above 0 and at most 1; got {self.max_fpr}")
        object.__setattr__(self, "worst", (1 - self.max_fpr) / (2 - self.max_fpr))

    def rule(self) -> PlaceRule:
        """A = sum_r max(f - n_(r) / N, 0) / P, standardised."""
        smallest = self.max_fpr**2 / 2
        scale = 1 / (2 * (self.max_fpr - smallest))
        return PlaceRule(
            lambda r, n, p, m: (self.max_fpr - n / m).clamp(min=0) / p,
            sign=scale,
            offset=0.5 - scale * smallest,
            by_place=False,
        )

    def of_curve(self, curve: Curve) -> Tensor:
        """Trapezoids between vertices, the last one cut at max_fpr."""
        left = curve.ratio(curve.fp_before, curve.negatives)
        right = curve.ratio(curve.fp, curve.negatives)
        low = curve.ratio(curve.tp_before, curve.positives)
        high = curve.ratio(curve.tp, curve.positives)
        width = (right.clamp(max=self.max_fpr) - left).clamp(min=0)
        cut_high = low + (high - low) * ops.divide(width, right - left)
        area = curve.sum(width * (low + cut_high) / 2)
        smallest = self.max_fpr**2 / 2
        standardised = (1 + (area - smallest) / (self.max_fpr - smallest)) / 2
        both = ((curve.positives > 0) & (curve.negatives > 0)).squeeze(-1)
        return torch.where(both, standardised, 0.0)


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(CurveMetric):
    """Area under the precision-recall curve: sum of (R_i - R_{i-1}) P_i.

    Without ties it is the mean precision at the positives.

    Args:
        interpolated: Whether every precision is replaced by the highest one at its recall or
            above, the monotone envelope (VOC 2010) that the UniLoss paper's code measures.
        cycles: What bits that fit no order are worth to a surrogate: `"count"` counts the
            comparisons that each positive lost, `"zero"` gives 0, as the UniLoss paper's code does.

    Example:
        >>> scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
        >>> target = torch.tensor([0, 1, 1, 0])
        >>> AveragePrecision()(scores, target), AveragePrecision(interpolated=True)(scores, target)
        (tensor(0.5833), tensor(0.6667))

    Reference:
        `sklearn.metrics.average_precision_score`; interpolated: a loop over its precision-recall
        curve. Classes and labels without positives are left out, as in torchmetrics.
    """

    name = "average_precision"
    ties = "together"
    needs_negatives = False
    undefined = "0 where positives are missing; such classes are left out of averages"
    reference = "sklearn average_precision_score"
    published = MappingProxyType({"interpolated": True, "cycles": "zero"})

    interpolated: bool = False
    cycles: Cycles = "count"

    def rule(self) -> PlaceRule:
        """sum_r r / (r + n_(r)) / P; interpolated, each term is the largest from its place on."""
        pool = "envelope" if self.interpolated else "sum"
        return PlaceRule(lambda r, n, p, m: r / (r + n) / p, pool, cycles=self.cycles)

    def of_curve(self, curve: Curve) -> Tensor:
        """The sum of precision over the steps of recall."""
        precision = curve.precision()
        if self.interpolated and precision.shape[-1]:
            heights = precision.masked_fill(~curve.vertex, 0.0)
            precision = heights.flip(-1).cummax(-1).values.flip(-1)
        steps = (curve.tp - curve.tp_before).to(curve.dtype)
        return ops.divide(curve.sum(steps * precision), curve.positives.squeeze(-1).to(curve.dtype))


@dataclass(frozen=True, kw_only=True)
class Eer(CurveMetric):
    """Equal error rate: where the ROC curve, straight between vertices, meets fpr = 1 - tpr.

    Example:
        >>> Eer()(torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 1, 0, 0]))
        tensor(0.5000)

    Reference:
        The root of fpr + tpr - 1 along `sklearn.metrics.roc_curve`.
    """

    name = "eer"
    higher_is_better = False
    best = 0.0
    worst = 1.0
    ties = "segment"
    reference = "crossing on sklearn roc_curve"

    def rule(self) -> PlaceRule:
        """min_r max(n_(r) / N, 1 - r / P)."""
        return PlaceRule(lambda r, n, p, m: -torch.maximum(n / m, 1 - r / p), "max", sign=-1.0)

    def of_curve(self, curve: Curve) -> Tensor:
        """The first vertex with fpr + tpr >= 1, and the segment that leads to it."""
        if not curve.tp.shape[-1]:
            return torch.zeros_like(curve.positives.squeeze(-1), dtype=curve.dtype)
        pairs = curve.positives * curve.negatives

        def excess(fp: Tensor, tp: Tensor) -> Tensor:
            return fp * curve.positives + tp * curve.negatives - pairs

        after = excess(curve.fp, curve.tp)
        crossing = (curve.vertex & (after >= 0)).to(torch.uint8).argmax(-1, keepdim=True)
        before = excess(curve.fp_before, curve.tp_before).gather(-1, crossing)
        way = curve.ratio(-before, after.gather(-1, crossing) - before)
        start = curve.fp_before.gather(-1, crossing)
        end = curve.fp.gather(-1, crossing)
        rate = curve.ratio(start + way * (end - start), curve.negatives)
        return torch.where(pairs > 0, rate, 0.0).squeeze(-1)
