"""What the first batches of a loss show: mistakes that would otherwise train on in silence.

Every loss watches its first 50 batches in training mode and warns, once each, in a message that
says what to do:

    at once       a function that is the wrong way round (an error), classes as probabilities, a
                  ReLoss that has learned nothing
    10 batches    a BilevelLoss that has learned nothing, scores without a gradient, sets that may
                  be labels, a k that takes every item
    50 batches    binary probabilities, batches without a value or with too few items of a class

What may be intended once, such as a loss of scores from a file, is a mistake only if repeated.
After these batches nothing is looked at any more, so training is as fast as without, and a device
is never waited for.
"""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.mistakes import (
    are_label_maps,
    are_probabilities,
    rows_are_probabilities,
    warn_once,
)
from metricgrad.metrics.one_score import item_scores
from metricgrad.surrogates.calls import Call, sum_of_sets

if TYPE_CHECKING:
    from metricgrad.surrogates.base import Surrogate

_SOON = 10
_LAST = 50
_FEW = 2.0  # items of the rarer class in a set, below which a metric of the set means little
_ZEROS = 0.1  # the largest share of zeros among probabilities; a ReLU gives more
_PASS_LOGITS = "pass logits: the model's output without its sigmoid or softmax"
_LARGER = (
    "Larger or stratified batches help, or mg.with_memory(loss), which lets past items join the set"
)


@dataclass
class Notices:
    """What has been seen of the batches so far."""

    batches: int = 0
    empty: int = 0  # batches without a value of the metric
    detached: int = 0  # batches whose scores have no gradient
    low: float = torch.inf
    high: float = -torch.inf
    scores: int = 0
    zeros: int = 0
    rarest: list[float] = field(default_factory=list)  # items of the rarer class, of each batch
    longest: int = 0  # items of the longest set
    directed: bool = False  # whether the metric's direction is known to be right
    told_of_rows: bool = False

    @property
    def done(self) -> bool:
        """Whether all batches that are watched have been seen."""
        return self.batches == _LAST

    def watch(self, loss: "Surrogate", call: Call, *, defined: Tensor) -> None:
        """Looks at a batch, whose rows are bound to the loss, and tells what it shows."""
        scores, target, where, groups, _ = call
        self.batches += 1
        self.detached += int(torch.is_grad_enabled() and not scores.requires_grad)
        with torch.no_grad():
            metric = loss.shapes()
            scores = item_scores(metric, scores, target)
            if not self.directed:
                self.directed = metric.portable or metric.confirm_direction(
                    loss.check(scores, target, where)
                )
            self._count(loss.metric, Inputs(scores, target, where), groups, defined)
            if self.batches in (1, _SOON) and (unready := loss.unready(self.batches)):
                _tell(unready)
            if not self.told_of_rows and class_rows(metric, scores, target):
                self.told_of_rows = True
                _tell(f"the classes of every item sum to 1, as probabilities do; {_PASS_LOGITS}")
            if self.batches == _SOON:
                self._tell_soon(loss.metric, scores, target)
            if self.done:
                self._tell_size(loss.metric, scores, target)
                few_zeros = self.zeros <= _ZEROS * self.scores
                if 0 <= self.low < self.high <= 1 and few_zeros and _takes_logits(metric):
                    _tell(
                        f"all scores of the first {_LAST} batches lie between 0 and 1, as "
                        f"probabilities do, {consequence(metric)}; {_PASS_LOGITS}"
                    )

    def _count(self, metric: Metric | None, inputs: Inputs, groups: Any, defined: Tensor) -> None:
        """Adds a batch to what has been seen."""
        scores, target, where = inputs
        self.empty += int(not defined.any())
        flags = where if where is not None and where.shape == target.shape else None
        if scores.shape != target.shape or not scores.numel():
            return
        counted = scores if flags is None else scores[flags.bool()]
        if counted.numel():
            self.low = min(self.low, counted.min().item())
            self.high = max(self.high, counted.max().item())
            self.scores += counted.numel()
            self.zeros += int((counted == 0).sum())
        live = torch.ones_like(target, dtype=torch.bool) if flags is None else flags.bool()
        sizes = sum_of_sets(live, groups)
        self.longest = max(self.longest, int(sizes.max()))
        if metric is not None and metric.binary_or_classes:
            positives = sum_of_sets((target > 0) & live, groups)
            rarer = torch.minimum(positives, sizes - positives)
            self.rarest.append(rarer.float().mean().item())

    def _tell_soon(self, metric: Metric | None, scores: Tensor, target: Tensor) -> None:
        """Warns of what ten batches tell."""
        if self.detached == self.batches:
            _tell(
                "the scores do not depend on a model: none of the first batches had a gradient; "
                "pass the model's output as it is, without detach(), argmax or no_grad, or call "
                "loss.eval() if the loss is only measured"
            )
        if metric is None:
            return
        if may_be_labels(metric, scores, target):
            _tell(sets_or_labels(metric, scores))
        if scores.shape == target.shape and self.longest < metric.least_items:
            _tell(
                f"{metric!r} takes all {self.longest} items of a set, whatever their order, so "
                "nothing is learned; pass a smaller k, or larger sets"
            )

    def _tell_size(self, metric: Metric | None, scores: Tensor, target: Tensor) -> None:
        """Warns of batches that are too small, unless past items join them."""
        if 2 * self.empty > _LAST:
            _tell(
                f"{self.empty} of the first {_LAST} batches had no value of the metric (no "
                f"positive, for example), so nothing was learned from them. {_LARGER}"
            )
        elif metric is None or metric.mean_of_items:
            return
        elif self.rarest and self._rarer < _FEW:
            _tell(
                f"the sets of the first {_LAST} batches had {self._rarer:.1f} items of their rarer "
                f"class on average, too few for {metric.name} of a set to mean much. {_LARGER}"
            )
        elif (
            metric.binary_or_classes
            and scores.dim() == target.dim() + 1
            and target.shape[-1] < scores.shape[-1]
        ):
            _tell(
                f"a batch has {target.shape[-1]} items for {scores.shape[-1]} classes, so most "
                f"classes are missing when {metric.name} is averaged over them. {_LARGER}"
            )

    @property
    def _rarer(self) -> float:
        return sum(self.rarest) / max(1, len(self.rarest))


