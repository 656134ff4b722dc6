"""Metrics that comparisons decide: e = g(h(f(scores))), Eqn. 4 of the UniLoss paper.

    f   scores -> comparisons   differences of scores `[..., D]`, differentiable
    h   comparisons -> bits     comparison > 0; a tie is lost
    g   bits -> value           the metric, for every configuration of bits, even impossible ones

A bit of 1 is a comparison won (a positive above a negative, a correct class), so the ideal
configuration is all ones. The law: on sets without ties, g(h(f(scores))) is the metric.

What g needs to know of a target (which items are positive, which classes there are) is gathered
once, in a `Reexpression`; a surrogate asks it for the values of many configurations.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs, Metric
from metricgrad.metrics.checks import to_tensor

if TYPE_CHECKING:
    from metricgrad.metrics.order import Pairs

_FLIPPED_ENTRIES = 1 << 24  # bits held at once while flips are tried one by one


Compare = Callable[[Tensor], Tensor]
Soften = Callable[[Tensor, float], Tensor]  # the same for soft bits, of scores and a slope


def itself(scores: Tensor) -> Tensor:
    """The scores as they are."""
    return scores


class Reexpression(ABC):
    """One target's metric, as comparisons, bits and a value of bits.

    Bits may have further leading dimensions before the sets: `[A, ..., D]` are A configurations.
    """

    @abstractmethod
    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """f: comparisons `[..., D]`, differentiable, and live `[..., D]`, False for padding."""

    @abstractmethod
    def from_bits(self, bits: Tensor) -> Tensor:
        """g: values `[A, ...]` of bits `[A, ..., D]`."""

    @abstractmethod
    def defined(self) -> Tensor:
        """Sets that have a value of their own: `[...]`, bool."""

    @property
    def among_classes(self) -> bool:
        """Whether bits decide between many scores, so that `softened` has another form of them."""
        return False

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """The comparisons `[..., D]` with soft rivals: those of `f`, unless classes compete.

        Among many classes, one comparison decides, that with the best rival. But each rival could
        be the best one if the scores were a little different: here all of them take part.
        """
        return self.comparisons(scores)[0]

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The value with a bit set minus the value with it cleared, `[A, ..., D]`."""
        return tried_flip_gains(self, bits)

    def best_bits(self, bits: Tensor) -> Tensor:
        """The best configuration, in the shape of the bits: every comparison won."""
        return torch.ones_like(bits)

    def pairwise(self) -> "Pairs | None":
        """The positives and negatives, where their comparisons decide alone; None otherwise.

        A surrogate can then sum over pairs without storing each comparison.
        """
        return None

    def strongest(self, scores: Tensor, number: int) -> "Reexpression":
        """The same with only the `number` highest-scored rivals of each item."""
        raise ValueError(
            f"rivals={number} needs scores [..., N, C] of many classes; got scores "
            f"{list(scores.shape)}, which are compared with a threshold"
        )

    def measured(self) -> Tensor | None:
        """The metric of the last scores, `[...]`, if finding their comparisons told; else None."""
        return None

    def direct(self) -> Tensor | None:
        """The smooth part of the last scores' value, `[...]`; None where bits decide alone."""
        return None

    def scale(self) -> Tensor | None:
        """What to divide an unbounded metric's gradient by, `[...]`; None for a bounded one."""
        return None

    def draw(
        self, scores: Tensor, slope: float, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Configurations `[number, ..., D]` around the scores' own, bool.

        Each comparison is won with the chance sigmoid(slope * comparison): drawn one by one here;
        metrics of order draw whole orders.
        """
        chance = (slope * self.comparisons(scores)[0]).sigmoid()
        return torch.rand(number, *chance.shape, generator=generator, device=chance.device) < chance

    def flip(self, bits: Tensor, places: Tensor) -> Tensor:
        """Bits `[A, ..., D]`, each with the bit at its place `[A, ...]` flipped; -1 flips none."""
        flipped = bits.expand(*places.shape, -1).clone()
        if not bits.shape[-1]:
            return flipped
        index = places.unsqueeze(-1)
        return flipped.scatter_(
            -1, index.clamp(min=0), flipped.gather(-1, index.clamp(min=0)) ^ (index >= 0)
        )

    def released_anchors(
        self, bits: Tensor, number: int, generator: torch.Generator | None
    ) -> Tensor | None:
        """Anchors `[A, ..., D]` as the paper's code draws them, if it has a way of its own here."""
        return None


def tried_flip_gains(reexpression: Reexpression, bits: Tensor) -> Tensor:
    """Flip gains `[A, ..., D]` of any g, by evaluating it with every bit set and cleared."""
    size = bits.shape[-1]
    if not size:
        return reexpression.from_bits(bits).unsqueeze(-1)[..., :0]
    chunk = max(1, _FLIPPED_ENTRIES // max(1, bits.numel()))
    gains = []
    for start in range(0, size, chunk):
        flipped = torch.arange(start, min(start + chunk, size), device=bits.device)
        chosen = torch.arange(size, device=bits.device) == flipped.reshape(-1, *[1] * bits.dim())
        gains.append(reexpression.from_bits(bits | chosen) - reexpression.from_bits(bits & ~chosen))
    return torch.cat(gains).movedim(0, -1)


class ComparisonMetric(Metric):
    """A metric decided by the outcomes of comparisons: what UniLoss needs."""

    @abstractmethod
    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """The re-expression of a checked target; shape and dtype are those of checked scores."""

    def settled(self, inputs: Inputs) -> "ComparisonMetric":
        """The metric to use from the first set on; a user's function decides when it sees one."""
        return self

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """Sets whose value depends on the comparisons."""
        scores, target, where = inputs
        return self.reexpress(scores.shape, target, where, scores.dtype).defined() & otherwise

    def comparisons(self, scores: Any, target: Any, *, where: Any = None) -> tuple[Tensor, Tensor]:
        """f: the score differences `[..., D]` that decide the metric, and live `[..., D]`.

        Live is False where a comparison is padding. Gradients pass through to the scores.
        """
        where = None if where is None else to_tensor("where", where)
        scores = scores if isinstance(scores, Tensor) else to_tensor("scores", scores)
        scores, target, where = self.check(scores, to_tensor("target", target), where)
        return self.reexpress(scores.shape, target, where, scores.dtype).comparisons(scores)

    def from_bits(
        self, bits: Tensor, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """g: the metric `[A, ...]` of bit configurations `[A, ..., D]`, defined for all of them.

        `shape` is the scores' shape, where the target does not tell it: many classes, maps.
        """
        return self._plan(target, where, shape).from_bits(bits.to(torch.bool))

    def flip_gains(
        self, bits: Tensor, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """The metric with a bit set minus the metric with it cleared, both `[A, ..., D]`."""
        return self._plan(target, where, shape).flip_gains(bits.to(torch.bool))

    def ideal_bits(
        self, target: Any, *, where: Any = None, shape: Sequence[int] | None = None
    ) -> Tensor:
        """The best configuration, bool `[..., D]`: every comparison won."""
        scores = torch.zeros(*(to_tensor("target", target).shape if shape is None else shape))
        values, _ = self.comparisons(scores, target, where=where)
        return torch.ones_like(values, dtype=torch.bool)

    def _plan(self, target: Any, where: Any, shape: Sequence[int] | None) -> Reexpression:
        """The re-expression of a target as users pass it."""
        target = to_tensor("target", target)
        where = None if where is None else to_tensor("where", where)
        scores = torch.zeros(
            *(target.shape if shape is None else shape), dtype=torch.float64, device=target.device
        )
        scores, target, where = self.check(scores, target, where)
        return self.reexpress(scores.shape, target, where, scores.dtype)
