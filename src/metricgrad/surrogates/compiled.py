"""Losses inside `torch.compile(..., fullgraph=True)`: one operation of the graph.

Which scores are compared depends on the target, so the operations of a loss differ from batch to
batch, and no compiler can record them. To a compiler, the loss is therefore a single operation that
gives the value and its derivative by the scores. An operation takes tensors and numbers only, so
the loss is told by a number, its key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

_losses: WeakValueDictionary[int, Any] = WeakValueDictionary()
_keys = count()


def new_key(loss: Any) -> int:
    """A number by which compiled code finds the loss, as long as it exists."""
    key = next(_keys)
    _losses[key] = loss
    return key


@torch.library.custom_op("metricgrad::loss", mutates_args=())
def value_and_slope(
    key: int,
    scores: Tensor,
    target: Tensor,
    where: Tensor | None,
    groups: Tensor | None,
    rows: list[Tensor],
    names: str,
) -> tuple[Tensor, Tensor]:
    """The loss of a call, and its derivative by the scores."""
    by_name = dict(zip(names.split(), rows, strict=True))
    with _autograd():
        leaf = scores.detach().requires_grad_()
        value = _losses[key](leaf, target, where, groups, **by_name)
        (slope,) = torch.autograd.grad(value, leaf)
    return value.detach().clone(), slope


@value_and_slope.register_fake
def _(key: int, scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return scores.new_empty((), dtype=dtype), torch.empty_like(scores)


def _keep_slope(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.rows = len(inputs[5])


def _pass_on(ctx: Any, of_value: Tensor, of_slope: Tensor) -> tuple[Any, ...]:
    (slope,) = ctx.saved_tensors
    return None, (of_value * slope).to(slope.dtype), None, None, None, [None] * ctx.rows, None


value_and_slope.register_autograd(_pass_on, setup_context=_keep_slope)


@contextmanager
def _autograd() -> Iterator[None]:
    """Autograd within an operation, where torch has switched it off."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.ADInplaceOrView):
        excluded = excluded - torch._C.DispatchKeySet(key)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield
