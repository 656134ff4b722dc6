"""Choices that a watched metric makes among scores: argmax, topk, sort; as comparisons, and put together from bits.

A choice gives indices, and what a metric does with them says which comparisons decide:

    winner    an argmax used as a number      each entry against the best other one: `[R, n]`
    members   the k highest, in any order     each entry against the first one on the other side of the cut: `[R, n]`
    levels    an order that only gathers      pairs of entries with different labels. With l levels of labels, the
              a few kinds of labels           places of those at level l or higher are r + n_(r), as in `pairs.py`
    order     an order used as numbers        pairs of entries, but for those with equal labels

Given bits, each makes indices again (`Choice.indices`), for many configurations at once. Indices of bits that fit no
order follow from counts: who lost more comparisons comes later.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.watch import Decision, Origin, decision

MAX_LEVELS = 16  # labels of more kinds are told apart pair by pair

Kind = Literal["winner", "members", "levels", "order"]


@dataclass(eq=False)
class Choice:
    """One argmax, topk or sort of a run.

    Attributes:
        origin: where in the user's function.
        scores: `[R, n]`, rows of what is compared, the highest first, differentiable.
        given: `[R, k]`, the indices that the operation gave; k is 1 for an argmax.
        ordered: whether they are an order, not one winner.
        labels: `[R, n, ...]` each, what the indices gathered.
        used: whether the indices are used as numbers.
        ranked: whether their inverse is, the rank of each entry.
        span: the first and the last position of the order that is used.
        cut: where the metric cuts the order: only who stands before it matters.
        kind: what decides the choice; None if nothing does.
    """

    origin: Origin
    scores: Tensor
    given: Tensor
    ordered: bool
    labels: list[Tensor] = field(default_factory=list)
    used: bool = False
    ranked: bool = False
    span: tuple[int, int] | None = None
    cut: int | None = None
    kind: Kind | None = None

    @cached_property
    def order(self) -> Tensor:
        """`[R, n]`, the entries from first to last: those given, then the others by score."""
        by_score = self.scores.detach().argsort(dim=-1, descending=True, stable=True)
        taken = torch.zeros_like(by_score, dtype=torch.bool).scatter_(-1, self.given, True)
        others = by_score.gather(-1, taken.gather(-1, by_score).to(torch.uint8).argsort(dim=-1, stable=True))
        return torch.cat([self.given, others[:, : others.shape[-1] - self.given.shape[-1]]], -1)

    @cached_property
    def place(self) -> Tensor:
        """`[R, n]`, where each entry stands in the order."""
        places = torch.arange(self.order.shape[-1], device=self.order.device).expand_as(self.order)
        return torch.empty_like(self.order).scatter_(-1, self.order, places)

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """The two highest scores of each row, and where they are: `[R, 2]`."""
        return self.scores.topk(2, dim=-1)

    def against(self, rows: Tensor, entries: Tensor) -> Tensor:
        """Scores of the entries `[m]` of some rows `[m]` minus the best other score of the row: `[m]`."""
        values, at = self.top
        other = torch.where(entries == at[rows, 0], values[rows, 1], values[rows, 0])
        return self.scores[rows, entries] - other

    def reach(self, places: Tensor) -> None:
        """Notes which positions of the order are used, from places row * n + position."""
        if places.numel():
            positions = places % self.scores.shape[-1]
            seen = int(positions.min()), int(positions.max())
            self.span = seen if self.span is None else (min(self.span[0], seen[0]), max(self.span[1], seen[1]))

    def settle(self, kind: Kind) -> Decision:
        """Fixes what decides the choice."""
        self.kind = kind
        if kind == "winner":
            rows, entries = torch.ones_like(self.scores).nonzero().unbind(-1)
            return decision(self.origin, self.against(rows, entries), self.place == 0)
        if kind == "members":
            assert self.cut is not None
            last_in, first_out = (self.scores.gather(-1, self.order[:, [at]]) for at in (self.cut - 1, self.cut))
            inside = self.place < self.cut
            return decision(self.origin, self.scores - torch.where(inside, first_out, last_in), inside)
        if kind == "levels":
            self.level = self._levels()
            chosen = self.level.unsqueeze(-1) > self.level.unsqueeze(-2)
        else:
            chosen = self._different().triu(1)
        self.row, self.first, self.second = chosen.nonzero().unbind(-1)
        values = self.scores[self.row, self.first] - self.scores[self.row, self.second]
        return decision(self.origin, values, self.place[self.row, self.first] < self.place[self.row, self.second])

    def representatives(self, bits: Tensor) -> Tensor:
        """For each of the bits `[D]`, one whose flip does the same to the choice: `[D]`."""
        everyone = torch.arange(bits.shape[-1], device=bits.device)
        if self.kind != "levels":
            return everyone
        size = self.order.shape[-1]
        other = self.level[self.row, self.second]
        key = ((self.row * size + self.first) * (int(self.level.max()) + 1) + other) * 2 + bits.long()
        _, same = key.unique(return_inverse=True)
        return torch.zeros_like(same).scatter_reduce(0, same, everyone, "amin", include_self=False)[same]

    def indices(self, bits: Tensor) -> Tensor:
        """What the choice gives: indices `[A, R, k]` from bits `[A, D]`."""
        match self.kind:
            case None:
                order = self.order.expand(len(bits), -1, -1)
            case "winner":
                order = self._winner(bits.unflatten(-1, self.order.shape)).unsqueeze(-1)
            case "members":
                order = self._members(bits.unflatten(-1, self.order.shape))
            case "levels":
                order = self._places_of_levels(bits)
            case "order":  # the one that moved goes past the one whose count it now shares: later entries first
                order = (self.lost(bits) * self.order.shape[-1] - self.place).argsort(-1)
        return order[..., : self.given.shape[-1]]

    def lost(self, bits: Tensor) -> Tensor:
        """How many others stand before each entry, `[A, R, n]`, from pairs' bits `[A, D]`."""
        rows, size = self.order.shape
        before = self._different().logical_not() & (self.place.unsqueeze(-1) > self.place.unsqueeze(-2))
        fixed = before.sum(-1).flatten().expand(len(bits), -1)
        counts = fixed.index_add(-1, self.row * size + self.first, (~bits).long())
        return counts.index_add(-1, self.row * size + self.second, bits.long()).reshape(-1, rows, size)

    def _winner(self, bits: Tensor) -> Tensor:
        """`[A, R]`: of those said to win, the one that came last: its bit was turned. If none does, the second."""
        claimed = torch.where(bits, self.place, -1)
        last, at = claimed.max(-1)
        return torch.where(last >= 0, at, self.order[:, min(1, self.order.shape[-1] - 1)])

    def _members(self, bits: Tensor) -> Tensor:
        """`[A, R, n]`, members first: those that came in before those that stayed, the cut falling on the last."""
        assert self.cut is not None
        inside = self.place < self.cut
        joined = bits & ~inside
        rank = torch.where(bits, torch.where(joined, 0, 1), 2) * self.order.shape[-1] + self.place
        members = rank.argsort(-1)[..., : self.cut]
        chosen = torch.zeros_like(rank, dtype=torch.bool).scatter(-1, members, torch.ones_like(members).bool())
        return (torch.where(chosen, 0, self.order.shape[-1]) + self.place).argsort(-1)

    def _places_of_levels(self, bits: Tensor) -> Tensor:
        """`[A, R, n]`: at each place an entry whose level is the number of levels that claim the place."""
        rows, size = self.order.shape
        top = int(self.level.max()) if self.level.numel() else 0
        place = (self.row * size + self.first) * (top + 1) + self.level[self.row, self.second]
        lost = torch.zeros(len(bits), rows * size * (top + 1), dtype=torch.int64, device=bits.device)
        lost = lost.index_add(-1, place, (~bits).long()).reshape(-1, rows, size, top + 1).cumsum(-1)
        height = torch.zeros(len(bits), rows, size, dtype=torch.int64, device=bits.device)
        ranks = torch.arange(size, device=bits.device)
        for level in range(1, top + 1):
            reached = self.level >= level
            counts = lost[..., level - 1].masked_fill(~reached, size).sort(-1).values
            held = ranks < reached.sum(-1, keepdim=True)
            height = height.scatter_add(-1, (ranks + counts).clamp(max=size - 1), held.long().expand_as(counts))
        example = torch.zeros(rows, top + 1, dtype=torch.int64, device=bits.device)
        example = example.scatter(-1, self.level, ranks.expand(rows, size))
        return example.expand(len(bits), -1, -1).gather(-1, height.clamp(max=top))

    def _joint(self) -> Tensor:
        """One number for all labels of an entry, `[R, n]`, ascending as the labels do."""
        rows, size = self.order.shape
        columns = torch.cat([label.reshape(rows * size, -1).double() for label in self.labels], -1)
        return columns.unique(dim=0, return_inverse=True)[1].reshape(rows, size)

    def _levels(self) -> Tensor:
        """The same, counted anew in each row: 0 for its lowest label."""
        return ops.dense_rank(self._joint())

    def few_levels(self) -> bool:
        """Whether the labels are of a few kinds."""
        return bool(self.labels) and bool(self._levels().max() < MAX_LEVELS)

    def _different(self) -> Tensor:
        """`[R, n, n]`, pairs of entries that the order's use tells apart."""
        size = self.order.shape[-1]
        if self.used or self.ranked or not self.labels:
            return (
                torch.eye(size, dtype=torch.bool, device=self.order.device)
                .logical_not()
                .expand(len(self.order), -1, -1)
            )
        joint = self._joint()
        return joint.unsqueeze(-1) != joint.unsqueeze(-2)
