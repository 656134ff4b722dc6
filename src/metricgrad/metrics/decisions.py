"""Re-expression of decisions: a bit says that something was decided rightly.

Three ways to cut a metric of decisions into bits:

    each label or class   sign * (score - threshold), or for many classes sign * (score - best other score), sign being
                          +1 where the class is the target and -1 elsewhere: D = N * C (binary: N)
    each item             target's score - the best (or k-th best) other score: D = N. For metrics that only ask
                          whether an item is right: accuracy, balanced accuracy, PCK
    all pairs             the paper's form (Sec. 3.2, Eqn. 8): every class against every other; a class is predicted if
                          it wins all of its comparisons, and none is predicted if no class does

The value is a function of sums over classes of terms that depend on one class's counts (`Pooling`).
A flip changes the counts of one class by one, so all flip gains of a set follow from four changes
per class, whatever the number of items.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.counts import Counts
from metricgrad.metrics.reexpression import Reexpression


class Pooling(NamedTuple):
    """How the counts of the classes make one value: value(sum over classes of terms(counts)).

    Attributes:
        terms: from counts `[..., C]` to what each class adds, `[..., C, K]`.
        value: from the sums `[..., K]` to the value `[...]`.
    """

    terms: Callable[[Counts], Tensor]
    value: Callable[[Tensor], Tensor]

    def __call__(self, counts: Counts) -> Tensor:
        """The value `[...]` of counts `[..., C]`."""
        return self.value(self.terms(counts).sum(-2))


Compare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LabelDecisions(Reexpression):
    """A bit per item and label (or class).

    Attributes:
        compare: from scores to score - threshold `[..., N, C]`, positive where the label is decided
            to be present.
        truth: `[..., N, C]`, bool.
        live: `[..., N, C]`, bool.
        pooling: from counts to the value.
        dtype: float dtype of the values.
    """

    compare: Compare
    truth: Tensor
    live: Tensor
    pooling: Pooling
    dtype: torch.dtype

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(score - threshold) where the label is present, its negative elsewhere: `[..., N * C]`."""
        margin = self.compare(scores)
        return torch.where(self.truth, margin, -margin).flatten(-2), self.live.flatten(-2)

    def defined(self) -> Tensor:
        """Sets on which all decisions right and all wrong are not the same."""
        positives, negatives = self._sizes()
        none = torch.zeros_like(positives)
        right, wrong = (
            Counts(positives, none, none, negatives),
            Counts(none, negatives, positives, none),
        )
        return self.pooling(right) != self.pooling(wrong)

    def _sizes(self) -> tuple[Tensor, Tensor]:
        """Positives and negatives of each label, `[..., C]`."""
        positives = (self.truth & self.live).sum(-2).to(self.dtype)
        return positives, self.live.sum(-2).to(self.dtype) - positives

    def counts(self, bits: Tensor) -> Counts:
        """Counts `[A, ..., C]` of the decisions."""
        right = bits.unflatten(-1, self.truth.shape[-2:]) & self.live
        positives, negatives = self._sizes()
        tp = (right & self.truth).sum(-2).to(self.dtype)
        tn = right.sum(-2).to(self.dtype) - tp
        return Counts(tp, negatives - tn, positives - tp, tn)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the counts."""
        return self.pooling(self.counts(bits))

    def flip_gains(self, bits: Tensor) -> Tensor:
        """One of four gains per class: for its positives and its others, decided rightly and wrongly."""
        tp, fp, fn, tn = counts = self.counts(bits)
        found, missed, spared, taken = _gains(
            self.pooling,
            counts,
            Counts(tp - 1, fp, fn + 1, tn),
            Counts(tp + 1, fp, fn - 1, tn),
            Counts(tp, fp + 1, fn, tn - 1),
            Counts(tp, fp - 1, fn, tn + 1),
        )
        right = bits.unflatten(-1, self.truth.shape[-2:])
        positive = torch.where(right, found.unsqueeze(-2), missed.unsqueeze(-2))
        other = torch.where(right, spared.unsqueeze(-2), taken.unsqueeze(-2))
        return torch.where(self.live, torch.where(self.truth, positive, other), 0.0).flatten(-2)


@dataclass(frozen=True)
class ItemDecisions(Reexpression):
    """A bit per item: decided rightly or not.

    Attributes:
        compare: from scores to comparisons `[..., N]`, positive where the item is right.
        target: `[..., N]`, class indices.
        live: `[..., N]`, bool; where False the item does not count.
        classes: number of classes C.
        pooling: from counts to the value; it sees tp and fn only.
        dtype: float dtype of the values.
        always: `[..., N]`, bool, items that count but are right whatever the scores.
        never: `[..., N]`, bool, items that count but are wrong whatever the scores.
    """

    compare: Compare
    target: Tensor
    live: Tensor
    classes: int
    pooling: Pooling
    dtype: torch.dtype
    always: Tensor | None = None
    never: Tensor | None = None

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The target against its best rival, `[..., N]`."""
        return self.compare(scores), self.open()

    def defined(self) -> Tensor:
        """Sets with items."""
        return self.live.any(-1)

    def open(self) -> Tensor:
        """Items that count and that scores decide, `[..., N]`."""
        return (
            self.live
            if self.always is None or self.never is None
            else self.live & ~self.always & ~self.never
        )

    def counts(self, bits: Tensor) -> Counts:
        """Right (tp) and wrong (fn) items of each class, `[A, ..., C]`."""
        if self.always is not None and self.never is not None:
            bits = (bits | self.always) & ~self.never
        index = self.target.expand(bits.shape)
        empty = torch.zeros(*bits.shape[:-1], self.classes, dtype=self.dtype, device=bits.device)
        support = empty.scatter_add(-1, index, self.live.to(self.dtype).expand(bits.shape))
        tp = empty.scatter_add(-1, index, (bits & self.live).to(self.dtype))
        return Counts(tp, empty, support - tp, empty)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The value of the counts."""
        return self.pooling(self.counts(bits))

    def flip_gains(self, bits: Tensor) -> Tensor:
        """One of two gains per class: for its right and its wrong items."""
        tp, fp, fn, tn = counts = self.counts(bits)
        less, more = Counts(tp - 1, fp, fn + 1, tn), Counts(tp + 1, fp, fn - 1, tn)
        found, missed = _gains(self.pooling, counts, less, more)
        index = self.target.expand(bits.shape)
        return torch.where(
            self.open(), torch.where(bits, found.gather(-1, index), missed.gather(-1, index)), 0.0
        )


@dataclass(frozen=True)
class AllRivals(Reexpression):
    """All pairs of an item's target with its rivals: the item is right if it wins all of them (Eqn. 8).

    Attributes:
        compare: from scores to comparisons `[..., N, J]` with the J rivals.
        rivals: `[..., N, J]`, bool, False where a place holds no rival.
        items: the metric of the items' decisions.
    """

    compare: Compare
    rivals: Tensor
    items: ItemDecisions

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
        """The item's own gain where the bit decides it, because all other comparisons of the item are won."""
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
        return self.rivals & self.items.live.unsqueeze(-1)

    def _lost(self, bits: Tensor) -> Tensor:
        return (~bits.unflatten(-1, self.rivals.shape[-2:]) & self._live()).sum(-1)


