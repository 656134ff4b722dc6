"""Score sets, stored ones of models and made-up ones, to draw from while a loss is learned.

A loss that is to rank models as the metric does has to see models: bad ones, middling ones, good
ones. The checkpoints of one ordinary training are all three (ReLoss, Sec. 4.3, the generator G_M).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.checks import shape
from metricgrad.surrogates.sources import Source


class ScoreSets(NamedTuple):
    """S sets: scores and target `[S, ...]`, and `where`, True for what counts."""

    scores: Tensor
    target: Tensor
    where: Tensor | None = None

    def some(self, index: Any) -> "ScoreSets":
        """Those of some of the sets."""
        where = None if self.where is None else self.where[index]
        return ScoreSets(self.scores[index], self.target[index], where)

    def chunks(self, most: int) -> "list[ScoreSets]":
        """The same sets, so many at a time."""
        return [self.some(slice(start, start + most)) for start in range(0, len(self.target), most)]


class Pool:
    """Score sets to draw from: stored ones, and sources that make up new ones."""

    def __init__(self, sources: list[Source], stored: list[ScoreSets]) -> None:
        self.sources = sources
        self.stored = stored

    @classmethod
    def of(cls, given: Any) -> "Pool":
        """The pool of a source, of score sets, or of an iterable of both."""
        several = [given] if callable(given) or _is_one(given) else list(given)
        if not several:
            raise ValueError("there are no score sets: what was passed is empty")
        sources: list[Any] = [each for each in several if callable(each)]
        return cls(sources, [to_sets(each) for each in several if not callable(each)])

    def split(self, share: float, generator: torch.Generator | None) -> "tuple[Pool, Pool]":
        """Two pools: a share of each of the stored sets goes to the second; sources go to both."""
        first: list[ScoreSets] = []
        second: list[ScoreSets] = []
        for sets in self.stored:
            order = torch.randperm(len(sets.target), generator=generator)
            held = min(len(order) - 1, max(1, round(share * len(order))))
            first.append(sets.some(order[held:]))
            second += [sets.some(order[:held])] * bool(held)
        held_out = second if second or self.sources else first
        return Pool(self.sources, first), Pool(self.sources, held_out)

    def draw(self, number: int, generator: torch.Generator | None) -> list[ScoreSets]:
        """About so many sets at random, those of one shape together."""
        made = 0 if not self.sources else number if not self.stored else number // 2
        groups = self._from_stored(number - made, generator)
        for index, source in enumerate(self.sources):
            wanted = made // len(self.sources) + (index < made % len(self.sources))
            while wanted > 0:
                sets = to_sets(source(generator)).some(slice(wanted))
                groups.append(sets)
                wanted -= len(sets.target)
        return together(groups)

    def _from_stored(self, number: int, generator: torch.Generator | None) -> list[ScoreSets]:
        """So many of the stored sets at random."""
        if not self.stored or number < 1:
            return []
        sizes = torch.tensor([len(sets.target) for sets in self.stored])
        drawn = torch.randint(int(sizes.sum()), (number,), generator=generator)
        which = torch.bucketize(drawn, sizes.cumsum(0), right=True)
        start = sizes.cumsum(0) - sizes
        return [
            self.stored[each].some((drawn - start[each])[which == each])
            for each in which.unique().tolist()
        ]


def _is_one(given: Any) -> bool:
    """Whether this is one score set, (scores, target), and not several."""
    return (
        isinstance(given, tuple)
        and len(given) in (2, 3)
        and all(hasattr(part, "shape") for part in given[:2])
    )


def to_sets(given: Any) -> ScoreSets:
    """Score sets with one leading dimension; ValueError for anything else."""
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise TypeError(
            "a score set is (scores, target), or (scores, target, where); got "
            f"{type(given).__name__}"
        )
    scores, target, where = (
        None if part is None else torch.as_tensor(part).detach() for part in (*given, None)[:3]
    )
    if scores is None or target is None or scores.dim() < 2 or not 0 < len(scores) == len(target):
        got = [None if part is None else shape(part) for part in (scores, target)]
        raise ValueError(
            "a score set needs a leading dimension of sets, the same for scores and target; got "
            f"scores {got[0]} and target {got[1]}"
        )
    return ScoreSets(scores, target, where)


def together(groups: list[ScoreSets]) -> list[ScoreSets]:
    """Sets of one shape in one place, so that a network runs once for all of them."""
    by_shape: dict[Any, list[ScoreSets]] = {}
    for sets in groups:
        shapes = [None if part is None else part.shape[1:] for part in sets]
        key = (*shapes, sets.target.is_floating_point())
        by_shape.setdefault(key, []).append(sets)
    joined: list[ScoreSets] = []
    for alike in by_shape.values():
        scores, targets, wheres = zip(*alike, strict=True)
        where = None if wheres[0] is None else torch.cat(wheres)
        joined.append(ScoreSets(torch.cat(scores), torch.cat(targets), where))
    return joined


def relabelled(sets: ScoreSets, generator: torch.Generator | None) -> ScoreSets:
    """The same scores with labels whose accuracies are spread evenly between chance and 1.

    A label is what is predicted, but for a random part of the items, which get any class. The
    released code of ReLoss does so to all training data. Classes and binary scores only.
    """
    scores, target, where = sets
    binary = scores.shape == target.shape
    if not binary and scores.shape[:-1] != target.shape:
        raise ValueError(
            "relabel=True needs classes or binary scores; got scores "
            f"{shape(scores)} and target {shape(target)}"
        )
    predicted = (scores > 0).long() if binary else scores.argmax(-1)
    classes = 2 if binary else scores.shape[-1]
    anything = torch.randint(classes, target.shape, generator=generator)
    kept = torch.rand(len(target), *[1] * (target.dim() - 1), generator=generator)
    replaced = torch.rand(target.shape, generator=generator) > kept
    return ScoreSets(scores, torch.where(replaced, anything, predicted).to(target.dtype), where)
