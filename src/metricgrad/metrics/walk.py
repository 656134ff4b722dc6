"""The walk down the scores: sort a set, highest first, and count positives and negatives.

Each positive passed adds to tp and each negative to fp. Items with equal scores are passed
together, so a curve drawn from the counts has a vertex only at the last of them. O(N log N) time,
O(N) memory, all sets at once.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops


class Curve(NamedTuple):
    """The counts on the way down from the highest score.

    Attributes:
        scores: `[..., N]`, from the highest to the lowest.
        tp: `[..., N]`, int64, positives at or above the i-th highest score.
        fp: `[..., N]`, negatives likewise.
        tp_before: `[..., N]`, positives strictly above the i-th highest score: tp at the previous
            vertex.
        fp_before: `[..., N]`, negatives likewise.
        vertex: `[..., N]`, bool, True at the last of equal scores.
        positives: `[..., 1]`, all positives.
        negatives: `[..., 1]`, all negatives.
    """

    scores: Tensor
    tp: Tensor
    fp: Tensor
    tp_before: Tensor
    fp_before: Tensor
    vertex: Tensor
    positives: Tensor
    negatives: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The float dtype in which to answer."""
        return self.scores.dtype

    def ratio(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """Quotient of two counts in the answer's dtype; 0 for 0 / 0."""
        return ops.divide(numerator.to(self.dtype), denominator.to(self.dtype))

    def sum(self, terms: Tensor) -> Tensor:
        """Sum of terms `[..., N]` over the vertices, `[...]`."""
        return ops.masked_sum(terms, self.vertex)

    def precision(self) -> Tensor:
        """tp / (tp + fp), `[..., N]`."""
        return self.ratio(self.tp, self.tp + self.fp)


def walk_down(scores: Tensor, positive: Tensor, where: Tensor | None) -> Curve:
    """The curve of every set `[..., N]`; items that do not count come last, without vertices."""
    size = scores.shape[-1]
    counting = scores if where is None else scores.masked_fill(~where, -torch.inf)
    ordered, order = counting.sort(-1, descending=True)
    hits = positive.gather(-1, order)
    tp = hits.cumsum(-1)
    starts = ops.tie_starts(ordered)
    positions = torch.arange(1, size + 1, device=scores.device)
    vertex = F.pad(starts[..., 1:] == positions[:-1], (0, 1), value=True)[..., :size]
    if where is None:
        counted = torch.full_like(tp[..., :0].sum(-1, keepdim=True), size)
    else:
        counted = where.sum(-1, keepdim=True)
        vertex = vertex & (positions <= counted)
    tp_before = (tp - hits.to(tp.dtype)).gather(-1, starts)
    positives = positive.sum(-1, keepdim=True)
    return Curve(
        scores=ordered,
        tp=tp,
        fp=positions - tp,
        tp_before=tp_before,
        fp_before=starts - tp_before,
        vertex=vertex,
        positives=positives,
        negatives=counted - positives,
    )
