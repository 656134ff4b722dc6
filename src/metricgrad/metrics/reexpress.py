"""Write the metric, get the loss: a function in plain torch as comparisons, bits and a value of bits.

`reexpress(fn)` is a metric like any other: called, it calls fn. Asked for comparisons, it watches fn run on the set
(`watch.py`, `record.py`) and finds those behind its discrete operations; asked for the value of other bits, it replays
fn with them (`replay.py`). What fn compares may depend on shapes and target, so every set is watched anew; what holds
for fn itself (how its indices are used, whether `torch.vmap` can run it) is found out once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.checks import whole
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.metrics.replay import Habits, Recording

_SHOWN_BITS = 64


def reexpress(
    fn: Callable[..., Any],
    *,
    higher_is_better: bool = True,
    best: float | None = None,
    worst: float | None = None,
    multilabel: bool = False,
    set_dims: tuple[int, int] | None = None,
    flips: int = 2048,
    generator: torch.Generator | None = None,
    name: str | None = None,
) -> "WatchedMetric":
    r"""A metric that comparisons decide, from a function in plain torch: all that `UniLoss` needs.

    Args:
        fn: `(scores, target) -> 0-dim tensor` for one set. On values that depend on scores it may use every smooth
            operation, comparisons, sign, argmax, argmin, max, min, sort, argsort, topk, round, floor, ceil, bucketize,
            where and masks, clamp and relu, and indices that come from these.
        higher_is_better: the direction.
        best: the value of an ideal model; unbounded by default, which scales the gradient by the set's own range.
        worst: the value at the other end; unbounded by default.
        multilabel: a set is scores and target `[N, C]`; by default `[N]` each, or `[N, C]` and class indices `[N]`.
        set_dims: how many trailing dimensions of scores and target make one set, for other kinds of data.
        flips: how many flips of bits are tried in a step; of more, so many are drawn at random.
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
    whole("flips", flips, 1)
    made = from_function(
        fn, higher_is_better, best=best, worst=worst, multilabel=multilabel, set_dims=set_dims, arrays=False, name=name
    )
    return WatchedMetric(**{option: getattr(made, option) for option in _OPTIONS}, flips=flips, generator=generator)


_OPTIONS = ("call", "name", "higher_is_better", "best", "worst", "set_dims", "arrays")


@dataclass(frozen=True, kw_only=True)
class WatchedMetric(FunctionMetric, ComparisonMetric):
    """A metric whose comparisons are found by watching its function; `reexpress` makes it and describes the fields."""

    flips: int = 2048
    generator: torch.Generator | None = None
    habits: Habits = field(default_factory=Habits, init=False, repr=False, compare=False)
    last: "list[Recording]" = field(default_factory=list, init=False, repr=False, compare=False)

    def reexpress(self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype) -> "Replays":
        """The re-expression for a target: nothing is watched before it sees scores."""
        return Replays(self, tuple(shape), target, where, dtype)

    def ideal_bits(self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None) -> Tensor:
        """The best configuration that is known: that of scores made from the target."""
        plan = self._plan(target, where, shape)
        assert isinstance(plan, Replays)
        return plan.best_bits(plan.bits())

    def explain(self, scores: Any = None, target: Any = None) -> str:
        """What the function compares, line by line.

        Args:
            scores: a set; without one, the set that was watched last.
            target: its target.

        Returns:
            A table: line, operation, comparisons; then how configurations are replayed, and a small set's bits.
        """
        if scores is not None:
            self.comparisons(scores, target)
        if not self.last:
            raise ValueError(f"{self.name} has not been watched yet; pass a set: explain(scores, target)")
        return explanation(self.name, self.last[0], self.habits)


