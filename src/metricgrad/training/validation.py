r"""The true metric on validation data: where to cut, which moment is best, and whether a gain is more than luck.

Scores of several folds come from several models. A metric of decisions pools them, with one
threshold for all: that of a fold with six positives would be luck. A metric of order compares
scores of one model only, so it is the mean over folds.

A gain is compared with the luck of resampled items: the metric's gain over cross-entropy is
computed on bootstrap draws of the validation items, centred, and for the best of several
challengers at once. Its 84th percentile is one standard error where there is one challenger, and
more with every challenger that could have been lucky. A function of the user's own is taken for a
metric of decisions: whether it is one of order cannot be seen.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics import Metric, best_threshold
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import ClassificationMetric
from metricgrad.metrics.curves import CurveMetric
from metricgrad.metrics.function import FunctionMetric
from metricgrad.metrics.ranking import RankingMetric
from metricgrad.metrics.threshold import bagged_threshold

_CUTS, _CUT_ELEMENTS = (
    (8, 64),
    250_000,
)  # draws that a threshold is the median of, and their items in all
_DRAWS = 200
_ELEMENTS = 4_000_000  # scores that are resampled at once
ONE_SIGMA = 0.8413


class Look(NamedTuple):
    """The metric's value, and the threshold it was reached at; None where it has none."""

    value: float
    threshold: Tensor | None


@dataclass(frozen=True)
class ValidationItems:
    """Validation items of K folds, padded to the same number.

    Attributes:
        target: `[K, V, ...]`.
        live: `[K, V]`, False for padding.
        where: `[K, V, N]`, where items are sets.
    """

    target: Tensor
    live: Tensor
    where: Tensor | None = None


