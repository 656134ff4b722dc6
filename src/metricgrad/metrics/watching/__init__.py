"""A user's own function as a metric that comparisons decide: write the metric, get the loss.

`reexpress(fn)` is a metric like any other: called, it calls fn. Asked for comparisons, it looks at
fn on each set, because what fn compares may depend on shapes and target:

    sets.py          the sets of a batch, side by side, and what each of them offers to a loss
    replay.py        WatchedSet runs fn on the set under a Recorder, later again under a Replayer
    watched.py       the metric itself, which becomes a black box where fn cannot be watched
    recorder.py      intercepts torch's operations and takes discrete ones apart into comparisons
    indices.py       follows the indices of argmax, sort and topk to find out what must be compared
    tape.py          what is written down: steps, comparisons, how tensors depend on the scores
    comparisons.py   comparisons with their bits, and choices, which turn bits back into indices

A function that cannot be watched is a black box (`black_boxes.py`): it is called with scores that
are made from bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from metricgrad.metrics.checks import whole
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.watching.black_boxes import BlackBoxMetric as BlackBoxMetric
from metricgrad.metrics.watching.black_boxes import NotDecidedError as NotDecidedError
from metricgrad.metrics.watching.comparisons import WatchError as WatchError
from metricgrad.metrics.watching.sets import OwnMetric
from metricgrad.metrics.watching.watched import WatchedMetric as WatchedMetric


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
