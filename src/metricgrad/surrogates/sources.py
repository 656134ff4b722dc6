r"""Sources of made-up score sets, from which a surrogate learns a metric before it sees a model.

Learning Surrogate Losses draws targets y ~ Bernoulli(p) and scores s ~ Normal(mu, sigma^2),
independently of each other (Eqn. 3): all sets are alike there, those of a model that knows nothing.
`broad` sets differ from one another as models in training do:

    s = spread * Normal(0, 1) + separation * (y - 1/2) + shift,    y ~ Bernoulli(prevalence)

with a spread, separation, shift and prevalence of its own for each set. With classes, the score of
the target's class is raised, and every class has a shift of its own.

A source takes a generator and gives scores and target: `[sets, N]` each, `[sets, N, C]` and `[sets,
N]` with classes, `[sets, N, C]` each with labels.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import whole

Source = Callable[[torch.Generator | None], tuple[Tensor, Tensor]]
SourceName = Literal["paper", "broad"]


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

    Example:
        >>> scores, target = paper(sets=3, size=5)(torch.Generator().manual_seed(0))
        >>> scores.shape, target.dtype
        (torch.Size([3, 5]), torch.bool)
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


def made_up(
    metric: Metric,
    sets: int,
    size: int,
    classes: int | None,
    name: SourceName = "broad",
    call: str = "learn",
) -> Source:
    """The source of that name, of sets in the shapes of a metric; `call` is where classes go."""
    if name not in ("paper", "broad"):
        raise ValueError(
            f"source must be 'paper', 'broad' or a function of a generator; got {name!r}"
        )
    labels = metric.layout == "labels"
    if labels and classes is None:
        raise ValueError(
            f"{metric.name} is about items with labels; pass their number: {call}(classes=...)"
        )
    chosen = paper if name == "paper" else broad
    return chosen(sets, size, classes=classes, multilabel=labels)


def _check(sets: int, size: int, classes: int | None) -> None:
    """Raises TypeError or ValueError for numbers that make no sets."""
    whole("sets", sets, 1)
    whole("size", size, 1)
    if classes is not None:
        whole("classes", classes, 2)
