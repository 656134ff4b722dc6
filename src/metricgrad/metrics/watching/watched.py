"""The metric of a user's function, which watches it run, or takes it as a black box.

`reexpress` makes it when the user asks for it. `on_sight` makes it for a loss, which has not seen
the function run yet: the first batch decides whether it can be watched.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import whole
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.mistakes import loop_over_items
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.rows import OneSet, WithRows
from metricgrad.metrics.watching.black_boxes import BlackBoxMetric
from metricgrad.metrics.watching.comparisons import WatchError
from metricgrad.metrics.watching.replay import Habits, WatchedSet
from metricgrad.metrics.watching.sets import ComparedSet, OwnMetric

_LOG = logging.getLogger("metricgrad")
_warn = functools.cache(_LOG.warning)  # once, however many losses of a function a search makes
_CALLS = 256  # flips of a black box that are tried in a step


@dataclass(frozen=True, kw_only=True)
class WatchedMetric(OwnMetric):
    """A function in plain torch; `unseen` holds the function of `on_sight` until it has run."""

    habits: Habits = field(default_factory=Habits, init=False, repr=False, compare=False)
    unseen: list[FunctionMetric] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def settled(self, inputs: Inputs) -> ComparisonMetric:
        """Itself as far as the function can be watched on these inputs, else a black box."""
        if not self.unseen:
            return self
        function = self.unseen[0].with_rows(self.rows)
        scores = inputs.scores.detach()
        try:
            found, _ = self.comparisons(scores, inputs.target, where=inputs.where)
        except Exception as error:
            # A function that fails unwatched as well is no metric, and this call says so.
            function(scores, inputs.target, where=inputs.where)
            refused = isinstance(error, WatchError)
            reason = error.what if refused else f"fails when it is watched ({error})"
            _warn(
                f"{function.name} is taken as a black box, as it {reason}; a step calls it up to "
                f"{_CALLS} times, so write it with torch operations on whole tensors if it is slow"
            )
            return BlackBoxMetric.of(function, flips=_CALLS, generator=self.generator)
        if not found.shape[-1]:  # a batch on which the function is constant shows nothing
            return self
        _LOG.info("%s is re-expressed by watching it", function.name)
        self.unseen.clear()
        return self

    def look(self, given: OneSet) -> ComparedSet:
        """Watches the function on one set; its rows are constants."""
        call = WithRows(self.call, given.rows)
        found = WatchedSet(call, given.scores, given.target, self.habits)
        if not self.habits.timed:
            self.habits.timed = True
            lines = [each.origin[1:] for each in found.comparisons if each.origin.line]
            if loop := loop_over_items(lines, len(given.scores)):
                _warn(
                    f"{self.name} is slow, as it loops over items in Python: {loop}, and again for "
                    "other outcomes; compute with all items at once, as (scores > 0).sum() does"
                )
        return found

    @property
    def runs(self) -> int:
        """How often it was watched or replayed; many configurations at once count as one run."""
        return self.habits.runs

    def manner(self) -> str:
        """Whether configurations are replayed all at once."""
        if self.habits.vmaps is None:
            return "not replayed yet"
        if self.habits.vmaps:
            return "replayed for many configurations at once (torch.vmap)"
        why = f"as torch.vmap cannot run it ({self.habits.reason})"
        return f"replayed for one configuration after another, {why}"


def reexpress(
    fn: Callable[..., Any],
    *,
    higher_is_better: bool | None = None,
    best: float | None = None,
    worst: float | None = None,
    multilabel: bool = False,
    set_dims: tuple[int, int] | None = None,
    flips: int | None = None,
    watch: bool = True,
    thresholds: Sequence[float] = (0.0,),
    generator: torch.Generator | None = None,
    name: str | None = None,
) -> OwnMetric:
    r"""A metric for `UniLoss` from a function in plain torch: the comparisons behind it are found.

    Args:
        fn: `(scores, target) -> 0-dim tensor` for one set. On values that depend on the scores it
            may use every smooth operation, comparisons, sign, argmax, argmin, max, min, sort,
            argsort, topk, round, floor, ceil, bucketize, where and masks, clamp and relu, and the
            indices that these return. Further parameters, such as `amount`, are data of the items,
            which calls pass by name.
        higher_is_better: False for a loss or an error. None assumes that higher is better; a loss
            then refuses a function that is better for the opposite of ideal scores.
        best: The value of an ideal model. Without it the metric is unbounded, and its gradient is
            divided by the range of the metric on the set.
        worst: The value at the other end; unbounded by default.
        multilabel: True if a set is scores and target `[N, C]`. By default a set is `[N]` each, or
            `[N, C]` with class indices `[N]`, or label maps `[N, C, H, W]` with `[N, H, W]`.
        set_dims: How many trailing dimensions of scores and target make one set, for data of any
            other shape.
        flips: How many single-bit flips are tried in a step; if there are more, this many are drawn
            at random. The default is 1,024, or 256 for a black box, which is called for each flip.
            Fewer are tried if their tensors would exceed 4 million elements.
        watch: False treats fn as a black box, which may be any function that depends only on order
            and thresholds.
        thresholds: The thresholds with which a black box compares scores.
        generator: Draws the flips that are tried, if there are more than `flips`.
        name: The metric's name; the function's own by default.

    Returns:
        The metric; `metric.explain(scores, target)` shows which comparisons it found.

    Example:
        >>> import metricgrad as mg
        >>> def precision(scores, target):
        ...     predicted = scores > 0
        ...     return (predicted & (target == 1)).sum() / predicted.sum().clamp(min=1)
        >>> loss = mg.UniLoss(mg.reexpress(precision, best=1.0))
        >>> scores = torch.tensor([2.0, 1.0, -1.0], requires_grad=True)
        >>> value = loss(scores, torch.tensor([1, 0, 0]))
        >>> value.item()  # 1 - precision
        0.5
        >>> value.backward()
        >>> scores.grad.sign()
        tensor([-1.,  1.,  1.])

    Reference:
        UniLoss, Sec. 3.3 (re-expression by hand) and Sec. 5 (its fourth limitation).
    """
    metric = from_function(
        fn,
        higher_is_better,
        best=best,
        worst=worst,
        multilabel=multilabel,
        set_dims=set_dims,
        name=name,
    )
    if flips is not None:
        whole("flips", flips, 1)
    if watch:
        return WatchedMetric.of(metric, arrays=False, flips=flips or 1024, generator=generator)
    if not len(thresholds) or not all(math.isfinite(each) for each in thresholds):
        raise ValueError(f"thresholds must be finite numbers, at least one; got {thresholds}")
    ascending = tuple(sorted(float(each) for each in thresholds))
    flips = flips or 256
    return BlackBoxMetric.of(metric, thresholds=ascending, flips=flips, generator=generator)


def on_sight(metric: FunctionMetric, *, generator: torch.Generator | None = None) -> WatchedMetric:
    """The metric of a function that may turn out, when it first runs, to be a black box."""
    made = WatchedMetric.of(metric, arrays=False, flips=1024, generator=generator)
    made.unseen.append(metric)
    return made
