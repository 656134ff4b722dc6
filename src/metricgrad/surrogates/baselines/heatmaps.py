"""Mean squared error of heatmaps: the usual loss of pose estimation."""

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.base import Inputs
from metricgrad.surrogates.baselines.base import Baseline


class HeatmapMSE(Baseline):
    r"""The squared distance of each map from a Gaussian around its joint.

    .. math:: \frac{1}{HW} \sum_p (s_p - e^{-\|p - j\|^2 / (2 \sigma^2)})^2

    Args:
        sigma: Width of the Gaussian, in pixels; papers take 1 to 3.

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

    def __init__(self, *, sigma: float = 1.0) -> None:
        super().__init__(sigma=sigma)
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0; got {sigma}")

    @staticmethod
    def target_maps(joints: Tensor, size: tuple[int, int], sigma: float) -> Tensor:
        """Gaussians `[..., H, W]` around joints `[..., 2]`, x and y in pixels."""
        rows, columns = (
            torch.arange(length, device=joints.device, dtype=joints.dtype) for length in size
        )
        across = (columns - joints[..., 0, None]) ** 2
        down = (rows - joints[..., 1, None]) ** 2
        return torch.exp(-(down.unsqueeze(-1) + across.unsqueeze(-2)) / (2 * sigma**2))

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Maps and joints, with or without a size in the third column."""
        options = {"radius": 1.0} if target.shape[-1] == 2 else {}
        return to_metric(self.like, **options).check(scores, target.detach(), where)

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Sets with joints."""
        everything = torch.ones(target.shape[:-1], dtype=torch.bool, device=target.device)
        return (everything if where is None else where).flatten(-2).any(-1)

    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The mean over the joints that count."""
        size = (scores.shape[-2], scores.shape[-1])
        joints = target[..., :2].to(scores.dtype)
        wanted = self.target_maps(joints, size, self.options["sigma"])
        errors = ((scores - wanted) ** 2).mean((-1, -2)).flatten(-2)
        return ops.masked_mean(errors, None if where is None else where.flatten(-2))