def may_be_labels(metric: Metric, scores: Tensor, target: Tensor) -> bool:
    """Whether scores `[B, C]`, taken as B sets, could as well be B items with C labels."""
    unknown = metric.layout == "any" and metric.set_dims is None
    either = unknown or metric.binary_or_classes
    return either and scores.shape == target.shape and scores.dim() == 2 and min(scores.shape) > 1


def sets_or_labels(metric: Metric, scores: Tensor) -> str:
    """How scores `[B, C]` are read, and what to pass for the other reading."""
    rows, columns = scores.shape
    maker = f"mg.metric({metric.name!r}" if metric.portable else "mg.from_function(fn"
    return (
        f"scores and target [{rows}, {columns}] are read as {rows} sets of {columns} items; if "
        f"they are {rows} items with {columns} labels, pass {maker}, multilabel=True)"
    )


def class_rows(metric: Metric, scores: Tensor, target: Tensor) -> bool:
    """Whether scores of classes are probabilities."""
    if scores.dim() != target.dim() + 1 or metric.layout not in ("binary", "any", "maps", "tokens"):
        return False
    maps = are_label_maps(scores.shape, target.shape) and metric.layout != "tokens"
    return rows_are_probabilities(scores, -3 if maps else -1)


def consequence(metric: Metric) -> str:
    """What probabilities in place of logits do to a loss."""
    if metric.decides_at_zero:
        return "so every decision at 0 is positive"
    return "and the slope of the loss suits logits, so it learns slowly from them"


def notice_example(model: nn.Module, metric: Metric, inputs: Inputs) -> None:
    """Tells what a few items show before a model is trained on them."""
    scores, target, _ = inputs
    if not metric.portable:
        metric.confirm_direction(metric.check(*inputs))
    within = scores.numel() > 0 and bool((scores >= 0).all() & (scores <= 1).all())
    squashed = _ends_in_probabilities(model) and within and _takes_logits(metric)
    if squashed or class_rows(metric, scores, target):
        warn_once(
            f"the model ends in probabilities, {consequence(metric)}; {_PASS_LOGITS}", stacklevel=4
        )


def notice_trained(model: nn.Module, metric: Metric, scores: Tensor, target: Tensor) -> None:
    """Tells if a trained model gives probabilities, unless its last layer has said so before.

    Logits may lie between 0 and 1 by chance, so a model whose last layer is known to be linear is
    left alone; a `forward` of one's own may still squash what that layer returns.
    """
    if scores.shape != target.shape or not _takes_logits(metric):
        return
    if _ends_in_probabilities(model) or _ends_linear(model):
        return
    if are_probabilities(scores):
        warn_once(
            "all scores of the trained model lie between 0 and 1, as probabilities do, "
            f"{consequence(metric)}; {_PASS_LOGITS}",
            stacklevel=3,
        )


def _ends_in_probabilities(model: nn.Module) -> bool:
    *_, last = model.modules()
    return isinstance(last, nn.Sigmoid | nn.Softmax)


def _ends_linear(model: nn.Module) -> bool:
    """Whether its output is certainly that of a linear layer."""
    while isinstance(model, nn.Sequential) and len(model):
        model = model[-1]
    return isinstance(model, nn.Linear)


def _takes_logits(metric: Metric) -> bool:
    """Whether scores are logits to it: not heatmaps, and no threshold of the user's own."""
    own_threshold = metric.decided_by == "thresholds" and not metric.decides_at_zero
    return metric.layout in ("binary", "labels", "grades", "any") and not own_threshold


def _tell(message: str) -> None:
    """Warns at the line that called the loss."""
    warnings.warn(message, stacklevel=6)
