r"""Learning a loss by rank correlation: Algorithm 1 of ReLoss, all sets of a step in one pass.

    draw N sets: made-up ones (G_R) with a share p, outputs of models (G_M) with 1 - p
    losses and metric values of all of them; ranks, their correlation, the gradient penalty
    a step of Adam down Eqn. 9

Every now and then the correlation with the metric is taken on held-out sets, with exact ranks, and
the weights of the best moment are kept. A fresh network may start upside down, with a loss that
rises where the metric gets better; the penalty is blind to that and would hold it there, so its
sign is set by the first sets, and again should it turn over later.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.random_sets import SourceName, made_up_source
from metricgrad.surrogates.score_sets import Pool, ScoreSets, Source, relabelled, together
from metricgrad.surrogates.wrappers import ordinary_for, takes_ordinary

if TYPE_CHECKING:
    from metricgrad.surrogates.reloss import ReLoss

LearningCurve = list[tuple[int, float, float]]
Lesson = Callable[[], list[ScoreSets]]  # draws the sets of one step
SHARE_HELD = 0.2  # of stored sets, held back to look at
_LOOKS = 20
_SIZE = 128
_STEPS = 300
_UPSIDE_DOWN = -0.5  # a correlation that is no accident
_HELD_OUT = 512  # sets, at most
_CHUNK = 64  # sets at once


class Recipe(NamedTuple):
    """How a loss learns, unless `learn` is told otherwise."""

    share: float  # of made-up sets
    sets: int  # in a step
    relabel: bool
    decay: float  # of weights
    clip: float  # of the gradient's length
    falling: bool  # whether the rate falls
    epochs: int | None  # None makes 300 steps

    def number_of_steps(self, pool: Pool | None, sets: int) -> int:
        """Steps that go through all stored sets so many times, a last part of a step left out."""
        if self.epochs is None or pool is None or not pool.stored:
            return _STEPS
        return self.epochs * max(1, sum(len(each.target) for each in pool.stored) // sets)


RecipeName = Literal["ours", "published"]
RECIPES: dict[RecipeName, Recipe] = {
    "ours": Recipe(0.5, 64, False, decay=1e-4, clip=1.0, falling=True, epochs=None),
    "published": Recipe(0.0, 256, True, decay=1e-3, clip=math.inf, falling=False, epochs=10),
}


class Ranked(NamedTuple):
    """How well a loss ranks held-out sets as its metric does; sets of one class count too.

    Attributes:
        spearman: Rank correlation of the loss with the metric, as a loss.
        kendall: Kendall's tau-b between the loss and the metric, as a loss.
        ordinary_spearman: Spearman's correlation of the ordinary loss with the metric; NaN if such
            targets have no ordinary loss.
        ordinary_kendall: Kendall's tau-b between the ordinary loss and the metric.
        penalty: The gradient penalty (Eqn. 8) there, of the loss scaled so that gradients have the
            mean length 1.
        step: The step of the best moment, whose weights were kept.
        curve: Step, misfit while learning, and held-out Spearman, at every look.
    """

    spearman: float
    kendall: float
    ordinary_spearman: float
    ordinary_kendall: float
    penalty: float
    step: int
    curve: LearningCurve


def shaped_source(
    metric: Metric,
    pool: Pool | None,
    sets: int,
    size: int | None,
    classes: int | None,
    shape: Sequence[int] | None = None,
    name: SourceName = "broad",
) -> Source:
    """The source of made-up sets, shaped as the stored ones."""
    if pool is not None and pool.stored:
        shown = pool.stored[0].scores
        shape = shown.shape[1:] if shape is None else shape
        size = shown.shape[1] if size is None else size
        classes = shown.shape[2] if classes is None and shown.dim() > 2 else classes
    number = max(4, sets)
    return made_up_source(metric, number, size or _SIZE, classes, name, shape=shape)


def lesson(
    pool: Pool | None,
    made: Source | None,
    share: float,
    sets: int,
    relabel: bool,
    generator: torch.Generator | None,
) -> Lesson:
    """Draws the N sets of a step (line 4 of Algorithm 1): models' sets, and made-up ones."""
    made_pool = None if made is None else Pool([made], [])
    number = sets if pool is None else 0 if made is None else round(share * sets)

    def draw() -> list[ScoreSets]:
        groups = [] if pool is None else pool.draw(sets - number, generator)
        if relabel:
            groups = [relabelled(each, generator) for each in groups]
        return together(groups + ([] if made_pool is None else made_pool.draw(number, generator)))

    return draw


