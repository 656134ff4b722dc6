"""Re-expression of decisions: a bit says that a decision is correct.

There are three ways to cut a metric of decisions into bits:

    each label or class   sign * (score - threshold), or for many classes
                          sign * (score - best other score), where sign is +1 for the target's class
                          and -1 elsewhere: D = N * C (binary: N)
    each item             target's score - the best (or k-th best) other score: D = N, for metrics
                          that only ask whether an item is right: accuracy, balanced accuracy, PCK
    all pairs             the paper's form (Sec. 3.2, Eqn. 8): every class against every other; a
                          class is predicted if it wins all of its comparisons, and none is
                          predicted if no class does

In the first two, many classes have one bit per decision, that against the best other class.
`soften` is the same with all other classes, for soft bits (`margins.py`).

The value is a function of sums over classes of terms that depend on the counts of one class
(`Pooling`). A flip changes the counts of one class by one, so all flip gains of a set follow from
four changes per class, whatever the number of items. Where items have weights, it changes them by
the weight of its item, and there are four changes per item and class.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from metricgrad.metrics.counts import Counts, Pooling, count_flags
from metricgrad.metrics.reexpression import Compare, Reexpression, Soften, itself


@dataclass(frozen=True)
class LabelDecisions(Reexpression):
    """A bit per item and label (or class)."""

    compare: Compare  # scores -> [..., N, C], positive where the label is decided to be present
    truth: Tensor  # [..., N, C], bool
    live: Tensor  # [..., N, C], bool, False where a label does not count
    pooling: Pooling
    dtype: torch.dtype  # of the values
    weight: Tensor | None = field(default=None, kw_only=True)  # [..., N, 1] or [..., N, C]
    soften: Soften | None = field(default=None, kw_only=True)  # `compare`, for soft bits

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """score - threshold where the label is present, its negative elsewhere: `[..., N * C]`."""
        return self._turned(self.compare(scores)), self.live.flatten(-2)

    @property
    def among_classes(self) -> bool:
        """Whether a class is compared with other classes."""
        return self.soften is not None

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """The same with the soft maximum of the other classes."""
        if self.soften is None:
            return super().softened(scores, slope)
        return self._turned(self.soften(scores, slope))

    def _turned(self, margin: Tensor) -> Tensor:
        """Margins `[..., N, C]` as comparisons `[..., N * C]`, positive where they are right."""
        # By a product, whose gradient is one product more; `torch.where` takes thrice as long.
        return (margin * (2 * self.truth.to(margin.dtype) - 1)).flatten(-2)

    def defined(self) -> Tensor:
        """Sets whose value depends on the decisions."""
        positives, negatives = self._sizes
        none = torch.zeros_like(positives)
        all_right = self.pooling(Counts(positives, none, none, negatives))
        all_wrong = self.pooling(Counts(none, negatives, positives, none))
        return all_right != all_wrong

    @cached_property
    def _sizes(self) -> tuple[Tensor, Tensor]:
        """Positives and negatives of each label, `[..., C]`."""
        positives = self._sum(self.truth & self.live)
        return positives, self._sum(self.live) - positives

    def _sum(self, chosen: Tensor) -> Tensor:
        """How many items are chosen of each label, or their weight: `[..., C]`."""
        if self.weight is None:
            return count_flags(chosen).to(self.dtype)
        return torch.where(chosen, self.weight, 0.0).sum(-2)

    def counts(self, bits: Tensor) -> Counts:
        """Counts `[A, ..., C]` of the decisions."""
        right = bits.unflatten(-1, self.truth.shape[-2:]) & self.live
        positives, negatives = self._sizes
        tp = self._sum(right & self.truth)
        tn = self._sum(right) - tp
        return Counts(tp, negatives - tn, positives - tp, tn)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the counts."""
        return self.pooling(self.counts(bits)).to(self.dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """One of four gains per class: for its positives and its others, right and wrong."""
        gains = _gains(self.pooling, self.counts(bits), self.weight).to(self.dtype)
        found, missed, spared, taken = gains
        right = bits.unflatten(-1, self.truth.shape[-2:])
        positive = torch.where(right, found, missed)
        other = torch.where(right, spared, taken)
        return torch.where(self.live, torch.where(self.truth, positive, other), 0.0).flatten(-2)


@dataclass(frozen=True)
class ItemDecisions(Reexpression):
    """A bit per item: whether it is right."""

    compare: Compare  # scores -> [..., N], positive where the item is right
    target: Tensor  # [..., N], class indices
    live: Tensor  # [..., N], bool, False where the item does not count
    classes: int
    pooling: Pooling  # sees tp and fn only
    dtype: torch.dtype  # of the values
    always: Tensor | None = None  # [..., N], items that are right whatever the scores
    never: Tensor | None = None  # [..., N], items that are wrong whatever the scores
    weight: Tensor | None = None  # [..., N]; None counts every item once
    soften: Soften | None = None  # `compare`, for soft bits

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The target against its best rival, `[..., N]`."""
        return self.compare(scores), self.open()

    @property
    def among_classes(self) -> bool:
        """Whether all rivals of the target can take part."""
        return self.soften is not None

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """The target against the soft maximum of its rivals."""
        if self.soften is None:
            return super().softened(scores, slope)
        return self.soften(scores, slope)

    def defined(self) -> Tensor:
        """Sets with items."""
        return self.live.any(-1)

    def open(self) -> Tensor:
        """Items that count and that scores decide, `[..., N]`."""
        if self.always is None or self.never is None:
            return self.live
        return self.live & ~self.always & ~self.never

    def counts(self, bits: Tensor) -> Counts:
        """Right (tp) and wrong (fn) items of each class, `[A, ..., C]`."""
        if self.always is not None and self.never is not None:
            bits = (bits | self.always) & ~self.never
        index = self.target.expand(bits.shape)
        mass = self.live.to(self.dtype) if self.weight is None else self.weight * self.live
        empty = mass.new_zeros(*bits.shape[:-1], self.classes)
        support = empty.scatter_add(-1, index, mass.expand(bits.shape))
        tp = empty.scatter_add(-1, index, torch.where(bits, mass, 0.0))
        return Counts(tp, empty, support - tp, empty)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the counts."""
        return self.pooling(self.counts(bits)).to(self.dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """One of two gains per class: for its right and its wrong items."""
        step = None if self.weight is None else self.weight.unsqueeze(-1)
        found, missed, _, _ = _gains(self.pooling, self.counts(bits), step).to(self.dtype)
        index = self.target.expand(bits.shape).unsqueeze(-1)
        every = (*bits.shape, self.classes)
        found, missed = (part.expand(every).gather(-1, index) for part in (found, missed))
        gains = torch.where(bits, found.squeeze(-1), missed.squeeze(-1))
        return torch.where(self.open(), gains, 0.0)


@dataclass(frozen=True)
class AllRivals(Reexpression):
    """An item's target against each rival: the item is right if it wins them all (Eqn. 8)."""

    compare: Compare  # scores -> [..., N, J], the target against each of J rivals
    rivals: Tensor  # [..., N, J], bool, False where there is no rival
    items: ItemDecisions  # what the items' decisions are worth

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The target against each rival, `[..., N * J]`."""
        return self.compare(scores).flatten(-2), self._live().flatten(-2)

    def defined(self) -> Tensor:
        """Sets with items."""
        return self.items.defined()

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the items that win all."""
        return self.items.from_bits(self._lost(bits) == 0)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The item's own gain where all its other comparisons are won, so that the bit decides."""
        lost = self._lost(bits)
        gains = self.items.flip_gains(lost == 0)
        won = bits.unflatten(-1, self.rivals.shape[-2:])
        decides = (lost.unsqueeze(-1) - (~won & self._live()).to(lost.dtype)) == 0
        return torch.where(decides & self._live(), gains.unsqueeze(-1), 0.0).flatten(-2)

    def strongest(self, scores: Tensor, number: int) -> "AllRivals":
        """The same with only the `number` highest-scored rivals of each item, D = N * number.

        The strongest rival decides, so the scores' own value stays; weaker ones get no comparison
        and no gradient.
        """
        with torch.no_grad():
            margins = self.compare(scores).masked_fill(~self.rivals, torch.inf)
            kept = margins.topk(min(number, margins.shape[-1]), largest=False).indices
        return replace(
            self,
            compare=lambda values: self.compare(values).gather(-1, kept),
            rivals=self.rivals.gather(-1, kept),
        )

    def _live(self) -> Tensor:
        """Comparisons that count, `[..., N, J]`."""
        return self.rivals & self.items.live.unsqueeze(-1)

    def _lost(self, bits: Tensor) -> Tensor:
        """How many comparisons each item lost, `[A, ..., N]`."""
        return (~bits.unflatten(-1, self.rivals.shape[-2:]) & self._live()).sum(-1)


@dataclass(frozen=True)
class AllClassPairs(Reexpression):
    """All pairs of an item's classes: a class is predicted if it wins all of its comparisons.

    Pairs (c, j) with c < j are live, turned so that the target wins; D = N * C * C with the others
    as padding.
    """

    target: Tensor  # [..., N], class indices
    labels: LabelDecisions  # what the classes' decisions are worth
    items: Compare = itself  # scores -> those of the items' classes, [..., N, C]

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Each class against each later one, `[..., N * C * C]`."""
        scores = self.items(scores)
        difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)
        turned = torch.where(self._turned(), -difference, difference)
        return turned.flatten(-3), self._live().expand_as(turned).flatten(-3)

    def defined(self) -> Tensor:
        """Sets whose value depends on the decisions."""
        return self.labels.defined()

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the classes that win all."""
        predicted = self._lost(self._beats(bits)) == 0
        return self.labels.from_bits((predicted == self.labels.truth).flatten(-2))

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The value with the first class of a pair ahead minus that with the second ahead.

        The class that falls behind is not predicted; the other one is if it wins all of its other
        comparisons.
        """
        beats = self._beats(bits)
        lost = self._lost(beats)
        first = (lost.unsqueeze(-1) - (~beats).to(lost.dtype)) == 0
        second = (lost.unsqueeze(-2) - beats.to(lost.dtype)) == 0
        ahead, behind = self._values(lost == 0, first, second)
        gains = torch.where(self._turned(), behind - ahead, ahead - behind)
        return torch.where(self._live(), gains, 0.0).flatten(-3).to(self.labels.dtype)

    def _values(self, predicted: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The values `[A, ..., N, C, C]` with the first or the second class of each pair ahead.

        `first` and `second` tell whether that class is then predicted.
        """
        now, on, off = self._terms(predicted)
        rest = now.sum(-2, keepdim=True).unsqueeze(-2) - now.unsqueeze(-2) - now.unsqueeze(-3)
        off_c = off.unsqueeze(-2)
        off_j = off.unsqueeze(-3)
        ahead_c = torch.where(first.unsqueeze(-1), on.unsqueeze(-2), off_c)
        ahead_j = torch.where(second.unsqueeze(-1), on.unsqueeze(-3), off_j)
        value = self.labels.pooling.value
        return value(rest + ahead_c + off_j), value(rest + off_c + ahead_j)

    def _terms(self, predicted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each class's terms `[A, ..., N, C, K]` as it is, and if it is predicted, and if not."""
        labels = self.labels
        counts = labels.counts((predicted == labels.truth).flatten(-2))
        now = labels.pooling.terms(counts).unsqueeze(-3)
        miss, hit, false, spared = labels.pooling.terms(_after(counts, labels.weight))
        predicted = predicted.unsqueeze(-1)
        truth = labels.truth.unsqueeze(-1)
        on = torch.where(predicted, now, torch.where(truth, hit, false))
        off = torch.where(predicted, torch.where(truth, miss, spared), now)
        return now.expand_as(on), on, off

    def _beats(self, bits: Tensor) -> Tensor:
        """Whether class c stands above class j, `[A, ..., N, C, C]`."""
        classes = self.labels.truth.shape[-1]
        beats = bits.unflatten(-1, (-1, classes, classes)) ^ self._turned()
        return torch.where(self._pairs(), beats, ~beats.mT)

    def _lost(self, beats: Tensor) -> Tensor:
        """Comparisons that each class lost, `[A, ..., N, C]`."""
        itself = torch.eye(beats.shape[-1], dtype=torch.bool, device=beats.device)
        return (~beats & ~itself).sum(-1)

    def _live(self) -> Tensor:
        """Pairs that count, `[..., N, C, C]`."""
        return self._pairs() & self.labels.live[..., :1].unsqueeze(-1)

    def _pairs(self) -> Tensor:
        """Pairs of a class with a later one, `[C, C]`."""
        classes = torch.arange(self.labels.truth.shape[-1], device=self.target.device)
        return classes.unsqueeze(-1) < classes

    def _turned(self) -> Tensor:
        """Pairs whose later class is the target."""
        classes = torch.arange(self.labels.truth.shape[-1], device=self.target.device)
        return self._pairs() & (classes == self.target[..., None, None])


def _after(counts: Counts, weight: Tensor | None) -> Counts:
    """Counts after one more miss, one more hit, a false alarm more, and one less.

    They are `[4, ..., 1, C]` from `[..., C]`; with weights of the items, `[..., N, 1]` or
    `[..., N, C]`, they are `[4, ..., N, C]`.
    """
    step = counts.tp.new_ones(()) if weight is None else weight
    every = [each.unsqueeze(-2) for each in counts]
    tp, fp, fn, tn, step = torch.broadcast_tensors(*every, step)
    return Counts(
        tp=torch.stack([tp - step, tp + step, tp, tp]),
        fp=torch.stack([fp, fp, fp + step, fp - step]),
        fn=torch.stack([fn + step, fn - step, fn, fn]),
        tn=torch.stack([tn, tn, tn - step, tn + step]),
    )


def _gains(pooling: Pooling, counts: Counts, weight: Tensor | None) -> Tensor:
    """Gains of the bits that lead to the counts of `_after`, in their shape, set minus cleared."""
    terms = pooling.terms(counts).unsqueeze(-3)
    sums = terms.sum(-2, keepdim=True)
    now = pooling.value(sums)
    after = pooling.value(sums - terms + pooling.terms(_after(counts, weight)))
    # A miss and a false alarm clear a won bit; the other two set a lost one.
    return torch.stack([now - after[0], after[1] - now, now - after[2], after[3] - now])
