r"""Random score sets of every layout: the generator G_R of ReLoss, and how their metric is spread.

"We design a random generator to produce random outputs and labels uniformly" (ReLoss, Sec. 4.3).
The released code keeps the predicted class of a uniformly random number of items as their label, so
that accuracies are spread evenly. Here, every set has a quality of its own,

    q ~ Uniform(0, 1): each item, place, pixel or joint is meant right with the chance q

and random scores say what is meant, more or less clearly. What is not right is any other token,
class or place; texts also slip by a place, and answers miss by a few. Accuracy then is spread
evenly, but BLEU, with its products of precisions, is not. So `source="uniform"` draws more sets
than asked for, and keeps those that spread the metric's values evenly between the least and the
largest of them. For binary scores, classes, labels and grades, `"broad"` and `"paper"` are sources
of `score_sets.py`; for all other layouts, `"broad"` is what is said above without the selection.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import one_of, whole
from metricgrad.surrogates.score_sets import (
    ScoreSets,
    Source,
    broad,
    known_values,
    paper,
    relabelled,
)

SourceName = Literal["paper", "broad", "uniform"]
Draw = Callable[[Metric, Sequence[int], torch.Generator | None], tuple[Tensor, Tensor]]
SHAPES = {
    "maps": "(N, C, H, W)",
    "heatmaps": "(N, K, H, W)",
    "tokens": "(N, T, V)",
    "spans": "(N, T, 2)",
}
_OVERSAMPLED = 4
_GRADES = 4


def made_up_source(
    metric: Metric,
    sets: int,
    size: int,
    classes: int | None,
    name: SourceName = "broad",
    call: str = "learn",
    shape: Sequence[int] | None = None,
) -> Source:
    """The source of that name, of sets in the shapes of a metric.

    `shape` is that of the scores of one set, for layouts that items and classes do not tell;
    `call` is the method where numbers of classes and shapes go.
    """
    if name not in get_args(SourceName):
        raise ValueError(
            f"source must be 'paper', 'broad', 'uniform' or a function of a generator; got {name!r}"
        )
    if metric.layout in SHAPES:
        return _placed_source(metric, sets, shape, name, call)
    labels = metric.layout == "labels"
    if labels and classes is None:
        raise ValueError(
            f"{metric.name} is about items with labels; pass their number: {call}(classes=...)"
        )
    if name == "uniform":
        draw = _grades if metric.layout == "grades" else _items
        items = (size,) if classes is None else (size, classes)
        return spread_evenly(lambda g: draw(labels, (_OVERSAMPLED * sets, *items), g), metric, sets)
    chosen = paper if name == "paper" else broad
    return chosen(sets, size, classes=classes, multilabel=labels)


def _placed_source(
    metric: Metric, sets: int, shape: Sequence[int] | None, name: str, call: str
) -> Source:
    """Made-up sets of text, poses and label maps."""
    wanted = SHAPES[metric.layout]
    if shape is None or len(shape) != wanted.count(",") + 1:
        raise ValueError(
            f"made-up sets of {metric.name} need the shape of one set's scores, {wanted}: pass "
            f"{call}(shape={wanted}), or score sets such as mg.collect_scores gives; got "
            f"shape={shape}"
        )
    for number in shape:
        whole("a number in shape", number, 1)
    one_of(f"source of {metric.name}", name, ("broad", "uniform"))
    draw = _PLACED[metric.layout]
    if name == "broad":
        return lambda generator: draw(metric, (sets, *shape), generator)
    more = (_OVERSAMPLED * sets, *shape)
    return spread_evenly(lambda generator: draw(metric, more, generator), metric, sets)


def shape_options(metric: Metric, scores: Tensor, size: int, many: bool) -> dict[str, Any]:
    """What tells `learn_universal` the shape of sets of so many items with scores like these.

    `many` says whether an item has several scores, of classes or labels.
    """
    wanted = SHAPES.get(metric.layout)
    if wanted is None:
        return {"classes": scores.shape[-1] if many else None}
    return {"shape": (size, *scores.shape[-wanted.count(",") :])}


def spread_evenly(draw: Source, metric: Metric, sets: int) -> Source:
    """So many of the sets that are drawn, whose values are evenly spread between their ends."""

    def even(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        scores, target = draw(generator)
        values = known_values(metric, ScoreSets(scores, target))
        ordered, order = values.nan_to_num(torch.inf).sort()
        known = max(1, int(ordered.isfinite().sum()))
        ordered = ordered[:known].contiguous()
        share = torch.rand(sets, generator=generator, dtype=ordered.dtype)
        wanted = ordered[0] + share * (ordered[-1] - ordered[0])
        above = torch.searchsorted(ordered, wanted).clamp(max=known - 1)
        below = (above - 1).clamp(min=0)
        nearer = wanted - ordered[below] < ordered[above] - wanted
        # Equal values are one block; any of its sets may be taken.
        chosen = ordered[torch.where(nearer, below, above)]
        first = torch.searchsorted(ordered, chosen)
        number = torch.searchsorted(ordered, chosen, right=True) - first
        any_of = torch.rand(sets, generator=generator, dtype=ordered.dtype) * number
        index = order[first + any_of.long().clamp(max=known - 1)]
        return scores[index], target[index]

    return even


def _items(
    labels: bool, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Random scores of items, and what they predict as the target of a random share of them."""
    sets = shape[0]
    each = (sets, *[1] * (len(shape) - 1))
    scores = torch.randn(shape, generator=generator) * _between(0.2, 2.2, each, generator)
    if labels or len(shape) == 2:
        scores = scores + torch.randn(each, generator=generator)
    dtype = torch.bool if labels or len(shape) == 2 else torch.int64
    blank = torch.zeros(shape if dtype is torch.bool else shape[:-1], dtype=dtype)
    return relabelled(ScoreSets(scores, blank), generator)[:2]


