r"""MetricLoss: the ordinary loss and the metric together, to swap in for the ordinary loss.

A metric says what counts; the ordinary loss says more about every item. A model that can fit its
data learns more per step from the ordinary loss. One that cannot spends itself there on items that
the metric does not care about. How much a plain sum helps depends on the lengths of the two
gradients, which change by orders of magnitude while a model trains. So the metric's is brought to
the length of the other in every step, by the scores s:

.. math:: g = (1 - w) \, g_o + w \, \frac{\|g_o\|}{\max(\|g_m\|, r)} \, g_m, \quad
    g_o = \nabla_s \ell_{ordinary}, \; g_m = \nabla_s \tilde e

with the gradient of UniLoss as g_m. The result is at most as long as g_o, so a learning rate, an
optimizer and a schedule that suit the ordinary loss suit this one.

**Batches that say little.** For a metric of decisions, r is the usual length of g_m: the root of
the running mean of its square. A batch in which nothing lies near the threshold has a short g_m,
mostly noise, and r keeps it short. For a metric of order r is 0: when all positives of a batch are
ranked first, its short g_m still widens their lead.

**Many classes.** w is 0.85 where an item has one score, or one for each of its labels: there the
metric's bit is the whole decision. Among many classes, cross-entropy also says which of the other
classes to push down, and a network needs that to learn. There w is 0.5, and the metric's soft bits
are the probabilities of the softmax (`metrics/margins.py`). Those of heatmaps are soft, too, but w
is 0.85: squared error is mostly about the background.

**The free intercept.** Cross-entropy wants scores that are calibrated at 0, and F1 is best at
another threshold. So that they do not pull at the same bias, cross-entropy sees the scores plus an
offset, one per class, that is moved to where cross-entropy wants it. The model's own bias is left
to the metric, whose decisions are made at 0.
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import whole
from metricgrad.metrics.counts import count_flags
from metricgrad.metrics.mistakes import are_label_maps
from metricgrad.metrics.registry import metric_config
from metricgrad.metrics.rows import NO_ROWS
from metricgrad.surrogates.base import Surrogate, TargetKind, full_precision
from metricgrad.surrogates.calls import Call, sum_of_sets
from metricgrad.surrogates.interpolation import RelaxationName
from metricgrad.surrogates.remembering import Remembering
from metricgrad.surrogates.uniloss import UniLoss
from metricgrad.surrogates.wrappers import ordinary_beside

_FADE = (0.5, 0.8)  # the shares of `steps` between which the ordinary loss fades
_FADED = 0.9  # the metric's weight after that; without the ordinary loss, networks lose their way
_WEIGHT = 0.85
_CLASS_WEIGHT = 0.5  # among classes, where cross-entropy says more about an item than its margin
_LONGEST = 1e4  # a metric's gradient that is shorter by more than this is as good as none
_USUAL = 100  # batches that the usual length of the metric's gradient is about
_HARD_RIVALS = ("maps",)  # where the best rival alone does better
_OFFSET_RATE = 0.1
_OFFSET_STEP = 0.5  # the longest step of an offset, in logits


class MetricLoss(Remembering):
    r"""The ordinary loss and the metric at the same gradient length: the loss to swap in.

    .. math:: g = (1 - w) \, g_o + w \, \frac{\|g_o\|}{\max(\|g_m\|, r)} \, g_m

    Its value is the metric of the batch as a loss, like that of `UniLoss`. Its gradient by the
    scores is g: that of the ordinary loss, g_o, and that of `UniLoss`, g_m, brought to the same
    length; shorter if it is shorter than usual, r, for a metric of decisions. It works with the
    learning rate, optimizer and schedule of the ordinary loss.

    Args:
        metric: A name, a `ComparisonMetric`, or any callable that `UniLoss` takes.
        steps: How many batches the training will have. If given, a weight of 0.85 rises to 0.9
            between half and four fifths of them, which gains a little more where a model is too
            small for its task.
        weight: Share of the metric in the gradient, w. None takes 0.85, or 0.5 for a decision among
            many classes, about which cross-entropy has more to say.
        slope: Slope of the metric's soft bits, as in `UniLoss`; None takes what suits the metric.
        relaxation: Kind of soft bits, as in `UniLoss`.
        intercept: Whether cross-entropy has offsets of its own. None decides by the metric: yes for
            metrics that decide at a threshold or by the highest class, such as F1 and mean IoU; no
            for accuracy and for metrics of order.
        ordinary: The loss that stands beside the metric; None takes what is customary for the
            metric: cross-entropy in its shapes, ListNet for graded documents, squared error for
            heatmaps.
        generator: Source of randomness for functions that are taken as black boxes.

    Attributes:
        offset: What is added to the scores for cross-entropy, a number or one per class.
        usual: The running mean of the squared length of g_m, for r.
        models: How many models' scores a call has, along the first dimension, each with lengths and
            offsets of its own; None for those of one model. Set where models train side by side.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.MetricLoss("f1")
        >>> scores = torch.tensor([0.3, -0.1, 0.2, -2.0], requires_grad=True)
        >>> value = loss(scores, torch.tensor([1, 1, 0, 0]))
        >>> round(value.item(), 4)  # 1 - F1
        0.5
        >>> value.backward()
        >>> scores.grad.sign()
        tensor([-1., -1.,  1.,  1.])

    Reference:
        Ours; UniLoss, Sec. 3, for the metric's part.
    """

    readable = True
    weighs = True
    kept = ("offset", "usual", "done")
    offset: Tensor
    usual: Tensor
    done: Tensor
    models: int | None = None

    def __init__(
        self,
        metric: Any,
        *,
        steps: int | None = None,
        weight: float | None = None,
        slope: float | None = None,
        relaxation: RelaxationName | float = "sigmoid",
        intercept: bool | None = None,
        ordinary: Surrogate | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if weight is not None and not 0 <= weight <= 1:
            raise ValueError(f"weight must lie between 0 and 1; got {weight}")
        if steps is not None:
            whole("steps", steps, 1)
        self.by_metric = UniLoss(metric, slope=slope, relaxation=relaxation, generator=generator)
        self.metric: Metric = self.by_metric.metric
        self.by_metric.soft_rivals = self.metric.layout not in _HARD_RIVALS
        self.ordinary = ordinary_beside(self.metric, ordinary)
        self.weighs = self.ordinary.weighs
        self.steps = steps
        self.weight = weight
        self.intercept = _wants_intercept(self.metric) if intercept is None else intercept
        self._given = ordinary is not None
        self._defined = torch.zeros((), dtype=torch.bool)
        self.offset = torch.zeros(())
        self.usual = torch.zeros(())
        self.done = torch.zeros((), dtype=torch.int64)

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """Whether the loss can be trained on targets of a kind: where both its parts can."""
        grades = metric.ordinary == "list_net"  # no other ordinary loss takes them
        known = metric.ordinary is not None and (grades or kind != "grades")
        return known and super().fits(metric, kind)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The metric of every set as a loss, with its share of g; and where either is defined.

        A set in which the metric is undefined still has an ordinary loss. It takes the mean value
        of the others, so that the mean over all stays the metric's.
        """
        return self._joined(Call(scores, target, where, None, NO_ROWS))

    def _of_groups(self, call: Call) -> tuple[Tensor, Tensor]:
        """`losses` of all groups at once: they are one step, with one length of each gradient."""
        return self._joined(call)

    def _joined(self, call: Call) -> tuple[Tensor, Tensor]:
        """`losses` of all sets, or of all groups, of a call."""
        scores, target, _, groups, rows = call
        of_ordinary = self.ordinary.taken(rows)
        if torch.is_inference_mode_enabled():  # the value alone, as nothing has a gradient there
            values, defined = self.by_metric._each(call)
            counted = defined | self.ordinary._each(call._replace(rows=of_ordinary))[1]
            return self._filled(values, defined), counted
        with torch.enable_grad(), full_precision(scores.device.type):
            leaf = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))
            leaf.requires_grad_()
            values, defined = self.by_metric._each(call._replace(scores=leaf))
            self.metric = self.by_metric.metric
            shifted = call._replace(scores=leaf + self._shift(leaf, target), rows=of_ordinary)
            plain, also = self.ordinary._each(shifted)
            g_m = self._gradient(values, defined, leaf)
            g_o = self._gradient(plain, also, leaf)
        counted = defined | also
        values = self._filled(values.detach(), defined)
        gradient = self._combined(g_o, g_m) * _as_sets(self._over_sets(counted), g_o)
        if self.training:
            self.done = self.done + 1
            self._move_offset(g_o, target)
        # Scores without a gradient may be infinite, and infinity times 0 is not a number.
        moved = torch.where(gradient == 0, 0.0, scores.to(gradient.dtype)) * gradient
        if groups is None:
            moved = moved.sum(tuple(range(values.dim(), scores.dim())))
        else:
            moved = sum_of_sets(moved.unsqueeze(-1).flatten(1).sum(1), groups)
        return values + (moved - moved.detach()), counted

    def _filled(self, values: Tensor, defined: Tensor) -> Tensor:
        """Values with the mean of the others where the metric is undefined."""
        self._defined = defined
        return torch.where(defined, values, _as_sets(self._mean_of_sets(values, defined), values))

    def _over_sets(self, values: Tensor) -> Tensor:
        """The sum over all sets of a model: 0-dim, or one number for each of the models."""
        return values.sum() if self.models is None else values.reshape(self.models, -1).sum(-1)

    def _mean_of_sets(self, values: Tensor, defined: Tensor) -> Tensor:
        """The mean over the sets of a model that have a value."""
        number = self._over_sets(defined).clamp(min=1)
        return self._over_sets(torch.where(defined, values, 0.0)) / number

    def _gradient(self, values: Tensor, defined: Tensor, leaf: Tensor) -> Tensor:
        """The gradient of each model's mean by its scores."""
        return torch.autograd.grad(self._mean_of_sets(values, defined).sum(), leaf)[0]

    def has_metric(self, defined: Tensor) -> Tensor:
        """Without the sets that have an ordinary loss alone."""
        return self._defined & defined

    def _combined(self, g_o: Tensor, g_m: Tensor) -> Tensor:
        """The equation of this module; g_o alone as long as the metric has had no gradient."""
        length = self._reference_length(g_m)
        ratio = self._over_sets(g_o.square()).sqrt() / length
        usable = (length > 0) & (ratio <= _LONGEST)
        weight = torch.where(usable, self._weight(), 0.0)
        factor = torch.where(usable, weight * ratio, 0.0)
        return _as_sets(1 - weight, g_o) * g_o + _as_sets(factor, g_m) * g_m

    def _reference_length(self, g_m: Tensor) -> Tensor:
        """max(|g_m|, r) of every model: what is brought to the length of g_o."""
        square = self._over_sets(g_m.square())
        if self.metric.decided_by == "order":
            return square.sqrt()
        known = self.usual if self.usual.shape == square.shape else torch.zeros_like(square)
        number = (self.done + 1).clamp(max=_USUAL)  # a plain mean until there are enough
        usual = known + (square - known) / number
        if self.training:
            self.usual = usual
        return torch.maximum(square, usual).sqrt()

    def _weight(self) -> Tensor:
        """w, or if the number of steps is known, what it has risen to by now."""
        # Among pixels, squared error is mostly about the background, which decides nothing.
        classes = self.by_metric.among_classes and self.metric.layout != "heatmaps"
        usual = _CLASS_WEIGHT if classes else _WEIGHT
        start = usual if self.weight is None else self.weight
        weight = self.done.new_tensor(start, dtype=torch.float32)
        if self.steps is None or (self.weight is None and classes):
            return weight
        first, last = _FADE
        faded = ((self.done / self.steps - first) / (last - first)).clamp(0, 1)
        return weight + faded * (max(start, _FADED) - weight)

    def _shift(self, scores: Tensor, target: Tensor) -> Tensor | float:
        """The offsets, in a shape to be added to the scores."""
        if not self.intercept:
            return 0.0
        dim = self._class_dim(scores, target)
        models = () if self.models is None else (self.models,)
        size = models if dim is None else (*models, scores.shape[dim])
        if self.offset.shape != size:
            self.offset = scores.new_zeros(size)
        shape = [1] * scores.dim()
        shape[: len(models)] = models
        if dim is not None:
            shape[dim] = scores.shape[dim]
        return self.offset.reshape(shape)

    def _move_offset(self, g_o: Tensor, target: Tensor) -> None:
        """A step of Newton's method on cross-entropy, for each offset on its own.

        The gradient of cross-entropy by a score is (p - y) / n, and its curvature p (1 - p) / n is
        (p - y)^2 / n on average if p is calibrated, so the gradient alone is enough.
        """
        if not self.intercept:
            return
        dim = self._class_dim(g_o, target)
        by_class = g_o.unsqueeze(-1) if dim is None else g_o.movedim(dim, -1)
        residuals = by_class.reshape(self.models or 1, -1, by_class.shape[-1])
        number = count_flags(residuals != 0)
        curvature = (number * residuals.square().sum(1)).clamp(min=torch.finfo(g_o.dtype).tiny)
        step = (_OFFSET_RATE * residuals.sum(1) / curvature).clamp(-_OFFSET_STEP, _OFFSET_STEP)
        if dim is not None and self.metric.layout != "labels" and step.shape[-1] > 1:
            step = step - step.mean(-1, keepdim=True)  # a softmax does not see what they share
        self.offset = self.offset - step.reshape(self.offset.shape)

    def _class_dim(self, scores: Tensor, target: Tensor) -> int | None:
        """The dimension of the classes; None if there is one score per item."""
        unknown = self.metric.layout == "any" and scores.shape[:-1] != target.shape
        if self.metric.layout == "maps" or (unknown and are_label_maps(scores.shape, target.shape)):
            return -3
        labels = self.metric.layout == "labels"
        return -1 if labels or (scores.dim() > target.dim() and scores.shape[-1] > 1) else None

    def config(self) -> dict[str, Any]:
        """What rebuilds the loss; a generator and its state are not part of it."""
        kind, q, _ = self.by_metric.relaxation
        return {
            "metric": metric_config(self.metric),
            "steps": self.steps,
            "weight": self.weight,
            "slope": self.by_metric.slope,
            "relaxation": q if kind == "q" else kind,
            "intercept": self.intercept,
            **({"ordinary": self.ordinary.description()} if self._given else {}),
        }

    def extra_repr(self) -> str:
        """The settings that matter most."""
        return f"{self.metric!r}, steps={self.steps}, weight={self.weight}"


def _wants_intercept(metric: Metric) -> bool:
    """Whether cross-entropy and the metric may want decisions at different thresholds."""
    laid_out = metric.layout in ("binary", "labels", "maps", "any")
    return laid_out and metric.decided_by != "order" and not metric.mean_of_items


def _as_sets(values: Tensor, like: Tensor) -> Tensor:
    """A number, or one for each model, in a shape to be multiplied with what the models have."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))
