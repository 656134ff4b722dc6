r"""How a comparison becomes a soft bit: smooth steps h and their derivatives.

The paper's step is the sigmoid (Eqn. 9). It saturates on both sides: comparisons that are
hopelessly lost get no gradient, which is what one wants where labels are noisy, and not where a
model can fit everything. The q family

.. math:: h_q(c) = 1 - (1 - \sigma(c)^q) / q

runs from the sigmoid (q = 1) to 1 + log sigmoid, the logistic loss (q = 0), which never lets go of
a lost comparison. Steps other than the sigmoid leave [0, 1]: they suit the multilinear
interpolation, not IDW.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics.order import Pairs
from metricgrad.metrics.reexpression import Reexpression

# MERGED DOC surrogates.anchors:
# """Anchors: the bit configurations between which IDW interpolates (UniLoss, Sec. 3.4; supplement, Sec. 1).
#
#     best   all comparisons won
#     good   the best one with one bit flipped
#     near   the current configuration with one bit flipped: any, or a wrong one as in the released code
#     bad    every bit at random
#
# Which bits belong together is the re-expression's to say: for pose a flip takes all bits of a pixel
# with it. Sampling is a function of its own, so that evaluating on given anchors is a pure one.
# """
# MERGED DOC surrogates.pair_sum:
# r"""The multilinear interpolation of a metric of order, without a matrix of all pairs.
#
# A metric of order has two gains per positive, whatever the number of negatives (`metrics/pairs.py`):
# `loss` for the comparisons it won and `win` for those it lost. The interpolation is a sum over all
# pairs,
#
# .. math:: \sum_{ij} w_{ij} \, (h(s_i - s_j) - b_{ij}), \quad w_{ij} = loss_i \text{ if } b_{ij} \text{ else } win_i
#
# which is taken a block of positives at a time. The derivative by every score is summed on the way,
# so the backward pass holds one vector and no pairs: the scores' product with that vector carries the
# gradient.
# """

_sigmoid_slope = torch.ops.aten.sigmoid_backward.default
RelaxationName = Literal["sigmoid", "logistic", "squared_hinge"]


class Relaxation(NamedTuple):
    """A smooth step.

    Attributes:
        kind: `"q"` or `"squared_hinge"`.
        q: where in the q family, 0 (logistic) to 1 (sigmoid).
        slope: how steep: the step is h(slope * comparison).
    """

    kind: Literal["q", "squared_hinge"]
    q: float
    slope: float

    @property
    def bounded(self) -> bool:
        """Whether soft bits stay in [0, 1]."""
        return self.kind == "q" and self.q == 1

    def soft(self, comparisons: Tensor) -> Tensor:
        """Soft bits, in the shape of the comparisons."""
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
            return _sigmoid_slope(
                weight, c.sigmoid_()
            )  # weight * sigmoid * (1 - sigmoid), in one pass
        fall = weight * torch.sigmoid(-c)
        return fall if self.q == 0 else torch.exp(self.q * F.logsigmoid(c)) * fall


def relaxation(name: RelaxationName | float, slope: float) -> Relaxation:
    """The relaxation of that name, or of that q between 0 and 1; ValueError for others.

    Args:
        name: `"sigmoid"`, `"logistic"`, `"squared_hinge"`, or q.
        slope: how steep, above 0.

    Returns:
        The relaxation.
    """
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
                f"relaxation must be 'sigmoid', 'logistic', 'squared_hinge' or q from 0 (logistic) to 1 (sigmoid); "
                f"got {name!r}"
            )


Near = Literal["any", "wrong"]
Sampler = Callable[[Reexpression, Tensor, Tensor, torch.Generator | None], Tensor]


def sample_anchors(
    plan: Reexpression,
    bits: Tensor,
    live: Tensor,
    generator: torch.Generator | None,
    *,
    number: int = 16,
    near: Near = "any",
    kinds: tuple[str, ...] = ("good", "near", "bad"),
) -> Tensor:
    """The paper's anchors.

    Args:
        plan: the target's metric.
        bits: `[..., D]`, the current configuration.
        live: `[..., D]`, bits that mean something; the others stay as they are.
        generator: source of randomness.
        number: how many of each kind.
        near: which bits nearby anchors flip.
        kinds: which kinds to draw, besides the best one.

    Returns:
        `[1 + len(kinds) * number, ..., D]`, bool.
    """
    best = plan.best_bits(bits)
    drawn = [best.unsqueeze(0)]
    if "good" in kinds:
        drawn.append(plan.flip(best, _choose(live, number, generator)))
    if "near" in kinds:
        wrong = live & ~bits
        candidates = (
            live if near == "any" else torch.where(wrong.any(-1, keepdim=True), wrong, live)
        )
        drawn.append(plan.flip(bits, _choose(candidates, number, generator)))
    if "bad" in kinds:
        drawn.append(_coins((number, *bits.shape), generator, bits.device))
    # Live bits as drawn, the others as they are: x if live else b is b ^ ((x ^ b) & live), which is
    # faster for bools.
    return torch.cat(drawn).bitwise_xor_(bits).bitwise_and_(live).bitwise_xor_(bits)


