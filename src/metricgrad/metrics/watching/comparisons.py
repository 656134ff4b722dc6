"""What decides a function of scores: comparisons, and choices among scores.

A comparison c is a difference of scores; the bit [c > 0] is its outcome. A choice (argmax, topk,
sort) returns indices, and what the function does with them tells which comparisons decide it. The
scores that are chosen from form R rows of n items each:

    winner    an argmax used as a number     each item against the best other one, `[R, n]`
    members   the k highest, in any order    each item against the first beyond the cut, `[R, n]`
    two       an order that only gathers     pairs of items with different labels; the items with
              labels of two kinds            the higher label take positions r + n_(r)
    order     any other order                pairs of items, except those with equal labels

`Choice.indices` turns bits back into indices, for many configurations at once. Bits that fit no
order are resolved by counting: the item that lost more comparisons comes later.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops

ChoiceRule = Literal["winner", "members", "two", "order"]


class Origin(NamedTuple):
    """A line of the user's function and the operation on it; line 0 if there is no such line."""

    file: str
    line: int
    code: str
    operation: str


class Comparisons(NamedTuple):
    """The comparisons that one operation or choice made.

    Attributes:
        values: `[m]`, differentiable, above 0 exactly where the comparison is won.
        bits: `[m]`, bool, the outcomes.
        live: `[m]`, bool, False where something infinite was compared.
    """

    origin: Origin
    values: Tensor
    bits: Tensor
    live: Tensor


def compared(origin: Origin, values: Tensor, bits: Tensor) -> Comparisons:
    """Comparisons with their outcomes; a tie that was won gets the smallest value above 0."""
    values = values.reshape(-1)
    bits = bits.reshape(-1)
    live = values.isfinite()
    if not torch.equal(values > 0, bits) or not live.all():
        least = bits.to(values.dtype) * torch.finfo(values.dtype).tiny
        values = torch.where(live, values, least)
        values = values + torch.where((values > 0) == bits, 0.0, least - values).detach()
    return Comparisons(origin, values, bits, live)


