"""Losses of one item at a time: cross-entropy, its weighted kin, focal loss, heatmaps."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import expand_where
from metricgrad.metrics.mistakes import are_label_maps
from metricgrad.metrics.rows import NO_ROWS, RowNames, Rows
from metricgrad.metrics.sample_weights import exact_weights, weight_names, without_weightless
from metricgrad.surrogates.base import counted
from metricgrad.surrogates.baselines.base import Baseline

_PIXELS = 4096  # items that make it worth while to lay them side by side,
_FEW = 64  # if they have no more classes


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

    weighs = True
    rows: Rows = NO_ROWS

    def __init__(self, *, positive_weight: float = 1.0) -> None:
        super().__init__(positive_weight=positive_weight)
        if not positive_weight > 0:
            raise ValueError(f"positive_weight must be above 0; got {positive_weight}")

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Binary scores or classes; of label maps, every pixel is an item."""
        if are_label_maps(scores.shape, target.shape) and target.shape != scores.shape[:-1]:
            scores = scores.movedim(-3, -1).flatten(-4, -2)
            where = None if where is None else where.expand(target.shape).flatten(-3)
            target = target.flatten(-3)
        items = target.shape
        where = without_weightless(self.rows, items, expand_where(where, items, len(items)), items)
        return super().check(scores, target, where)

    @property
    def row_names(self) -> RowNames:
        """Items may have weights."""
        return weight_names(type(self).__name__)

    def bind(self, rows: Rows) -> None:
        """Binds weights of the items."""
        self.rows = rows

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the items that count, weighted if they have weights."""
        found = self.of_items(scores, target)
        weight = exact_weights(self.rows, target.shape, where)
        if weight is None:
            return ops.masked_mean(found, where)
        weight = weight.to(found.dtype)
        return ops.divide((weight * found).sum(-1), weight.sum(-1))

    def of_items(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of every item, `[..., N]`."""
        if scores.shape != target.shape:
            if target.shape[-1] < _PIXELS or scores.shape[-1] > _FEW:
                return -scores.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
            # A softmax of few classes is several times as fast if the items lie side by side.
            chances = scores.mT.contiguous().log_softmax(-2)
            return -chances.gather(-2, target.unsqueeze(-2)).squeeze(-2)
        weight = scores.new_tensor(self.options.get("positive_weight", 1.0))
        entropy = F.binary_cross_entropy_with_logits
        return entropy(scores, target.to(scores.dtype), pos_weight=weight, reduction="none")


class Focal(CrossEntropy):
    r"""Focal loss: cross-entropy that ignores items which are nearly correct.

    .. math:: -\alpha_i (1 - p(y_i))^\gamma \log p(y_i)

    Args:
        gamma: How strongly items that are already correct are ignored; 0 is cross-entropy.
        alpha: Weight of a positive; a negative has 1 - alpha. None gives both the same weight.

    Example:
        >>> import metricgrad as mg
        >>> mg.baselines.Focal(gamma=2.0)(torch.zeros(4), torch.tensor([0, 1, 0, 1]))
        tensor(0.1733)

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, 2017, Eqn. 5.
    """

    def __init__(self, *, gamma: float = 2.0, alpha: float | None = None) -> None:
        super().__init__()
        if not gamma >= 0:
            raise ValueError(f"gamma must be 0 or more; got {gamma}")
        self.options = {"gamma": gamma, "alpha": alpha}

    def of_items(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of every item, `[..., N]`."""
        entropy = super().of_items(scores, target)
        # Powers below 1 have an infinite slope at 0, where an item is right beyond doubt.
        missing = -torch.expm1(-entropy).clamp(max=-torch.finfo(entropy.dtype).tiny)
        loss = missing ** self.options["gamma"] * entropy
        alpha = self.options["alpha"]
        if alpha is None or scores.shape != target.shape:
            return loss
        return torch.where(target, alpha, 1 - alpha) * loss


class HeatmapMSE(Baseline):
    r"""The squared distance of each map from a Gaussian around its joint.

    .. math:: \frac{1}{HW} \sum_p (s_p - e^{-\|p - j\|^2 / (2 \sigma^2)})^2

    Args:
        sigma: Width of the Gaussian, in pixels; papers take 1 to 3.
        bump: Side of the square around the joint's pixel outside which the target is 0, as in the
            Stacked Hourglass (7); the Gaussian then stands on that pixel. None does not cut it off.

    Example:
        >>> import metricgrad as mg
        >>> joints = torch.tensor([[[1.0, 2.0]]])
        >>> maps = mg.baselines.HeatmapMSE.target_maps(joints, (5, 4), sigma=1.0)
        >>> mg.baselines.HeatmapMSE(sigma=1.0)(maps, joints)
        tensor(0.)

    Reference:
        Tompson et al., Joint Training of a Convolutional Network and a Graphical Model, 2014.
    """

    like = "pck"
    kinds = ()

    def __init__(self, *, sigma: float = 1.0, bump: int | None = None) -> None:
        super().__init__(sigma=sigma, bump=bump)
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0; got {sigma}")
        if bump is not None and (bump < 1 or bump % 2 == 0):
            raise ValueError(f"bump must be an odd number of pixels, 1 or more; got {bump}")

    @staticmethod
    def target_maps(
        joints: Tensor, size: Sequence[int], sigma: float, bump: int | None = None
    ) -> Tensor:
        """Gaussians `[..., H, W]` around joints `[..., 2]`, x and y in pixels."""
        joints = joints if bump is None else joints.round()
        rows, columns = (torch.arange(length).to(joints) for length in size)
        across = (columns - joints[..., 0, None]).unsqueeze(-2)
        down = (rows - joints[..., 1, None]).unsqueeze(-1)
        maps = torch.exp(-(down**2 + across**2) / (2 * sigma**2))
        if bump is None:
            return maps
        return torch.where((across.abs() <= bump // 2) & (down.abs() <= bump // 2), maps, 0.0)

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Maps and joints; a size in the third column and all further ones are left alone."""
        places = target.detach()[..., :2]
        return to_metric(self.like, radius=1.0).check(scores, places, where)

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Sets with joints."""
        return counted(target[..., 0], where).flatten(-2).any(-1)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the joints that count."""
        joints = target[..., :2].to(scores.dtype)
        wanted = self.target_maps(joints, scores.shape[-2:], **self.options)
        errors = ((scores - wanted) ** 2).mean((-1, -2)).flatten(-2)
        return ops.masked_mean(errors, None if where is None else where.flatten(-2))