def _coins(shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Bits at random, each 1 with chance 1/2: the lowest bits of random bytes, of which one draw gives eight."""
    size = math.prod(shape)
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=device).random_(
        generator=generator
    )
    return words.view(torch.uint8)[:size].bitwise_and_(1).view(torch.bool).reshape(shape)


def _choose(candidates: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Places `[number, ...]` drawn from the candidates `[..., D]` of each set, -1 where there are none."""
    size = candidates.shape[-1]
    if not size:
        return torch.full(
            (number, *candidates.shape[:-1]), -1, dtype=torch.int64, device=candidates.device
        )
    # The m-th of M candidates, m drawn at random: found where the running count of candidates
    # passes m.
    running = candidates.cumsum(-1, dtype=torch.int32)
    count = running[..., -1:]
    shape = (*candidates.shape[:-1], number)
    share = torch.rand(shape, dtype=torch.float64, generator=generator, device=candidates.device)
    places = torch.searchsorted(running, (share * count).to(torch.int32), right=True)
    return places.masked_fill_(count == 0, -1).movedim(-1, 0)


_BLOCK_ENTRIES = 1 << 22


class Interpolated(NamedTuple):
    """An interpolation e~ = g~(h~(f(s))) of a metric, in parts.

    Attributes:
        value: `[...]`, g at the scores' bits.
        change: gives `[...]`, what soft bits add to it; a function, because only who looks at e~
            itself needs it.
        carrier: `[...]`, a function of the scores with the gradient of e~; its value means nothing.
        untied: whether all comparisons are decided, so that the value is the metric's own.
    """

    value: Tensor
    change: Callable[[], Tensor]
    carrier: Tensor
    untied: bool


def pair_sum(plan: Pairs, scores: Tensor, relaxation: Relaxation) -> Interpolated:
    """The metric's multilinear interpolation, expanded at the scores' own bits.

    Args:
        plan: the target's metric.
        scores: the metric's scores, checked.
        relaxation: the smooth step.

    Returns:
        The interpolation.
    """
    ranked = plan.ranked(scores)
    with torch.no_grad():
        high, low = plan.compared(ranked)
        if (
            plan.high_live is not None and plan.low_live is not None
        ):  # padding wins, or is beaten, by far
            high, low = (
                high.masked_fill(~plan.high_live, torch.inf),
                low.masked_fill(~plan.low_live, -torch.inf),
            )
        ordered = low.sort(-1).values
        won = torch.searchsorted(ordered, high, right=False)
        untied = torch.equal(won, torch.searchsorted(ordered, high, right=True))
        value, loss, win = plan.item_gains(low.shape[-1] - won)
        slope_high, slope_low = _slopes(high, low, loss, win, relaxation)
        slope = relaxation.slope * plan.spread(slope_high, slope_low.neg_(), ranked)
    carrier = torch.linalg.vecdot(ranked, slope)
    if plan.weight is None:
        return Interpolated(
            value, lambda: _change(high, low, loss, win, relaxation), carrier, untied
        )
    value, carrier = (plan.weight * value).sum(-1), carrier.sum(-1)
    return Interpolated(
        value, lambda: _change(high, low, loss, win, relaxation).sum(-1), carrier, untied
    )


def _slopes(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor, relaxation: Relaxation
) -> tuple[Tensor, Tensor]:
    """Sums of w h'(s_i - s_j) over the negatives, `[..., P]`, and over the positives, `[..., M]`."""
    sums = []
    for comparisons, weight in _blocks(high, low, loss, win):
        slope = relaxation.weighted_slope(comparisons, weight)
        sums.append((slope.sum(-1), slope.sum(-2)))
    if len(sums) == 1:
        return sums[0]
    slopes_high, slopes_low = zip(*sums, strict=True)
    return torch.cat(slopes_high, -1), torch.stack(slopes_low).sum(0)


def _change(high: Tensor, low: Tensor, loss: Tensor, win: Tensor, relaxation: Relaxation) -> Tensor:
    """The sum of w (h(s_i - s_j) - b) over all pairs, `[...]`."""
    return torch.stack(
        [
            (weight * (relaxation.soft(comparisons) - (comparisons > 0).to(weight.dtype))).sum(
                (-1, -2)
            )
            for comparisons, weight in _blocks(high, low, loss, win)
        ]
    ).sum(0)


def _blocks(
    high: Tensor, low: Tensor, loss: Tensor, win: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Comparisons and weights w, `[..., rows, M]`, of some positives at a time."""
    rows = max(1, _BLOCK_ENTRIES // max(1, low.numel()))
    whole = high.shape[-1] <= rows
    parts = (
        [(high, loss, win)]
        if whole
        else zip(*(each.split(rows, -1) for each in (high, loss, win)), strict=True)
    )
    for some, lost_by, won_by in parts:
        comparisons = some.unsqueeze(-1) - low.unsqueeze(-2)
        bits = torch.gt(
            comparisons, 0, out=torch.empty_like(comparisons, dtype=win.dtype)
        )  # 0.0 and 1.0
        yield comparisons, torch.lerp(won_by.unsqueeze(-1), lost_by.unsqueeze(-1), bits)
