"""Data of the items besides scores and target: amounts, costs or weights.

A user's own function may be `profit(scores, target, amount)`. Its parameters after the first two
name what it takes of every item, and a call passes that by name:

    metric(scores, target, amount=amount)        amount has a value for each item, `[..., N]`

There it is bound to the metric (`Metric.with_rows`). Everything below then sees a metric of scores
and target alone, and each set gets its own part of the data.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from metricgrad.metrics.checks import shape, to_tensor

# For each name `[..., N]`, or `[..., N, *]` if an item has several values.
Rows = Mapping[str, Tensor]
NO_ROWS: Rows = MappingProxyType({})

SAMPLE_WEIGHT = "sample_weight"  # the name that weights of items have, as in scikit-learn
_TAKEN = ("where", "groups")  # what a call of a metric means by these is fixed


class OneSet(NamedTuple):
    """The items of a set that count."""

    scores: Tensor
    target: Tensor
    rows: Rows


@dataclass(frozen=True)
class RowNames:
    """The names of the data that a metric takes besides scores and target, in its order.

    Attributes:
        metric: The name of the metric.
        every: All names; none if the metric takes scores and target alone.
        required: Those that every call must pass.
    """

    metric: str
    every: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @classmethod
    def of(cls, metric: str, fn: Callable[..., Any]) -> "RowNames":
        """A function's parameters after its first two; those without a default are required."""
        try:
            parameters = list(inspect.signature(fn).parameters.values())[2:]
        except ValueError:  # a builtin without a signature
            parameters = []
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {each.name: each.default for each in parameters if each.kind in kinds}
        required = tuple(
            name for name, default in named.items() if default is inspect.Parameter.empty
        )
        for name in _TAKEN:
            if name in required:
                raise ValueError(
                    f"{metric} has a parameter {name!r}, which metrics and losses have already, "
                    "with another meaning; call it something else"
                )
        return cls(metric, tuple(name for name in named if name not in _TAKEN), required)

    def __bool__(self) -> bool:
        return bool(self.every)

    def check(self, given: Sequence[str]) -> None:
        """Raises TypeError for names that the metric does not know."""
        unknown = [name for name in given if name not in self.every]
        if not unknown:
            return
        if self:
            takes = f"{_listed(self.every)} besides scores and target"
        else:
            takes = (
                "scores and target alone. Your own function may take more parameters, as in "
                f"f(scores, target, {unknown[0]})"
            )
        if SAMPLE_WEIGHT in unknown:
            takes += ". Weights are for metrics of decisions and of curves, such as f1 and auc"
        raise TypeError(f"{self.metric} takes {takes}; got {_listed(unknown)}")

    def complete(self, given: Sequence[str]) -> None:
        """Raises TypeError where a name is missing."""
        missing = [name for name in self.required if name not in given]
        if missing:
            call = ", ".join(f"{name}={name}" for name in missing)
            raise TypeError(
                f"{self.metric} takes {_listed(missing)} besides scores and target; pass a value "
                f"for each item by name: (scores, target, {call}), or to mg.fit and in batches as "
                f"(x, y, {', '.join(self.required)})"
            )

    def named(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        """What follows x and y in a batch: in the order of the names, or one mapping from names."""
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            given = dict(parts[0])
        else:
            if len(parts) > len(self.every):
                takes = f"{_listed(self.every)} after x and y" if self else "x and y alone"
                raise TypeError(f"{self.metric} takes {takes}; got {2 + len(parts)} parts")
            given = dict(zip(self.every, parts, strict=False))
        self.check(list(given))
        self.complete(list(given))
        return to_rows(given)


NO_NAMES = RowNames("the metric")


@dataclass(frozen=True)
class WithRows:
    """A function of scores and target alone; it gets copies, as it may change them in place."""

    call: Callable[..., Any]
    rows: Rows
    arrays: bool = False

    def __call__(self, scores: Tensor, target: Tensor) -> Any:
        """Calls the function with tensors or arrays."""
        own: list[Any] = [each.clone() for each in (scores, target, *self.rows.values())]
        if self.arrays:
            own = [each.cpu().numpy() for each in own]
        return self.call(*own[:2], **dict(zip(self.rows, own[2:], strict=True)))


def to_rows(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Data of items as tensors without a gradient."""
    return {name: to_tensor(name, value) for name, value in given.items()}


def check_rows(rows: Rows, items: Sequence[int], where: Tensor | None) -> None:
    """Raises ValueError unless there is a number for every item that counts."""
    for name, row in rows.items():
        if row.shape[: len(items)] != tuple(items):
            raise ValueError(
                f"{name} must have a value for each item, shape {list(items)} as the target has "
                f"it; got {shape(row)}"
            )
        if not row.is_floating_point() or not row.isnan().any():
            continue
        missing = row.isnan().reshape(*items, -1).any(-1)
        if where is not None:
            missing = missing & where
        if missing.any():
            raise ValueError(
                f"{name} is NaN for {int(missing.sum())} of {missing.numel()} items; fill these "
                "in, or mask them with where"
            )


def at(rows: Rows, index: Tensor | slice) -> dict[str, Tensor]:
    """The data of the items at an index of any shape, or that a mask picks."""
    return {name: row[index] for name, row in rows.items()}


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
