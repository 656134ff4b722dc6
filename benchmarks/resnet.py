"""The ResNets of He et al. (2016, Sec. 4.2) for the small images of CIFAR-10, with 6 n + 2 layers.

They have a 3 x 3 convolution, three stages of n blocks with 16, 32 and 64 channels, global average
pooling and a linear layer. The first stride of the later stages halves the image. Shortcuts have no
parameters: where the channels double, the image is subsampled and the new channels are zero
("option A").
"""

import torch.nn.functional as F
from torch import Tensor, nn

_WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3 x 3 convolutions, whose output is added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = _convolution(outputs, outputs, 1)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, images: Tensor) -> Tensor:
        """`[N, outputs, H / stride, W / stride]` from `[N, inputs, H, W]`."""
        inner = F.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        if self.stride > 1 or self.added:
            images = images[:, :, :: self.stride, :: self.stride]
            images = F.pad(images, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return F.relu(inner + images)


class ResNet(nn.Module):
    """A ResNet with n blocks in each of the three stages; n = 3 is ResNet-20.

    Example:
        >>> import torch
        >>> model = ResNet(classes=10)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> sum(parameter.numel() for parameter in model.parameters())
        269722
    """

    def __init__(self, classes: int, blocks: int = 3, channels: int = 3) -> None:
        super().__init__()
        self.stem = _convolution(channels, _WIDTHS[0], 1)
        self.norm = nn.BatchNorm2d(_WIDTHS[0])
        inputs = _WIDTHS[0]
        stages = []
        for stage, outputs in enumerate(_WIDTHS):
            for block in range(blocks):
                stages.append(Block(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[N, C]` of images `[N, channels, H, W]`."""
        features = self.stages(F.relu(self.norm(self.stem(images))))
        return self.linear(features.mean((-1, -2)))


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