@dataclass(frozen=True)
class Tournament(Reexpression):
    """All pairs of an item's classes: a class is predicted if it wins all of its comparisons.

    Pairs (c, j) with c < j are live, turned so that the target wins; D = N * C * C with the others
    as padding.

    Attributes:
        target: `[..., N]`, class indices.
        labels: the metric of the classes' decisions.
    """

    target: Tensor
    labels: LabelDecisions

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Each class against each later one, `[..., N * C * C]`; scores `[..., N, C]`."""
        difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)
        turned = torch.where(self._turned(), -difference, difference)
        live = self._pairs() & self.labels.live[..., :1].unsqueeze(-1)
        return turned.flatten(-3), live.expand_as(turned).flatten(-3)

    def defined(self) -> Tensor:
        """Sets on which the decisions make a difference."""
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
        now, on, off = self._terms(lost == 0)
        first, second = (
            (lost.unsqueeze(-1) - (~beats).to(lost.dtype)) == 0,
            (lost.unsqueeze(-2) - beats.to(lost.dtype)) == 0,
        )
        rest = now.sum(-2, keepdim=True).unsqueeze(-2) - now.unsqueeze(-2) - now.unsqueeze(-3)
        on_c, off_c, on_j, off_j = (
            on.unsqueeze(-2),
            off.unsqueeze(-2),
            on.unsqueeze(-3),
            off.unsqueeze(-3),
        )
        ahead = self.labels.pooling.value(
            rest + torch.where(first.unsqueeze(-1), on_c, off_c) + off_j
        )
        behind = self.labels.pooling.value(
            rest + off_c + torch.where(second.unsqueeze(-1), on_j, off_j)
        )
        gains = torch.where(self._turned(), behind - ahead, ahead - behind)
        live = self._pairs() & self.labels.live[..., :1].unsqueeze(-1)
        return torch.where(live, gains, 0.0).flatten(-3)

    def _terms(self, predicted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Terms of each class as it is, with the item predicted as it, and not: `[A, ..., N, C, K]`."""
        labels = self.labels
        tp, fp, fn, tn = counts = labels.counts((predicted == labels.truth).flatten(-2))

        def terms(of: Counts) -> Tensor:
            return labels.pooling.terms(of).unsqueeze(-3)

        def choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
            return torch.where(condition.unsqueeze(-1), yes, no)

        now = terms(counts)
        hit, miss = terms(Counts(tp + 1, fp, fn - 1, tn)), terms(Counts(tp - 1, fp, fn + 1, tn))
        false, spared = terms(Counts(tp, fp + 1, fn, tn - 1)), terms(Counts(tp, fp - 1, fn, tn + 1))
        on = choose(predicted, now, choose(labels.truth, hit, false))
        off = choose(predicted, choose(labels.truth, miss, spared), now)
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

    def _pairs(self) -> Tensor:
        classes = torch.arange(self.labels.truth.shape[-1], device=self.target.device)
        return classes.unsqueeze(-1) < classes

    def _turned(self) -> Tensor:
        """Pairs whose later class is the target."""
        classes = torch.arange(self.labels.truth.shape[-1], device=self.target.device)
        return self._pairs() & (classes == self.target[..., None, None])