def _grades(
    labels: bool, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Random scores of documents, and grades from 0 to 4 that follow them more or less."""
    del labels
    scores = torch.randn(shape, generator=generator)
    follows = _between(-0.3, 1, (shape[0], 1), generator)
    rest = (1 - follows.square()).sqrt()
    hidden = follows * scores + rest * torch.randn(shape, generator=generator)
    steps = torch.randn((shape[0], 1, _GRADES), generator=generator) + 0.5
    grades = (hidden.unsqueeze(-1) > steps).sum(-1)
    return scores * _between(0.2, 2.2, (shape[0], 1), generator), grades


def _tokens(
    metric: Metric, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Texts of random tokens, as long as they are if the metric knows an end or padding."""
    sets, items, length, vocabulary = shape
    silent = {metric.padding, metric.end}
    real = torch.tensor([token for token in range(vocabulary) if token not in silent])
    if not len(real):
        raise ValueError(f"{metric.name} has no token left in a vocabulary of {vocabulary}")

    def random_tokens() -> Tensor:
        return real[torch.randint(len(real), (sets, items, length), generator=generator)]

    target = random_tokens()
    filler = metric.padding if metric.end is None else metric.end
    places = torch.arange(length)
    if filler is not None:
        ends = torch.randint(1, length + 1, (sets, items, 1), generator=generator)
        target = torch.where(places < ends, target, filler)
    q = torch.rand((sets, 1, 1), generator=generator)
    meant = torch.where(_chance(target.shape, q, generator), target, random_tokens())
    slips = _chance((sets, items, 1), (1 - q) / 2, generator) & (
        places >= torch.randint(length, (sets, items, 1), generator=generator)
    )
    back = _chance((sets, items, 1), torch.tensor(0.5), generator)
    slipped = torch.where(back, target.roll(1, -1), target.roll(-1, -1))
    return _saying(torch.where(slips, slipped, meant), vocabulary, generator), target


def _spans(
    metric: Metric, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Answers of any length, and others that are near or anywhere."""
    sets, items, length, _ = shape
    each = (sets, items, 1)

    def random_ends() -> Tensor:
        start = torch.randint(length, each, generator=generator)
        long = (torch.rand(each, generator=generator).square() * (length - start)).long()
        return torch.cat([start, start + long], -1)

    truth = random_ends()
    moved = torch.randint(-2, 3, (sets, items, 2), generator=generator)
    near = (truth + moved).clamp(0, length - 1).sort(-1).values
    wrong = torch.where(_chance(each, torch.tensor(0.5), generator), near, random_ends())
    q = torch.rand((sets, 1, 1), generator=generator)
    meant = torch.where(_chance(each, q, generator), truth, wrong)
    places = torch.arange(length)
    inside = (places >= truth[..., :1]) & (places <= truth[..., 1:])
    return _saying(meant, length, generator).mT, torch.where(inside, places, -1)


def _maps(
    metric: Metric, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Label maps of patches, some classes rare, and pixels that are any class."""
    sets, items, classes, height, width = shape
    coarse = torch.randn(
        (sets * items, classes, (height + 3) // 4, (width + 3) // 4), generator=generator
    )
    favour = 1.5 * torch.randn((sets, 1, classes, 1, 1), generator=generator)
    patches = F.interpolate(coarse, size=(height, width)).unflatten(0, (sets, items))
    target = (patches + favour).argmax(-3)
    anything = torch.randint(classes, target.shape, generator=generator)
    q = torch.rand((sets, 1, 1, 1), generator=generator)
    meant = torch.where(_chance(target.shape, q, generator), target, anything)
    return _saying(meant, classes, generator).movedim(-1, -3), target


def _heatmaps(
    metric: Metric, shape: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Joints anywhere, and maps with a high bump at the joint or elsewhere, and a lower one."""
    sets, items, joints, height, width = shape
    each = (sets, items, joints, 1)
    corner = torch.tensor([width - 1.0, height - 1.0])

    def anywhere() -> Tensor:
        return corner * torch.rand((*each[:-1], 2), generator=generator)

    target = anywhere()
    q = torch.rand((sets, 1, 1, 1), generator=generator)
    other = anywhere()
    right = _chance(each, q, generator)
    width_of_bump = _between(0.7, 2.5, (sets, 1, 1, 1), generator)
    maps = 0.1 * torch.randn((*each[:-1], height, width), generator=generator)
    tall = 1 + torch.rand(each, generator=generator)
    low = torch.rand(each, generator=generator)
    for centre, tallness in (
        (torch.where(right, target, other), tall),
        (torch.where(right, other, target), low),
    ):
        x = (torch.arange(width) - centre[..., :1]) / width_of_bump
        y = (torch.arange(height) - centre[..., 1:]) / width_of_bump
        bump = torch.exp(-(x.square().unsqueeze(-2) + y.square().unsqueeze(-1)) / 2)
        maps = maps + tallness.unsqueeze(-1) * bump
    maps = maps * torch.exp(_between(-2.0, 2.0, (sets, 1, 1, 1, 1), generator))
    if metric.joint_size is None:
        return maps, target
    sizes = _between(0.2, 0.8, each, generator) * min(height, width)
    if metric.joint_size == "area":
        sizes = sizes.square()
    return maps, torch.cat([target, sizes], -1)


_PLACED: dict[str, Draw] = {
    "tokens": _tokens,
    "spans": _spans,
    "maps": _maps,
    "heatmaps": _heatmaps,
}


def _saying(meant: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Random scores `[sets, ..., number]` in which what is meant, `[sets, ...]`, is highest."""
    each = (len(meant), *[1] * meant.dim())
    scores = torch.randn((*meant.shape, number), generator=generator)
    scores = scores * _between(0.2, 2.2, each, generator)
    lead = -torch.rand((*meant.shape, 1), generator=generator).clamp(min=1e-9).log()
    lead = lead * _between(0.2, 4.0, each, generator)
    index = meant.unsqueeze(-1)
    return scores.scatter(-1, index, scores.amax(-1, keepdim=True) + lead)


def _between(
    low: float, high: float, shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """Uniform random numbers."""
    return low + (high - low) * torch.rand(tuple(shape), generator=generator)


def _chance(shape: Sequence[int], chance: Tensor, generator: torch.Generator | None) -> Tensor:
    """True with a chance, bool of a shape."""
    return torch.rand(tuple(shape), generator=generator) < chance