class Replays(Reexpression):
    """A target's metric, watched and replayed: one recording for every set.

    Args:
        metric: the metric.
        shape: of the scores.
        target: checked.
        where: items that count.
        dtype: of the scores.
    """

    def __init__(
        self, metric: WatchedMetric, shape: tuple[int, ...], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> None:
        self._metric, self._shape, self._target, self._where, self._dtype = metric, shape, target, where, dtype
        self._sets: list[Recording] = []
        self._lead = shape[: metric.set_dimensions(torch.empty(shape, device="meta"), target)]

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the function makes, padded to the longest set."""
        self._sets = [Recording(self._metric.call, *each, self._metric.habits) for each in self._each(scores)]
        self._metric.last[:] = self._sets
        longest = max((len(each.values) for each in self._sets), default=0)
        values = [torch.nn.functional.pad(each.values, (0, longest - len(each.values))) for each in self._sets]
        live = [torch.nn.functional.pad(each.live, (0, longest - len(each.live))) for each in self._sets]
        if not self._sets:
            return scores.new_zeros(*self._lead, 0), scores.new_zeros(*self._lead, 0).bool()
        return torch.stack(values).reshape(*self._lead, -1), torch.stack(live).reshape(*self._lead, -1)

    def bits(self) -> Tensor:
        """How the comparisons turned out, `[..., D]`; of scores at random where none have been watched."""
        self._watched()
        longest = max((len(each.bits) for each in self._sets), default=0)
        return self._stack([torch.nn.functional.pad(each.bits, (0, longest - len(each.bits))) for each in self._sets])

    def from_bits(self, bits: Tensor) -> Tensor:
        """The function, replayed with every configuration."""
        self._watched()
        rows = bits.reshape(-1, len(self._sets), bits.shape[-1])
        values = [each.of_bits(rows[:, at, : len(each.bits)]).nan_to_num(0.0) for at, each in enumerate(self._sets)]
        return torch.stack(values, -1).reshape(bits.shape[:-1]).to(self._dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """By trying flips; more than the metric's `flips` are drawn at random."""
        self._watched()
        rows = bits.reshape(-1, len(self._sets), bits.shape[-1])
        gains = torch.zeros(rows.shape, dtype=self._dtype, device=bits.device)
        for at, each in enumerate(self._sets):
            for row in range(len(rows)):
                found = each.flip_gains(rows[row, at, : len(each.bits)], self._metric.flips, self._metric.generator)
                gains[row, at, : len(each.bits)] = found
        return gains.reshape(bits.shape)

    def defined(self) -> Tensor:
        """Sets of which the function gives a number."""
        self._watched()
        return self._stack([~each.value.isnan() for each in self._sets])

    def direct(self) -> Tensor | None:
        """What the value owes to scores directly, not through bits: `[...]`, differentiable; None if nothing."""
        found = [each.direct() for each in self._sets]
        if all(each is None for each in found):
            return None
        return self._stack([each.value if part is None else part for each, part in zip(self._sets, found, strict=True)])

    def best_bits(self, bits: Tensor) -> Tensor:
        """The best of the current bits and those of scores made from the target, either way around."""
        self._watched()
        ideal = bits.clone().reshape(len(self._sets), -1)
        for at, (each, (scores, target)) in enumerate(zip(self._sets, self._each(self._random()), strict=True)):
            candidates = self._candidates(each, scores, target)
            values = each.of_bits(candidates)
            chosen = values.argmax() if self._metric.higher_is_better else values.argmin()
            ideal[at, : len(each.bits)] = candidates[chosen]
        return ideal.reshape(bits.shape)

    def scale(self) -> Tensor | None:
        """The range of an unbounded metric on each set, `[...]`; None for a bounded one."""
        if math.isfinite(self._metric.best):
            return None
        spans = []
        for each, (scores, target) in zip(self._sets, self._each(self._random()), strict=True):
            values = each.of_bits(self._candidates(each, scores, target))
            spans.append(values.max() - values.min())
        return self._stack([torch.where(span > 0, span, 1.0) for span in spans]).to(self._dtype)

    def _candidates(self, recording: Recording, scores: Tensor, target: Tensor) -> Tensor:
        """Configurations `[A, D]` to compare with: the current one, that of ideal scores, that of their opposite."""
        found = [recording.bits]
        wished = _ideal_scores(scores, target)
        if wished is not None:
            for each in (wished, -wished):
                bits = Recording(self._metric.call, each, target, self._metric.habits).bits
                found += [bits] if bits.shape == recording.bits.shape else []
        return torch.stack(found)

    def _watched(self) -> None:
        if not self._sets:
            self.comparisons(self._random())

    def _random(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self._shape, generator=generator, dtype=self._dtype).to(self._target.device)

    def _each(self, scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scores and target of every set, without what does not count."""
        lead = len(self._lead)
        flat = scores.reshape(-1, *scores.shape[lead:]), self._target.reshape(-1, *self._target.shape[lead:])
        if self._where is None:
            return list(zip(*(each.unbind(0) for each in flat), strict=True))
        flags = self._where.reshape(len(flat[0]), -1)
        return [(one[some], truth[some]) for one, truth, some in zip(*flat, flags, strict=True)]

    def _stack(self, values: list[Tensor]) -> Tensor:
        stacked = torch.stack(values)
        return stacked.reshape((*self._lead, *stacked.shape[1:]))


def _ideal_scores(scores: Tensor, target: Tensor) -> Tensor | None:
    """Scores that say what the target says; None where shapes do not tell how."""
    if target.shape == scores.shape and target.numel():
        middle = (target.double().amin() + target.double().amax()) / 2
        return (2 * (target.double() - middle)).to(scores.dtype)
    if target.shape == scores.shape[:-1] and not target.is_floating_point() and target.numel():
        inside = (target >= 0) & (target < scores.shape[-1])
        classes = torch.nn.functional.one_hot(torch.where(inside, target, 0), scores.shape[-1])
        return (2.0 * classes - 1).to(scores.dtype)
    return None


def explanation(name: str, recording: Recording, habits: Habits) -> str:
    """The text of `explain`."""
    rows = [("where", "operation", "comparisons", "code")]
    for where, values, _, _ in recording.decisions:
        rows.append((f"line {where.line}", where.operation, str(len(values)), where.code))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{where:<{widths[0]}}  {operation:<{widths[1]}}  {number:>{widths[2]}}  {code}"[:118].rstrip()
        for where, operation, number, code in rows
    ]
    way = {
        True: "replayed many configurations at once (torch.vmap)",
        False: f"replayed one by one: torch.vmap cannot run it ({habits.reason})",
        None: "not replayed yet",
    }[habits.vmaps]
    lines.append(f"{name} = {float(recording.value):.6g} from {len(recording.bits)} comparisons; {way}")
    if len(recording.bits) <= _SHOWN_BITS:
        lines.append("bits " + "".join(map(str, recording.bits.int().tolist())))
    return "\n".join(lines)
