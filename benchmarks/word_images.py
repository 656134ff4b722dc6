"""Words in images: IIIT5K's, and more that are rendered; and a network that reads them.

2,000 photographed training words are few. More words of the same size are rendered in the fonts
that come with matplotlib (DejaVu and STIX, both free), in other greys, turned, sheared, stretched,
blurred and noisy.

A target has the letters and digits without case, the sign that ends the word, and -1 after it.
"""

import io
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor, nn

SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
END = len(SIGNS)
PLACES = 24  # the longest word of IIIT5K has 22 letters
HEIGHT, WIDTH = 32, 100
_COLUMNS = 20  # of images in a sheet
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
)


def iiit5k(place: Path, part: str) -> tuple[Tensor, list[str]]:
    """Images `[N, 1, 32, 100]` as bytes, and words of the part "train" or "test"."""
    with np.load(place / "labels.npz") as file:
        texts = [str(each) for each in file[f"text_{part}"]]
    sheets = sorted(place.glob(f"{part}_*.webp"))
    found = np.concatenate([_cut(sheet) for sheet in sheets])
    if len(found) < len(texts):
        raise ValueError(
            f"{place} has {len(texts)} words of the part {part}, but {len(found)} images"
        )
    return torch.from_numpy(found[: len(texts)]).unsqueeze(1), texts


def _cut(path: Path) -> np.ndarray:
    """The images of a sheet, row by row."""
    sheet = np.asarray(Image.open(path).convert("L"))
    rows = sheet.reshape(-1, HEIGHT, _COLUMNS, WIDTH)
    return rows.swapaxes(1, 2).reshape(-1, HEIGHT, WIDTH)


def targets(texts: Sequence[str]) -> Tensor:
    """The signs of words, `[N, 24]`; a sign that is no letter and no digit is left out."""
    found = torch.full((len(texts), PLACES), -1)
    for row, text in enumerate(texts):
        signs = [SIGNS.index(each) for each in text.lower() if each in SIGNS][: PLACES - 1]
        found[row, : len(signs) + 1] = torch.tensor([*signs, END])
    return found


def word(ids: Tensor) -> str:
    """The word that ids `[24]` stand for: the signs before the first end."""
    signs = []
    for each in ids.tolist():
        if each in (END, -1):
            break
        signs.append(SIGNS[each])
    return "".join(signs)


def rendered(vocabulary: Sequence[str], number: int, seed: int) -> tuple[Tensor, list[str]]:
    """So many images of words as `iiit5k` gives them; a tenth are numbers."""
    source = random.Random(seed)
    images = []
    texts = []
    for _ in range(number):
        if source.random() < 0.1:
            text = str(source.randrange(10 ** source.randint(1, 6)))
        else:
            text = source.choice([str.lower, str.upper, str.title])(source.choice(vocabulary))
        images.append(_picture(text, source))
        texts.append(text)
    return torch.from_numpy(np.stack(images)).unsqueeze(1), texts


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(io.BytesIO((folder / f"{name}.ttf").read_bytes()), 48)


def _picture(text: str, source: random.Random) -> np.ndarray:
    """One word, turned by up to 6 degrees and sheared, in greys that differ by 60 or more."""
    font = _font(source.choice(FONTS))
    left, top, right, bottom = font.getbbox(text)
    margin = [source.randint(2, 10) for _ in range(4)]
    size = (int(right - left) + margin[0] + margin[1], int(bottom - top) + margin[2] + margin[3])
    ground = source.randint(0, 255)
    ink = source.choice([each for each in range(256) if abs(each - ground) >= 60])
    picture = Image.new("L", size, ground)
    ImageDraw.Draw(picture).text((margin[0] - left, margin[2] - top), text, ink, font)
    shear = source.uniform(-0.3, 0.3)
    centre = size[1] / 2
    moved = (1, shear, -shear * centre, 0, 1, 0)
    bilinear = Image.Resampling.BILINEAR
    picture = picture.transform(size, Image.Transform.AFFINE, moved, bilinear, fillcolor=ground)
    turned = picture.rotate(source.uniform(-6, 6), bilinear, fillcolor=ground)
    blurred = turned.filter(ImageFilter.GaussianBlur(source.choice([0, 0, 1, 2, 3])))
    small = blurred.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    noise = np.random.default_rng(source.getrandbits(32)).normal(
        0, source.uniform(0, 12), small.size
    )
    return (np.asarray(small) + noise.reshape(HEIGHT, WIDTH)).clip(0, 255).astype(np.uint8)


def varied(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images with another brightness and contrast each, moved by up to 4 and 1 pixels."""
    number = len(images)
    contrast = 0.7 + 0.6 * torch.rand(number, 1, 1, 1, generator=generator)
    light = 0.5 * torch.randn(number, 1, 1, 1, generator=generator)
    right, down = (
        torch.randint(-most, most + 1, (number,), generator=generator) for most in (4, 1)
    )
    padded = F.pad(images, (4, 4, 1, 1), mode="replicate")
    x = torch.arange(WIDTH) + 4 + right[:, None]
    y = torch.arange(HEIGHT) + 1 + down[:, None]
    items = torch.arange(number)[:, None, None]
    moved = padded[items, 0, y[:, :, None], x[:, None, :]].unsqueeze(1)
    return moved * contrast + light


class WordNet(nn.Module):
    """Convolutions down to a row of columns, and a decoder that reads all places at once.

    Each place of the word has a query of its own, which attends to the columns. The columns know
    their neighbours by a transformer's layer.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [1, width, 2 * width, 4 * width, 4 * width]
        pools: list[nn.Module] = [nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d((2, 1))]
        pools.append(nn.MaxPool2d((4, 1)))
        layers: list[nn.Module] = []
        for inputs, outputs, pool in zip(widths[:-1], widths[1:], pools, strict=True):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(), pool]
        self.columns = nn.Sequential(*layers)
        inner = widths[-1]
        self.places = nn.Parameter(0.02 * torch.randn(WIDTH // 4, inner))
        self.queries = nn.Parameter(0.02 * torch.randn(PLACES, inner))
        options = {"dim_feedforward": 2 * inner, "dropout": 0.1, "batch_first": True}
        self.neighbours = nn.TransformerEncoderLayer(inner, 4, norm_first=True, **options)
        self.reader = nn.TransformerDecoderLayer(inner, 4, norm_first=True, **options)
        self.head = nn.Linear(inner, END + 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores `[N, 24, 37]` of images `[N, 1, 32, 100]`."""
        columns = self.columns(images).squeeze(-2).transpose(-1, -2) + self.places
        queries = self.queries.expand(len(images), -1, -1)
        return self.head(self.reader(queries, self.neighbours(columns)))
