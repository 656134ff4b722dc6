"""Networks that turn an image into one heatmap for each joint, small enough for two cores."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DEPTH = 4  # halvings of an hourglass


class Residual(nn.Module):
    """A bottleneck of three convolutions, whose output is added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as x, `[N, width, H, W]`."""
        return x + self.layers(x)


class Hourglass(nn.Module):
    """One stack of the Stacked Hourglass (Newell et al., 2016), with narrower layers.

    Example:
        >>> Hourglass(joints=1, width=16)(torch.zeros(2, 3, 128, 128)).shape
        torch.Size([2, 1, 64, 64])
    """

    def __init__(self, joints: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Residual(width),
        )
        self.down = nn.ModuleList(Residual(width) for _ in range(_DEPTH))
        self.beside = nn.ModuleList(Residual(width) for _ in range(_DEPTH))
        self.up = nn.ModuleList(Residual(width) for _ in range(_DEPTH))
        self.last = _block(nn.Conv2d(width, width, 1, bias=False))
        self.head = nn.Conv2d(width, joints, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Heatmaps `[N, K, H / 2, W / 2]` of images `[N, 3, H, W]`; H, W are multiples of 32."""
        x = self.stem(images.to(memory_format=torch.channels_last))
        skipped = []
        for block, beside in zip(self.down, self.beside, strict=True):
            skipped.append(beside(x))
            x = block(F.max_pool2d(x, 2))
        for block, skip in zip(self.up, reversed(skipped), strict=True):
            x = F.interpolate(block(x), scale_factor=2.0) + skip
        return _in_full_precision(self.head, self.last(x))


class SimpleBaseline(nn.Module):
    """Convolutions down to a 16th of the image, then transposed ones up to half of it.

    The network of Xiao et al. (2018) has a ResNet-50 below its three transposed convolutions; here
    four halvings take its place.

    Example:
        >>> SimpleBaseline(joints=14, width=16)(torch.zeros(2, 3, 128, 128)).shape
        torch.Size([2, 14, 64, 64])
    """

    def __init__(self, joints: int, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers.append(_block(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)))
            layers.append(Residual(outputs))
        for inputs, outputs in ((8, 4), (4, 2), (2, 2)):
            layers.append(
                _block(nn.ConvTranspose2d(inputs * width, outputs * width, 4, 2, 1, bias=False))
            )
        self.layers = nn.Sequential(*layers)
        self.head = nn.Conv2d(2 * width, joints, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Heatmaps `[N, K, H / 2, W / 2]` of images `[N, 3, H, W]`; H, W are multiples of 16."""
        features = self.layers(images.to(memory_format=torch.channels_last))
        return _in_full_precision(self.head, features)


def _block(layer: nn.Conv2d | nn.ConvTranspose2d) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU())


def _in_full_precision(head: nn.Conv2d, features: Tensor) -> Tensor:
    """The last layer in float32: in half precision many pixels would share the highest value."""
    with torch.autocast("cpu", enabled=False):
        return head(features.float())
