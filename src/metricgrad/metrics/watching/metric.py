"""Write the metric, get the loss: a user's own function as a metric that comparisons decide.

`reexpress(fn)` is a metric like any other: called, it calls fn. Asked for comparisons, it looks at
fn on each set (`OwnMetric.look`). There are two ways to look:

    WatchedMetric    watches fn run, and replays it with other bits (`recorder.py`, `replay.py`)
    BlackBoxMetric   calls fn with scores made from bits (`black_boxes.py`)

What fn compares may depend on shapes and target, so every set is looked at anew. What holds for fn
itself, such as whether `torch.vmap` can run it, is found out once and kept with the metric.
"""

import functools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import to_tensor, whole
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.watching.black_boxes import ClassSet, ColumnSet, Knowledge
from metricgrad.metrics.watching.replay import Habits, WatchedSet
from metricgrad.metrics.watching.sets import ComparedSet, OwnSets, SetSummary
from metricgrad.metrics.watching.tape import WatchError

_LOG = logging.getLogger("metricgrad")
_warn = functools.cache(_LOG.warning)  # once, however many losses of a function a search makes
_SHOWN_BITS = 64


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
) -> "OwnMetric":
    r"""A metric for `UniLoss` from a function in plain torch: the comparisons behind it are found.

    Args:
        fn: `(scores, target) -> 0-dim tensor` for one set. On values that depend on the scores it
            may use every smooth operation, comparisons, sign, argmax, argmin, max, min, sort,
            argsort, topk, round, floor, ceil, bucketize, where and masks, clamp and relu, and the
            indices that these return.
        higher_is_better: False for a loss or an error.
        best: The value of an ideal model. Without it the metric is unbounded, and its gradient is
            divided by the range of the metric on the set.
        worst: The value at the other end; unbounded by default.
        multilabel: True if a set is scores and target `[N, C]`. By default a set is `[N]` each, or
            `[N, C]` with class indices `[N]`.
        set_dims: How many trailing dimensions of scores and target make one set, for data of any
            other shape.
        flips: How many single-bit flips are tried in a step; if there are more, this many are drawn
            at random. The default is 1,024, or 256 for a black box, which is called for each flip.
            Fewer are tried if their tensors would exceed 4 million elements.
        watch: False takes fn as a black box, which may be any function that order and thresholds
            decide.
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
        return WatchedMetric(**_options(made, False), flips=flips or 1024, generator=generator)
    return black_box(made, thresholds=thresholds, flips=flips or 256, generator=generator)


def on_sight(
    metric: FunctionMetric, *, generator: torch.Generator | None = None
) -> "WatchedMetric":
    """The metric of a function that may turn out, when it first runs, to be a black box."""
    made = WatchedMetric(**_options(metric, False), flips=1024, generator=generator)
    made.unseen.append(metric)
    return made


def black_box(
    metric: FunctionMetric,
    *,
    thresholds: Sequence[float] = (0.0,),
    flips: int = 256,
    generator: torch.Generator | None = None,
) -> "BlackBoxMetric":
    """The metric of a function, looked at from outside; arguments as for `reexpress`."""
    if not len(thresholds) or not all(math.isfinite(each) for each in thresholds):
        raise ValueError(f"thresholds must be finite numbers, at least one; got {thresholds}")
    ascending = tuple(sorted(float(each) for each in thresholds))
    return BlackBoxMetric(
        **_options(metric, metric.arrays), thresholds=ascending, flips=flips, generator=generator
    )


def _options(metric: FunctionMetric, arrays: bool | None) -> dict[str, Any]:
    """The fields of a function's metric; `arrays` is what it is called with."""
    options = {option.name: getattr(metric, option.name) for option in fields(FunctionMetric)}
    return {**options, "arrays": arrays}


