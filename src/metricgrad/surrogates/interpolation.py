r"""What UniLoss interpolates with: soft bits and anchors.

**Relaxations** turn a comparison into a soft bit. The paper's step is the sigmoid (Eqn. 9). It
saturates on both sides: comparisons that are hopelessly lost get no gradient, which is what one
wants where labels are noisy, and not where a model can fit everything. The q family

.. math:: h_q(c) = 1 - (1 - \sigma(c)^q) / q

runs from the sigmoid (q = 1) to 1 + log sigmoid, the logistic loss (q = 0), which never lets go of
a lost comparison. Steps other than the sigmoid leave [0, 1]: they suit the multilinear
interpolation, not IDW.

**Anchors** are the configurations of bits between which IDW interpolates (Sec. 3.4):

    best   all comparisons won
    good   the best one with one bit flipped
    near   the current one with one bit flipped: any, or a wrong one as in the released code
    bad    every bit at random

The re-expression decides which bits belong together: for pose, a flip takes all bits of a pixel
with it. Where only a portion of the bits is used, anchors are still whole configurations: the best
one wins all comparisons, and a bad one has every bit at random. Only flips are drawn from those in
use.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics.reexpression import Reexpression

_sigmoid_slope = torch.ops.aten.sigmoid_backward.default  # weight * p * (1 - p), in one pass
RelaxationName = Literal["sigmoid", "logistic", "squared_hinge"]
Near = Literal["any", "wrong", "released"]
Sampler = Callable[[Reexpression, Tensor, Tensor, torch.Generator | None], Tensor]


class Relaxation(NamedTuple):
    """A smooth step, h(slope * comparison)."""

    kind: Literal["q", "squared_hinge"]
    q: float  # position in the q family, from 0 (logistic) to 1 (sigmoid)
    slope: float

    @property
    def bounded(self) -> bool:
        """Whether soft bits stay in [0, 1]."""
        return self.kind == "q" and self.q == 1

    def soft(self, comparisons: Tensor) -> Tensor:
        """Soft bits of comparisons c: sigmoid(slope * c), Eqn. 9, or another step of that shape."""
        c = self.slope * comparisons
        if self.kind == "squared_hinge":
            return 1 - F.relu(1 - c) ** 2
        if self.q == 1:
            return c.sigmoid()
        if self.q == 0:
            return 1 + F.logsigmoid(c)
        return 1 - (1 - torch.exp(self.q * F.logsigmoid(c))) / self.q

    def weighted_slope(self, comparisons: Tensor, weight: Tensor) -> Tensor:
        """The weight times the soft bits' derivative by slope * comparison."""
        c = self.slope * comparisons
        if self.kind == "squared_hinge":
            return 2 * weight * F.relu(1 - c)
        if self.q == 1:
            return _sigmoid_slope(weight, c.sigmoid_())
        fall = weight * torch.sigmoid(-c)
        return fall if self.q == 0 else torch.exp(self.q * F.logsigmoid(c)) * fall

    def weighted_slopes(self, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same from c, slope * comparison, and the curvature of the logistic loss, weighted.

        The second derivative of log(1 + exp(-c)) is positive, whatever q is; the squared hinge has
        no such pair. Both arguments are overwritten, as pairs should stay in a core's cache.
        """
        won = c.sigmoid_()
        fall = weight.addcmul_(weight, won, value=-1.0)
        if self.q == 0:
            return fall, won.mul_(fall)
        slope = won.pow(self.q).mul_(fall)
        return slope, won.mul_(fall)


def relaxation(name: RelaxationName | float, slope: float) -> Relaxation:
    """The relaxation of that name, or of that q between 0 and 1; ValueError for others."""
    if not slope > 0:
        raise ValueError(f"slope must be above 0; got {slope}")
    match name:
        case "sigmoid":
            return Relaxation("q", 1.0, slope)
        case "logistic":
            return Relaxation("q", 0.0, slope)
        case "squared_hinge":
            return Relaxation("squared_hinge", 1.0, slope)
        case int() | float() if 0 <= name <= 1:
            return Relaxation("q", float(name), slope)
        case _:
            raise ValueError(
                "relaxation must be 'sigmoid', 'logistic', 'squared_hinge' or q from 0 (logistic) "
                f"to 1 (sigmoid); got {name!r}"
            )


def sample_anchors(
    plan: Reexpression,
    bits: Tensor,
    live: Tensor,
    generator: torch.Generator | None,
    *,
    number: int = 16,
    near: Near = "any",
    kinds: tuple[str, ...] = ("good", "near", "bad"),
    used: Tensor | None = None,
) -> Tensor:
    """The paper's anchors: bit configurations at which IDW evaluates the metric.

    Args:
        plan: The metric of one target, as comparisons, bits and a value of bits.
        bits: `[..., D]`, the current configuration, which nearby anchors start from.
        live: `[..., D]`, bits that mean something; the others stay as they are.
        generator: Source of randomness for the flips and the bad anchors.
        number: Number of anchors to draw of each kind.
        near: Which bits nearby anchors flip: `"any"`, or only `"wrong"` ones. `"released"` draws
            all anchors as the paper's code does: with wrong bits flipped, or for poses by pixels.
        kinds: Which kinds to draw, besides the best configuration, which always comes first.
        used: `[..., D]`, the live bits that are used in this step, among which flips are drawn;
            None uses all.

    Returns:
        `[1 + len(kinds) * number, ..., D]`, bool.

    Example:
        >>> import metricgrad as mg
        >>> target = torch.tensor([1, 0, 0])
        >>> plan = mg.metric("auc").reexpress((3,), target == 1, None, torch.float32)
        >>> bits = torch.tensor([True, False])
        >>> generator = torch.Generator().manual_seed(0)
        >>> sample_anchors(plan, bits, torch.ones_like(bits), generator, number=2).shape
        torch.Size([7, 2])
    """
    best = plan.best_bits(bits)
    used = live if used is None else used
    own = plan.released_anchors(bits, number, generator) if near == "released" else None
    if own is not None:
        return _where_live(own, bits, live)
    drawn = [best.unsqueeze(0)]
    if "good" in kinds:
        drawn.append(plan.flip(best, _choose(used, number, generator)))
    if "near" in kinds:
        candidates = used
        if near != "any":
            wrong = used & ~bits
            candidates = torch.where(wrong.any(-1, keepdim=True), wrong, used)
        drawn.append(plan.flip(bits, _choose(candidates, number, generator)))
    if "bad" in kinds:
        drawn.append(_coins((number, *bits.shape), generator, bits.device))
    return _where_live(torch.cat(drawn), bits, live)


def _where_live(drawn: Tensor, bits: Tensor, live: Tensor) -> Tensor:
    """Live bits as drawn, the others as they are, in place."""
    # x if live else b is b ^ ((x ^ b) & live), which is faster for bools.
    return drawn.bitwise_xor_(bits).bitwise_and_(live).bitwise_xor_(bits)


def _coins(shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Bits at random, each 1 with chance 1/2: the lowest bits of random bytes, eight per draw."""
    size = math.prod(shape)
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=device)
    words.random_(generator=generator)
    return words.view(torch.uint8)[:size].bitwise_and_(1).view(torch.bool).reshape(shape)