@dataclass(eq=False)
class Choice:
    """One argmax, topk or sort.

    Attributes:
        scores: `[R, n]`, what is chosen from, differentiable; the highest comes first.
        given: `[R, k]`, the indices that the operation returned; k is 1 for an argmax.
        ordered: Whether the indices are an order and not a single winner.
        labels: What the indices gathered, each `[R, n, ...]`.
        as_numbers: Whether the indices are used as numbers.
        ranked: Whether their inverse is used, the rank of each item.
        span: The first and the last position of the order that are used.
        cut: Only which items come before this position matters.
        rule: What decides the choice; None if nothing does.
    """

    origin: Origin
    scores: Tensor
    given: Tensor
    ordered: bool
    labels: list[Tensor] = field(default_factory=list)
    as_numbers: bool = False
    ranked: bool = False
    span: tuple[int, int] | None = None
    cut: int | None = None
    rule: ChoiceRule | None = None

    @cached_property
    def order(self) -> Tensor:
        """`[R, n]`, the items from first to last: those given, then the others by score."""
        by_score = self.scores.detach().argsort(dim=-1, descending=True, stable=True)
        taken = torch.zeros_like(by_score, dtype=torch.bool).scatter_(-1, self.given, True)
        taken_last = taken.gather(-1, by_score).to(torch.uint8).argsort(dim=-1, stable=True)
        others = by_score.gather(-1, taken_last)
        return torch.cat([self.given, others[:, : others.shape[-1] - self.given.shape[-1]]], -1)

    @cached_property
    def position(self) -> Tensor:
        """`[R, n]`, the position of each item in the order."""
        return self.order.argsort(-1)

    @cached_property
    def joint_label(self) -> Tensor:
        """`[R, n]`, one number for all labels of an item, ascending as the labels do."""
        rows, size = self.order.shape
        columns = torch.cat([label.reshape(rows * size, -1).double() for label in self.labels], -1)
        return columns.unique(dim=0, return_inverse=True)[1].reshape(rows, size)

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        """The two highest scores of each row and their indices, `[R, 2]`."""
        return self.scores.topk(2, dim=-1)

    @property
    def _all_differ(self) -> bool:
        """Whether the function may tell all items apart."""
        return self.as_numbers or self.ranked or not self.labels

    def has_two_labels(self) -> bool:
        """Whether the indices only gather labels of at most two kinds."""
        return not self._all_differ and bool(ops.dense_rank(self.joint_label).max() < 2)

    def margins(self, rows: Tensor, items: Tensor) -> Tensor:
        """Scores of items `[m]` in rows `[m]` minus the best other score of the row: `[m]`."""
        values, at = self._top
        other = torch.where(items == at[rows, 0], values[rows, 1], values[rows, 0])
        return self.scores[rows, items] - other

    def extend_span(self, slots: Tensor) -> None:
        """Notes which positions of the order are used, from slots row * n + position."""
        if slots.numel():
            positions = slots % self.scores.shape[-1]
            first, last = self.span or (self.scores.shape[-1], 0)
            self.span = (min(first, int(positions.min())), max(last, int(positions.max())))

    def compare(self, rule: ChoiceRule) -> Comparisons:
        """Sets the rule that decides the choice, and returns its comparisons."""
        self.rule = rule
        if rule == "winner":
            rows, items = torch.ones_like(self.scores).nonzero().unbind(-1)
            return compared(self.origin, self.margins(rows, items), self.position == 0)
        if rule == "members":
            assert self.cut is not None
            last_in = self.scores.gather(-1, self.order[:, [self.cut - 1]])
            first_out = self.scores.gather(-1, self.order[:, [self.cut]])
            inside = self.position < self.cut
            margins = self.scores - torch.where(inside, first_out, last_in)
            return compared(self.origin, margins, inside)
        if rule == "two":
            self._higher = ops.dense_rank(self.joint_label).bool()
            pairs = self._higher.unsqueeze(-1) & ~self._higher.unsqueeze(-2)
        else:
            pairs = self._different().triu(1)
        self._row, self._first, self._second = pairs.nonzero().unbind(-1)
        values = self.scores[self._row, self._first] - self.scores[self._row, self._second]
        won = self.position[self._row, self._first] < self.position[self._row, self._second]
        return compared(self.origin, values, won)

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each of the bits `[D]` one whose flip changes the choice in the same way."""
        if self.rule == "two":  # only the number of comparisons that an item lost matters
            key = self._row * self.order.shape[-1] + self._first
        elif self.rule == "members" and not self.as_numbers:  # only the labels of a member matter
            row = torch.arange(len(self.order), device=bits.device).unsqueeze(-1)
            key = (row * self.order.numel() + self.joint_label).flatten()
        else:
            return torch.arange(bits.shape[-1], device=bits.device)
        return ops.first_alike(key * 2 + bits.long())

    def indices(self, bits: Tensor) -> Tensor:
        """Indices `[A, R, k]` that the choice returns for bits `[A, D]`."""
        match self.rule:
            case None:
                order = self.order.expand(len(bits), -1, -1)
            case "winner" | "members":
                order = self._by_row(bits.unflatten(-1, self.order.shape))
            case "two":
                order = self._order_of_two(self._losses(bits))
            case "order":
                order = self._order_by(self.ranks(bits))
        return order[..., : self.given.shape[-1]]

    def ranks(self, bits: Tensor) -> Tensor:
        """`[A, R, n]`, how many items come before each one, from the bits `[A, D]` of pairs."""
        return self._with_equal_labels(self._losses(bits))

    def flipped(self, bits: Tensor, which: Tensor) -> tuple[Tensor, Tensor | None]:
        """Indices `[A, R, k]` with one of the bits `[D]` flipped, at `which` `[A]`; -1 flips none.

        Ranks `[A, R, n]` come with them if they are used. A flip changes the losses of one or two
        items, so the bits of all configurations are never written out.
        """
        if self.rule not in ("two", "order"):
            changed = bits.repeat(len(which), 1)
            at = (which >= 0).nonzero().squeeze(-1)
            changed[at, which[at]] ^= True
            return self.indices(changed), None
        pair = which.clamp(min=0)
        change = torch.where(which >= 0, torch.where(bits[pair], 1, -1), 0).unsqueeze(-1)
        start = self._row * self.order.shape[-1]
        losses = self._losses(bits.unsqueeze(0)).flatten(1).repeat(len(which), 1)
        losses.scatter_add_(-1, (start + self._first)[pair].unsqueeze(-1), change)
        taken = self.given.shape[-1]
        if self.rule == "two":
            return self._order_of_two(losses.unflatten(-1, self.order.shape))[..., :taken], None
        losses.scatter_add_(-1, (start + self._second)[pair].unsqueeze(-1), -change)
        ranks = self._with_equal_labels(losses.unflatten(-1, self.order.shape))
        return self._order_by(ranks)[..., :taken], ranks if self.ranked else None

    def _different(self) -> Tensor:
        """`[R, n, n]`, the pairs of items that the function may tell apart."""
        label = torch.arange(self.order.shape[-1], device=self.order.device).expand_as(self.order)
        label = label if self._all_differ else self.joint_label
        return label.unsqueeze(-1) != label.unsqueeze(-2)

    def _losses(self, bits: Tensor) -> Tensor:
        """`[A, R, n]`, comparisons each item lost; for "two", only items with the higher label."""
        rows, size = self.order.shape
        none = torch.zeros(len(bits), rows * size, dtype=torch.int64, device=bits.device)
        losses = none.index_add(-1, self._row * size + self._first, (~bits).long())
        if self.rule == "order":
            losses = losses.index_add(-1, self._row * size + self._second, bits.long())
        return losses.reshape(-1, rows, size)

    def _with_equal_labels(self, losses: Tensor) -> Tensor:
        """Losses plus those to items with an equal label, which are not compared.

        Items with equal labels keep the order of their other losses.
        """
        if self._all_differ:
            return losses
        label = self.joint_label
        size = self.order.shape[-1]
        positions = ((label * size + losses) * size + self.position).argsort(-1).argsort(-1)
        return losses + positions - (label.unsqueeze(-1) > label.unsqueeze(-2)).sum(-1)

    def _order_by(self, ranks: Tensor) -> Tensor:
        """`[A, R, n]`, ascending; an item that moved passes the one whose rank it now shares."""
        return (ranks * self.order.shape[-1] - self.position).argsort(-1)

    def _by_row(self, bits: Tensor) -> Tensor:
        """Orders `[A, R, n]` from bits of the same shape; rows with unchanged bits are copied."""
        inside = self.position < (self.cut or 1)
        at, row = (bits != inside).any(-1).nonzero().unbind(-1)
        order = self.order.repeat(len(bits), 1, 1)
        change = self._with_winner if self.rule == "winner" else self._with_members
        order[at, row] = change(bits[at, row], row)
        return order

    def _with_winner(self, bits: Tensor, row: Tensor) -> Tensor:
        """Orders `[M, n]` of some rows with the winner in front.

        If several bits say "winner", it is the item that was last: its bit was flipped. If none
        does, it is the second item.
        """
        last, at = torch.where(bits, self.position[row], -1).max(-1)
        winner = torch.where(last >= 0, at, self.order[row, 1])
        return winner.unsqueeze(-1).expand_as(bits)

    def _with_members(self, bits: Tensor, row: Tensor) -> Tensor:
        """Orders `[M, n]` of some rows, new members before old ones, up to the cut."""
        assert self.cut is not None
        position = self.position[row]
        size = bits.shape[-1]
        rank = torch.where(bits, torch.where(position < self.cut, 1, 0), 2) * size + position
        members = rank.topk(self.cut, largest=False).indices
        outside = torch.ones_like(position).scatter(-1, members, 0)
        return (outside * size + position).argsort(-1)

    def _order_of_two(self, losses: Tensor) -> Tensor:
        """`[A, R, n]`, at each position some item with the label that belongs there."""
        size = self.order.shape[-1]
        losses = torch.where(self._higher, losses, size).sort(-1).values
        ranks = torch.arange(size, device=losses.device)
        due = (ranks < self._higher.sum(-1, keepdim=True)).expand_as(losses).long()
        positions = (ranks + losses).clamp(max=size - 1)
        higher_here = torch.zeros_like(losses).scatter_add(-1, positions, due) > 0
        some_higher = self._higher.long().argmax(-1, keepdim=True)
        some_lower = (~self._higher).long().argmax(-1, keepdim=True)
        return torch.where(higher_here, some_higher, some_lower)