def best_other_margin(scores: Tensor) -> Tensor:
    """Every class's score minus the best score of the other classes, `[..., C]`."""
    top, index = scores.topk(2, dim=-1)
    is_best = torch.arange(scores.shape[-1], device=scores.device) == index[..., :1]
    return scores - torch.where(is_best, top[..., 1:], top[..., :1])


def own_margin(scores: Tensor, target: Tensor, k: int) -> Tensor:
    """The target's score minus the k-th best score of the other classes: `[...]` from scores `[..., C]`."""
    index = target.unsqueeze(-1)
    others = scores.scatter(-1, index, -torch.inf).topk(k, dim=-1).values[..., -1]
    return scores.gather(-1, index).squeeze(-1) - others


def _gains(pooling: Pooling, counts: Counts, *changed: Counts) -> list[Tensor]:
    """Gains `[..., C]` of the bits whose flip leads to the changed counts: cleared and set in turn.

    Even places hold the counts with a won bit cleared, odd places those with a lost bit set.
    """
    terms = pooling.terms(counts)
    sums = terms.sum(-2, keepdim=True)
    now = pooling.value(sums.squeeze(-2)).unsqueeze(-1)
    after = pooling.value(
        sums - terms + pooling.terms(Counts(*(torch.stack(c) for c in zip(*changed, strict=True))))
    )
    return [now - value if place % 2 == 0 else value - now for place, value in enumerate(after)]
