r"""A loss and the ordinary one together: :math:`\ell + w \, \ell_{ordinary}`.

Learned losses do best beside the ordinary one (ReLoss, Table 10): where the learned loss is flat or
wrong, the ordinary loss still knows the way.
"""

from typing import Any

import torch
from torch import Tensor

from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.baselines import CrossEntropy
from metricgrad.surrogates.ordinary import ordinary_for


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
