"""One class against the rest: how far every item is from being decided for it, and the counts then.

If the offsets of all other classes are fixed, an item is decided for class c where

    lead + o_c > 0          lead = s_c - max_{j != c} (s_j + o_j), or s_c - threshold for a label

so the counts for all values of o_c follow from one table: between which two cuts the lead of an
item lies, which class it is decided for otherwise, and whether either is right. Drawing the items
again with replacement changes only how often each cell of the table occurs (a Poisson number around
what it is), so the cost of a bootstrap draw does not depend on the number of items. If items have
weights, a cell holds their sum, and a draw is a scaled Poisson number whose mean is that sum and
whose variance is the sum of their squares.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics.base import Inputs
from metricgrad.metrics.counts import Counts, binary_counts, walk_down
from metricgrad.metrics.threshold import cuts as cuts_between

_SORTED = 8192  # items between which the cuts of a class lie


class Lead(NamedTuple):
    """The lead `[N]` of a class whose offset is 0, and what else is known of the items."""

    values: Tensor  # above 0 is decided for the class
    positive: Tensor  # bool, of the class
    other: Tensor | None = None  # the class that an item is decided for otherwise
    weight: Tensor | None = None  # of the items; None counts each once


class DecidedItems(ABC):
    """Items that are decided by scores and offsets; rows are classes, so their maximum is fast."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores.contiguous()  # [C, N]
        self.moved = self.scores.clone()  # with the offsets
        self.offsets = scores.new_zeros(len(scores))

    @abstractmethod
    def lead(self, c: int) -> Lead:
        """How far the items are from being decided for class c, which `move` must follow."""

    @abstractmethod
    def centre(self, c: int) -> Tensor:
        """The offset at which class c is treated as the others are."""

    @abstractmethod
    def counts(
        self, c: int, lead: Lead, cuts: Tensor, draws: int, generator: torch.Generator
    ) -> Counts:
        """Counts `[D, K, C]` on draws if leads above a cut are decided for class c.

        Without draws, D is 1 and the counts are those of the items.
        """

    def move(self, c: int, offset: Tensor) -> None:
        """Gives class c another offset."""
        self.offsets[c] = offset
        self.moved[c] = self.scores[c] + offset


