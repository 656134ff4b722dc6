r"""Learning a loss by rank correlation: Algorithm 1 of ReLoss, all sets of a step in one batched pass.

    draw N sets: made-up ones (G_R) with a share p, outputs of models (G_M) with 1 - p
    losses and metric values of all of them; ranks, their correlation, the gradient penalty
    a step of Adam down Eqn. 9

Every now and then the correlation with the metric is taken on held-out sets, with exact ranks, and
the best moment is what remains. A fresh network may start upside down, with a loss that rises where
the metric gets better; the penalty is blind to that and would hold it there, so its sign is set by
the first sets, and again should it turn over later.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.surrogates.exam import Curve, Exam, Ranked, fit_affine
from metricgrad.surrogates.score_sets import Pool, ScoreSets, relabelled, together
from metricgrad.surrogates.sources import Source, broad

if TYPE_CHECKING:
    from metricgrad.surrogates.reloss import ReLoss

_SHARE_HELD = 0.2
_LOOKS = 20
_CLIP = 1.0
_DECAY = 1e-4
_SIZE = 128
_UPSIDE_DOWN = -0.5  # a correlation that is no accident


def learn(
    loss: "ReLoss",
    sources: Any,
    *,
    steps: int,
    share: float,
    sets: int,
    size: int | None,
    classes: int | None,
    rate: float,
    relabel: bool,
    valid: Any,
    progress: bool,
    generator: torch.Generator | None,
) -> Ranked:
    """Teaches a loss; `ReLoss.learn` describes the arguments."""
    for option, value, least in (
        ("steps", steps, 1),
        ("sets", sets, 4),
        ("size", 2 if size is None else size, 2),
    ):
        whole(option, value, least)
    if not 0 <= share <= 1 or not rate > 0:
        raise ValueError(
            f"share must be from 0 to 1, and rate above 0; got share={share} and rate={rate}"
        )
    pool = None if sources is None else Pool.of(sources)
    made = _made_up(loss, pool, sets, size, classes) if share or pool is None else None
    if pool is None and made is None:
        raise ValueError(
            f"{loss.metric.name} has no made-up sets; pass sources, such as mg.collect_scores gives"
        )
    held = Pool([made] if made else [], []) if valid is None else Pool.of(valid)
    if pool is not None and valid is None:
        pool, held = pool.split(_SHARE_HELD, generator)
    lesson = Lesson(pool, made, share, sets, relabel)
    exam = Exam(loss, held, generator)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    fresh = not loss.learned
    loss.requires_grad_(True)
    try:
        if fresh and loss.objective == "correlation":
            _orient(loss, lesson.draw(generator))
        step, curve = _descend(loss, lesson, exam, steps, rate, progress, generator, fresh)
    except BaseException:
        loss.load_state_dict(before)
        loss.requires_grad_(fresh)
        raise
    fit_affine(loss, exam)
    loss.freeze()
    return exam.grade(loss, step, curve)


def _descend(
    loss: "ReLoss",
    lesson: "Lesson",
    exam: "Exam",
    steps: int,
    rate: float,
    progress: bool,
    generator: torch.Generator | None,
    fresh: bool,
) -> tuple[int, Curve]:
    """Algorithm 1; leaves the loss as it was at its best moment, and says which that was."""
    optimizer = torch.optim.Adam(loss.parameters(), rate, weight_decay=_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    every = max(1, steps // _LOOKS)
    best, chosen, kept, curve = -2.0, 0, {}, []
    with to_progress(f"learning {loss.metric.name}", steps, progress) as tell:
        for step in range(1, steps + 1):
            misfit = joint_misfit(loss, lesson.draw(generator))
            optimizer.zero_grad(set_to_none=True)
            misfit.backward()
            norm = torch.nn.utils.clip_grad_norm_(loss.parameters(), _CLIP)
            if not norm.isfinite():
                raise RuntimeError(
                    f"learning {loss.metric.name} diverged at step {step} of {steps} (misfit {misfit.item():.3g}); "
                    f"the loss is as it was before. Pass a smaller rate than {rate}"
                )
            optimizer.step()
            schedule.step()
            if step % every and step != steps:
                continue
            found, kendall = exam.look(loss)
            if fresh and loss.objective == "correlation" and found < _UPSIDE_DOWN:
                loss.orientation.neg_()
                found, kendall = -found, -kendall
            curve.append((step, misfit.item(), found))
            if found > best:
                best, chosen = found, step
                kept = {name: value.clone() for name, value in loss.state_dict().items()}
            tell(every, f"Spearman {found:.4f}, Kendall {kendall:.4f}{exam.beside}")
    loss.load_state_dict(kept)
    return chosen, curve


def joint_misfit(loss: "ReLoss", groups: list[ScoreSets]) -> Tensor:
    """Eqn. 9 (plus 1) over sets of several shapes, each shape in one pass."""
    parts = [loss.compare(*sets) for sets in groups]
    raw, truth = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    if len(truth) < 2 or truth.max() == truth.min():
        raise ValueError(
            f"{loss.metric.name} is the same on all {len(truth)} sets of a step that it is defined on, so there is no "
            "order to learn; pass sources on which it varies, such as the scores of several checkpoints"
        )
    counts = torch.tensor([len(sets.target) for sets in groups], dtype=raw.dtype)
    penalties = torch.stack([part[2] for part in parts])
    return (
        loss.distance(raw, truth)
        + loss.penalty * (penalties * counts.to(raw.device)).sum() / counts.sum()
    )


class Lesson:
    """Draws the sets of a step (line 4 of Algorithm 1).

    Args:
        pool: score sets of models, G_M.
        made: makes up sets, G_R.
        share: p, of made-up sets.
        sets: N, in a step.
        relabel: whether the labels of the models' sets are replaced.
    """

    def __init__(
        self, pool: Pool | None, made: Source | None, share: float, sets: int, relabel: bool
    ) -> None:
        self.pool = pool
        self.made = None if made is None else Pool([made], [])
        made_up = sets if pool is None else 0 if made is None else round(share * sets)
        self.numbers = sets - made_up, made_up
        self.relabel = relabel

    def draw(self, generator: torch.Generator | None) -> list[ScoreSets]:
        """Sets for one step, those of one shape together."""
        of_models, made_up = self.numbers
        groups = [] if self.pool is None else self.pool.draw(of_models, generator)
        if self.relabel:
            groups = [relabelled(sets, generator) for sets in groups]
        return together(groups + ([] if self.made is None else self.made.draw(made_up, generator)))


def _orient(loss: "ReLoss", groups: list[ScoreSets]) -> None:
    """Turns a fresh loss the right way up."""
    with torch.no_grad():
        raw = torch.cat([loss.raw(loss.check(*sets)) for sets in groups])
        truth = torch.cat([loss.truth(*sets) for sets in groups])
    known = truth.isfinite()
    if ops.spearman(raw[known], truth[known]) < 0:
        loss.orientation.neg_()


def _made_up(
    loss: "ReLoss", pool: Pool | None, sets: int, size: int | None, classes: int | None
) -> Source | None:
    """The source of made-up sets for a metric's kind of scores, shaped as the stored ones; None where there is none."""
    metric = loss.metric
    if {"text", "pose", "segmentation"} & set(metric.families):
        return None
    if pool is not None and pool.stored:
        shown = pool.stored[0].scores
        size = shown.shape[1] if size is None else size
        classes = shown.shape[2] if classes is None and shown.dim() > 2 else classes
    multilabel = is_multilabel(metric)
    if multilabel and classes is None:
        raise ValueError(f"{metric.name} is of items with labels; say how many: learn(classes=...)")
    return broad(max(4, sets), size or _SIZE, classes=classes, multilabel=multilabel)
