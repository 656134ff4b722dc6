"""Losses of one item at a time: cross-entropy, its weighted kin, focal loss."""

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.surrogates.baselines.base import Baseline


class CrossEntropy(Baseline):
    r"""Cross-entropy, binary for scores in the target's shape, of the softmax for class indices.

    .. math:: -\log p(y_i), \quad p = sigmoid(s) \text{ or } softmax(s)

    Args:
        positive_weight: Weight of a positive, for binary scores; the cost-sensitive reduction of F1
            tunes it among 0.3, 0.9, 2.7, 8.1, 24.3 and 72.9.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.CrossEntropy()(torch.zeros(4), torch.tensor([0, 1, 0, 1]))
        tensor(0.6931)

    Reference:
        Learning Surrogate Losses, Sec. 4.3; Parambath et al., 2014, for the cost-sensitive
        reduction.
    """

    def __init__(self, *, positive_weight: float = 1.0) -> None:
        super().__init__(positive_weight=positive_weight)
        if not positive_weight > 0:
            raise ValueError(f"positive_weight must be above 0; got {positive_weight}")

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the items that count."""
        return ops.masked_mean(self.of_items(scores, target), where)

    def of_items(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of every item, `[..., N]`."""
        if scores.shape != target.shape:
            return -scores.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        weight = scores.new_tensor(self.options.get("positive_weight", 1.0))
        truth = target.to(scores.dtype)
        return F.binary_cross_entropy_with_logits(
            scores, truth, pos_weight=weight, reduction="none"
        )


class Focal(CrossEntropy):
    r"""Focal loss: cross-entropy that lets go of items which are nearly right.

    .. math:: -\alpha_i (1 - p(y_i))^\gamma \log p(y_i)

    Args:
        gamma: How fast it lets go; 0 is cross-entropy.
        alpha: Weight of a positive, that of a negative being 1 - alpha; None weighs both alike.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.Focal(gamma=2.0)(torch.zeros(4), torch.tensor([0, 1, 0, 1]))
        tensor(0.1733)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, 2017, Eqn. 5.
    """

    def __init__(self, *, gamma: float = 2.0, alpha: float | None = None) -> None:
        super().__init__()
        self.options = {"gamma": gamma, "alpha": alpha}

    def of_items(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of every item, `[..., N]`."""
        entropy = super().of_items(scores, target)
        gamma = self.options["gamma"]
        alpha = self.options["alpha"]
        loss = (1 - torch.exp(-entropy)) ** gamma * entropy
        if alpha is None or scores.shape != target.shape:
            return loss
        return torch.where(target, alpha, 1 - alpha) * loss
