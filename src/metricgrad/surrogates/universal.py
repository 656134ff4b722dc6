"""Universal learning: a BilevelLoss learns its metric from made-up sets, before there is a model.

A pool of sets is drawn and the metric evaluated on all of it at once (Sec. 3.1, Eqn. 3). Then Adam
descends the misfit on a few of these sets at a time, with a learning rate that falls to zero. Fresh
sets of the same source tell how well it went.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape, whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.elements import Elements
from metricgrad.surrogates.sources import Source, SourceName, broad, paper

if TYPE_CHECKING:
    from metricgrad.surrogates.bilevel import BilevelLoss

_HELD_OUT = 1024
_CLIP = 1.0


class Learned(NamedTuple):
    """What a surrogate knows of its metric, on sets that it did not learn from.

    Attributes:
        misfit: Mean distance between estimate and metric.
        spearman: Rank correlation of estimate and metric.
        constant: The misfit of the best constant estimate, to compare with.
    """

    misfit: float
    spearman: float
    constant: float


def learn_universal(
    loss: "BilevelLoss",
    *,
    steps: int,
    source: SourceName | Source,
    sets: int,
    size: int,
    pool: int,
    rate: float,
    classes: int | None,
    progress: bool,
    generator: torch.Generator | None,
) -> Learned:
    """Learns the metric of a loss; `BilevelLoss.learn_universal` describes the arguments."""
    whole("steps", steps, 1)
    whole("sets", sets, 1)
    whole("size", size, 1)
    whole("pool", pool, sets)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    elements, truth = _sets(loss, _source(loss, source, pool, size, classes), pool, generator)
    if truth.max() == truth.min():
        raise ValueError(
            f"{loss.metric.name}, as a loss, is {truth[0].item():.6g} on all of {len(truth)} "
            "made-up sets, so there is nothing to learn from; pass a source on which it varies"
        )
    if not loss.universal:
        loss.standardise(truth, anyway=True)
    optimizer = torch.optim.Adam(loss.parameters(), rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with to_progress(f"learning {loss.metric.name}", steps, progress) as tell:
        for step in range(steps):
            drawn = torch.randint(len(truth), (sets,), generator=generator)
            misfit = loss.distances(elements.some(drawn), truth[drawn]).mean()
            optimizer.zero_grad(set_to_none=True)
            misfit.backward()
            norm = torch.nn.utils.clip_grad_norm_(loss.parameters(), _CLIP)
            if not norm.isfinite():
                loss.load_state_dict(before)
                raise RuntimeError(
                    f"learning {loss.metric.name} diverged at step {step + 1} of {steps} (misfit "
                    f"{misfit.item():.3g}); pass a smaller rate than {rate}"
                )
            optimizer.step()
            schedule.step()
            if not (step + 1) % 100:
                tell(100, f"misfit {misfit.item():.4f}")
    held = min(_HELD_OUT, pool)
    return fidelity(loss, *_sets(loss, _source(loss, source, held, size, classes), held, generator))


@torch.no_grad()
def fidelity(loss: "BilevelLoss", elements: Elements, truth: Tensor) -> Learned:
    """How well a surrogate imitates its metric on these sets."""
    found = loss.estimate(elements)
    misfit, middle = (loss.apart(guess, truth).mean() for guess in (found, truth.median()))
    return Learned(misfit.item(), ops.spearman(found, truth.to(found.dtype)).item(), middle.item())


def _sets(
    loss: "BilevelLoss", draw: Source, number: int, generator: torch.Generator | None
) -> tuple[Elements, Tensor]:
    """What g gets of so many sets, and their truths, without sets that have no value."""
    drawn: list[tuple[Tensor, Tensor]] = []
    count = 0
    while count < number:
        drawn.append(draw(generator))
        scores, target = drawn[-1]
        if scores.dim() < 2 or not len(scores) or scores.shape[1:] != drawn[0][0].shape[1:]:
            raise ValueError(
                "a source must give scores and target with a leading dimension of sets, all of one "
                f"size; got scores {shape(scores)} and target {shape(target)}"
            )
        count += len(scores)
    scores, target = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    inputs = loss.check(scores, target, None)
    truth = loss.truth(inputs)
    defined = truth.isfinite()
    if 2 * defined.sum() < count:
        raise ValueError(
            f"{loss.metric.name} gave NaN or infinity on {count - int(defined.sum())} of {count} "
            "made-up sets, which leaves too little to learn from; pass a source whose sets it is "
            "defined on"
        )
    return loss.elements(inputs).some(defined), truth[defined]


def _source(
    loss: "BilevelLoss", source: SourceName | Source, number: int, size: int, classes: int | None
) -> Source:
    """The source of that name, with the number and kind of sets that a loss asks for."""
    if callable(source):
        return source
    if source not in ("paper", "broad"):
        raise ValueError(
            f"source must be 'paper', 'broad' or a function of a generator; got {source!r}"
        )
    labels = loss.metric.layout == "labels"
    if labels and classes is None:
        raise ValueError(
            f"{loss.metric.name} is about items with labels; pass their number: "
            "learn_universal(classes=...)"
        )
    chosen = paper if source == "paper" else broad
    return chosen(number, size, classes=classes, multilabel=labels)
