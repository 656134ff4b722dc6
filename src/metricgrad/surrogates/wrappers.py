"""Memory: past scores join the set, for small batches and rare positives.

A metric of a set is about many items at once; a batch of 16 with one positive in a hundred hardly
ever has one. With a memory the set is the batch and the most recent items before it. Past scores
are detached: they are compared with, and only the batch receives a gradient. They grow stale as the
model moves, so a memory is no longer than it needs to be.
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics.checks import whole
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.baselines import CrossEntropy
from metricgrad.surrogates.ordinary import ordinary_for

# MERGED DOC surrogates.blend:
# r"""A loss and the ordinary one together: :math:`\ell + w \, \ell_{ordinary}`.
#
# Learned losses do best beside the ordinary one (ReLoss, Table 10): where the learned loss is flat or
# wrong, the ordinary loss still knows the way.
# """


def with_memory(loss: Surrogate, size: int = 4096) -> "WithMemory":
    """The same loss on sets that past items have joined.

    Args:
        loss: any surrogate.
        size: how many past items are kept, the most recent ones.

    Returns:
        A surrogate to call like the loss itself, with one flat set per call. In `eval()` mode it is
        the loss alone.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.with_memory(mg.UniLoss("average_precision"), size=256)
        >>> for step in range(3):
        ...     value = loss(torch.randn(16, requires_grad=True), torch.arange(16) % 16 == 0)
        >>> loss.scores.shape
        torch.Size([48])
    """
    return WithMemory(loss, size)


class WithMemory(Surrogate):
    """A surrogate whose sets past items join; made by `with_memory`.

    Attributes:
        scores: `[M, ...]`, the past items' scores, the latest first.
        target: `[M, ...]`, their targets.
    """

    scores: Tensor
    target: Tensor

    def __init__(self, loss: Surrogate, size: int) -> None:
        super().__init__()
        whole("size", size, 1)
        self.loss, self.size, self.readable = loss, size, loss.readable
        self.register_buffer("scores", torch.zeros(0))
        self.register_buffer("target", torch.zeros(0))
        self.register_load_state_dict_pre_hook(_take_stored_shape)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of the joined set; what counts of the batch is remembered for the next one."""
        if not self.training:
            return self.loss.losses(scores, target, where)
        if scores.dim() == target.dim() + 1 and scores.shape[-1] == 1:
            scores = scores.squeeze(-1)
        if where is not None and where.dim() > 1:
            raise ValueError(
                f"with_memory takes one flag per item as where; got shape {list(where.shape)}"
            )
        kept = slice(None) if where is None else where.to(torch.bool)
        now, truth = scores[kept], target[kept]
        if len(self.scores) and self.scores.shape[1:] != now.shape[1:]:
            raise ValueError(
                f"the memory holds items of shape {list(self.scores.shape[1:])}; got scores {list(scores.shape)}. "
                "Call forget() before another kind of data"
            )
        past = self.scores.to(now), self.target.to(truth)
        joined = (
            (torch.cat([now, past[0]]), torch.cat([truth, past[1]]))
            if len(self.scores)
            else (now, truth)
        )
        values, defined = self.loss.losses(*joined, None)
        if values.dim():
            raise ValueError(
                f"with_memory takes one flat set, without set dimensions; got scores {list(scores.shape)}"
            )
        self.scores, self.target = (part[: self.size].detach() for part in joined)
        return values, defined

    def config(self) -> dict[str, Any]:
        """The loss's own description and the size."""
        return {"loss": self.loss.description(), "size": self.size}

    def forget(self) -> None:
        """Empties the memory."""
        self.scores, self.target = self.scores[:0].flatten(), self.target[:0].flatten()


def _take_stored_shape(
    module: WithMemory, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """A memory may be of any length when it is saved."""
    for name in ("scores", "target"):
        if prefix + name in state_dict:
            setattr(module, name, torch.empty_like(state_dict[prefix + name]))


def with_ordinary(
    loss: Surrogate, weight: float = 1.0, ordinary: Surrogate | None = None
) -> "WithOrdinary":
    """A loss plus the ordinary one.

    Args:
        loss: any surrogate.
        weight: of the ordinary loss.
        ordinary: what is added; None adds cross-entropy, in the shapes of the loss's metric
            (`ordinary.py`).

    Returns:
        A surrogate to call like the loss itself.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.with_ordinary(mg.ReLoss.pretrained("accuracy"), weight=1.0)
        >>> loss(torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3).backward()

    Reference:
        ReLoss, Sec. 4.3 and Table 10.
    """
    if ordinary is None:
        metric = getattr(loss, "metric", None)
        ordinary = CrossEntropy() if metric is None else ordinary_for(metric)
        if ordinary is None:
            raise ValueError(
                f"nothing is usual for {metric}; say what to add: with_ordinary(loss, ordinary=...)"
            )
    if not isinstance(ordinary, Surrogate):
        raise TypeError(
            f"ordinary must be a surrogate, such as mg.baselines.Focal(); got {ordinary!r}"
        )
    return WithOrdinary(loss, weight, ordinary)


class WithOrdinary(Surrogate):
    """The weighted sum of two surrogates; made by `with_ordinary`."""

    def __init__(self, loss: Surrogate, weight: float, ordinary: Surrogate) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"weight must be 0 or more; got {weight}")
        self.loss, self.weight, self.ordinary = loss, weight, ordinary

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum for every set, and whether either is defined there."""
        values, defined = self.loss.losses(scores, target, where)
        more, also = self.ordinary.losses(scores, target, where)
        return torch.where(defined, values, 0.0) + self.weight * torch.where(
            also, more, 0.0
        ), defined | also

    def config(self) -> dict[str, Any]:
        """Both losses' own descriptions, and the weight."""
        return {
            "loss": self.loss.description(),
            "weight": self.weight,
            "ordinary": self.ordinary.description(),
        }
