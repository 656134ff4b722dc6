"""What a loss is called with: one batch, the groups of a flat set, and data of the items.

`Surrogate.losses` knows of sets of scores, target and `where` alone. Here a call is brought into
that form:

    scores and target `[..., N, 1]`   are N items
    groups `[N]`                      become padded sets side by side, those of one size at once
    rows, such as `amount=amount`     are bound to the metrics of the loss while the call lasts
    where `[..., N]`                  of sets padded to the longest: short ones are taken apart
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs, flat_inputs, group_sets, not_flat
from metricgrad.metrics.checks import to_tensor
from metricgrad.metrics.one_score import as_items
from metricgrad.metrics.rows import NO_ROWS, Rows, at

if TYPE_CHECKING:
    from metricgrad.surrogates.base import Surrogate

_LONG = 32  # items of a padded set, from which on it pays to take short sets apart,
_MANY = 8  # if there are so many sets


class Call(NamedTuple):
    """What a loss was called with."""

    scores: Tensor
    target: Tensor
    where: Tensor | None
    groups: Any  # ids `[N]` of one flat set; None if the shapes say what the sets are
    rows: Rows  # further data of the items, by name

    def items_of(self, metric: Metric) -> "Call":
        """The same call without a column of 1, as the metric takes it."""
        scores, target, where = as_items(metric, self.scores, self.target, self.where)
        return self._replace(scores=scores, target=target, where=where)


@contextmanager
def bound(loss: "Surrogate", rows: Rows) -> Iterator[None]:
    """Binds data of the items to a loss and to its parts, what each takes, as long as a call lasts.

    `losses` therefore need not know of it. A metric may be replaced meanwhile, as a function is
    that turns out to be a black box, so the data is taken off the one that is there at the end.
    """
    parts = loss.takers() if rows else []
    for each in parts:
        each.bind({name: row for name, row in rows.items() if name in each.row_names.every})
    try:
        yield
    finally:
        for each in parts:
            each.bind(NO_ROWS)


def losses_of_groups(loss: "Surrogate", call: Call) -> tuple[Tensor, Tensor]:
    """`losses` of the groups of one flat set, `[G]` by ascending id."""
    scores, target, where, groups, rows = call
    ids = to_tensor("groups", groups)
    with bound(loss, rows):
        flat_inputs(loss.check, scores.detach(), target, where, ids)
    flags = torch.ones_like(ids, dtype=torch.bool) if where is None else where.bool()
    order: list[Tensor] = []
    # Attached to the scores even if there are no groups.
    values = [scores.reshape(-1)[:0]]
    defined = [torch.zeros(0, dtype=torch.bool, device=scores.device)]
    for which, index, sets in group_sets(Inputs(scores, target, flags.to(scores.device)), ids):
        with bound(loss, at(rows, index)):
            found, known = loss.losses(*sets)
        if found.dim() != 1:
            raise not_flat(scores, target, ids)
        order.append(which)
        values.append(found)
        defined.append(known)
    back = torch.cat(order).argsort() if order else slice(None)
    return torch.cat(values)[back], torch.cat(defined)[back]


def losses_by_size(
    loss: "Surrogate", scores: Tensor, target: Tensor, where: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`losses` of padded sets `[..., N]`, the three quarters that are short without their padding.

    Queries of 8 documents are padded to the 120 of the longest, and all pairs of these are many.
    """
    if where is None or scores.dim() < 2 or scores.shape[-1] < _LONG or loss.remembers:
        return loss.losses(scores, target, where)
    items = loss.shapes().layout in ("binary", "grades")
    if not items or not scores.shape == target.shape == where.shape:
        return loss.losses(scores, target, where)
    sizes = where.sum(-1).flatten()
    ordered = sizes.sort().values
    short = int(ordered[(3 * len(ordered)) // 4]) if len(ordered) else 0
    if len(ordered) < _MANY or 2 * short > scores.shape[-1]:
        return loss.losses(scores, target, where)
    first = where.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    flat = [each.gather(-1, first).flatten(0, -2) for each in (scores, target, where)]
    places = [(sizes <= short).nonzero()[:, 0], (sizes > short).nonzero()[:, 0]]
    found = [
        loss.losses(*(each[place, : max(1, int(sizes[place].max()))] for each in flat))
        for place in places
        if len(place)
    ]
    back = torch.cat(places).argsort()
    lead = scores.shape[:-1]
    values, defined = (torch.cat(parts)[back].reshape(lead) for parts in zip(*found, strict=True))
    return values, defined


def sum_of_sets(values: Tensor, groups: Any) -> Tensor:
    """The sum over the items of a set `[..., N]`, or over those of a group, by ascending id."""
    if groups is None:
        return values.sum(-1)
    ids, place = to_tensor("groups", groups).to(values.device).unique(return_inverse=True)
    counts = values.long() if values.dtype == torch.bool else values
    return counts.new_zeros(len(ids), *counts.shape[1:]).index_add(0, place, counts)


def mean_of_defined(values: Tensor, defined: Tensor) -> Tensor:
    """The mean of the defined values of every model: `[R]` from `[R, ...]`."""
    values = values.reshape(len(values), -1)
    defined = defined.reshape(len(defined), -1)
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1).clamp(min=1)
