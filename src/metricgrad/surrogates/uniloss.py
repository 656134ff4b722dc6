"""UniLoss: a loss from any metric that comparisons decide, with nothing to train.

The metric is e = g(h(f(s))) (Liu, Wang and Deng, 2020, Eqn. 4): scores s make comparisons c = f(s),
comparisons make bits b = [c > 0], bits make the value. h and g have no gradient, so each is
interpolated (Eqn. 5): e~ = g~(h~(f(s))).

    h~   soft bits u = sigmoid(slope * c) (Eqn. 9), or another smooth step (`interpolation.py`)
    g~   "idw": inverse distance weighting over anchors (Eqn. 10), the paper's
         "multilinear": g(v) + sum_d gain_d (u_d - v_d), ours: the first-order expansion, at the
         current bits v, of g's multilinear extension. It is g at v and wherever one bit differs,
         needs no anchors, and gives every comparison the weight that the metric gives it

The loss returns the set's true value of the metric, as a loss, with the gradient of e~. For an
unbounded metric the gradient is divided by the metric's range on the set, so that learning rates
mean the same for all metrics.
"""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import one_of, whole
from metricgrad.metrics.reexpression import Reexpression
from metricgrad.metrics.registry import comparison_metric, metric_config
from metricgrad.metrics.rows import to_rows
from metricgrad.surrogates.base import Surrogate, as_loss, full_precision
from metricgrad.surrogates.calls import bound
from metricgrad.surrogates.interpolation import (
    Interpolated,
    Near,
    RelaxationName,
    Sampler,
    sample_anchors,
)
from metricgrad.surrogates.interpolation import relaxation as to_relaxation
from metricgrad.surrogates.inverse_distance import Gradient, inverse_distance
from metricgrad.surrogates.pair_sums import pair_sum

Interpolation = Literal["multilinear", "idw"]
_SLOPE = 5.0
_CLASS_SLOPE = 1.0  # a steeper step leaves out most items of a network for many classes
_STORED = ("anchors", "near", "gradient", "portion", "rivals", "soft_rivals", "samples", "squash")


