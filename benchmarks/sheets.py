"""Small grey images in a report: a sheet of tiles, as the text of a PNG file."""

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def as_sheet(tiles: Tensor) -> str:
    """Tiles `[rows, columns, H, W]` from their smallest value, black, to their largest, white.

    Example:
        >>> text = as_sheet(torch.eye(4).reshape(1, 2, 2, 4))
        >>> (tiles_of(text, 1, 2) / 255).reshape(4, 4)
        array([[1., 0., 0., 0.],
               [0., 1., 0., 0.],
               [0., 0., 1., 0.],
               [0., 0., 0., 1.]])
    """
    scaled = (tiles - tiles.min()) / (tiles.max() - tiles.min()).clamp(min=1e-8)
    joined = scaled.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    content = io.BytesIO()
    Image.fromarray((255 * joined).round().to(torch.uint8).numpy()).save(
        content, "png", optimize=True
    )
    return base64.b64encode(content.getvalue()).decode()


def tiles_of(sheet: str, rows: int, columns: int) -> np.ndarray:
    """The tiles of a sheet, `[rows, columns, H, W]`, from 0 to 255."""
    joined = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet))))
    tiles = joined.reshape(rows, joined.shape[0] // rows, columns, joined.shape[1] // columns)
    return tiles.swapaxes(1, 2)
