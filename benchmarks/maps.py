"""CamVid, whose images can be made small enough for two cores, and a small U-Net.

The data's own validation part is unlike its test part, so validation images are the last sixth of
every training sequence, and the own validation part is left out.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from benchmarks.data import Data, Part, data_folder

CLASSES = 11  # a pixel of class 11 is void
_SMALL = (120, 88)
_TRAIN, _TEST = 0, 2
_SHARE = 6


def camvid(folder: Path | None, size: tuple[int, int] = _SMALL) -> Data:
    """Images `[N, 3, H, W]`, standardised by channel, and label maps `[N, H, W]`, of (W, H)."""
    place = data_folder(folder) / "camvid"
    with np.load(place / "masks_240x180.npz") as file:
        names = [Path(str(name)).stem for name in file["image_name"]]
        split = file["split"].astype(int)
        masks = [np.asarray(Image.fromarray(each).resize(size, 0)) for each in file["mask"]]
    with zipfile.ZipFile(place / "images_240x180.zip") as file:
        stored = {Path(name).stem: name for name in file.namelist()}
        pictures = [_picture(file.read(stored[name]), size) for name in names]
    x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    y = torch.from_numpy(np.stack(masks)).long()
    valid = _last_of_sequences(names, split)
    train = torch.from_numpy(split == _TRAIN) & ~valid
    mean = x[train].mean((0, 2, 3), keepdim=True)
    spread = x[train].std((0, 2, 3), keepdim=True)
    x = (x - mean) / spread
    return Data(*(Part(x[of], y[of]) for of in (train, valid, torch.from_numpy(split == _TEST))))


def _picture(content: bytes, size: tuple[int, int]) -> np.ndarray:
    picture = Image.open(io.BytesIO(content)).convert("RGB").resize(size, Image.Resampling.BOX)
    return np.asarray(picture, dtype=np.float32) / 255


def _last_of_sequences(names: list[str], split: np.ndarray) -> Tensor:
    """Marks the last sixth of the training images of every sequence; a name begins with its own."""
    found = torch.zeros(len(names), dtype=torch.bool)
    sequences: dict[str, list[int]] = {}
    for index in np.argsort(names):
        if split[index] == _TRAIN:
            sequences.setdefault(names[index].split("_")[0], []).append(int(index))
    for members in sequences.values():
        found[members[-(len(members) // _SHARE) :]] = True
    return found


class UNet(nn.Module):
    """Three halvings and back, with skip connections (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        pairs = zip([3, *widths[:-1]], widths, strict=True)
        self.down = nn.ModuleList(_double(inputs, outputs) for inputs, outputs in pairs)
        self.up = nn.ModuleList(
            _double(below + beside, beside)
            for below, beside in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores `[N, 11, H, W]` of images `[N, 3, H, W]`; H and W are multiples of 8."""
        x = images.to(memory_format=torch.channels_last)
        beside = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if beside else x)
            beside.append(x)
        for block, skip in zip(self.up, beside[-2::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers.append(nn.Conv2d(width, outputs, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def channels_last(network: nn.Module) -> nn.Module:
    """The same network with its channels last in memory, which saves CPUs a quarter of the time."""
    for weight in network.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return network