class UniLoss(Surrogate):
    r"""Re-expression and interpolation of a metric: no parameters, no training.

    .. math:: e(s) = g(h(f(s))), \quad \tilde e(s) = \tilde g(\tilde h(f(s)))

    f takes score differences, h turns each into a bit, and g turns bits into the metric's value.
    The loss has the value of e and the gradient of e~.

    Args:
        metric: A name, a `ComparisonMetric`, or any callable `(scores, target) -> number`: it is
            re-expressed if it can be watched, otherwise taken as a black box (`mg.reexpress`); the
            log says which. If it has further parameters, such as `amount`, a call passes them by
            name: `loss(scores, target, amount=amount)`.
        interpolation: Of g: `"multilinear"`, or `"idw"` (Eqn. 10).
        relaxation: Of h: `"sigmoid"` (Eqn. 9); multilinear also takes `"logistic"`,
            `"squared_hinge"` or q in [0, 1].
        slope: How steep the step is. A gentle one (0.5 to 1) ignores hopeless items, a steep one
            (20 to 60) fits the last ones. None takes 5, or 1 with soft rivals.
        anchors: For IDW, how many of each kind; or a function `(plan, bits, live, generator) ->
            bits [A, ..., D]`.
        near: For IDW, which anchors are near: with `"any"` bit flipped, or a `"wrong"` one; or all
            anchors as the released code draws them (`"released"`).
        gradient: For IDW, `"exact"` is that of Eqn. 10; `"released"` that of the paper's code, in
            which every anchor attracts: grad(N S) / S^2 with N = sum(v / d), S = sum(1 / d). Where
            lower is better, v is the distance from the worst value.
        portion: The share of the comparisons that get a gradient in each step, drawn at random
            (Sec. 4.4). The metric stays whole: IDW's anchors are configurations of all comparisons,
            and only distances are measured with those that were drawn.
        pairs: `"best"` or `"all"`; replaces the metric's own option of that name.
        rivals: With all pairs of a target and the other classes, how many of the highest-scored
            ones it is compared with; the others get no gradient. None compares with all; the
            paper's code takes 20 for CIFAR-100.
        soft_rivals: For multilinear, whether a soft bit among many classes is about all other
            classes, not just the best one: the softmax probability of slope times the scores.
        samples: For multilinear, average the gains over so many configurations drawn around the
            current one, whole orders where the metric is one of order; helps metrics with a
            cut-off, whose gains are 0 far from it, most with a gentle slope. 0 takes the current
            configuration alone.
        squash: Whether scores pass a sigmoid before they are compared, as in the paper's code.
        generator: Source of randomness for anchors, portions and samples.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.UniLoss("average_precision")
        >>> scores = torch.tensor([0.3, 0.1, 0.2, 0.0], requires_grad=True)
        >>> value = loss(scores, torch.tensor([0, 1, 0, 0]))
        >>> round(value.item(), 4)  # 1 - average precision
        0.6667
        >>> value.backward()
        >>> scores.grad.sign()  # the positive goes up, the negatives above it go down
        tensor([ 1., -1.,  1.,  1.])

    Reference:
        UniLoss, Sec. 3, Eqn. 4 to 10.
    """

    readable = True
    weighs = True
    among_classes = False  # whether the last call had many classes, with soft rivals

    def __init__(
        self,
        metric: Any,
        *,
        interpolation: Interpolation = "multilinear",
        relaxation: RelaxationName | float = "sigmoid",
        slope: float | None = None,
        anchors: int | Sampler = 16,
        near: Near = "any",
        gradient: Gradient = "exact",
        portion: float = 1.0,
        pairs: Literal["best", "all"] | None = None,
        rivals: int | None = None,
        soft_rivals: bool = False,
        samples: int = 0,
        squash: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        changed = {} if pairs is None else {"pairs": pairs}
        self.metric = comparison_metric(metric, generator=generator, **changed)
        self.relaxation = to_relaxation(relaxation, _SLOPE if slope is None else slope)
        self.slope = slope
        self.interpolation: Interpolation = interpolation
        self.gradient: Gradient = gradient
        self.portion = portion
        self.rivals = rivals
        self.soft_rivals = soft_rivals
        self.samples = samples
        self.squash = squash
        self.generator = generator
        self.anchors: int | Sampler = anchors
        self.near: Near = near
        self._check_options(relaxation)

    @classmethod
    def as_published(
        cls,
        metric: Any,
        *,
        anchors: int = 16,
        gradient: Gradient | None = None,
        rivals: int | None = None,
        generator: torch.Generator | None = None,
    ) -> "UniLoss":
        """The paper's settings as its code has them.

        IDW with slope 1 and 16 anchors of each kind, nearby ones corrected toward the target; all
        pairs; bits that fit no order worth 0 and precision interpolated where the metric is average
        precision; a sigmoid on the scores; the gradient with a wrong sign.

        For poses, it has the exact gradient, compares heatmaps as they are, and draws anchors for
        each joint, the current bits among them, in random order (`metrics/pixel_pairs.py`).

        Args:
            metric: A name or a `ComparisonMetric`.
            anchors: How many of each kind (Table 4).
            gradient: `"exact"` or `"released"`; None takes what the paper's code has: exact for
                heatmaps, released for everything else.
            rivals: 20 for CIFAR-100, as the released code has it; None compares with every other
                class.
            generator: Source of randomness for the anchors.
        """
        chosen = comparison_metric(metric, generator=generator, pairs="all")
        if chosen.published:
            chosen = comparison_metric(chosen, **chosen.published)
        poses = chosen.layout == "heatmaps"
        return cls(
            chosen,
            interpolation="idw",
            slope=1.0,
            anchors=anchors,
            near="released",
            gradient=gradient or ("exact" if poses else "released"),
            rivals=rivals,
            squash=not poses,
            generator=generator,
        )

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The metric of every set as a loss, with the gradient of e~; and where it is defined."""
        with full_precision(scores.device.type):
            inputs = self.check(scores, target, where)
            if scores.dtype != inputs.scores.dtype and inputs.scores.requires_grad:
                # A hinge of scores near the end of half precision would have an infinite gradient.
                most = torch.finfo(scores.dtype).max
                inputs.scores.register_hook(lambda gradient: gradient.clamp(-most, most))
            plan = self.plan(inputs)
            found = self._interpolate(plan, inputs.scores)
            value = self._value(plan, inputs, found)
            defined = plan.defined()
            if self.squash:  # a function of your own may have no value of the scores themselves
                defined = defined & value.isfinite()
            return as_loss(self.metric, found.gradient_for(value)), defined

    def relaxed(
        self, scores: Tensor, target: Tensor, where: Tensor | None = None, **rows: Any
    ) -> Tensor:
        """The interpolation itself, as a loss: the function whose gradient `loss(...)` has.

        It has one value per set, `[...]`; the arguments are those of a call without groups. For an
        unbounded metric, what the scores change is divided by the metric's range on the set.
        """
        with bound(self, to_rows(rows)):
            inputs = self.read(scores, target, where)
            found = self._interpolate(self.plan(inputs), inputs.scores)
            return as_loss(self.metric, found.gradient_for(found.relaxed()))

    def plan(self, inputs: Inputs) -> Reexpression:
        """The target's metric as comparisons, bits and a value of bits."""
        settled = self.metric.settled(inputs)
        if settled is not self.metric:  # to set an attribute of a module takes time
            self.metric = settled
        scores, target, where = inputs
        plan = self.metric.reexpress(scores.shape, target, where, scores.dtype)
        return plan if self.rivals is None else plan.strongest(scores, self.rivals)

    def _value(self, plan: Reexpression, inputs: Inputs, found: Interpolated) -> Tensor:
        """The metric of every set: as it was measured, of bits without ties, or evaluated anew."""
        measured = plan.measured()
        if measured is None and found.untied:
            measured = found.value
        if measured is None or self.squash:  # squashed scores meet a threshold elsewhere
            return self.metric.evaluate(inputs.scores.detach(), inputs.target, inputs.where)
        return measured

    def _interpolate(self, plan: Reexpression, scores: Tensor) -> Interpolated:
        """e~ = g~(h~(f(s))), Eqn. 5."""
        scores = scores.sigmoid() if self.squash else scores
        every = self.interpolation == "multilinear" and self.portion == 1 and not self.samples
        pairs = plan.pairwise() if every else None
        if pairs is not None:
            self.among_classes = False
            return pair_sum(pairs, scores, self.relaxation)
        comparisons, live = plan.comparisons(scores)  # c = f(s)
        self.among_classes = self.soft_rivals and plan.among_classes
        untied = not ((comparisons == 0) & live).any()
        used = live
        if self.portion < 1:
            drawn = torch.rand(live.shape, generator=self.generator, device=live.device)
            used = live & (drawn < self.portion)
        bits = comparisons.detach() > 0  # v = h(c)
        value = plan.from_bits(bits)  # g(v)
        if self.interpolation == "multilinear":
            relaxation = self.relaxation
            if self.among_classes:
                relaxation = relaxation._replace(slope=self.slope or _CLASS_SLOPE)
                comparisons = plan.softened(scores, relaxation.slope)
            soft = relaxation.soft(comparisons)  # u = h~(c), Eqn. 9
            gains = self._gains(plan, scores.detach(), bits) / self.portion
            change = multilinear(soft, bits, used, gains)
        else:
            anchors = self._sample(plan, bits, live, used)
            # |u - v| by the symmetry of the step, as 1 - u would lose the digits of a u close to 1.
            beaten = torch.where(bits, -comparisons, comparisons)
            apart = torch.where(used, self.relaxation.soft(beaten.double()), 0.0)
            differs = (anchors ^ bits).bitwise_and_(used)
            values = plan.from_bits(anchors)
            origin = self._origin(values)
            change = inverse_distance(apart, differs, values, self.gradient, origin) - value
        return Interpolated.of(value, change, plan.direct(), plan.scale(), untied)

    def _sample(self, plan: Reexpression, bits: Tensor, live: Tensor, used: Tensor) -> Tensor:
        """Anchors `[A, ..., D]`."""
        if callable(self.anchors):
            return self.anchors(plan, bits, live, self.generator)
        number = self.anchors
        return sample_anchors(
            plan, bits, live, self.generator, number=number, near=self.near, used=used
        )

    def _origin(self, values: Tensor) -> Tensor | float:
        """The value from which the released gradient counts, for anchors' values `[A, ...]`.

        It is 0, as in the paper's code, or the worst value where lower is better; of an unbounded
        metric, the worst one among the anchors.
        """
        if math.isfinite(self.metric.worst):
            return 0.0 if self.metric.higher_is_better else self.metric.worst
        return values.amin(0) if self.metric.higher_is_better else values.amax(0)

    def _gains(self, plan: Reexpression, scores: Tensor, bits: Tensor) -> Tensor:
        """Flip gains at the current bits, or their mean over configurations drawn around them."""
        if not self.samples:
            return plan.flip_gains(bits)
        drawn = plan.draw(scores, self.relaxation.slope, self.samples, self.generator)
        return plan.flip_gains(drawn).mean(0)

    def _check_options(self, relaxation: RelaxationName | float) -> None:
        """Raises ValueError or TypeError for options that are none, or do not go together."""
        if self.interpolation == "idw" and not self.relaxation.bounded:
            raise ValueError(
                "idw needs soft bits in [0, 1], which only the sigmoid gives; got "
                f"relaxation={relaxation!r}"
            )
        one_of("interpolation", self.interpolation, get_args(Interpolation))
        one_of("gradient", self.gradient, get_args(Gradient))
        one_of("near", self.near, get_args(Near))
        if not 0 < self.portion <= 1:
            raise ValueError(f"portion must be above 0 and at most 1; got {self.portion}")
        if self.rivals is not None:
            whole("rivals", self.rivals, 1)
            if not self.metric.has_rivals:
                raise ValueError(
                    "rivals chooses among the comparisons of a target with every other class, "
                    "which accuracy, error_rate, balanced_accuracy and gmean make with "
                    f"pairs='all'; got rivals={self.rivals} with {self.metric}"
                )
        if self.soft_rivals and self.interpolation == "idw":
            raise ValueError("soft_rivals is for interpolation='multilinear'; got 'idw'")
        if self.samples < 0:
            raise ValueError(f"samples must be 0 or more; got {self.samples}")
        if not callable(self.anchors) and self.anchors < 1:
            raise ValueError(f"anchors must be 1 or more, or a function; got {self.anchors}")

    def config(self) -> dict[str, Any]:
        """What rebuilds the loss; a generator and its state are not part of it."""
        if callable(self.anchors):
            raise ValueError(
                "a loss with a sampling function of its own cannot be saved; pass anchors as a "
                "number"
            )
        kind, q, _ = self.relaxation
        return {
            "metric": metric_config(self.metric),
            "interpolation": self.interpolation,
            "relaxation": q if kind == "q" else kind,
            "slope": self.slope,
            **{name: getattr(self, name) for name in _STORED},
        }

    def extra_repr(self) -> str:
        """The settings that matter most."""
        kind = self.interpolation
        return f"{self.metric!r}, interpolation={kind!r}, relaxation={self.relaxation}"


def multilinear(soft: Tensor, bits: Tensor, live: Tensor, gains: Tensor) -> Tensor:
    """What soft bits u add to g at the bits v, to first order: sum_d gain_d (u_d - v_d), `[...]`.

    All arguments are `[..., D]`; gains are the flip gains at v.
    """
    return torch.where(live, gains * (soft - bits.to(soft.dtype)), 0.0).sum(-1)
