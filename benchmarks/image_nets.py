"""Networks for small images by name, other than ResNets: a plain convolutional one, and none."""

import itertools

from torch import Tensor, nn

from benchmarks.classification import Settings
from benchmarks.maps import channels_last
from benchmarks.resnet import ResNet

_WIDTH = 32
_HIDDEN = 512


class PlainCnn(nn.Module):
    """Three convolutions, each of which halves the image, and a linear layer.

    Example:
        >>> import torch
        >>> PlainCnn(classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (channels, _WIDTH, 2 * _WIDTH, 4 * _WIDTH)
        for inputs, outputs in itertools.pairwise(widths):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[N, classes]` of images `[N, channels, H, W]`."""
        return self.linear(self.layers(images).mean((-1, -2)))


def perceptron(classes: int, pixels: int) -> nn.Sequential:
    """Two hidden layers on all values of an image."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, _HIDDEN),
        nn.BatchNorm1d(_HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.BatchNorm1d(_HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, classes),
    )


def image_classifier(settings: Settings, images: Tensor, classes: int) -> nn.Module:
    """The network that the settings name, for images of this shape `[N, C, H, W]`."""
    channels = images.shape[1]
    match settings["network"]:
        case "resnet":
            return channels_last(ResNet(classes, settings["blocks"], channels))
        case "cnn":
            return channels_last(PlainCnn(classes, channels))
        case "mlp":
            return perceptron(classes, images[0].numel())
        case name:
            raise ValueError(f"there is no network {name!r}; pass resnet, cnn or mlp")
