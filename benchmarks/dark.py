r"""Joints between the pixels of a map, as DARK decodes them (Zhang et al., 2020).

Near its joint m, the logarithm of a Gaussian map is a quadratic function, so one step of Newton's
method from the highest pixel finds the joint:

    p = m - H^-1 g        gradient g and Hessian H of the logarithm of the smoothed map, at m

This is a way to read maps that were trained on Gaussians. PCK itself has no such option: it is
decided by which pixel is the highest, by comparisons, and after the step it would not be. Maps that
are no Gaussians have no such maximum; a step is left out if H is not negative definite, or if it is
longer than a pixel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST = 1e-10  # of a map whose logarithm is taken
_FAR = 2  # pixels that differences reach


def refined(maps: Tensor, sigma: float = 1.0) -> Tensor:
    """Joints `[..., 2]` as (x, y) in pixels of maps `[..., H, W]` whose Gaussians have this sigma.

    Example:
        >>> import metricgrad as mg
        >>> joints = torch.tensor([[4.3, 5.6]])
        >>> refined(mg.baselines.HeatmapMSE.target_maps(joints, (12, 12), sigma=1.0))
        tensor([[4.3000, 5.6000]])
    """
    height, width = maps.shape[-2:]
    flat = maps.reshape(-1, height, width).double()
    highest = flat.flatten(1).argmax(-1)
    x = highest % width
    y = highest // width
    peaks = F.pad(_smoothed(flat, sigma).clamp(min=_LEAST).log(), [_FAR] * 4)
    each = torch.arange(len(flat), device=maps.device)

    def at(right: int, down: int) -> Tensor:
        return peaks[each, y + _FAR + down, x + _FAR + right]

    slope_x = (at(1, 0) - at(-1, 0)) / 2
    slope_y = (at(0, 1) - at(0, -1)) / 2
    bend_x = (at(2, 0) - 2 * at(0, 0) + at(-2, 0)) / 4
    bend_y = (at(0, 2) - 2 * at(0, 0) + at(0, -2)) / 4
    both = (at(1, 1) - at(-1, 1) - at(1, -1) + at(-1, -1)) / 4
    determinant = bend_x * bend_y - both**2
    step_x = (both * slope_y - bend_y * slope_x) / determinant
    step_y = (both * slope_x - bend_x * slope_y) / determinant
    inside = (x >= _FAR) & (x < width - _FAR) & (y >= _FAR) & (y < height - _FAR)
    peak = inside & (bend_x < 0) & (determinant > 0) & (step_x.abs() <= 1) & (step_y.abs() <= 1)
    step = torch.stack([step_x, step_y], -1)
    found = torch.stack([x, y], -1) + torch.where(peak.unsqueeze(-1), step, 0.0)
    return found.to(maps.dtype).reshape(*maps.shape[:-2], 2)


def _smoothed(maps: Tensor, sigma: float) -> Tensor:
    """Maps `[M, H, W]` under a Gaussian, which takes away the noise of a network."""
    reach = round(3 * sigma)
    weights = torch.exp(-(torch.arange(-reach, reach + 1).to(maps) ** 2) / (2 * sigma**2))
    weights = weights / weights.sum()
    rows = F.conv2d(maps.unsqueeze(1), weights.reshape(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(rows, weights.reshape(1, 1, 1, -1), padding=(0, reach)).squeeze(1)


def share_within(
    places: Tensor, joints: Tensor, radius: float, where: Tensor | None = None
) -> float:
    """The share of the joints `[..., K, 2]` that count whose place is within a radius."""
    near = ((places - joints).norm(dim=-1) <= radius).double()
    return float(near.mean() if where is None else near[where].mean())
