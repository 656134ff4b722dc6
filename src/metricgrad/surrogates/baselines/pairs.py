"""Pairs of a positive and another item, a block of positives at a time.

A set of 20,000 items with 2,000 positives has 40 million such pairs, and a loss keeps several
numbers for each of them until its backward pass. So only positives have rows, a block holds as many
rows as fit into a bound, and nothing is kept of it but a number for each row: the backward pass
computes a block again when its turn comes. (`torch.utils.checkpoint` does that as well, but its
first call imports torch's compiler, which takes a second.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from metricgrad.metrics.order import padded_places

_BLOCK_ENTRIES = 1 << 20  # pairs held at once

OfRows = Callable[..., Tensor]  # rows `[..., L]` and columns -> a number per row, `[..., L]`


def chosen_scores(scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Scores `[..., L]` of the chosen items `[..., N]` of each set, and False for padding."""
    places, live = padded_places(chosen)
    return scores.gather(-1, places), live


def in_blocks(of_rows: OfRows, rows: Tensor, *columns: Tensor) -> Tensor:
    """What a function gives for rows `[..., P]` against columns, some rows at a time: `[..., P]`.

    The columns are tensors `[..., M]` that every block gets as they are. Rows of several numbers
    are `[..., K, P]`.
    """
    width = max(1, sum(each.numel() for each in columns))
    number = max(1, _BLOCK_ENTRIES // width)
    if rows.shape[-1] <= number:
        return of_rows(rows, *columns)
    found: Any = _Blocks.apply(of_rows, number, rows, *columns)
    return found


class _Blocks(torch.autograd.Function):
    """The function of some rows at a time, forth and back."""

    @staticmethod
    def forward(ctx: Any, of_rows: OfRows, number: int, rows: Tensor, *columns: Tensor) -> Tensor:
        """Blocks without a graph, concatenated."""
        ctx.of_rows = of_rows
        ctx.number = number
        ctx.save_for_backward(rows, *columns)
        return torch.cat([of_rows(some, *columns) for some in rows.split(number, -1)], -1)

    @staticmethod
    @once_differentiable  # it hides the parameters' names from type checkers
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Any, ...]:
        """Every block again, with a graph that lasts until its gradient is known."""
        (slopes,) = grad_outputs
        rows, *columns = (each.detach() for each in ctx.saved_tensors)
        of_columns = [torch.zeros_like(each) for each in columns]
        of_rows = []
        parts = zip(rows.split(ctx.number, -1), slopes.split(ctx.number, -1), strict=True)
        for some, slope in parts:
            with torch.enable_grad():
                leaves = [each.detach().requires_grad_() for each in (some, *columns)]
                found = (ctx.of_rows(*leaves) * slope).sum()
            first, *others = torch.autograd.grad(found, leaves)
            of_rows.append(first)
            for total, part in zip(of_columns, others, strict=True):
                total += part
        return None, None, torch.cat(of_rows, -1), *of_columns
