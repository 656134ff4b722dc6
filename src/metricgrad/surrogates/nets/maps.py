"""The network of heatmaps: predicted and wanted maps, embedded."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import shape
from metricgrad.surrogates.baselines.heatmaps import HeatmapMSE
from metricgrad.surrogates.nets.base import LossNet, perceptron


class Heatmaps(LossNet):
    r"""The mean squared distance between embeddings of the predicted map and of the target's.

    .. math:: \ell = \frac{1}{NK} \sum_{ik}
        \| e(s_{ik}) - e(\exp(-\|p - j_{ik}\|^2 / 2\sigma^2)) \|_2^2 / E

    Args:
        size: Height and width of the maps.
        width: Width of the hidden layer.
        embedding: Width of an embedding, E.
        sigma: Width of the Gaussian around a joint, in pixels.
        generator: Source of randomness for the initial weights.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.ReLoss("pck", net=mg.nets.Heatmaps((64, 48)))

    Reference:
        ReLoss, Appendix A.1, human pose estimation.
    """

    def __init__(
        self,
        size: Sequence[int],
        width: int = 64,
        embedding: int = 32,
        sigma: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(size=tuple(size), width=width, embedding=embedding, sigma=sigma)
        if len(size) != 2:
            raise ValueError(f"size must be the height and width of the maps; got {size!r}")
        self.embed = perceptron((size[0] * size[1], width, embedding), generator)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The mean over the joints that count."""
        scores, target, where = inputs
        size = self.options["size"]
        if scores.shape[-2:] != tuple(size) or target.shape[:-1] != scores.shape[:-2]:
            raise ValueError(
                f"nets.Heatmaps(size={size}) takes maps [..., N, K, {size[0]}, {size[1]}] and "
                f"joints [..., N, K, 2]; got scores {shape(scores)} and target {shape(target)} for "
                f"{metric.name}"
            )
        joints = target[..., :2].to(scores.dtype)
        wanted = HeatmapMSE.target_maps(joints, size, self.options["sigma"])
        gap = self.embed(scores.flatten(-2)) - self.embed(wanted.flatten(-2))
        counted = None if where is None else where.flatten(-2)
        return ops.masked_mean(gap.square().mean(-1).flatten(-2), counted)
