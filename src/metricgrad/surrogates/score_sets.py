r"""Score sets, made-up ones and those of models, to draw from while a loss is learned.

Learning Surrogate Losses makes up targets y ~ Bernoulli(p) and scores s ~ Normal(mu, sigma^2),
independently of each other (Eqn. 3): all sets are alike there, those of a model that knows nothing.
`broad` sets differ from one another as models in training do:

    s = spread * Normal(0, 1) + separation * (y - 1/2) + shift,    y ~ Bernoulli(prevalence)

with a spread, separation, shift and prevalence of its own for each set. With classes, the score of
the target's class is raised, and every class has a shift of its own. A source takes a generator and
gives scores and target: `[sets, N]` each, `[sets, N, C]` and `[sets, N]` with classes, `[sets, N,
C]` each with labels. `random_sets.py` makes up sets of all other layouts.

A loss that is to rank models as the metric does has to see models: bad ones, middling ones, good
ones. The checkpoints of one ordinary training are all three (ReLoss, Sec. 4.3, the generator G_M).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import shape, whole

Source = Callable[[torch.Generator | None], tuple[Tensor, Tensor]]


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


@dataclass
class Pool:
    """Score sets to draw from: stored ones, and sources that make up new ones."""

    sources: list[Source]
    stored: list[ScoreSets]

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
    return [_joined(alike) if len(alike) > 1 else alike[0] for alike in by_shape.values()]


def _joined(alike: list[ScoreSets]) -> ScoreSets:
    """Sets of one shape, one after the other."""
    scores, targets, wheres = zip(*alike, strict=True)
    where = None if wheres[0] is None else torch.cat(wheres)
    return ScoreSets(torch.cat(scores), torch.cat(targets), where)


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


def paper(
    sets: int = 64,
    size: int = 100,
    *,
    prevalence: float = 0.5,
    mean: float = 0.0,
    spread: float = 1.0,
    classes: int | None = None,
    multilabel: bool = False,
) -> Source:
    """Targets and scores that know nothing of each other (Sec. 3.1, Eqn. 3).

    Prevalence is p, the chance of a positive; classes are all equally likely.
    """
    _check(sets, size, classes)

    def draw(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        labels = (sets, size) if classes is None else (sets, size, classes)
        if classes is None or multilabel:
            target = torch.rand(labels, generator=generator) < prevalence
        else:
            target = torch.randint(classes, (sets, size), generator=generator)
        return mean + spread * torch.randn(labels, generator=generator), target

    return draw


def broad(
    sets: int = 64, size: int = 100, *, classes: int | None = None, multilabel: bool = False
) -> Source:
    """Sets that differ as those of models in training do, a quarter of them the paper's.

    Spreads are drawn from 0.2 to 2.2, separations from -1 to 5, shifts from Normal(0, 1); the
    prevalence is 1/2 in half of the sets and anything from 0.02 to 0.98 in the other half.
    """
    _check(sets, size, classes)
    ignorant = paper(sets // 4, size, classes=classes, multilabel=multilabel) if sets >= 4 else None

    def draw(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        number = sets - sets // 4

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand((number, 1, 1), generator=generator)

        raised = torch.rand((number, size, classes or 1), generator=generator)
        if classes is None or multilabel:
            chance = torch.where(uniform(0, 1) < 1 / 2, 0.5, uniform(0.02, 0.98))
            target = truth = raised < chance
        else:
            # Some classes are rare.
            favour = uniform(0, 3) * torch.randn((number, 1, classes), generator=generator)
            target = (favour - (-raised.clamp(min=1e-9).log()).log()).argmax(-1)
            truth = F.one_hot(target, classes)
        scores = torch.randn(raised.shape, generator=generator) * uniform(0.2, 2.2)
        scores = scores + (truth.to(scores.dtype) - 0.5) * uniform(-1, 5)
        scores = scores + torch.randn((number, 1, classes or 1), generator=generator)
        if classes is None:
            scores = scores.squeeze(-1)
            target = target.squeeze(-1)
        if ignorant is None:
            return scores, target
        more_scores, more_target = ignorant(generator)
        return torch.cat([scores, more_scores]), torch.cat([target, more_target])

    return draw


def mixed(sets: int = 64, size: int = 100) -> Source:
    """Binary sets of models that know some items and not others: each class has two kinds of items.

    The scores of a class are a mixture of two Normals, with weights, means and spreads of their own
    for each set; those of the positives are raised by up to 5. So there are positives that are
    found and others that are hopeless, and negatives that look like positives.
    """
    _check(sets, size, None)

    def draw(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
            return low + (high - low) * torch.rand(shape, generator=generator)

        target = uniform(sets, size) < uniform(sets, 1, low=0.02, high=0.6)
        first = 2 * target.long()
        second = uniform(sets, size) < uniform(sets, 4).gather(-1, first)
        kind = first + second.long()
        means = 2 * torch.randn(sets, 4, generator=generator)
        means[:, 2:] += uniform(sets, 1, low=-1.0, high=5.0)
        spreads = torch.exp(uniform(sets, 4, low=-2.0, high=0.7))
        noise = torch.randn(sets, size, generator=generator)
        scores = means.gather(-1, kind) + spreads.gather(-1, kind) * noise
        return scores * torch.exp(uniform(sets, 1, low=-2.0, high=1.0)), target

    return draw


def known_values(metric: Metric, sets: ScoreSets) -> Tensor:
    """The metric of every set, `[S]`; NaN where it has none of its own."""
    values = metric.of_sets(sets.scores, sets.target, sets.where).double().cpu()
    inputs = metric.check(sets.scores, sets.target, sets.where)
    known = metric.has_value(inputs, torch.ones_like(values, dtype=torch.bool)).cpu()
    return torch.where(known, values, torch.nan)


def _check(sets: int, size: int, classes: int | None) -> None:
    """Raises TypeError or ValueError for numbers that make no sets."""
    whole("sets", sets, 1)
    whole("size", size, 1)
    if classes is not None:
        whole("classes", classes, 2)
