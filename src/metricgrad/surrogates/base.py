"""What a surrogate is: a differentiable stand-in for a metric, lower is better, an `nn.Module`.

`loss(scores, target)` takes logits as they leave the model and gives a 0-dim tensor to call
`.backward()` on: the mean of `per_set` over the sets on which the metric is defined. If there are
none, it is 0 with a zero gradient, still attached to the graph, so that a training loop needs no
special case.
"""

import inspect
import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric, from_function
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import shape
from metricgrad.metrics.one_score import as_items, item_scores
from metricgrad.metrics.registry import metric_config, metric_options
from metricgrad.metrics.rows import NO_NAMES, SAMPLE_WEIGHT, RowNames, Rows, to_rows
from metricgrad.storage import write_tensors
from metricgrad.surrogates.calls import (
    Call,
    bound,
    losses_by_size,
    losses_of_groups,
)
from metricgrad.surrogates.compiled import new_key, value_and_slope
from metricgrad.surrogates.noticing import Notices

TargetKind = Literal["binary", "classes", "labels", "grades"]
_FUNCTION_OPTIONS = dict(inspect.signature(from_function).parameters)


class Surrogate(nn.Module, ABC):
    """A loss in place of a metric.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.UniLoss("auc")
        >>> isinstance(loss, mg.Surrogate), loss.readable, loss.metric.name
        (True, True, 'auc')

    Attributes:
        readable: Whether the value of the loss is that of the metric, as a loss.
        remembers: Whether a batch changes the loss of later ones, so that every model needs its
            own loss.
        weighs: Whether it trains on weights of the items, if its metric takes them.
        metric: The `Metric` that it stands for, or None.
    """

    readable: bool = False
    remembers: bool = False
    weighs: bool = False
    metric: Any = None
    _notices: Notices | None = None

    _key: int  # by which compiled code finds the loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._key = new_key(self)  # a copy is another loss

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuses options of the metric among those of the loss, and says where they go."""
        given = args[0] if args else options.get("metric")
        own = inspect.signature(cls.__init__).parameters
        if given is not None and not set(options) <= set(own):
            _refuse_metric_options(cls.__name__, given, options, set(own))
        made = super().__new__(cls)
        object.__setattr__(made, "_key", new_key(made))  # it is no module yet
        return made

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """Whether the loss can be trained on targets of a kind, by the metric's facts."""
        return kind in target_kinds(metric)

    @abstractmethod
    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every set `[...]`, and whether the metric is defined there `[...]`."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The options from which the surrogate can be built again, ready for JSON."""

    def description(self) -> dict[str, Any]:
        """Class and configuration, ready for JSON."""
        return {"class": type(self).__name__, "config": self.config()}

    def save(self, path: str | Path) -> None:
        """Writes the surrogate to one safetensors file: tensors, and settings in a JSON header.

        An existing file is replaced only once the new one is complete.
        """
        write_tensors(path, self.state_dict(), "metricgrad", self.description())

    def shapes(self) -> Metric:
        """The metric whose shapes and checks the loss shares."""
        return to_metric("accuracy") if self.metric is None else self.metric

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs of sets as the metric's formula takes them, in full precision."""
        metric = self.shapes()
        return metric.check(item_scores(metric, scores, target), target.detach(), where)

    def read(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """What a user passed, checked."""
        return self.check(*as_items(self.shapes(), scores, target, where))

    def per_set(
        self,
        scores: Tensor,
        target: Tensor,
        where: Tensor | None = None,
        groups: Any = None,
        **rows: Any,
    ) -> Tensor:
        """The loss of every set, `[...]`; the arguments are those of a call."""
        call = Call(scores, target, where, groups, to_rows(rows))
        return self._each(call.items_of(self.shapes()))[0]

    def forward(
        self,
        scores: Tensor,
        target: Tensor,
        where: Tensor | None = None,
        groups: Any = None,
        **rows: Any,
    ) -> Tensor:
        """The mean loss of the sets on which the metric is defined.

        Args:
            scores: Raw model output, in the metric's shapes.
            target: Ground truth, in the metric's shapes.
            where: True for entries that count; None counts all.
            groups: `[N]`, integer ids that split one flat set into many, such as the queries that
                documents belong to.
            **rows: Weights of the items, `sample_weight`, for metrics of decisions and of curves;
                or arguments of your own metric besides scores and target, by the names of its
                parameters, such as `amount=amount`: `[..., N]`, a value for each item.

        Returns:
            A 0-dim tensor; 0 with a zero gradient if the metric is undefined on every set.
        """
        if torch.compiler.is_compiling():
            values = list(rows.values())
            return value_and_slope(
                self._key, scores, target, where, groups, values, " ".join(rows)
            )[0]
        return self._mean(Call(scores, target, where, groups, to_rows(rows)))

    def _mean(self, call: Call) -> Tensor:
        """The mean over the sets that have a value."""
        call = call.items_of(self.shapes())
        values, defined = self._each(call)
        if self.training:
            if self._notices is None:
                self._notices = Notices()
            if not self._notices.done:
                with bound(self, call.rows):
                    self._notices.watch(self, call, defined=self.has_metric(defined))
        if not values.dim() and defined:  # one set, as most of the time
            return values
        return torch.where(defined, values, 0.0).sum() / defined.sum().clamp(min=1)

    def has_metric(self, defined: Tensor) -> Tensor:
        """Sets `[...]` of the last batch that the metric had a part in, of those with a loss."""
        return defined

    def unready(self, batches: int) -> str:
        """A warning, after 1 or 10 batches, that the loss is not ready; empty if it is."""
        return ""

    @property
    def row_names(self) -> RowNames:
        """What it takes of every item besides scores and target: what its metric takes."""
        return NO_NAMES if self.metric is None else self.metric.row_names

    def bind(self, rows: Rows) -> None:
        """Binds data of the items, in place of what was bound before."""
        self.metric = self.metric.with_rows(rows)

    def takers(self) -> "list[Surrogate]":
        """The losses among it and its parts that take more than scores and target."""
        parts = (each for each in self.modules() if isinstance(each, Surrogate))
        return [each for each in parts if each.row_names]

    def taken(self, rows: Rows) -> Rows:
        """What it or its parts take of some data; of weights, all of its parts must know."""
        names = {name for each in self.takers() for name in each.row_names.every}
        names -= set() if self.weighs else {SAMPLE_WEIGHT}
        return {name: row for name, row in rows.items() if name in names}

    def _each(self, call: Call) -> tuple[Tensor, Tensor]:
        """`losses` of the sets, or of the groups of one flat set, `[G]` by ascending id."""
        given = [name for name in call.rows if name not in self.taken(call.rows)]
        if given:
            if self.row_names:
                self.row_names.check(given)
            raise TypeError(
                f"{type(self).__name__} takes scores and target alone here; got "
                f"{', '.join(given)}. Weights of items are for cross-entropy and, where the metric "
                "takes them, for mg.UniLoss, and for mg.MetricLoss with cross-entropy. Other data "
                "is for your own metric that has it as a parameter: mg.UniLoss(f) with "
                "f(scores, target, "
                f"{', '.join(given)})"
            )
        if call.groups is not None:
            return self._of_groups(call)
        if call.rows:  # items of sets that are taken apart would have to take them along
            with bound(self, call.rows):
                return self.losses(call.scores, call.target, call.where)
        return losses_by_size(self, call.scores, call.target, call.where)

    def _of_groups(self, call: Call) -> tuple[Tensor, Tensor]:
        """`losses` of the groups of one flat set, the groups of each size at once."""
        return losses_of_groups(self, call)


class LearnedSurrogate(Surrogate):
    """A loss with parameters of its own, which are trained on its misfit.

    Its network's value v becomes shift + scale * v, so that it can be read as the metric's.
    """

    readable = True
    metric: Metric
    shift: Tensor
    scale: Tensor

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = to_metric(metric)
        needed = self.metric.row_names.required
        if needed:
            raise ValueError(
                f"{type(self).__name__} learns from sets of scores and target, which have no "
                f"{' or '.join(needed)}; take mg.UniLoss({self.metric.name})"
            )
        self.register_buffer("shift", torch.tensor(0.0))
        self.register_buffer("scale", torch.tensor(1.0))

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """As for every loss; but the sets that it learns from have nothing but a target."""
        weighed = SAMPLE_WEIGHT in metric.rows
        return not weighed and not metric.row_names.required and super().fits(metric, kind)

    @property
    def row_names(self) -> RowNames:
        """None: the sets that it learns from have only scores and target."""
        return NO_NAMES

    @abstractmethod
    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """How far it is from its metric on these sets: 0-dim, with a gradient for its weights."""


def target_kinds(metric: Metric) -> tuple[TargetKind, ...]:
    """The kinds of targets for which a metric's shapes and checks have a value.

    Binary targets and labels both have the shape of the scores: to a metric of binary scores,
    labels `[N, C]` are N sets, and to a metric of labels, a set `[N]` is an item with N labels.
    """
    match metric.layout:
        case "any":
            return ("binary", "classes", "labels", "grades")
        case "labels" if metric.decided_by != "anything":  # a user's function takes any numbers
            return ("binary", "labels")
        case "binary" if metric.takes_classes:
            return ("binary", "classes", "labels")
        case "binary" | "labels" | "grades":
            return ("binary", "labels", "grades")
        case _:
            return ()


def _refuse_metric_options(loss: str, given: Any, options: dict[str, Any], own: set[str]) -> None:
    """Raises TypeError, with the call to write, if options of the loss are those of its metric."""
    metric = to_metric(given)
    known = metric_options(type(metric)) if metric.portable else _FUNCTION_OPTIONS
    misplaced = [name for name in options if name in known and name not in own]
    if not misplaced:
        return
    kept = metric_config(metric).get("options", {})
    inner = {name: value for name, value in kept.items() if value != known[name]}
    inner |= {name: options[name] for name in misplaced}
    outer = {name: options[name] for name in options if name in own and name != "metric"}
    maker = f'mg.metric("{metric.name}"' if metric.portable else "mg.from_function(fn"
    verb = "is an option" if len(misplaced) == 1 else "are options"
    raise TypeError(
        f"{', '.join(misplaced)} {verb} of the metric, not of {loss}; write "
        f"mg.{loss}({maker}{_written(inner)}){_written(outer)})"
    )


def _written(options: dict[str, Any]) -> str:
    """Options as they stand in a call, after the first argument."""
    return "".join(f", {name}={value!r}" for name, value in options.items())


def as_loss(metric: Metric, values: Tensor) -> Tensor:
    """Values as losses: best - value, the value where lower is better, -value if unbounded."""
    if not metric.higher_is_better:
        return values
    return metric.best - values if math.isfinite(metric.best) else -values


def counted(target: Tensor, where: Tensor | None) -> Tensor:
    """`where`, or all True in the target's shape."""
    return torch.ones_like(target, dtype=torch.bool) if where is None else where


def wrong_shapes(takes: str, metric: Metric, scores: Tensor, target: Tensor) -> ValueError:
    """The error for scores and target in shapes that a loss or network does not take."""
    got = f"got scores {shape(scores)} and target {shape(target)} for {metric.name}"
    return ValueError(f"{takes}; {got}")


def full_precision(device: str) -> AbstractContextManager[Any]:
    """A context without autocast; entering one takes time, so only where autocast is on."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
