"""What decides a function of scores: comparisons, and choices among scores.

A comparison c is a difference of scores; the bit [c > 0] is its outcome. A choice (argmax, topk,
sort) returns indices, and what the function does with them tells which comparisons decide it. The
scores that are chosen from form R rows of n items each:

    winner    an argmax used as a number     each item against the best other one, `[R, n]`
    members   the k highest, in any order    each item against the first beyond the cut, `[R, n]`
    two       an order that only gathers     pairs of items with different labels; the items with
              labels of two kinds            the higher label take positions r + n_(r)
    order     any other order                pairs of items, except those with equal labels

`Choice.decide` turns bits back into indices, for many configurations at once. Bits that fit no
order are resolved by counting: the item that lost more comparisons comes later. Comparisons and
refusals name the user's line that they come from (`origin`).
"""

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.margins import soft_other_margin

_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2])
)

ChoiceRule = Literal["winner", "members", "two", "order"]


class Origin(NamedTuple):
    """An operation, and the line of the user's function that runs it; line 0 if there is none."""

    operation: str
    file: str = ""
    line: int = 0
    code: str = ""


class WatchError(RuntimeError):
    """A function cannot be watched; the message names the line, and what to write instead.

    It is no TypeError because torch's operators would swallow that. `what` is the cause alone.
    """

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what or message


def call_function(fn: Callable[[Tensor, Tensor], Any], scores: Tensor, target: Tensor) -> Any:
    """Calls the user's function; `origin` looks for the user's lines no further out than here."""
    return fn(scores, target)


