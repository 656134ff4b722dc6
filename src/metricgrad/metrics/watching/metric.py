"""Write the metric, get the loss: a user's function as comparisons, bits and a value of bits.

`reexpress(fn)` is a metric like any other: called, it calls fn. Asked for comparisons, it watches
fn run on the set (`watch.py`, `record.py`) and finds those behind its discrete operations; asked
for the value of other bits, it replays fn with them (`replay.py`). What fn compares may depend on
shapes and target, so every set is watched anew; what holds for fn itself (how its indices are used,
whether `torch.vmap` can run it) is found out once. A function that cannot be watched is a black box
(`blackbox.py`).
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import whole
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.watching.black_box import Classes, Columns, Seen
from metricgrad.metrics.watching.interception import WatchError
from metricgrad.metrics.watching.recording import Habits, Recording
from metricgrad.metrics.watching.sets import DecidedMetric, DecidedSet

_LOG = logging.getLogger("metricgrad")
_warn = functools.cache(_LOG.warning)  # once, however many losses of a function a search makes


def reexpress(
    fn: Callable[..., Any],
    *,
    higher_is_better: bool = True,
    best: float | None = None,
    worst: float | None = None,
    multilabel: bool = False,
    set_dims: tuple[int, int] | None = None,
    flips: int | None = None,
    watch: bool = True,
    thresholds: Sequence[float] = (0.0,),
    generator: torch.Generator | None = None,
    name: str | None = None,
) -> "DecidedMetric":
    r"""A metric that comparisons decide, from a function in plain torch: all that `UniLoss` needs.

    Args:
        fn: `(scores, target) -> 0-dim tensor` for one set. On values that depend on scores it may
            use every smooth operation, comparisons, sign, argmax, argmin, max, min, sort, argsort,
            topk, round, floor, ceil, bucketize, where and masks, clamp and relu, and indices that
            come from these.
        higher_is_better: the direction.
        best: the value of an ideal model; unbounded by default, which scales the gradient by the
            set's own range.
        worst: the value at the other end; unbounded by default.
        multilabel: a set is scores and target `[N, C]`; by default `[N]` each, or `[N, C]` and
            class indices `[N]`.
        set_dims: how many trailing dimensions of scores and target make one set, for other kinds of
            data.
        flips: how many flips of bits are tried in a step; of more, so many are drawn at random.
            1,024 by default, 256 for a black box, which is called for each; fewer where they would
            take tensors of 4 million entries.
        watch: False takes fn as a black box, which may be anything that order and thresholds
            decide.
        thresholds: those with which a black box compares scores.
        generator: source of randomness for that.
        name: what to call it; the function's own name by default.

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
    made = from_function(
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
        return watched(made, flips=flips or 1024, generator=generator)
    return black_box(made, thresholds=thresholds, flips=flips or 256, generator=generator)


def watched(
    metric: FunctionMetric, *, flips: int = 1024, generator: torch.Generator | None = None
) -> "WatchedMetric":
    """The metric of a function, to be watched; arguments as for `reexpress`."""
    return WatchedMetric(**{**_options(metric), "arrays": False}, flips=flips, generator=generator)


def on_sight(
    metric: FunctionMetric, *, generator: torch.Generator | None = None
) -> "WatchedMetric":
    """The metric of a function that may turn out, when it first runs, to be a black box."""
    made = watched(metric, generator=generator)
    made.unseen.append(metric)
    return made


def black_box(
    metric: FunctionMetric,
    *,
    thresholds: Sequence[float] = (0.0,),
    flips: int = 256,
    generator: torch.Generator | None = None,
) -> "BlackBoxMetric":
    """The metric of a function, seen from outside; arguments as for `reexpress`."""
    if not len(thresholds) or not all(math.isfinite(each) for each in thresholds):
        raise ValueError(f"thresholds must be finite numbers, one at least; got {thresholds}")
    borders = tuple(sorted(float(each) for each in thresholds))
    return BlackBoxMetric(**_options(metric), thresholds=borders, flips=flips, generator=generator)


def _options(metric: FunctionMetric) -> dict[str, Any]:
    return {option.name: getattr(metric, option.name) for option in fields(FunctionMetric)}


@dataclass(frozen=True, kw_only=True)
class WatchedMetric(DecidedMetric):
    """A function in plain torch."""

    habits: Habits = field(default_factory=Habits, init=False, repr=False, compare=False)
    unseen: list[FunctionMetric] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def settled(self, inputs: Inputs) -> ComparisonMetric:
        """Itself if the function can be watched on these inputs, else the function as a black box."""
        if not self.unseen:
            return self
        (function,) = self.unseen
        scores = inputs.scores.detach()
        try:
            self.comparisons(scores, inputs.target, where=inputs.where)
        except Exception as error:
            function(
                scores, inputs.target, where=inputs.where
            )  # if this fails too, it is no metric
            watching = isinstance(error, WatchError)
            reason = error.what if watching else f"fails when it is watched ({error})"
            _warn(f"{function.name} is taken as a black box, as it {reason}")
            return black_box(function, generator=self.generator)
        _LOG.info("%s is re-expressed by watching it", function.name)
        self.unseen.clear()
        return self

    def look(self, scores: Tensor, target: Tensor) -> DecidedSet:
        """The function, watched on one set."""
        return Recording(self.call, scores, target, self.habits)

    @property
    def runs(self) -> int:
        """Watched or replayed, many configurations at once counting as one."""
        return self.habits.runs

    def manner(self) -> str:
        """Whether it is replayed all at once."""
        if self.habits.vmaps is None:
            return "not replayed yet"
        if self.habits.vmaps:
            return "replayed for many configurations at once (torch.vmap)"
        return f"replayed for one configuration after another, as torch.vmap cannot run it ({self.habits.reason})"


@dataclass(frozen=True, kw_only=True)
class BlackBoxMetric(DecidedMetric):
    """A function that order and thresholds decide, whatever it is made of."""

    thresholds: tuple[float, ...]
    seen: Seen = field(default_factory=Seen, init=False, repr=False, compare=False)

    def look(self, scores: Tensor, target: Tensor) -> DecidedSet:
        """The function, called for one set."""

        def call(values: Tensor) -> float:
            self.seen.calls += 1
            return self._one(values, target, self.arrays, "a set made from bits")[0]

        if target.shape == scores.shape:
            return Columns(scores, target, self.thresholds, call, self.seen)
        if target.shape == scores.shape[:-1]:
            return Classes(scores, target, call, self.seen)
        raise ValueError(
            f"{self.name} cannot be watched, and as a black box it takes scores and target of one shape, or classes; "
            f"got scores {list(scores.shape)} and target {list(target.shape)}: write it in plain torch"
        )

    @property
    def runs(self) -> int:
        """Calls so far."""
        return self.seen.calls

    def manner(self) -> str:
        """How often it has been called."""
        return f"a black box, called {self.runs} times so far"