class Exam:
    """Held-out sets, with the metric's values and those of the ordinary loss."""

    def __init__(self, loss: "ReLoss", pool: Pool, generator: torch.Generator | None) -> None:
        self._loss = loss
        stored = sum(len(sets.target) for sets in pool.stored)
        everything = not pool.sources and stored <= _HELD_OUT
        groups = together(pool.stored) if everything else pool.draw(_HELD_OUT, generator)
        self._chunks = [chunk for sets in groups for chunk in sets.chunks(_CHUNK)]
        truth = torch.cat([loss.truth(*sets) for sets in groups])
        self._known = truth.isfinite()
        self.truth = truth[self._known]
        if len(self.truth) < 2 or self.truth.max() == self.truth.min():
            raise ValueError(
                f"{loss.metric.name} is the same on all {len(self.truth)} held-out sets that it is "
                "defined on, so there is no order to check; pass sources on which it varies, such "
                "as scores of several checkpoints"
            )
        self._ordinary = (math.nan, math.nan)
        self.beside = ""
        ordinary = _ordinary_losses(loss, groups)
        if ordinary is not None:
            self._ordinary = self._both(ordinary[self._known])
            self.beside = " (ordinary {:.4f}, {:.4f})".format(*self._ordinary)

    @torch.no_grad()
    def raw(self) -> Tensor:
        """The loss of every set, as it is ranked."""
        found = [self._loss.raw(self._loss.check(*chunk)) for chunk in self._chunks]
        return torch.cat(found)[self._known]

    def look(self) -> tuple[float, float]:
        """Spearman's and Kendall's correlation of loss and metric."""
        return self._both(self.raw())

    def grade(self, step: int, curve: LearningCurve) -> Ranked:
        """All that is said of a loss."""
        norms = []
        for chunk in self._chunks:
            inputs = self._loss.check(*chunk)
            scores = inputs.scores.to(self.truth.dtype).requires_grad_()
            inputs = inputs._replace(scores=scores)
            norms.append(self._loss.steepness(self._loss.raw(inputs), inputs).detach())
        found = torch.cat(norms)
        uneven = (ops.divide(found, found.mean()) - 1).square().mean().item()
        return Ranked(*self.look(), *self._ordinary, uneven, step, curve)

    def _both(self, losses: Tensor) -> tuple[float, float]:
        """Spearman's and Kendall's correlation with the metric."""
        return ops.spearman(losses, self.truth).item(), ops.kendall(losses, self.truth).item()


@torch.no_grad()
def _ordinary_losses(loss: "ReLoss", groups: list[ScoreSets]) -> Tensor | None:
    """The ordinary loss of all sets; None if it takes no such scores and targets."""
    ordinary = ordinary_for(loss.metric)
    if ordinary is None or not all(takes_ordinary(loss.metric, *sets) for sets in groups):
        return None
    return torch.cat([ordinary.losses(*sets)[0] for sets in groups])


def learn(
    loss: "ReLoss",
    draw: Lesson,
    exam: Exam,
    recipe: Recipe,
    steps: int,
    rate: float,
    progress: bool,
) -> Ranked:
    """Teaches a loss and freezes it; it is as it was before if anything goes wrong."""
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    fresh = not loss.learned
    loss.requires_grad_(True)
    try:
        if fresh and loss.objective == "correlation":
            _orient(loss, draw())
        step, curve = _descend(loss, draw, exam, recipe, steps, rate, progress)
    except BaseException:
        loss.load_state_dict(before)
        loss.requires_grad_(fresh)
        raise
    _fit_affine(loss, exam)
    loss.freeze()
    return exam.grade(step, curve)


