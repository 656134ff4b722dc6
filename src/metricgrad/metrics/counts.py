"""Many classes as binary questions: the task the shapes ask for, counts, and how to average.

Equal shapes are binary sets, or items with many labels if the metric says `multilabel=True`. A
target with one dimension fewer holds class indices. Two classes without `average` are the binary
question s1 - s0 > threshold. More classes are answered class by class, and the answers averaged:

    macro      mean over the classes          weighted   mean by the classes' number of positives
    micro      all answers counted together

Classes that appear neither in the target nor in the predictions are left out of a multi-class
average, as scikit-learn and torchmetrics do; labels of a multi-label target always take part. A
`Pooling` is such an average, or any other way to make one value of the counts of the classes.

A `Curve` holds the counts for every threshold at once: walk down the sorted scores and count the
positives (tp) and negatives (fp) passed. Items with equal scores are passed together, so a curve
has a vertex only at the last of them. O(N log N) time, O(N) memory, all sets at once.

Items may have weights (`sample_weights.py`). Counts are then sums of weights, in float64.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Layout
from metricgrad.metrics.checks import class_indices, expand_where, real_scores, zero_one
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.rows import RowNames, to_rows
from metricgrad.metrics.sample_weights import exact_weights, weight_names, without_weightless

_BYTE = 255
Average = Literal["macro", "micro", "weighted"]
Task = Literal["binary", "multiclass", "multilabel"]


class Counts(NamedTuple):
    """A two-by-two confusion matrix for each set `[...]`, or each class of each set `[..., C]`."""

    tp: Tensor
    fp: Tensor
    fn: Tensor
    tn: Tensor


@dataclass(frozen=True, kw_only=True)
class ClassificationMetric(ComparisonMetric):
    """A metric of binary, multi-class or multi-label scores; the shapes decide which.

    Args:
        average: How the values of the classes become one; None means macro.
        multilabel: Whether scores and target `[..., N, C]` are items with C labels, not sets of
            binary scores.
    """

    takes_classes = True

    average: Average | None = None
    multilabel: bool = False

    @property
    def layout(self) -> Layout:
        """Labels if `multilabel` says so; otherwise the shapes tell binary scores from classes."""
        return "labels" if self.multilabel else "binary"

    @property
    def scale_free(self) -> bool:
        """The scale of the scores changes neither the order of items nor the highest class."""
        return True

    @property
    def row_names(self) -> RowNames:
        """Items may have weights."""
        return weight_names(self.name)

    def with_rows(self, rows: Mapping[str, Any]) -> Self:
        """The same metric with weights of the items; `Metric.with_rows` describes it."""
        super().with_rows(rows)
        if not rows and not self.rows:
            return self
        bound = copy.copy(self)
        object.__setattr__(bound, "rows", to_rows(rows))
        return bound

    def item_weights(self, full: Sequence[int], where: Tensor | None) -> Tensor | None:
        """The weights of the items in a shape, 0 for what does not count; None for no weights."""
        return exact_weights(self.rows, full, where)

    def item_scores(self, scores: Tensor, target: Tensor) -> Tensor:
        """Binary scores without a column of 1; those of a two-class model as s1 - s0."""
        if scores.dim() == target.dim() + 1 and self._is_binary(scores.shape[-1]):
            return scores[..., 1] - scores[..., 0]
        return super().item_scores(scores, target)

    def _is_binary(self, classes: int) -> bool:
        """Whether so many classes are one binary question instead of one question per class."""
        return classes == 2 and self.average is None

    def __post_init__(self) -> None:
        if self.average is not None and self.average not in get_args(Average):
            raise ValueError(
                f"average must be one of {', '.join(get_args(Average))}; got {self.average!r}"
            )

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Binary scores and a bool target (two classes as s1 - s0), or class indices."""
        if self.task(scores.shape, target.shape) == "multiclass":
            where = expand_where(where, target.shape, target.dim())
            where = without_weightless(self.rows, target.shape, where, target.shape)
            scores = real_scores(scores, None if where is None else where.unsqueeze(-1))
            target = class_indices(target, scores.shape[-1], where)
            if self._is_binary(scores.shape[-1]):
                return Inputs(scores[..., 1] - scores[..., 0], target == 1, where)
            return Inputs(scores, target, where)
        items = scores.dim() - self.multilabel
        where = expand_where(where, scores.shape, items)
        where = without_weightless(self.rows, scores.shape[:items], where, scores.shape)
        scores = real_scores(scores, where)
        hint = "; class indices need scores [..., N, C] with a column per class"
        target = zero_one("target", target, where, "" if self.multilabel else hint)
        return Inputs(scores, target, where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The metric of every set, by the task its shapes ask for."""
        match self.task(scores.shape, target.shape):
            case "binary":
                return self.binary(scores, target, where)
            case "multilabel":
                return self.multi_label(scores, target, where)
            case "multiclass":
                return self.multi_class(scores, target, where)

    def task(self, scores: Sequence[int], target: Sequence[int]) -> Task:
        """The task that the shapes ask for; ValueError where they fit none."""
        scores = list(scores)
        target = list(target)
        wanted = (
            "scores and target [..., N] (binary), or scores [..., N, C] with target [..., N] "
            "(2 or more classes)"
        )
        if self.multilabel:
            if scores == target and len(scores) > 1:
                return "multilabel"
            wanted = "scores and target [..., N, C], as multilabel=True"
        elif scores == target:
            return "binary"
        elif scores[:-1] == target and scores[-1] > 1:
            return "multiclass"
        raise ValueError(f"{self.name} takes {wanted}; got scores {scores} and target {target}")

    @abstractmethod
    def binary(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Value `[...]` of scores `[..., N]` and a bool target of the same shape."""

    @abstractmethod
    def multi_class(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Value `[...]` of scores `[..., N, C]` and class indices `[..., N]`."""

    @abstractmethod
    def multi_label(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Value `[...]` of scores `[..., N, C]` and a bool target of the same shape."""


def binary_counts(
    decisions: Tensor,
    target: Tensor,
    where: Tensor | None,
    dtype: torch.dtype,
    weight: Tensor | None = None,
) -> Counts:
    """Counts `[...]` of yes-or-no decisions `[..., N]` about a bool target `[..., N]`."""
    if weight is not None:
        tp, predicted, positives = (
            torch.where(chosen, weight, 0.0).sum(-1)
            for chosen in (decisions & target, decisions, target)
        )
        rest = weight.sum(-1) - predicted - positives + tp
        return Counts(tp, predicted - tp, positives - tp, rest)
    if where is not None:
        decisions = decisions & where
        target = target & where
    size = decisions.shape[-1] if where is None else where.sum(-1).to(dtype)
    tp = (decisions & target).sum(-1).to(dtype)
    fp = decisions.sum(-1).to(dtype) - tp
    fn = target.sum(-1).to(dtype) - tp
    return Counts(tp, fp, fn, size - tp - fp - fn)


def class_counts(
    predicted: Tensor,
    target: Tensor,
    classes: int,
    where: Tensor | None,
    dtype: torch.dtype,
    weight: Tensor | None = None,
) -> Counts:
    """One-against-rest counts `[..., C]` of class indices `[..., N]`, without one-hot tensors."""
    lead = target.shape[:-1]
    size = target.shape[-1]
    sets = lead.numel()
    offsets = torch.arange(sets, device=target.device).unsqueeze(-1) * classes

    def histogram(index: Tensor, counted: Tensor | None) -> Tensor:
        cells = index.reshape(sets, size) + offsets
        kept = ... if counted is None else counted.reshape(sets, size)
        each = None if weight is None else weight.reshape(sets, size)[kept].flatten()
        found = torch.bincount(cells[kept].flatten(), each, minlength=sets * classes)
        return found.reshape(*lead, classes).to(dtype if weight is None else weight.dtype)

    match = predicted == target
    tp = histogram(target, match if where is None else match & where)
    fp = histogram(predicted, where) - tp
    support = histogram(target, where)
    return Counts(tp, fp, support - tp, support.sum(-1, keepdim=True) - support - fp)


class Curve(NamedTuple):
    """The counts on the way down from the highest score, `[..., N]` each."""

    scores: Tensor  # from the highest to the lowest
    tp: Tensor  # positives at or above the i-th highest score: int64, or float64 for weights
    fp: Tensor  # negatives likewise
    tp_before: Tensor  # positives strictly above it: tp at the previous vertex
    fp_before: Tensor
    vertex: Tensor  # bool, True at the last of equal scores
    positives: Tensor  # [..., 1], all of them
    negatives: Tensor
    counted: Tensor  # [..., 1], items that count, whatever their weights

    @property
    def dtype(self) -> torch.dtype:
        """The float dtype in which to answer."""
        return self.scores.dtype

    def ratio(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """Quotient of two counts in the answer's dtype; 0 for 0 / 0."""
        return ops.divide(numerator.to(self.dtype), denominator.to(self.dtype))

    def sum(self, terms: Tensor) -> Tensor:
        """Sum of terms `[..., N]` over the vertices, `[...]`."""
        return ops.masked_sum(terms, self.vertex)

    def precision(self) -> Tensor:
        """tp / (tp + fp), `[..., N]`."""
        return self.ratio(self.tp, self.tp + self.fp)


def walk_down(
    scores: Tensor, positive: Tensor, where: Tensor | None, weight: Tensor | None = None
) -> Curve:
    """The curve of every set `[..., N]`; items that do not count come last, without vertices."""
    size = scores.shape[-1]
    counting = scores if where is None else scores.masked_fill(~where, -torch.inf)
    ordered, order = counting.sort(-1, descending=True)
    hits = positive.gather(-1, order)
    starts = ops.tie_starts(ordered)
    positions = torch.arange(1, size + 1, device=scores.device)
    vertex = F.pad(starts[..., 1:] == positions[:-1], (0, 1), value=True)[..., :size]
    if where is None:
        counted = positive.new_full((*positive.shape[:-1], 1), size, dtype=torch.int64)
    else:
        counted = where.sum(-1, keepdim=True)
        vertex = vertex & (positions <= counted)
    if weight is None:
        tp = hits.cumsum(-1)
        fp = positions - tp
        positives = positive.sum(-1, keepdim=True)
        negatives = counted - positives
    else:
        weight = weight.gather(-1, order)
        hit = torch.where(hits, weight, 0.0)
        tp = hit.cumsum(-1)
        fp = (weight - hit).cumsum(-1)
        positives = hit.sum(-1, keepdim=True)
        negatives = weight.sum(-1, keepdim=True) - positives
    tp_before, fp_before = (F.pad(each, (1, 0))[..., :size].gather(-1, starts) for each in (tp, fp))
    return Curve(ordered, tp, fp, tp_before, fp_before, vertex, positives, negatives, counted)


def count_flags(flags: Tensor) -> Tensor:
    """How many of bool flags `[..., N, C]` hold, `[..., C]`: thirty times faster than a sum."""
    blocks = flags.shape[-2] // _BYTE  # whose sums fit into a byte
    whole, rest = flags.tensor_split([blocks * _BYTE], -2)
    blocked = whole.view(torch.uint8).unflatten(-2, (blocks, _BYTE))
    return blocked.sum(-2, dtype=torch.uint8).sum(-2) + rest.sum(-2)


def one_hot(target: Tensor, classes: int) -> Tensor:
    """Which class each item is of: bool `[..., N, C]` from class indices `[..., N]`."""
    return target.unsqueeze(-1) == torch.arange(classes, device=target.device)


Formula = Callable[[Counts], Tensor]


class Pooling(NamedTuple):
    """How the counts of the classes make one value: value(sum over classes of terms(counts))."""

    terms: Formula  # counts [..., C] -> what each class adds, [..., C, K]
    value: Callable[[Tensor], Tensor]  # sums [..., K] -> [...]

    def __call__(self, counts: Counts) -> Tensor:
        """The value `[...]` of counts `[..., C]`."""
        return self.value(self.terms(counts).sum(-2))


def averaged(formula: Formula, average: Average | None, takes_part: Formula) -> Pooling:
    """The average over classes of a formula of counts; micro adds the counts up first."""
    if average == "micro":
        return pooled(formula)

    def terms(counts: Counts) -> Tensor:
        weight = takes_part(counts).to(counts.tp.dtype)
        if average == "weighted":
            weight = weight * (counts.tp + counts.fn)
        return torch.stack([formula(counts) * weight, weight], -1)

    return Pooling(terms, quotient)


def pooled(formula: Formula) -> Pooling:
    """A formula of the counts of all classes together."""
    return Pooling(
        terms=lambda counts: torch.stack(list(counts), -1),
        value=lambda sums: formula(Counts(*sums.unbind(-1))),
    )


def share(chosen: Formula) -> Pooling:
    """Chosen items over all items."""
    return Pooling(lambda c: torch.stack([chosen(c), c.tp + c.fn], -1), quotient)


def quotient(sums: Tensor) -> Tensor:
    """The first of two sums over the second."""
    return ops.divide(sums[..., 0], sums[..., 1])


def occurring(counts: Counts) -> Tensor:
    """Classes that occur in the target or in the predictions."""
    return counts.tp + counts.fn + counts.fp > 0
