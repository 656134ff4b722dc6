r"""What UniLoss interpolates with: soft bits, anchors, and sums over pairs.

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

**Sums over pairs** are the multilinear interpolation of a metric of order without a matrix of all
pairs. Such a metric has two gains per positive, whatever the number of negatives
(`metrics/order.py`): `loss` for the comparisons it won and `win` for those it lost. The sum

.. math:: \sum_{ij} w_{ij} \, (h(s_i - s_j) - b_{ij}),
    \quad w_{ij} = loss_i \text{ if } b_{ij} \text{ else } win_i

is taken a block of positives at a time. The derivative by every score is summed on the way, so the
backward pass holds one vector and no pairs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics.order import Pairs
from metricgrad.metrics.reexpression import Reexpression

_sigmoid_slope = torch.ops.aten.sigmoid_backward.default  # weight * p * (1 - p), in one pass
_BLOCK_ENTRIES = 1 << 22  # pairs held at once
RelaxationName = Literal["sigmoid", "logistic", "squared_hinge"]
Near = Literal["any", "wrong"]
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
    """The paper's anchors.

    Args:
        plan: The metric of one target, as comparisons, bits and a value of bits.
        bits: `[..., D]`, the current configuration.
        live: `[..., D]`, bits that mean something; the others stay as they are.
        generator: Source of randomness for the flips and the bad anchors.
        number: How many anchors of each kind.
        near: Which bits nearby anchors flip.
        kinds: Which kinds to draw, besides the best one.
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
    drawn = [best.unsqueeze(0)]
    if "good" in kinds:
        drawn.append(plan.flip(best, _choose(used, number, generator)))
    if "near" in kinds:
        candidates = used
        if near == "wrong":
            wrong = used & ~bits
            candidates = torch.where(wrong.any(-1, keepdim=True), wrong, used)
        drawn.append(plan.flip(bits, _choose(candidates, number, generator)))
    if "bad" in kinds:
        drawn.append(_coins((number, *bits.shape), generator, bits.device))
    # Live bits as drawn, the others as they are: x if live else b is b ^ ((x ^ b) & live), which is
    # faster for bools.
    return torch.cat(drawn).bitwise_xor_(bits).bitwise_and_(live).bitwise_xor_(bits)


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
    carrier: Tensor  # `[...]`, has the gradient of e~; its value means nothing
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

        def relaxed() -> Tensor:
            unit = 1.0 if scale is None else scale
            still = value if direct is None else value / unit
            return still + change.detach() / unit

        return cls(value, relaxed, carrier, untied)

    def gradient_for(self, value: Tensor) -> Tensor:
        """The value with the gradient of the carrier, which counts for nothing else.

        A carrier that overflows, as squares of huge scores do, must not spoil the value.
        """
        return value + (self.carrier - self.carrier.detach()).nan_to_num()


def pair_sum(plan: Pairs, scores: Tensor, relaxation: Relaxation) -> Interpolated:
    """The multilinear interpolation of a metric of order, expanded at the scores' own bits."""
    ranked = plan.ranked(scores)
    with torch.no_grad():
        high, low = plan.compared(ranked)
        if plan.high_live is not None and plan.low_live is not None:
            # Padding wins, or is beaten, by far.
            high = high.masked_fill(~plan.high_live, torch.inf)
            low = low.masked_fill(~plan.low_live, -torch.inf)
        ordered = low.sort(-1).values
        won = torch.searchsorted(ordered, high, right=False)
        untied = torch.equal(won, torch.searchsorted(ordered, high, right=True))
        value, loss, win = plan.item_gains(low.shape[-1] - won)
        slope_high, slope_low = _slopes(high, low, loss, win, relaxation)
        slope = relaxation.slope * plan.spread(slope_high, slope_low.neg_(), ranked)
    carrier = torch.linalg.vecdot(ranked - ranked.detach(), slope)  # 0, so it cannot overflow
    if plan.weight is not None:
        value = (plan.weight * value).sum(-1)
        carrier = carrier.sum(-1)

    def relaxed() -> Tensor:
        change = _change(high, low, loss, win, relaxation)
        return value + (change if plan.weight is None else change.sum(-1))

    return Interpolated(value, relaxed, carrier, untied)


def _slopes(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor, step: Relaxation
) -> tuple[Tensor, Tensor]:
    """Sums of w h'(s_i - s_j) over the negatives `[..., P]`, and over the positives `[..., M]`."""
    sums = []
    for comparisons, weight in _blocks(high, low, loss, win):
        slope = step.weighted_slope(comparisons, weight)
        sums.append((slope.sum(-1), slope.sum(-2)))
    if len(sums) == 1:
        return sums[0]
    slopes_high, slopes_low = zip(*sums, strict=True)
    return torch.cat(slopes_high, -1), torch.stack(slopes_low).sum(0)


def _change(high: Tensor, low: Tensor, loss: Tensor, win: Tensor, step: Relaxation) -> Tensor:
    """The sum of w (h(s_i - s_j) - b) over all pairs, `[...]`."""
    sums = []
    for comparisons, weight in _blocks(high, low, loss, win):
        bits = (comparisons > 0).to(weight.dtype)
        sums.append((weight * (step.soft(comparisons) - bits)).sum((-1, -2)))
    return torch.stack(sums).sum(0)


def _blocks(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Comparisons and weights w, `[..., rows, M]`, of some positives at a time."""
    rows = max(1, _BLOCK_ENTRIES // max(1, low.numel()))
    parts = [(high, loss, win)]
    if high.shape[-1] > rows:
        parts = zip(*(each.split(rows, -1) for each in (high, loss, win)), strict=True)
    for some, lost_by, won_by in parts:
        comparisons = some.unsqueeze(-1) - low.unsqueeze(-2)
        # Bits as 0.0 and 1.0, without a tensor of bools in between.
        bits = torch.gt(comparisons, 0, out=torch.empty_like(comparisons, dtype=win.dtype))
        yield comparisons, torch.lerp(won_by.unsqueeze(-1), lost_by.unsqueeze(-1), bits)