def _descend(
    loss: "ReLoss",
    draw: Lesson,
    exam: Exam,
    recipe: Recipe,
    steps: int,
    rate: float,
    progress: bool,
) -> tuple[int, LearningCurve]:
    """Algorithm 1; leaves the loss with the weights of its best moment, and tells its step."""
    optimizer = torch.optim.Adam(loss.parameters(), rate, weight_decay=recipe.decay, fused=True)
    last = 0.0 if recipe.falling else rate
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=last)
    every = max(1, steps // _LOOKS)
    best = -2.0
    chosen = 0
    kept: dict[str, Tensor] = {}
    curve: LearningCurve = []
    with to_progress(f"learning {loss.metric.name}", steps, progress) as tell:
        for step in range(1, steps + 1):
            misfit = joint_misfit(loss, draw())
            optimizer.zero_grad(set_to_none=True)
            misfit.backward()
            norm = torch.nn.utils.clip_grad_norm_(loss.parameters(), recipe.clip)
            if not norm.isfinite():
                raise RuntimeError(
                    f"learning {loss.metric.name} diverged at step {step} of {steps} (misfit "
                    f"{misfit.item():.3g}); the loss is as it was before. Pass a smaller rate than "
                    f"{rate}"
                )
            optimizer.step()
            schedule.step()
            if step % every and step != steps:
                continue
            found, kendall = exam.look()
            if not loss.learned and loss.objective == "correlation" and found < _UPSIDE_DOWN:
                loss.orientation.neg_()
                found = -found
                kendall = -kendall
            curve.append((step, misfit.item(), found))
            if found > best:
                best = found
                chosen = step
                kept = {name: value.clone() for name, value in loss.state_dict().items()}
            tell(every, f"Spearman {found:.4f}, Kendall {kendall:.4f}{exam.beside}")
    loss.load_state_dict(kept)
    return chosen, curve


def joint_misfit(loss: "ReLoss", groups: list[ScoreSets]) -> Tensor:
    """Eqn. 9 (plus 1) over sets of several shapes, each shape in one pass."""
    raws, truths, penalties = zip(*(loss.compare(*sets) for sets in groups), strict=True)
    raw = torch.cat(raws)
    truth = torch.cat(truths)
    if len(truth) < 2 or truth.max() == truth.min():
        raise ValueError(
            f"{loss.metric.name} is the same on all {len(truth)} sets of a step that it is defined "
            "on, so there is no order to learn; pass sources on which it varies, such as the "
            "scores of several checkpoints"
        )
    counts = torch.tensor([len(sets.target) for sets in groups], dtype=raw.dtype)
    weighted = torch.stack(penalties) * counts.to(raw.device)
    return loss.distance(raw, truth) + loss.penalty * weighted.sum() / counts.sum()


def _orient(loss: "ReLoss", groups: list[ScoreSets]) -> None:
    """Turns a fresh loss the right way up."""
    with torch.no_grad():
        raw = torch.cat([loss.raw(loss.check(*sets)) for sets in groups])
        truth = torch.cat([loss.truth(*sets) for sets in groups])
    known = truth.isfinite()
    if ops.spearman(raw[known], truth[known]) < 0:
        loss.orientation.neg_()


def _fit_affine(loss: "ReLoss", exam: Exam) -> None:
    """Sets scale and shift to the affine map nearest to the metric, as a loss (least squares)."""
    raw = exam.raw()
    truth = exam.truth
    centred = raw - raw.mean()
    slope = ops.divide((centred * (truth - truth.mean())).sum(), centred.square().sum())
    if not slope > 0:
        warnings.warn(
            f"the loss has not learned {loss.metric.name}: on held-out sets it does not fall as "
            "the metric gets better. More steps, another rate or more varied sources may help",
            stacklevel=4,
        )
        slope = ops.divide(truth.std(), raw.std())
    loss.scale.copy_(slope)
    loss.shift.copy_(truth.mean() - slope * raw.mean())
