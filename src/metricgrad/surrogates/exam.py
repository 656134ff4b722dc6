"""What a learned loss is judged by: held-out sets, exact ranks, and the ordinary loss beside it."""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.surrogates.ordinary import ordinary_for
from metricgrad.surrogates.score_sets import Pool, ScoreSets, together

if TYPE_CHECKING:
    from metricgrad.surrogates.reloss import ReLoss

Curve = list[tuple[int, float, float]]
_HELD_OUT = 512  # sets, at most
_CHUNK = 64  # sets at once


class Ranked(NamedTuple):
    """How well a loss ranks sets as its metric does, on held-out sets; those of one class have a value here too.

    Attributes:
        spearman: rank correlation of the loss with the metric, as a loss.
        kendall: Kendall's tau-b of the same.
        ordinary_spearman: that of the ordinary loss (`ordinary.py`); NaN if there is none for such
            targets.
        ordinary_kendall: the same by Kendall's tau-b.
        penalty: the gradient penalty (Eqn. 8) there, of the loss scaled so that gradients have the
            mean length 1.
        step: the moment that was best.
        curve: step, misfit while learning, and held-out Spearman, at every look.
    """

    spearman: float
    kendall: float
    ordinary_spearman: float
    ordinary_kendall: float
    penalty: float
    step: int
    curve: Curve


class Exam:
    """Held-out sets, with the metric's values and those of the ordinary loss.

    Args:
        loss: that is to be examined.
        pool: of held-out sets.
        generator: source of randomness.
    """

    def __init__(self, loss: "ReLoss", pool: Pool, generator: torch.Generator | None) -> None:
        stored = sum(len(sets.target) for sets in pool.stored)
        everything = not pool.sources and stored <= _HELD_OUT
        self.groups = together(pool.stored) if everything else pool.draw(_HELD_OUT, generator)
        truth = torch.cat([loss.truth(*sets) for sets in self.groups])
        self.known = truth.isfinite()
        self.truth = truth[self.known]
        if len(self.truth) < 2 or self.truth.max() == self.truth.min():
            raise ValueError(
                f"{loss.metric.name} is the same on all {len(self.truth)} held-out sets that it is defined on, so "
                "there is no order to check; pass sources on which it varies, such as scores of several checkpoints"
            )
        self.ordinary = _ordinary_losses(loss, self.groups, self.known)
        beside = self._both(self.ordinary)
        self.beside = (
            "" if self.ordinary is None else f" (ordinary {beside[0]:.4f}, {beside[1]:.4f})"
        )

    @torch.no_grad()
    def raw(self, loss: "ReLoss") -> Tensor:
        """The loss of every set, as it is ranked."""
        parts = [
            loss.raw(loss.check(*chunk)) for sets in self.groups for chunk in sets.chunks(_CHUNK)
        ]
        return torch.cat(parts)[self.known]

    def look(self, loss: "ReLoss") -> tuple[float, float]:
        """Spearman's and Kendall's correlation of loss and metric."""
        return self._both(self.raw(loss))

    def grade(self, loss: "ReLoss", step: int, curve: Curve) -> Ranked:
        """All that is said of a loss."""
        raw = self.raw(loss)
        norms = []
        for chunk in (chunk for sets in self.groups for chunk in sets.chunks(_CHUNK)):
            inputs = loss.check(*chunk)
            inputs = inputs._replace(scores=inputs.scores.to(raw.dtype).requires_grad_())
            norms.append(loss.steepness(loss.raw(inputs), inputs).detach())
        found = torch.cat(norms)
        uneven = (ops.divide(found, found.mean()) - 1).square().mean().item()
        return Ranked(*self._both(raw), *self._both(self.ordinary), uneven, step, curve)

    def _both(self, losses: Tensor | None) -> tuple[float, float]:
        """Spearman's and Kendall's correlation with the metric; NaN without losses."""
        if losses is None:
            return math.nan, math.nan
        return ops.spearman(losses, self.truth).item(), ops.kendall(losses, self.truth).item()


@torch.no_grad()
def _ordinary_losses(loss: "ReLoss", groups: list[ScoreSets], known: Tensor) -> Tensor | None:
    """The ordinary loss of the sets that have a value of the metric; None if it takes no such scores and targets."""
    ordinary = ordinary_for(loss.metric)
    if ordinary is None:
        return None
    try:
        return torch.cat([ordinary.per_set(*sets) for sets in groups])[known]
    except (
        ValueError,
        TypeError,
        RuntimeError,
        IndexError,
    ):  # a function may have targets of any kind
        return None


def fit_affine(loss: "ReLoss", exam: Exam) -> None:
    """Sets scale and shift of a loss to the affine map that is nearest to the metric, as a loss, by least squares."""
    raw, truth = exam.raw(loss), exam.truth
    centred = raw - raw.mean()
    slope = ops.divide((centred * (truth - truth.mean())).sum(), centred.square().sum())
    if not slope > 0:
        warnings.warn(
            f"the loss learned nothing of {loss.metric.name}: on held-out sets it does not fall as the metric gets "
            "better. More steps, another rate or more varied sources may help",
            stacklevel=4,
        )
        slope = ops.divide(truth.std(), raw.std())
    loss.scale.copy_(slope)
    loss.shift.copy_(truth.mean() - slope * raw.mean())