def origin(operation: str) -> Origin:
    """The user's line that runs now: the innermost one that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = None if frame.f_code is call_function.__code__ else frame.f_back
    if frame is None:
        return Origin(operation)
    file = frame.f_code.co_filename
    return Origin(operation, file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())


def watch_error(what: str, way_out: str) -> WatchError:
    """The error for the line that runs now."""
    _, file, line, code = origin("")
    subject = f"{file}, line {line}: `{code}` " if line else "the function "
    return WatchError(f"{subject}{what}; {way_out}", what)


class Comparisons(NamedTuple):
    """The comparisons that one operation or choice made."""

    origin: Origin
    values: Tensor  # [m], differentiable, above 0 exactly where the comparison is won
    bits: Tensor  # [m], bool, the outcomes
    live: Tensor  # [m], bool, False where something infinite was compared
    soften: Callable[[float], Tensor] | None = None  # values [m] for soft bits, by their slope

    def softened(self, slope: float) -> Tensor:
        """The values `[m]` that soft bits are made of (`Reexpression.softened`)."""
        if self.soften is None:
            return self.values
        return torch.where(self.live, self.soften(slope), self.values)


def compared(
    origin: Origin, values: Tensor, bits: Tensor, soften: Callable[[float], Tensor] | None = None
) -> Comparisons:
    """Comparisons with their outcomes; a tie that was won gets the smallest value above 0."""
    values = values.reshape(-1)
    bits = bits.reshape(-1)
    live = values.isfinite()
    if not torch.equal(values > 0, bits) or not live.all():
        least = bits.to(values.dtype) * torch.finfo(values.dtype).tiny
        values = torch.where(live, values, least)
        values = values + torch.where((values > 0) == bits, 0.0, least - values).detach()
    return Comparisons(origin, values, bits, live, soften)


def flipped(bits: Tensor, which: Tensor) -> Tensor:
    """`[A, D]`: in each row bits `[1, D]` with the one at `which` `[A]` flipped, if it exists."""
    return bits ^ (torch.arange(bits.shape[-1], device=bits.device) == which.unsqueeze(-1))


@dataclass(eq=False)
class Choice:
    """One argmax, topk or sort, and how the function uses the indices that it returned."""

    origin: Origin
    scores: Tensor  # [R, n], what is chosen from, differentiable; the highest comes first
    given: Tensor  # [R, k], the indices that the operation returned; k is 1 for an argmax
    ordered: bool  # whether the indices are an order and not a single winner
    labels: list[Tensor] = field(default_factory=list)  # what they gathered, each [R, n, ...]
    as_numbers: bool = False  # whether they are used as numbers
    ranked: bool = False  # whether their inverse is used, the rank of each item
    span: tuple[int, int] | None = None  # the first and last position of the order that are used
    cut: int = 1  # the winner or the members come before this position
    rule: ChoiceRule | None = None  # what decides the choice; None if nothing does

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

    @property
    def _all_differ(self) -> bool:
        """Whether the function may tell all items apart."""
        return self.as_numbers or self.ranked or not self.labels

    @cached_property
    def _label(self) -> Tensor:
        """`[R, n]`, one number for all that the function sees of an item, ascending as it does."""
        rows, size = self.order.shape
        if self._all_differ:
            return torch.arange(size, device=self.order.device).expand(rows, size)
        columns = torch.cat([label.reshape(rows * size, -1).double() for label in self.labels], -1)
        return columns.unique(dim=0, return_inverse=True)[1].reshape(rows, size)

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        """The two highest scores of each row and their indices, `[R, 2]`."""
        return self.scores.topk(2, dim=-1)

    def pairs_rule(self) -> ChoiceRule:
        """The rule of an order: "two" if the indices only gather labels of at most two kinds."""
        two = not self._all_differ and bool(ops.dense_rank(self._label).max() < 2)
        return "two" if two else "order"

    def margins(self, rows: Tensor, items: Tensor) -> Tensor:
        """Scores of items `[m]` in rows `[m]` minus the best other score of the row: `[m]`."""
        values, at = self._top
        other = torch.where(items == at[rows, 0], values[rows, 1], values[rows, 0])
        return self.scores[rows, items] - other

    def soft_margins(self, rows: Tensor, items: Tensor, slope: float) -> Tensor:
        """The same with the soft maximum of the other scores, for soft bits."""
        return soft_other_margin(self.scores, slope)[rows, items]

    def extend_span(self, slots: Tensor) -> None:
        """Notes which positions of the order are used, from slots row * n + position."""
        if slots.numel():
            positions = slots % self.scores.shape[-1]
            first, last = self.span or (self.scores.shape[-1], 0)
            self.span = (min(first, int(positions.min())), max(last, int(positions.max())))

    def compare(self, rule: ChoiceRule) -> Comparisons:
        """Sets the rule that decides the choice, and returns its comparisons."""
        self.rule = rule
        inside = self.position < self.cut
        if rule == "winner":
            rows, items = torch.ones_like(self.scores).nonzero().unbind(-1)
            soften = partial(self.soft_margins, rows, items)
            return compared(self.origin, self.margins(rows, items), inside, soften)
        if rule == "members":
            last_in = self.scores.gather(-1, self.order[:, [self.cut - 1]])
            first_out = self.scores.gather(-1, self.order[:, [self.cut]])
            margins = self.scores - torch.where(inside, first_out, last_in)
            return compared(self.origin, margins, inside)
        if rule == "two":
            self._higher = ops.dense_rank(self._label).bool()
            pairs = self._higher.unsqueeze(-1) & ~self._higher.unsqueeze(-2)
        else:
            pairs = (self._label.unsqueeze(-1) != self._label.unsqueeze(-2)).triu(1)
        self._row, self._first, self._second = pairs.nonzero().unbind(-1)
        values = self.scores[self._row, self._first] - self.scores[self._row, self._second]
        won = self.position[self._row, self._first] < self.position[self._row, self._second]
        return compared(self.origin, values, won)

    def representatives(self, bits: Tensor) -> Tensor:
        """`[D]`, for each of the bits `[D]` one whose flip changes the choice in the same way."""
        if self.rule == "two":  # only the number of comparisons that an item lost matters
            key = self._row * self.order.shape[-1] + self._first
        elif self.rule == "members":  # only the label of a member matters
            row = torch.arange(len(self.order), device=bits.device).unsqueeze(-1)
            key = (row * self.order.numel() + self._label).flatten()
        else:
            return torch.arange(len(bits), device=bits.device)
        return ops.first_alike(key * 2 + bits.long())

    def decide(self, bits: Tensor, which: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Indices `[A, R, k]` and ranks `[A, R, n]` that bits `[A, D]` give.

        Or the bits are `[1, D]` and one is flipped in each configuration: that at `which` `[A]`.
        """
        ranks = self.position
        if self.rule == "two":
            order = self._order_of_two(self._losses(bits, which))
        elif self.rule == "order":
            ranks = self._with_equal_labels(self._losses(bits, which))
            # An item that moved passes the one whose rank it now shares.
            order = (ranks * ranks.shape[-1] - self.position).argsort(-1)
        else:
            order = self._by_row(bits if which is None else flipped(bits, which))
        return order[..., : self.given.shape[-1]], ranks.expand_as(order)

    def _losses(self, bits: Tensor, which: Tensor | None) -> Tensor:
        """`[A, R, n]`, comparisons each item lost; for "two", only items with the higher label.

        A flip changes the losses of a pair, so the bits of all configurations are not written out.
        """
        rows, size = self.order.shape
        sides = [(self._row * size + self._first, ~bits)]
        if self.rule == "order":
            sides.append((self._row * size + self._second, bits))
        losses = torch.zeros(len(bits), rows * size, dtype=torch.int64, device=bits.device)
        for slot, lost in sides:
            losses.index_add_(-1, slot, lost.long())
        if which is not None:
            losses = losses.repeat(len(which), 1)
            at = ((which >= 0) & (which < bits.shape[-1])).nonzero().squeeze(-1)
            for slot, lost in sides:
                losses[at, slot[which[at]]] += torch.where(lost[0, which[at]], -1, 1)
        return losses.reshape(-1, rows, size)

    def _with_equal_labels(self, losses: Tensor) -> Tensor:
        """Losses plus those to items with an equal label, which are not compared.

        Items with equal labels keep the order of their other losses.
        """
        if self._all_differ:
            return losses
        label = self._label
        size = self.order.shape[-1]
        positions = ((label * size + losses) * size + self.position).argsort(-1).argsort(-1)
        return losses + positions - (label.unsqueeze(-1) > label.unsqueeze(-2)).sum(-1)

    def _by_row(self, bits: Tensor) -> Tensor:
        """Orders `[A, R, n]` from bits `[A, D]`; rows with unchanged bits are copied."""
        if self.rule is None:
            return self.order.expand(len(bits), -1, -1)
        bits = bits.unflatten(-1, self.order.shape)
        order = self.order.repeat(len(bits), 1, 1)
        at, row = (bits != (self.position < self.cut)).any(-1).nonzero().unbind(-1)
        bits = bits[at, row]
        position = self.position[row]
        if self.rule == "winner":
            # If several bits say "winner", it is the item that was last, as its bit was flipped;
            # if none does, it is the second item.
            last, item = torch.where(bits, position, -1).max(-1)
            winner = torch.where(last >= 0, item, self.order[row, 1])
            order[at, row] = winner.unsqueeze(-1).expand_as(bits)
        else:
            # New members come before old ones, up to the cut.
            size = bits.shape[-1]
            rank = torch.where(bits, torch.where(position < self.cut, 1, 0), 2) * size + position
            members = rank.topk(self.cut, largest=False).indices
            outside = torch.ones_like(position).scatter(-1, members, 0)
            order[at, row] = (outside * size + position).argsort(-1)
        return order

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