class ClassItems(DecidedItems):
    """Items of one class each, decided by the highest score; at most about `most` of them."""

    def __init__(self, inputs: Inputs, most: int | None, weight: Tensor | None = None) -> None:
        scores, target, where = inputs
        rows = scores.movedim(1, 0).flatten(1)
        self.target = target.flatten()
        self.weight = weight
        if where is not None:
            live = where.reshape(*where.shape, *[1] * (target.dim() - where.dim()))
            live = live.expand_as(target).flatten()
            rows = rows[:, live]
            self.target = self.target[live]
            self.weight = None if weight is None else weight[live]
        step = 1 if most is None else max(1, -(-len(self.target) // most))
        self.target = self.target[::step]
        self.weight = None if self.weight is None else self.weight[::step]
        super().__init__(rows[:, ::step])

    def lead(self, c: int) -> Lead:
        """Over the best other class; class c itself is out of the way until it is moved."""
        self.moved[c] = -torch.inf
        best, other = self.moved.max(0)
        return Lead(self.scores[c] - best, self.target == c, other, self.weight)

    def centre(self, c: int) -> Tensor:
        """The mean of the others: a common offset changes nothing."""
        return (self.offsets.sum() - self.offsets[c]) / (len(self.offsets) - 1)

    def counts(
        self, c: int, lead: Lead, cuts: Tensor, draws: int, generator: torch.Generator
    ) -> Counts:
        """An item that class c takes was right before (kind 0), is right now (1), or neither."""
        classes = len(self.scores)
        assert lead.other is not None
        before = torch.where(self.target == lead.other, 0, 2)
        kind = before.masked_fill(lead.positive, 1)
        cells = drawn_cells(lead, cuts, lead.other * 3 + kind, 3 * classes, draws, generator)
        left, taken = (part.unflatten(-1, (classes, 3)) for part in cells)
        lost = kind == 2
        mass = None if self.weight is None else self.weight[lost]
        wrong = _drawn(self.target[lost], mass, classes, draws, generator)
        tp = left[..., 0].clone()
        fp = left[..., 1] + left[..., 2]
        fn = taken[..., 0] + wrong.unsqueeze(1)
        tp[..., c] = taken[..., 1].sum(-1)
        fp[..., c] = (taken[..., 0] + taken[..., 2]).sum(-1)
        fn[..., c] = left[..., 1].sum(-1)
        return Counts(tp, fp, fn, (tp + fn).sum(-1, keepdim=True) - tp - fp - fn)


class LabelItems(DecidedItems):
    """Items with many labels, each of which is decided at 0 on its own."""

    def __init__(self, inputs: Inputs, weight: Tensor | None = None) -> None:
        scores, target, where = inputs
        super().__init__(scores.mT)
        self.weight = None if weight is None else weight.mT
        self.target = (target != 0).mT
        self.live = torch.ones_like(self.target)
        if where is not None:
            self.live = where.mT if where.dim() > 1 else where.expand_as(self.target)

    def lead(self, c: int) -> Lead:
        """Over 0."""
        live = self.live[c]
        weight = None if self.weight is None else self.weight[c][live]
        return Lead(self.scores[c][live], self.target[c][live], weight=weight)

    def centre(self, c: int) -> Tensor:
        """The model's own decisions."""
        return torch.zeros_like(self.offsets[c])

    def counts(
        self, c: int, lead: Lead, cuts: Tensor, draws: int, generator: torch.Generator
    ) -> Counts:
        """Those of label c beside the others' as they are decided now."""
        kind = lead.positive.to(torch.int64)
        left, taken = drawn_cells(lead, cuts, kind, 2, draws, generator)
        own = Counts(taken[..., 1], taken[..., 0], left[..., 1], left[..., 0])
        now = binary_counts(self.moved > 0, self.target, self.live, torch.float64, self.weight)
        found = Counts(*(each.cpu().repeat(*own.tp.shape, 1) for each in now))
        for every, of_label in zip(found, own, strict=True):
            every[..., c] = of_label
        return found


def choose_cuts(lead: Lead, number: int) -> Tensor:
    """Cuts between leads, ascending: all of them, or `number` where they matter for the class.

    Half lie evenly among its own items; half are dense where the leads of all items are highest,
    which are the few that a rare class may take.
    """
    values = lead.values
    if len(values) >= number:
        own, every = (
            part[:: -(-len(part) // _SORTED)].sort(descending=True).values
            for part in (values[lead.positive], values)
        )
        half = number // 2
        evenly = torch.linspace(0, len(own) - 1, min(half, len(own)), dtype=torch.float64)
        powers = torch.linspace(0, 1, half, dtype=torch.float64)
        high = len(every) ** powers - 1
        values = torch.cat([own[evenly.round().long()], every[high.round().long()]])
    curve = walk_down(values, torch.zeros_like(values, dtype=torch.bool), None)
    return cuts_between(curve)[F.pad(curve.vertex, (1, 0), value=True)].flip(0)


def drawn_cells(
    lead: Lead, cuts: Tensor, kind: Tensor, kinds: int, draws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """How many items of each kind are at or below each cut and above it, `[D, K, kinds]` both."""
    places = len(cuts) + 1
    cell = torch.searchsorted(cuts, lead.values) * kinds + kind
    table = _drawn(cell, lead.weight, places * kinds, draws, generator)
    below = table.unflatten(-1, (places, kinds)).cumsum(1)
    return below[:, :-1], below[:, -1:] - below[:, :-1]


def _drawn(
    cell: Tensor, weight: Tensor | None, number: int, draws: int, generator: torch.Generator
) -> Tensor:
    """Items, or their weight, in each cell `[D, number]` of bootstrap draws, on the CPU.

    Without draws, D is 1 and the cells hold the items themselves.
    """
    sums = torch.bincount(cell, weight, minlength=number).cpu().double().unsqueeze(0)
    if not draws:
        return sums
    if weight is None:
        return torch.poisson(sums.expand(draws, -1), generator)
    squares = torch.bincount(cell, weight.square(), minlength=number).cpu().unsqueeze(0)
    unit = torch.where(sums > 0, squares / sums.clamp(min=torch.finfo(sums.dtype).tiny), 1.0)
    return torch.poisson((sums / unit).expand(draws, -1), generator) * unit
