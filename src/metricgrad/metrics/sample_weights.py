"""Weights of the items: how much each of them counts, as scikit-learn's `sample_weight` has it.

An item of weight w counts as w items, and one of weight 0 does not count at all. Weights are data
of the items, which a call binds to a metric of decisions or of curves (`rows.py`):

    metric(scores, target, sample_weight=weight)        `[..., N]`, 0 or more

Sums of floats are rounded, so a class whose only item is taken away might be left with 1e-17 items
instead of none, and would still take part in an average. Weights are therefore rounded, once, to
multiples of a power of two for which all sums are exact.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from metricgrad.metrics.rows import SAMPLE_WEIGHT, RowNames, Rows, check_rows

_BITS = 42  # of a set's total weight that are kept; the 11 others leave room for sums over labels


def weight_names(name: str) -> RowNames:
    """What a metric or a loss takes that can weigh its items."""
    return RowNames(name, (SAMPLE_WEIGHT,))


def without_weightless(
    rows: Rows, items: Sequence[int], where: Tensor | None, full: Sequence[int]
) -> Tensor | None:
    """`where` without the items of weight 0, in the shape `full`.

    `items` is the shape of one value per item, `[..., N]`. ValueError for weights that are no
    weights.
    """
    weight = rows.get(SAMPLE_WEIGHT)
    if weight is None:
        return where
    counted = where if where is None or where.dim() == len(items) else where.any(-1)
    check_rows(rows, items, counted)
    known = weight if counted is None else weight.masked_fill(~counted, 1)
    wrong = (known < 0) | known.isinf()
    if wrong.any():
        raise ValueError(
            f"{SAMPLE_WEIGHT} must be 0 or more and finite; got {known[wrong][0].item():g} for "
            f"{int(wrong.sum())} of {wrong.numel()} items"
        )
    counts = known > 0
    if counts.all():
        return where
    counts = counts.reshape(counts.shape + (1,) * (len(full) - counts.dim())).expand(tuple(full))
    return counts if where is None else where & counts


def exact_weights(rows: Rows, full: Sequence[int], where: Tensor | None) -> Tensor | None:
    """The weights in the shape `full`, float64, 0 for what does not count; None if there are none.

    Sums of them over items and labels are exact.
    """
    weight = rows.get(SAMPLE_WEIGHT)
    if weight is None:
        return None
    further = (1,) * (len(full) - weight.dim())
    weight = weight.double()
    if where is not None:
        counted = where.any(-1) if further else where
        weight = torch.where(counted, weight, 0.0)
    weight = _exact(weight).reshape(weight.shape + further).expand(tuple(full))
    return weight if where is None else torch.where(where, weight, 0.0)


def weighted_share(chosen: Tensor, weight: Tensor) -> Tensor:
    """The share of the weight that is chosen, `[...]` from `[..., N]`; 0 where there is none."""
    total = weight.sum(-1)
    return torch.where(total > 0, torch.where(chosen, weight, 0.0).sum(-1) / total, 0.0)


def _exact(weight: Tensor) -> Tensor:
    """Weights `[..., N]` as multiples of a power of two, so that their sums are not rounded."""
    total = weight.sum(-1, keepdim=True)
    unit = torch.exp2(torch.where(total > 0, total, 1.0).log2().floor() - _BITS)
    return (weight / unit).round() * unit