def _choose(candidates: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Places `[number, ...]` drawn from each set's candidates `[..., D]`, -1 where it has none."""
    size = candidates.shape[-1]
    if not size:
        return torch.full((number, *candidates.shape[:-1]), -1, device=candidates.device)
    # The m-th of M candidates, m drawn at random, is where the running count passes m.
    running = candidates.cumsum(-1, dtype=torch.int32)
    count = running[..., -1:]
    shape = (*candidates.shape[:-1], number)
    share = torch.rand(shape, dtype=torch.float64, generator=generator, device=candidates.device)
    places = torch.searchsorted(running, (share * count).to(torch.int32), right=True)
    return places.masked_fill_(count == 0, -1).movedim(-1, 0)


class Interpolated(NamedTuple):
    """An interpolation e~ = g~(h~(f(s))) of a metric, in parts."""

    value: Tensor  # `[...]`, g at the scores' bits
    relaxed: Callable[[], Tensor]  # gives the value of e~, which training does without
    carrier: Tensor  # `[...]`, zeros with the gradient of e~
    untied: bool  # whether all comparisons are decided, so that the value is the metric's own

    @classmethod
    def of(
        cls,
        value: Tensor,
        change: Tensor,
        direct: Tensor | None,
        scale: Tensor | None,
        untied: bool,
    ) -> "Interpolated":
        """From g(v), what soft bits add to it, and what it owes to the scores directly.

        What moves with the scores is divided by the scale of an unbounded metric. Without a direct
        part, g(v) is a step function of the scores, and stays as it is.
        """
        carrier = change if direct is None else change + direct
        carrier = carrier if scale is None else carrier / scale
        carrier = _OnlyGradient.apply(carrier)

        def relaxed() -> Tensor:
            unit = 1.0 if scale is None else scale
            still = value if direct is None else value / unit
            return still + change.detach() / unit

        return cls(value, relaxed, carrier, untied)

    def gradient_for(self, value: Tensor) -> Tensor:
        """The value with the gradient of e~."""
        return value + self.carrier


class _OnlyGradient(torch.autograd.Function):
    """Zeros with the gradient of a tensor, which may overflow, as squares of huge scores do."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