@dataclass(frozen=True)
class Validation:
    """A metric that decides.

    Attributes:
        metric: the metric.
        items: the validation items.
        tune: whether a threshold is chosen, where the metric has one.
    """

    metric: Metric
    items: ValidationItems
    tune: bool = True

    @property
    def sets(self) -> bool:
        """Whether every item is a set of its own."""
        return self.items.where is not None

    def better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another."""
        return than is None or (value > than if self.metric.higher_is_better else value < than)

    def look(self, scores: Tensor) -> Look:
        """The metric of scores `[K, V, ...]`, at its best threshold."""
        threshold = self._threshold(scores) if self.tune and self._decides(scores) else None
        return Look(self.value(scores, threshold), threshold)

    def value(self, scores: Tensor, threshold: Tensor | None) -> float:
        """The metric of scores `[K, V, ...]` at a given threshold."""
        return float(self._values(scores, threshold))

    def _threshold(self, scores: Tensor) -> Tensor:
        """The best threshold; of few items the median of those of bootstrap draws, which is less a matter of luck."""
        scores, target = (part[self.items.live] for part in (scores, self.items.target))
        draws = min(_CUTS[1], _CUT_ELEMENTS // len(scores))
        if draws < _CUTS[0] or not isinstance(self.metric, ConfusionMetric):
            return best_threshold(scores, target, self.metric, candidates=200)
        if scores.dim() > 1 and self.metric.average == "micro":  # one threshold for all labels
            scores, target = scores.flatten(), target.flatten()
        generator = torch.Generator().manual_seed(0)
        if scores.dim() == 1:
            return bagged_threshold(scores, target, self.metric, draws, generator)
        labels = zip(scores.unbind(-1), target.unbind(-1), strict=True)
        return torch.stack(
            [bagged_threshold(one, truth, self.metric, draws, generator) for one, truth in labels]
        )

    def luck(
        self,
        scores: list[Tensor],
        thresholds: list[Tensor | None],
        generator: torch.Generator,
        quantile: float = ONE_SIGMA,
    ) -> float:
        """The gain over the first that the best of the others reaches by luck alone.

        Args:
            scores: `[K, V, ...]` each: of cross-entropy, then of its challengers.
            thresholds: theirs.
            generator: of the draws.
            quantile: of luck; one standard error, for one challenger, unless given.

        Returns:
            The quantile of the highest centred gain over draws of the items.
        """
        whole = torch.stack([self._values(*each) for each in zip(scores, thresholds, strict=True)])
        items = self.items.live.shape[1]
        weights, gains, done = self.items.live.double(), [], 0
        size = max(1, min(_DRAWS, _ELEMENTS // max(1, scores[0].numel())))
        while done < _DRAWS:
            drawn = torch.multinomial(weights, items * size, replacement=True, generator=generator)
            drawn = drawn.unflatten(1, (size, items)).movedim(0, 1)  # [D, K, V]
            found = torch.stack(
                [self._values(*each, drawn) for each in zip(scores, thresholds, strict=True)]
            )
            gains.append((found[1:] - found[:1]) - (whole[1:] - whole[:1]).unsqueeze(-1))
            done += size
        centred = torch.cat(gains, -1)
        highest = (centred if self.metric.higher_is_better else -centred).amax(0)
        return float(torch.quantile(highest.double(), quantile))

    def _decides(self, scores: Tensor) -> bool:
        """Whether the metric has a threshold to tune: one of binary scores or labels that is not of order alone."""
        alike = scores.shape == self.items.target.shape and not self.sets
        if isinstance(self.metric, ConfusionMetric):
            return alike
        return (
            alike
            and isinstance(self.metric, FunctionMetric)
            and self.metric.set_dims in (None, (1, 1))
        )

    def _values(
        self, scores: Tensor, threshold: Tensor | None, drawn: Tensor | None = None
    ) -> Tensor:
        """The metric, 0-dim; or `[D]` for items drawn anew, `[D, K, V]`."""
        target, live, where = self.items.target, self.items.live, self.items.where
        if drawn is not None:
            fold = torch.arange(len(live)).unsqueeze(-1)
            scores, target, live = scores[fold, drawn], target[fold, drawn], live[fold, drawn]
            where = None if where is None else where[fold, drawn]
        metric, scores = at_threshold(self.metric, threshold, scores)
        if where is not None:  # a value for each item; those without anything relevant have none
            counts = live & (where & (target > 0)).any(-1)
            values = metric(scores, target, where=where).masked_fill(~counts, 0.0)
            return values.sum((-1, -2)) / counts.sum((-1, -2)).clamp(min=1)
        if isinstance(metric, CurveMetric | RankingMetric):
            return metric(scores, target, where=live).mean(-1)
        place = 0 if drawn is None else 1
        scores, target, live = (part.flatten(place, place + 1) for part in (scores, target, live))
        return metric(scores, target, where=live)


def at_threshold(metric: Metric, threshold: Tensor | None, scores: Tensor) -> tuple[Metric, Tensor]:
    """The metric that decides at a threshold; for a function, which decides at 0, the scores are moved instead."""
    if threshold is None:
        return metric, scores
    if isinstance(metric, ConfusionMetric):
        return replace(metric, threshold=threshold), scores
    return metric, scores - threshold


def binary_scores(metric: Metric, scores: Tensor) -> Tensor:
    """Scores `[..., N, C]` of a model with one output per item without that dimension, of two classes as s1 - s0."""
    if scores.shape[-1] == 1:
        return scores.squeeze(-1)
    two = (
        scores.shape[-1] == 2
        and isinstance(metric, ClassificationMetric)
        and metric.average is None
    )
    return scores[..., 1] - scores[..., 0] if two else scores


@torch.no_grad()
def bootstrap(
    metric: Metric,
    threshold: Tensor | None,
    scores: Tensor,
    target: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """The metric on items drawn anew, with replacement.

    Args:
        metric: the metric.
        threshold: where it decides; None leaves it as it is.
        scores: `[N, ...]`.
        target: `[N, ...]`.
        generator: of the draws.

    Returns:
        `[D]`, one value for each draw.
    """
    metric, scores = at_threshold(metric, threshold, scores)
    size, found = max(1, min(_DRAWS, _ELEMENTS // max(1, scores.numel()))), []
    for _ in range(-(-_DRAWS // size)):
        drawn = torch.randint(len(scores), (size, len(scores)), generator=generator)
        found.append(metric(scores[drawn], target[drawn]))
    return torch.cat(found)
