"""Re-expression of order where items have weights.

Positive i has the weight w_i, and n_i is the weight of the negatives that it lost to. What is r, a
number of positives, in `order.py` is the weight R_i of the positives down to i, i included:

    R_i = w_i + sum of w_k over the positives k before i

A positive k is before i if n_k < n_i. Where n_k = n_i, no negative stands between them; for average
precision it then matters which of the two is ahead, so positives are compared with each other, too.
The heavier of two should be ahead, and a bit says that it is. Among positives with the same n, the
one that lost fewer of these comparisons is before the other; if they lost equally many, the heavier
one. All other metrics are the same for either order, and R_i takes in all positives with the same
n.

A flip of a positive and a negative changes one n_i. For AUC and partial AUC, the place does not
matter, so it changes one term. For average precision, i moves to another place, and every positive
that it passes reaches more, or less, by w_i; sums over these along the order tell the change for
all flips. For a maximum of terms every flip is tried, which takes P * M * P steps.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.order import Pairs
from metricgrad.metrics.reexpression import Reexpression

_ENTRIES = 1 << 22  # places held at once while flips are tried


def weighed(pairs: Pairs, weight: Tensor | None) -> Reexpression:
    """The pairs with weights of their items, `[..., N]` or `[..., C, N]`; as they are for None."""
    if weight is None:
        return pairs
    if pairs.rule.cycles == "zero" or pairs.rule.pool == "envelope":
        raise ValueError(
            "average_precision with interpolated=True or cycles='zero' has no form with "
            "sample_weight for UniLoss; leave these options, or the weights, out"
        )
    high = weight.gather(-1, pairs.high)
    low = weight.gather(-1, pairs.low)
    if pairs.high_live is not None and pairs.low_live is not None:
        high = torch.where(pairs.high_live, high, 0.0)
        low = torch.where(pairs.low_live, low, 0.0)
    return WeightedPairs(pairs, high, low)


@dataclass(frozen=True)
class WeightedPairs(Reexpression):
    """Every positive against every negative and, if it matters, against every other positive."""

    pairs: Pairs
    high: Tensor  # [..., P], weights of the positives; 0 for padding
    low: Tensor  # [..., M], weights of the negatives

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Positive minus negative, then heavier minus lighter positive: `[..., P * (M + P)]`."""
        ranked = self.pairs.ranked(scores)
        differences = self._differences(*self.pairs.compared(ranked))
        live = (self.high > 0).unsqueeze(-1) & (self.low > 0).unsqueeze(-2)
        live = torch.cat([live, self._heavier()], -1) if self._ordered else live
        return self._flat(differences), self._flat(live)

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Bits `[number, ..., D]` of orders drawn around the scores' own."""
        ranked = ops.add_gumbel_noise(self.pairs.ranked(scores), slope, number, generator)
        high = ranked.gather(-1, self.pairs.high.expand(number, *self.high.shape))
        low = ranked.gather(-1, self.pairs.low.expand(number, *self.low.shape))
        return self._flat(self._differences(high, low) > 0)

    def defined(self) -> Tensor:
        """As without weights: items of weight 0 do not count."""
        return self.pairs.defined()

    def from_bits(self, bits: Tensor) -> Tensor:
        """The rule's value of the weights that the positives lost to and stand below."""
        lost, behind = self._read(bits)
        lost_to = self._lost_to(lost)
        ahead = self._ahead(behind & _level(lost_to) if self._ordered else behind)
        values = self.pairs.scaled(self._pool(self._reached(lost_to, ahead), lost_to))
        return values if self.pairs.weight is None else (self.pairs.weight * values).sum(-1)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The pooled terms with a bit set minus those with it cleared, times what they are worth.

        Bits of positives with different n among each other change nothing. The bits of all
        positives among each other must fit an order, as those of scores do.
        """
        lost, behind = self._read(bits)
        lost_to = self._lost_to(lost)
        ahead = self._ahead(behind)
        reached = self._reached(lost_to, ahead)
        step = torch.where(lost, -self.low.unsqueeze(-2), self.low.unsqueeze(-2))
        changes = self._changes(reached, lost_to, step, ahead)
        gains = torch.where(lost, changes, -changes)
        live = (self.high > 0).unsqueeze(-1) & (self.low > 0).unsqueeze(-2)
        gains = torch.where(live, gains, 0.0)
        if self._ordered:
            now = self._pool(reached, lost_to)
            gains = torch.cat([gains, self._order_gains(now, lost_to, behind)], -1)
        share = self.pairs.share()
        return self._flat(gains * (share.unsqueeze(-1) if isinstance(share, Tensor) else share))

    def _changes(self, reached: Tensor, lost_to: Tensor, step: Tensor, ahead: Tensor) -> Tensor:
        """What a flip of each positive and negative adds to the pooled terms, `[A, ..., P, M]`."""
        if self._ordered:
            return self._passing_changes(reached, lost_to, step, ahead)
        if not self.pairs.rule.by_place:
            terms = self._terms(reached, lost_to, 1).unsqueeze(-1)
            after = self._terms(reached.unsqueeze(-1), lost_to.unsqueeze(-1) + step, 2)
            return (self.high.unsqueeze(-1) * (after - terms)).to(self.pairs.dtype)
        size = self.high.shape[-1]
        held = step.shape[:-2].numel() * self.low.shape[-1] * size
        now = self._pool(reached, lost_to)[..., None, None]
        parts = [step[..., :0, :].to(self.pairs.dtype)]
        chunk = max(1, _ENTRIES // max(1, held))
        for start in range(0, size, chunk):
            parts.append(self._tried(lost_to, step, slice(start, start + chunk)) - now)
        return torch.cat(parts, -2)

    def _tried(self, lost_to: Tensor, step: Tensor, moved: slice) -> Tensor:
        """The pooled terms `[A, ..., Q, M]` after each flip of Q positives."""
        own = torch.eye(self.high.shape[-1], dtype=torch.bool, device=step.device)[moved, None, :]
        moving = (lost_to[..., moved].unsqueeze(-1) + step[..., moved, :]).unsqueeze(-1)
        n = torch.where(own, moving, lost_to[..., None, None, :])
        weight = self.high[..., None, None, :]
        ordered, order = n.sort(-1)
        total = weight.expand_as(n).gather(-1, order).cumsum(-1)
        # The last of equal n has reached what all of them reach, and its term is the largest.
        return self._pool(total, ordered, 3, weight.expand_as(n).gather(-1, order))

    def _passing_changes(
        self, reached: Tensor, lost_to: Tensor, step: Tensor, ahead: Tensor
    ) -> Tensor:
        """`_changes` of a sum of terms: the positive's own, and those of the ones that it passes.

        All is done in the order of the positives, whose places count from 0.
        """
        order = self._before(lost_to, ahead).sum(-2).argsort(-1)
        by_row = order.unsqueeze(-1)
        weight, n, down_to = (
            part.expand(lost_to.shape).gather(-1, order) for part in (self.high, lost_to, reached)
        )
        moving = n.unsqueeze(-1) + step.gather(-2, by_row.expand(step.shape))
        ahead = ahead.expand(*n.shape, n.shape[-1])
        ahead = ahead.gather(-2, by_row.expand_as(ahead)).gather(
            -1, order.unsqueeze(-2).expand_as(ahead)
        )
        to = _new_places(n, moving, ahead)
        every = torch.arange(n.shape[-1], device=n.device)
        place = every.unsqueeze(-1).expand(to.shape)
        up = to <= place
        above = F.pad(weight.cumsum(-1), (1, 0)).unsqueeze(-2).expand(*n.shape, -1)
        mover = weight.unsqueeze(-1)
        own = torch.where(up, above.gather(-1, to) + mover, above.gather(-1, to + 1))
        terms = weight.to(self.pairs.dtype) * self._terms(down_to, n, 1)

        def passed(sign: float, which: Tensor) -> Tensor:
            """Sums `[A, ..., P, P + 1]` of what the terms change by, up to each place."""
            found = self._terms(down_to.unsqueeze(-2) + sign * mover, n.unsqueeze(-2), 2)
            found = weight.unsqueeze(-2).to(terms.dtype) * found - terms.unsqueeze(-2)
            live = which & (weight > 0).unsqueeze(-2)
            return F.pad(torch.where(live, found, 0.0).cumsum(-1), (1, 0))

        rise = passed(1.0, every < every.unsqueeze(-1))
        fall = passed(-1.0, every > every.unsqueeze(-1))
        nearer = torch.minimum(to, place)
        others = torch.where(
            up,
            rise.gather(-1, place) - rise.gather(-1, nearer),
            fall.gather(-1, to + 1) - fall.gather(-1, nearer + 1),
        )
        change = mover.to(terms.dtype) * self._terms(own, moving, 2) - terms.unsqueeze(-1) + others
        return change.gather(-2, order.argsort(-1).unsqueeze(-1).expand(change.shape))

    def _order_gains(self, now: Tensor, lost_to: Tensor, behind: Tensor) -> Tensor:
        """The gain of each bit of two positives, `[A, ..., P, P]`; only equal n have any."""
        shape = behind.shape
        *lead, size, _ = shape
        rows = (math.prod(lead), size)
        behind = (behind & _level(lost_to)).reshape(*rows, size)
        places = (self._heavier() & _level(lost_to)).reshape(*rows, size).nonzero()
        now = now.reshape(rows[0])
        number_lost = behind.sum(-1).to(self.high.dtype)
        weight = self.high.expand(lost_to.shape).reshape(rows)
        negatives = self.low.sum(-1).expand(lost_to.shape[:-1]).reshape(rows[0], 1)
        lost_to = lost_to.reshape(rows)
        gains = now.new_zeros(behind.shape)
        for part in places.split(max(1, _ENTRIES // max(1, size))):
            which, first, second = part.unbind(-1)
            step = torch.where(behind[which, first, second], -1.0, 1.0).to(weight.dtype)
            lost = number_lost[which]
            lost.scatter_add_(-1, part[:, 1:], torch.stack([step, -step], -1))
            after = self._sorted(lost, weight[which], lost_to[which], negatives[which])
            gains[which, first, second] = step.to(gains.dtype) * (now[which] - after)
        return gains.reshape(shape)

    def _sorted(self, lost: Tensor, weight: Tensor, lost_to: Tensor, negatives: Tensor) -> Tensor:
        """The sum of terms `[B]` of sets `[B, P]`, with the weight of their negatives `[B, 1]`."""
        order = self._key(lost, weight).argsort(dim=-1, stable=True)
        order = order.gather(-1, lost_to.gather(-1, order).argsort(dim=-1, stable=True))
        weight = weight.gather(-1, order)
        reached = weight.cumsum(-1)
        parts = (reached, lost_to.gather(-1, order), reached[:, -1:], negatives)
        terms = self.pairs.rule.term(*(part.to(self.pairs.dtype) for part in parts))
        return torch.where(weight > 0, weight.to(terms.dtype) * terms, 0.0).sum(-1)

    def _key(self, behind: Tensor, weight: Tensor) -> Tensor:
        """What orders positives with equal n: comparisons lost, of equally many the heavier one."""
        total = weight.sum(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        return behind - weight / (2 * total)  # less than one comparison

    def _ahead(self, behind: Tensor) -> Tensor:
        """Whether positive i is ahead of positive k at equal n, `[A, ..., P, P]`.

        Where the order of positives does not matter, each is ahead of all others.
        """
        size = self.high.shape[-1]
        if not self._ordered:
            return ~torch.eye(size, dtype=torch.bool, device=behind.device)
        key = self._key(behind.sum(-1).to(self.high.dtype), self.high)
        place = torch.arange(size, device=behind.device)
        first = key.unsqueeze(-1)
        second = key.unsqueeze(-2)
        return (first < second) | ((first == second) & (place.unsqueeze(-1) < place))

    def _reached(self, lost_to: Tensor, ahead: Tensor) -> Tensor:
        """R of every positive, `[A, ..., P]`."""
        before = self._before(lost_to, ahead)
        return self.high + torch.where(before, self.high.unsqueeze(-1), 0.0).sum(-2)

    def _before(self, lost_to: Tensor, ahead: Tensor) -> Tensor:
        """Whether positive i is before positive k, `[A, ..., P, P]`."""
        first = lost_to.unsqueeze(-1)
        second = lost_to.unsqueeze(-2)
        return (first < second) | ((first == second) & ahead)

    def _terms(self, reached: Tensor, lost_to: Tensor, dims: int) -> Tensor:
        """What each place contributes per unit of weight; `dims` trailing ones belong to a set."""
        dtype = self.pairs.dtype
        totals = (part.sum(-1).clamp(min=torch.finfo(dtype).tiny) for part in (self.high, self.low))
        positives, negatives = (each.to(dtype)[(..., *[None] * dims)] for each in totals)
        return self.pairs.rule.term(reached.to(dtype), lost_to.to(dtype), positives, negatives)

    def _pool(
        self, reached: Tensor, lost_to: Tensor, dims: int = 1, weight: Tensor | None = None
    ) -> Tensor:
        """The terms of all places, along the last of `dims` dimensions, as one number."""
        weight = self.high if weight is None else weight
        terms = self._terms(reached, lost_to, dims)
        if self.pairs.rule.pool == "sum" or not terms.shape[-1]:
            return torch.where(weight > 0, weight.to(terms.dtype) * terms, 0.0).sum(-1)
        return terms.masked_fill(weight <= 0, -torch.inf).amax(-1)

    def _lost_to(self, lost: Tensor) -> Tensor:
        """n, the weight of the negatives that each positive lost to, `[A, ..., P]`."""
        return torch.where(lost, self.low.unsqueeze(-2), 0.0).sum(-1)

    def _read(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """Lost comparisons with negatives `[A, ..., P, M]` and with positives `[A, ..., P, P]`."""
        size = self.high.shape[-1]
        number = self.low.shape[-1]
        lead = () if self.pairs.weight is None else self.high.shape[-2:-1]
        lost = ~bits.unflatten(-1, (*lead, size, number + size * self._ordered))
        behind = lost[..., number:]
        if self._ordered:
            heavier = self._heavier()
            behind = (behind & heavier) | (~behind & heavier).mT
        return lost[..., :number], behind

    def _heavier(self) -> Tensor:
        """Pairs of a positive with a lighter one, or a later one of the same weight."""
        first = self.high.unsqueeze(-1)
        second = self.high.unsqueeze(-2)
        place = torch.arange(self.high.shape[-1], device=first.device)
        heavier = (first > second) | ((first == second) & (place.unsqueeze(-1) < place))
        return heavier & (second > 0)

    def _differences(self, high: Tensor, low: Tensor) -> Tensor:
        """Scores of positives minus those of negatives and, if it matters, of positives."""
        across = high.unsqueeze(-1) - low.unsqueeze(-2)
        if not self._ordered:
            return across
        return torch.cat([across, high.unsqueeze(-1) - high.unsqueeze(-2)], -1)

    @property
    def _ordered(self) -> bool:
        """Whether it matters which of two positives with the same n is ahead."""
        return self.pairs.rule.by_place and self.pairs.rule.pool == "sum"

    def _flat(self, table: Tensor) -> Tensor:
        """A table `[..., P, K]` or `[..., C, P, K]` as `[..., D]`."""
        return table.flatten(-2 if self.pairs.weight is None else -3)


def _level(lost_to: Tensor) -> Tensor:
    """Whether positives lost to the same weight of negatives, `[A, ..., P, P]`."""
    return lost_to.unsqueeze(-1) == lost_to.unsqueeze(-2)


def _new_places(n: Tensor, moving: Tensor, ahead: Tensor) -> Tensor:
    """The place `[A, ..., P, M]` of positive i among the others if its n were `moving[..., i, j]`.

    Positives are in their order; `ahead[..., k, i]` says whether k is ahead of i at equal n.
    """
    flat = moving.flatten(-2)
    lower = torch.searchsorted(n, flat).view(moving.shape)
    upper = torch.searchsorted(n, flat, right=True).view(moving.shape)
    first = F.pad(ahead.mT.to(torch.int64).cumsum(-1), (1, 0))  # of those up to k, ahead of i
    itself = (n.unsqueeze(-1) < moving).to(torch.int64)
    return lower - itself + first.gather(-1, upper) - first.gather(-1, lower)
