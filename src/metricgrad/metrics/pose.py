"""Metrics of poses: is the highest pixel of a joint's heatmap close enough to the joint?

PCK counts the joints whose predicted place, the highest pixel of the heatmap, lies within a radius of the true one. The
radius is the same for all joints (in map pixels), or a fraction of a size that each item brings along: half the head's
length gives PCKh@0.5 (UniLoss, Sec. 4.1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape


@dataclass(frozen=True, kw_only=True)
class Pck(Metric):
    """Percentage of correct keypoints, 0 to 1: the share of joints with ||highest pixel - joint|| <= radius.

    Scores are heatmaps `[..., N, K, H, W]`, target the joints `[..., N, K, 3]` as (x, y, size) in map pixels, or
    `[..., N, K, 2]` without the sizes if a radius is given.

    Args:
        fraction: the largest distance that counts as correct, as a fraction of a joint's size (0.5 of the head: PCKh).
        radius: the same in map pixels, for all joints; replaces `fraction`.

    Example:
        >>> heatmap = torch.zeros(1, 1, 4, 4)
        >>> heatmap[..., 2, 3] = 1.0  # the highest pixel is at x = 3, y = 2
        >>> Pck(radius=1.0)(heatmap, torch.tensor([[[2.0, 2.0]]]))
        tensor(1.)
        >>> Pck()(heatmap, torch.tensor([[[2.0, 2.0, 1.6]]]))
        tensor(0.)

    Reference:
        UniLoss, Sec. 4.1 and 4.3; a loop over joints.
    """

    name = "pck"
    families = ("pose",)
    ties = "first"
    undefined = "0 where no joint counts"
    reference = "a loop over joints"

    fraction: float = 0.5
    radius: float | None = None

    def __post_init__(self) -> None:
        for option, value in (("fraction", self.fraction), ("radius", self.radius)):
            if value is not None and not value >= 0:
                raise ValueError(f"{option} must be 0 or more; got {value}")

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Heatmaps `[..., N, K, H, W]`, finite, and joints with as many columns as the radius asks for."""
        columns = 3 if self.radius is None else 2
        if scores.dim() < 4 or target.shape != (*scores.shape[:-2], columns) or not scores.shape[-2:].numel():
            raise ValueError(
                f"pck takes heatmaps [..., N, K, H, W] and joints [..., N, K, {columns}], "
                f"(x, y{', size' * (columns == 3)}) in map pixels, "
                f"with radius={self.radius}; got scores {shape(scores)} and target {shape(target)}"
            )
        where = expand_where(where, target.shape[:-1], target.dim() - 2)
        scores = real_scores(scores, None if where is None else where[..., None, None])
        joints = target.to(scores.dtype)
        if where is not None:
            joints = joints.masked_fill(~where.unsqueeze(-1), 0.0)
        if not joints.isfinite().all() or (joints[..., 2:] < 0).any():
            raise ValueError(
                f"target must hold finite joints{' and sizes of 0 or more' * (columns == 3)} (shape {shape(target)}); "
                "mask the joints that are not visible with where"
            )
        return Inputs(scores, joints, where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Share of the joints that count whose highest pixel is near enough."""
        highest = scores.flatten(-2).argmax(-1)
        width = scores.shape[-1]
        place = torch.stack([highest % width, highest // width], -1).to(scores.dtype)
        distance = torch.linalg.vector_norm(place - target[..., :2], dim=-1)
        radius = self.fraction * target[..., 2] if self.radius is None else self.radius
        correct = (distance <= radius).to(scores.dtype)
        return ops.masked_mean(correct.flatten(-2), None if where is None else where.flatten(-2))
