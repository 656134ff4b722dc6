"""Choices that a watched metric makes among scores: argmax, topk, sort; as comparisons, and put together from bits.

A choice gives indices, and what a metric does with them says which comparisons decide:

    winner    an argmax used as a number      each entry against the best other one: `[R, n]`
    members   the k highest, in any order     each entry against the first one on the other side of the cut: `[R, n]`
    two       an order that only gathers      pairs of entries with different labels. The places of those with the
              labels of two kinds             higher label are r + n_(r), as in `pairs.py`
    order     any other order                 pairs of entries, but for those with equal labels

Given bits, each makes indices again (`Choice.indices`), for many configurations at once. Indices of
bits that fit no order follow from counts: who lost more comparisons comes later.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.watching.interception import Decision, Origin, decision

Kind = Literal["winner", "members", "two", "order"]


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
        others = by_score.gather(
            -1, taken.gather(-1, by_score).to(torch.uint8).argsort(dim=-1, stable=True)
        )
        return torch.cat([self.given, others[:, : others.shape[-1] - self.given.shape[-1]]], -1)

    @cached_property
    def place(self) -> Tensor:
        """`[R, n]`, where each entry stands in the order."""
        return self.order.argsort(-1)

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
            self.span = (
                seen
                if self.span is None
                else (min(self.span[0], seen[0]), max(self.span[1], seen[1]))
            )

    def settle(self, kind: Kind) -> Decision:
        """Fixes what decides the choice."""
        self.kind = kind
        if kind == "winner":
            rows, entries = torch.ones_like(self.scores).nonzero().unbind(-1)
            return decision(self.origin, self.against(rows, entries), self.place == 0)
        if kind == "members":
            assert self.cut is not None
            last_in, first_out = (
                self.scores.gather(-1, self.order[:, [at]]) for at in (self.cut - 1, self.cut)
            )
            inside = self.place < self.cut
            return decision(
                self.origin, self.scores - torch.where(inside, first_out, last_in), inside
            )
        if kind == "two":
            self.higher = ops.dense_rank(self.joint).bool()
            pairs = self.higher.unsqueeze(-1) & ~self.higher.unsqueeze(-2)
        else:
            pairs = self._different().triu(1)
        self.row, self.first, self.second = pairs.nonzero().unbind(-1)
        values = self.scores[self.row, self.first] - self.scores[self.row, self.second]
        return decision(
            self.origin,
            values,
            self.place[self.row, self.first] < self.place[self.row, self.second],
        )

    def representatives(self, bits: Tensor) -> Tensor:
        """For each of the bits `[D]`, one whose flip does the same to the choice: `[D]`."""
        if self.kind == "two":  # one more comparison lost, or one less, is all that counts
            key = self.row * self.order.shape[-1] + self.first
        elif (
            self.kind == "members" and not self.used
        ):  # who comes in or goes out matters by its labels only
            row = torch.arange(len(self.order), device=bits.device).unsqueeze(-1)
            key = (row * self.order.numel() + self.joint).flatten()
        else:
            return torch.arange(bits.shape[-1], device=bits.device)
        return ops.first_alike(key * 2 + bits.long())

    def indices(self, bits: Tensor) -> Tensor:
        """What the choice gives: indices `[A, R, k]` from bits `[A, D]`."""
        match self.kind:
            case None:
                order = self.order.expand(len(bits), -1, -1)
            case "winner" | "members":
                order = self._by_row(bits.unflatten(-1, self.order.shape))
            case "two":
                order = self._places_of_two(self._counts(bits))
            case "order":
                order = self._ordered(self.lost(bits))
        return order[..., : self.given.shape[-1]]

    def flipped(self, bits: Tensor, which: Tensor) -> tuple[Tensor, Tensor | None]:
        """Indices `[A, R, k]`, and ranks `[A, R, n]` if asked for, with one of the bits `[D]` turned; -1 turns none.

        A flip changes what one or two entries lost, so no table of all bits of all configurations
        is made.
        """
        one = bits.unsqueeze(0)
        if self.kind not in ("two", "order"):
            turned = one.repeat(len(which), 1)
            at = (which >= 0).nonzero().squeeze(-1)
            turned[at, which[at]] ^= True
            return self.indices(turned), None
        known, pair = which >= 0, which.clamp(min=0)
        change = torch.where(known, torch.where(bits[pair], 1, -1), 0).unsqueeze(-1)
        size = self.order.shape[-1]
        first, second = (
            (self.row * size + side)[pair].unsqueeze(-1) for side in (self.first, self.second)
        )
        counts = self._counts(one).flatten(1).repeat(len(which), 1).scatter_add_(-1, first, change)
        if self.kind == "two":
            return self._places_of_two(counts.unflatten(-1, self.order.shape))[
                ..., : self.given.shape[-1]
            ], None
        lost = self._with_equals(
            counts.scatter_add_(-1, second, -change).unflatten(-1, self.order.shape)
        )
        return self._ordered(lost)[..., : self.given.shape[-1]], lost if self.ranked else None

    def lost(self, bits: Tensor) -> Tensor:
        """How many others stand before each entry, `[A, R, n]`, from pairs' bits `[A, D]`."""
        return self._with_equals(self._counts(bits))

    def _counts(self, bits: Tensor) -> Tensor:
        """Comparisons that each entry lost, `[A, R, n]`; of two kinds only those of the higher one are counted."""
        rows, size = self.order.shape
        none = torch.zeros(len(bits), rows * size, dtype=torch.int64, device=bits.device)
        counts = none.index_add(-1, self.row * size + self.first, (~bits).long())
        if self.kind == "order":
            counts = counts.index_add(-1, self.row * size + self.second, bits.long())
        return counts.reshape(-1, rows, size)

    def _with_equals(self, counts: Tensor) -> Tensor:
        """Counts with those of equal labels, which are not compared: they stand in the order of what they lost."""
        if self._all_differ:
            return counts
        joint, size = self.joint, self.order.shape[-1]
        positions = ((joint * size + counts) * size + self.place).argsort(-1).argsort(-1)
        return counts + positions - (joint.unsqueeze(-1) > joint.unsqueeze(-2)).sum(-1)

    def _ordered(self, lost: Tensor) -> Tensor:
        """`[A, R, n]`, by what was lost: the one that moved goes past the one whose count it now shares."""
        return (lost * self.order.shape[-1] - self.place).argsort(-1)

    def _by_row(self, bits: Tensor) -> Tensor:
        """`[A, R, n]`, row by row; those whose bits are as they were stay as they were."""
        inside = self.place < (self.cut or 1)
        at, row = (bits != inside).any(-1).nonzero().unbind(-1)
        order = self.order.repeat(len(bits), 1, 1)
        change = self._winner if self.kind == "winner" else self._members
        order[at, row] = change(bits[at, row], row)
        return order

    def _winner(self, bits: Tensor, row: Tensor) -> Tensor:
        """Orders `[M, n]` of some rows, the winner first.

        Of those said to win it is the one that came last: its bit was turned. If none is, it is the
        second one.
        """
        last, at = torch.where(bits, self.place[row], -1).max(-1)
        winner = torch.where(last >= 0, at, self.order[row, 1])
        return winner.unsqueeze(-1).expand_as(bits)

    def _members(self, bits: Tensor, row: Tensor) -> Tensor:
        """Orders `[M, n]` of some rows, members first: those that came in before those that stayed, up to the cut."""
        assert self.cut is not None
        place, size = self.place[row], bits.shape[-1]
        rank = torch.where(bits, torch.where(place < self.cut, 1, 0), 2) * size + place
        members = rank.topk(self.cut, largest=False).indices
        outside = torch.ones_like(place).scatter(-1, members, 0)
        return (outside * size + place).argsort(-1)

    def _places_of_two(self, lost: Tensor) -> Tensor:
        """`[A, R, n]`: at each place an entry with the higher label if one is due there, else one with the lower."""
        size = self.order.shape[-1]
        lost = torch.where(self.higher, lost, size).sort(-1).values
        ranks = torch.arange(size, device=lost.device)
        due = (ranks < self.higher.sum(-1, keepdim=True)).expand_as(lost)
        taken = (
            torch.zeros_like(lost).scatter_add(-1, (ranks + lost).clamp(max=size - 1), due.long())
            > 0
        )
        examples = [kind.long().argmax(-1, keepdim=True) for kind in (self.higher, ~self.higher)]
        return torch.where(taken, *examples)

    @cached_property
    def joint(self) -> Tensor:
        """One number for all labels of an entry, `[R, n]`, ascending as the labels do."""
        rows, size = self.order.shape
        columns = torch.cat([label.reshape(rows * size, -1).double() for label in self.labels], -1)
        return columns.unique(dim=0, return_inverse=True)[1].reshape(rows, size)

    def of_two(self) -> bool:
        """Whether all that the indices do is to gather labels of two kinds."""
        if self._all_differ:
            return False
        return bool(ops.dense_rank(self.joint).max() < 2)

    @property
    def _all_differ(self) -> bool:
        """Whether the use of the order may tell all entries apart."""
        return self.used or self.ranked or not self.labels

    def _different(self) -> Tensor:
        """`[R, n, n]`, pairs of entries that the order's use tells apart."""
        joint = torch.arange(self.order.shape[-1], device=self.order.device).expand_as(self.order)
        joint = joint if self._all_differ else self.joint
        return joint.unsqueeze(-1) != joint.unsqueeze(-2)
