r"""What decides: the true metric on validation data, and how large a gain chance alone would give.

With several folds, the scores come from several models. A metric of decisions pools them and has
one threshold for all, since the threshold of a fold with six positives would be chance. For many
classes, one threshold per class takes its place: minus the offset that is best for the class. A
metric of order compares scores of one model only, so its value is the mean over the folds. A user's
own function is treated as a metric of decisions, because nothing tells whether it is one of order.

Whether a gain over the ordinary loss could be chance is answered by the bootstrap. The items are
drawn again with replacement; m_j is the metric of candidate j on all items, m_j* on a draw, and
j = 0 is the ordinary loss. The highest centred gain

    max_j  (m_j* - m_0*) - (m_j - m_0)

is what the luckiest of the candidates gains on that draw. `luck` is a quantile of it over the
draws: the 84th percentile is one standard error if there is one candidate, and more if there are
several.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.offsets import stable_offsets, takes_offsets
from metricgrad.metrics.rows import NO_ROWS, Rows, at
from metricgrad.metrics.threshold import stable_threshold

ONE_SIGMA = 0.8413  # the quantile of a normal distribution at one standard deviation
_DRAWS = 200
_ELEMENTS = 4_000_000  # scores that are drawn at once


class Measured(NamedTuple):
    """A metric's value, and the threshold, or those of the classes, at which it was reached."""

    value: float
    threshold: Tensor | None


@dataclass(frozen=True)
class ValidationItems:
    """The validation items of K folds, padded to the same number."""

    target: Tensor  # [K, V, ...]
    live: Tensor  # [K, V], False for padding
    where: Tensor | None = None  # [K, V, N] if every item is a set; True for what counts of it
    rows: Rows = field(default_factory=dict)  # [K, V, ...], what else the metric takes of an item


@dataclass(frozen=True)
class Validation:
    """The metric on validation items; `tune` says whether a threshold is chosen for it."""

    metric: Metric
    items: ValidationItems
    tune: bool = True

    @property
    def sets(self) -> bool:
        """Whether every item is a set of its own."""
        return self.items.where is not None

    def gain(self, value: float, over: float) -> float:
        """By how much a value is better than another; negative if it is worse."""
        return value - over if self.metric.higher_is_better else over - value

    def measure(self, scores: Tensor) -> Measured:
        """The metric of scores `[K, V, ...]` at its best threshold."""
        threshold = None
        if self.tune and not self.sets:
            live = self.items.live
            metric = self.metric.with_rows(at(self.items.rows, live))
            threshold = _tuned(metric, scores[live], self.items.target[live])
        return Measured(self.value(scores, threshold), threshold)

    def measure_all(self, scores: Tensor) -> list[Measured | None]:
        """The same for every trial, `[trials, K, V, ...]`; None for one that has diverged."""
        return [self.measure(each) if each.isfinite().all() else None for each in scores]

    def value(self, scores: Tensor, threshold: Tensor | None) -> float:
        """The metric of scores `[K, V, ...]` at a given threshold."""
        return float(self._values(scores, threshold))

    def luck(
        self,
        scores: list[Tensor],
        thresholds: list[Tensor | None],
        generator: torch.Generator,
        quantile: float = ONE_SIGMA,
    ) -> float:
        """The gain over the first model that the luckiest of the others reaches by chance.

        Every model has its scores, `[K, V, ...]`, and its threshold.
        """
        models = list(zip(scores, thresholds, strict=True))
        whole = torch.stack([self._values(*each) for each in models])
        live = self.items.live
        draws = _draws_at_once(scores[0])
        gains = []
        for _ in range(-(-_DRAWS // draws)):
            drawn = _drawn(live, draws, generator)
            found = torch.stack([self._values(*each, drawn) for each in models])
            gains.append((found[1:] - found[:1]) - (whole[1:] - whole[:1]).unsqueeze(-1))
        centred = torch.cat(gains, -1)
        highest = (centred if self.metric.higher_is_better else -centred).amax(0)
        return float(torch.quantile(highest.double(), quantile))

    def _values(
        self, scores: Tensor, threshold: Tensor | None, drawn: Tensor | None = None
    ) -> Tensor:
        """The metric, 0-dim; for draws `[D, K, V]` of the items, `[D]`."""
        target = self.items.target
        live = self.items.live
        where = self.items.where
        rows = self.items.rows
        if drawn is not None:
            fold = torch.arange(len(live)).unsqueeze(-1)
            scores = scores[fold, drawn]
            target = target[fold, drawn]
            live = live[fold, drawn]
            where = None if where is None else where[fold, drawn]
            rows = {name: row[fold, drawn] for name, row in rows.items()}
        metric, scores = self.metric.at_threshold(threshold, scores)
        if where is not None:  # one value per item; those without anything relevant have none
            counts = live & (where & (target > 0)).any(-1)
            values = metric.of_sets(scores, target, where).masked_fill(~counts, 0.0)
            return values.sum((-1, -2)) / counts.sum((-1, -2)).clamp(min=1)
        if metric.decided_by == "order":
            return metric.of_sets(scores, target, live, **rows).mean(-1)
        first = live.dim() - 2
        scores, target, live = (part.flatten(first, first + 1) for part in (scores, target, live))
        rows = {name: row.flatten(first, first + 1) for name, row in rows.items()}
        return metric.of_sets(scores, target, live, **rows)


def _drawn(live: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Numbers of live items, drawn with replacement, `[D, K, V]`; live is `[K, V]`."""
    first = live.int().argsort(dim=-1, descending=True, stable=True)  # live items, then padding
    place = torch.rand(draws, *live.shape, dtype=torch.float64, generator=generator)
    place = (place * live.sum(-1, keepdim=True)).long()
    return first.expand_as(place).gather(-1, place)


@torch.no_grad()
def bootstrap(
    metric: Metric,
    threshold: Tensor | None,
    scores: Tensor,
    target: Tensor,
    generator: torch.Generator,
    rows: Rows = NO_ROWS,
) -> Tensor:
    """The metric, at a threshold, on draws of the items with replacement: `[D]`."""
    metric, scores = metric.at_threshold(threshold, scores)
    draws = _draws_at_once(scores)
    found = []
    for _ in range(-(-_DRAWS // draws)):
        drawn = torch.randint(len(scores), (draws, len(scores)), generator=generator)
        found.append(metric.of_sets(scores[drawn], target[drawn], **at(rows, drawn)))
    return torch.cat(found)


def _draws_at_once(scores: Tensor) -> int:
    return max(1, min(_DRAWS, _ELEMENTS // max(1, scores.numel())))


def _tuned(metric: Metric, scores: Tensor, target: Tensor) -> Tensor | None:
    """The best threshold: 0-dim, or `[C]`; None if the metric has none.

    What the highest score wins is already right for a share of right items, so offsets would only
    fit chance there.
    """
    if metric.has_threshold and scores.shape == target.shape:
        return stable_threshold(scores, target, metric)
    if takes_offsets(metric, scores, target) and not metric.mean_of_items:
        return -stable_offsets(scores, target, metric)
    return None
