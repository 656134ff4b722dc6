"""Any callable as a metric: NumPy, scikit-learn, torchmetrics, plain torch.

A function gets one set at a time, `fn(scores, target)`, and answers with a number; sets are looped
over for it. It is called with tensors and, should that raise, with NumPy arrays. Further parameters
are data of the items (`rows.py`). Callables of scikit-learn and torchmetrics need more than that,
and get it (`adapters.py`).
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from metricgrad.metrics.adapters import (
    ScoreFunction,
    adapted,
    decides_at_zero,
    names_of_rows,
    own_name,
)
from metricgrad.metrics.base import Inputs, Layout, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape
from metricgrad.metrics.mistakes import (
    are_label_maps,
    ideal_scores,
    turned,
    without_undefined_warnings,
)
from metricgrad.metrics.rows import NO_NAMES, OneSet, RowNames, Rows, WithRows, check_rows, to_rows


def from_function(
    fn: Callable[..., Any],
    higher_is_better: bool | None = None,
    *,
    best: float | None = None,
    worst: float | None = None,
    multilabel: bool = False,
    set_dims: tuple[int, int] | None = None,
    arrays: bool | None = None,
    name: str | None = None,
) -> "FunctionMetric":
    """A metric from any callable `(scores, target) -> number`.

    Args:
        fn: Called with one set; scikit-learn functions and scorers, torchmetrics functionals and
            objects can be passed as they are. If it returns NaN, the metric is undefined on the
            set. Parameters after the first two, such as `amount`, are data of the items, which
            calls pass by name: `metric(scores, target, amount=amount)`.
        higher_is_better: Whether a larger value means a better model. None assumes that it does;
            a loss then refuses a function that is better for the opposite of ideal scores.
        best: The value of an ideal model; unbounded by default.
        worst: The value at the other end; unbounded by default.
        multilabel: Whether a set is scores and target `[N, C]`; by default it is `[N]` each, or
            `[N, C]` and class indices `[N]`, or label maps `[N, C, H, W]` and `[N, H, W]`.
        set_dims: How many trailing dimensions of scores and target make one set, for other kinds of
            data.
        arrays: True passes NumPy arrays, False tensors; None tries tensors, then arrays.
        name: Name of the metric; the function's own name by default.

    Example:
        >>> import metricgrad as mg
        >>> from sklearn.metrics import fbeta_score
        >>> f2 = mg.from_function(lambda s, y: fbeta_score(y, s > 0, beta=2))
        >>> scores = torch.tensor([[2.0, -1.0, 0.5], [2.0, 1.0, -1.0]])
        >>> f2(scores, torch.tensor([[1, 0, 0], [1, 1, 0]]))
        tensor([0.8333, 1.0000])
    """
    if not callable(fn):
        raise TypeError(
            "from_function takes a callable (scores, target) -> number; got "
            f"{type(fn).__name__}: {fn!r:.80}"
        )
    call, stated = adapted(fn)
    name = name or own_name(fn)
    known = stated is not None or higher_is_better is not None
    higher_is_better = higher_is_better is not False
    if stated is not None and stated != higher_is_better:
        raise ValueError(
            f"{name} says of itself that {'higher' if stated else 'lower'} is better; pass "
            f"higher_is_better={stated}"
        )
    top = torch.inf if higher_is_better else -torch.inf
    return FunctionMetric(
        call=call,
        name=name,
        higher_is_better=higher_is_better,
        best=top if best is None else best,
        worst=-top if worst is None else worst,
        set_dims=(2, 2) if multilabel and set_dims is None else set_dims,
        arrays=arrays,
        known_direction=known,
        takes=names_of_rows(call, name),
    )


@dataclass(frozen=True, kw_only=True)
class FunctionMetric(Metric):
    """A metric that calls a function for every set; `from_function` describes the fields."""

    families = ("any",)
    takes_classes = True
    ties = "own"
    undefined = "what the function gives"
    reference = "the function itself"

    call: ScoreFunction
    name: str
    higher_is_better: bool
    best: float
    worst: float
    set_dims: tuple[int, int] | None
    arrays: bool | None
    known_direction: bool = True
    takes: RowNames = field(default=NO_NAMES, repr=False)
    rows: Rows = field(default_factory=dict, repr=False, compare=False)

    @property
    def row_names(self) -> RowNames:
        """The parameters of the function after its first two."""
        return self.takes

    def with_rows(self, rows: Mapping[str, Any]) -> Self:
        """The same function with data of the items; `Metric.with_rows` describes it."""
        super().with_rows(rows)
        bound = copy.copy(self)  # what was found out about the function stays shared
        object.__setattr__(bound, "rows", to_rows(rows))
        return bound

    @property
    def layout(self) -> Layout:
        """Labels if `multilabel` said so; otherwise whatever the function takes."""
        return "labels" if self.set_dims == (2, 2) else "any"

    @property
    def has_threshold(self) -> bool:
        """A function of binary scores decides at 0, so moving the scores moves the threshold."""
        return self.set_dims in (None, (1, 1))

    @property
    def decides_at_zero(self) -> bool:
        """Where scores are made decisions or probabilities on the way to another library."""
        return decides_at_zero(self.call)

    @property
    def portable(self) -> bool:
        """A function cannot be written to a file."""
        return False

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores; one flag per item."""
        lead = self.set_dimensions(scores, target)
        self.takes.complete(list(self.rows))
        where = expand_where(where, target.shape[: lead + 1], lead + 1)
        check_rows(self.rows, target.shape[: lead + 1], where)
        if scores.is_floating_point():
            each = (..., *[None] * (scores.dim() - lead - 1))  # one flag for all entries of an item
            scores = real_scores(scores, None if where is None else where[each])
        return Inputs(scores, target, where)

    @torch.no_grad()
    def confirm_direction(self, inputs: Inputs) -> bool:
        """Whether the direction is known or the target has told; ValueError if it is wrong."""
        scores, target, where = inputs
        ideal = None if self.known_direction else ideal_scores(scores, target)
        if ideal is None or not ideal.any():
            return self.known_direction
        try:
            pairs = [self._told(each) for each in self.each_set(ideal, target, where)]
        except (RuntimeError, TypeError):  # made-up scores may be none that the function takes
            return True
        gains = [good - bad for good, bad in pairs]
        if min(gains) < 0 and max(gains) <= 0:
            good, bad = pairs[gains.index(min(gains))]
            raise ValueError(
                f"{self.name} is {good:.4g} for scores that follow the target and {bad:.4g} for "
                "scores that go against it, so a loss would train backwards; pass "
                "higher_is_better=False to mg.from_function or mg.reexpress if lower is better, "
                "and higher_is_better=True if it is not (in a command: --metric "
                f"own.py:{self.name}:higher_is_better=false)"
            )
        return True

    def _told(self, ideal: OneSet) -> tuple[float, float]:
        """The values of ideal scores and of the opposite; twice 0 if they tell nothing.

        The target of classes is turned round. If that tells nothing (amounts may be 0 unless an
        item is positive), and for grades, the scores are.
        """
        good = self._one(ideal, self.arrays, "a set")[0]
        opposites = [ideal._replace(scores=-ideal.scores)]
        if len(ideal.scores.unique()) <= 2:
            opposites.insert(0, ideal._replace(target=turned(ideal.target)))
        for opposite in opposites:
            bad = self._one(opposite, self.arrays, "a set")[0]
            if good != bad and math.isfinite(good - bad):
                return good, bad
        return 0.0, 0.0

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """One call per set, on the items that count."""
        leading = scores.shape[: self.set_dimensions(scores, target)]
        sets = leading.numel()
        values = []
        arrays = self.arrays
        for index, each in enumerate(self.each_set(scores, target, where)):
            value, arrays = self._one(each, arrays, f"set {index + 1} of {sets}")
            values.append(value)
        return torch.tensor(values, dtype=torch.float64).reshape(leading).to(scores.device)

    def each_set(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Iterator[OneSet]:
        """Scores, target and rows of every set, without the items that do not count."""
        lead = self.set_dimensions(scores, target)
        sets = scores.shape[:lead].numel()
        parts = (scores, target, *self.rows.values())
        flat = [part.reshape(sets, *part.shape[lead:]) for part in parts]
        flags = None if where is None else where.reshape(sets, -1)
        for index in range(sets):
            counted = slice(None) if flags is None else flags[index]
            one, truth, *own = (part[index][counted] for part in flat)
            yield OneSet(one, truth, dict(zip(self.rows, own, strict=True)))

    def set_dimensions(self, scores: Tensor, target: Tensor) -> int:
        """Number of leading dimensions that are sets; ValueError where the shapes do not fit."""
        if self.set_dims is not None:
            lead = scores.dim() - self.set_dims[0]
            fits = lead >= 0 and lead == target.dim() - self.set_dims[1]
            wanted = "sets of {} dimensions of scores and {} of target".format(*self.set_dims)
        elif are_label_maps(scores.shape, target.shape):
            lead = scores.dim() - 4
            fits = target.shape != scores.shape[:-1]
            wanted = "set_dims=(4, 3) for label maps, or (2, 1) for classes, as both fit here"
        else:
            lead = target.dim() - 1
            fits = target.shape in (scores.shape, scores.shape[:-1])
            wanted = (
                "scores and target [..., N], or scores [..., N, C] with classes [..., N]; "
                "or label maps [..., N, C, H, W] with [..., N, H, W]; to get these in one call, "
                f"pass set_dims=({scores.dim()}, {target.dim()})"
            )
        if not fits or scores.shape[: lead + 1] != target.shape[: lead + 1]:
            raise ValueError(
                f"{self.name} takes {wanted}; got scores {shape(scores)} and target {shape(target)}"
            )
        return lead

    def _one(self, given: OneSet, arrays: bool | None, place: str) -> tuple[float, bool]:
        """The value of one set, and whether it was called with arrays."""
        first: Exception | None = None
        scores, target, rows = given
        where = f"{place} (scores {shape(scores)}, target {shape(target)})"
        for kind in (False, True) if arrays is None else (arrays,):
            try:
                with without_undefined_warnings():
                    result = WithRows(self.call, rows, kind)(scores, target)
            except Exception as error:
                first = first or error
                continue
            return _one_number(result, f"{self.name} on {where}"), kind
        assert first is not None
        single = scores.dim() == 1 and self.set_dims is None and not place.endswith(" of 1")
        single = single and isinstance(first, IndexError | RuntimeError)  # about dimensions
        hint = ". It gets one set at a time; pass set_dims=(2, 2) if it takes all sets at once"
        raise RuntimeError(
            f"{self.name} raised {type(first).__name__} on {where}: {first}{hint * single}"
        ) from first


def _one_number(result: Any, place: str) -> float:
    """What a function gave, as a float; TypeError unless it is one number."""
    sized = isinstance(result, Tensor | np.ndarray | np.generic)
    value = result.item() if sized and math.prod(result.shape) == 1 else result
    if isinstance(value, int | float):
        return float(value)
    detail = f"of shape {list(result.shape)}" if sized else f"{result!r:.80}"
    raise TypeError(f"{place} must give one number; got {type(result).__name__} {detail}")
