"""A few predictions of a run, small enough to be kept in its report, from which pictures are drawn.

Photographs are kept as JPEG and label maps as PNG, both as text (base64), and joints as numbers. A
report has the photographs only if its loss is the ordinary one: the others show the same images.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.classification import Settings
from benchmarks.task import Examples

NUMBER = 4  # test images, evenly spaced
VOID = 255  # pixels of label maps that do not count
ORDINARY = ("mse", "cross_entropy")
Shown = Callable[[Tensor, Examples], dict[str, Any]]
_QUALITY = 80


def few(part: Examples) -> Tensor:
    """Indices of the examples to show."""
    return torch.linspace(0, len(part) - 1, NUMBER).round().long()


def label_maps(settings: Settings) -> Shown:
    """The true and the predicted label maps, and the photographs."""

    def shown(scores: Tensor, part: Examples) -> dict[str, Any]:
        index = few(part)
        chosen = part.at(index)
        truth = chosen.target
        if chosen.where is not None:
            truth = truth.masked_fill(~chosen.where, VOID)
        return {
            **_photographs(settings, chosen),
            "target": [png(each) for each in truth],
            "predicted": [png(each) for each in scores[index].argmax(1)],
        }

    return shown


def joints(settings: Settings, chosen: Callable[[Examples], Examples]) -> Shown:
    """The true joints and the highest pixels of the maps, as (x, y) in map pixels; None: unmarked.

    `chosen` leaves the joints that are trained.
    """

    def shown(scores: Tensor, part: Examples) -> dict[str, Any]:
        index = few(part)
        few_ones = chosen(part).at(index)
        highest = scores[index].flatten(-2).argmax(-1)
        width = scores.shape[-1]
        found = torch.stack([highest % width, highest // width], -1)
        where = torch.ones_like(highest) if few_ones.where is None else few_ones.where
        return {
            **_photographs(settings, few_ones),
            "side": width,
            "target": [_marked(*each) for each in zip(few_ones.target, where, strict=True)],
            "predicted": found.tolist(),
        }

    return shown


def _marked(places: Tensor, where: Tensor) -> list[list[float] | None]:
    """Joints of one person with a digit after the point, or None."""
    pairs = [[round(float(x), 1), round(float(y), 1)] for x, y in places[:, :2]]
    return [pair if there else None for pair, there in zip(pairs, where.tolist(), strict=True)]


def _photographs(settings: Settings, part: Examples) -> dict[str, Any]:
    if settings["method"] not in ORDINARY:
        return {}
    return {"images": [jpeg(image) for image in part.x]}


def jpeg(image: Tensor) -> str:
    """A standardised image `[3, H, W]`, from its darkest value to its brightest."""
    low, high = image.aminmax()
    pixels = 255 * (image - low) / (high - low).clamp(min=1e-6)
    content = pixels.round().byte().permute(1, 2, 0).contiguous().numpy()
    return _text(Image.fromarray(content), "JPEG", quality=_QUALITY)


def png(classes: Tensor) -> str:
    """A label map `[H, W]`."""
    return _text(Image.fromarray(classes.byte().numpy()), "PNG", optimize=True)


def _text(picture: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def pixels(text: str) -> np.ndarray:
    """What `jpeg` or `png` made a text of: `[H, W, 3]` or `[H, W]`."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