@dataclass(frozen=True, kw_only=True)
class OwnMetric(FunctionMetric, ComparisonMetric):
    """A user's function, decided by comparisons; `reexpress` makes it and describes the fields."""

    flips: int
    generator: torch.Generator | None
    last: "list[SetSummary]" = field(default_factory=list, init=False, repr=False, compare=False)

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """Does not ask the function, because that would cost a run."""
        return otherwise

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores, as floats; one flag per item."""
        return super().check(scores.to(ops.float_dtype(scores)), target, where)

    @abstractmethod
    def look(self, scores: Tensor, target: Tensor) -> ComparedSet:
        """Runs the function on one set, and finds its comparisons."""

    @abstractmethod
    def manner(self) -> str:
        """How values of other bits are found, in words."""

    @property
    @abstractmethod
    def runs(self) -> int:
        """How often the function has run; many configurations at once count as one run."""

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> "OwnSets":
        """The re-expression for a target; the function does not run before scores are there."""
        return OwnSets(self, tuple(shape), target, where, dtype)

    def ideal_bits(
        self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """The best configuration that is known: that of scores made from the target."""
        plan = self._plan(target, where, shape)
        assert isinstance(plan, OwnSets)
        return plan.best_bits(plan.bits())

    def explain(self, scores: Any = None, target: Any = None) -> str:
        """What the function compares, line by line.

        Args:
            scores: Sets, of which the first is explained. Without scores and target, it is the set
                that the function ran on last.
            target: The target of these sets.

        Returns:
            A table of lines, operations and numbers of comparisons; then how values of other bits
            are found, and the bits if there are at most 64.
        """
        if scores is not None:
            inputs = self.check(to_tensor("scores", scores), to_tensor("target", target), None)
            plan = self.reexpress(inputs.scores.shape, inputs.target, None, inputs.scores.dtype)
            plan.comparisons(inputs.scores)
            plan.from_bits(~plan.bits().unsqueeze(0))  # a replay shows how replays are done
        if not self.last:
            raise ValueError(
                f"{self.name} has not been run on a set yet; pass one: explain(scores, target)"
            )
        origins, bits, value = self.last[0]
        rows = [("where", "operation", "comparisons", "code")]
        for at, number in origins:
            line = f"line {at.line}" if at.line else "outside"
            rows.append((line, at.operation, str(number), at.code))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:>{wide[2]}}  {row[3]}"[
                :118
            ].rstrip()
            for row in rows
        ]
        lines.append(f"{self.name} = {value:.6g} from {len(bits)} comparisons; {self.manner()}")
        if len(bits) <= _SHOWN_BITS:
            lines.append("bits " + "".join(map(str, bits.int().tolist())))
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class WatchedMetric(OwnMetric):
    """A function in plain torch; `unseen` holds the function of `on_sight` until it has run."""

    habits: Habits = field(default_factory=Habits, init=False, repr=False, compare=False)
    unseen: list[FunctionMetric] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def settled(self, inputs: Inputs) -> ComparisonMetric:
        """Itself if the function can be watched on these inputs, else a black box."""
        if not self.unseen:
            return self
        (function,) = self.unseen
        scores = inputs.scores.detach()
        try:
            self.comparisons(scores, inputs.target, where=inputs.where)
        except Exception as error:
            # A function that fails unwatched as well is no metric, and this call says so.
            function(scores, inputs.target, where=inputs.where)
            refused = isinstance(error, WatchError)
            reason = error.what if refused else f"fails when it is watched ({error})"
            _warn(f"{function.name} is taken as a black box, as it {reason}")
            return black_box(function, generator=self.generator)
        _LOG.info("%s is re-expressed by watching it", function.name)
        self.unseen.clear()
        return self

    def look(self, scores: Tensor, target: Tensor) -> ComparedSet:
        """Watches the function on one set."""
        return WatchedSet(self.call, scores, target, self.habits)

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
        return (
            "replayed for one configuration after another, as torch.vmap cannot run it "
            f"({self.habits.reason})"
        )


@dataclass(frozen=True, kw_only=True)
class BlackBoxMetric(OwnMetric):
    """A function that order and thresholds decide, whatever it is made of."""

    thresholds: tuple[float, ...]
    known: Knowledge = field(default_factory=Knowledge, init=False, repr=False, compare=False)

    def look(self, scores: Tensor, target: Tensor) -> ComparedSet:
        """Calls the function for one set."""

        def call(values: Tensor) -> float:
            self.known.calls += 1
            return self._one(values, target, self.arrays, "a set made from bits")[0]

        if target.shape == scores.shape:
            return ColumnSet(scores, target, self.thresholds, call, self.known)
        if target.shape == scores.shape[:-1]:
            return ClassSet(scores, target, call, self.known)
        raise ValueError(
            f"{self.name} cannot be watched, and as a black box it takes scores and target of one "
            f"shape, or classes; got scores {list(scores.shape)} and target {list(target.shape)}: "
            "write it in plain torch"
        )

    @property
    def runs(self) -> int:
        """The number of calls."""
        return self.known.calls

    def manner(self) -> str:
        """How often it was called."""
        return f"a black box, called {self.runs} times so far"
