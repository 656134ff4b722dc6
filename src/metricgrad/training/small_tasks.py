"""Small tasks of reading and pointing, made of scikit-learn's digits, and what models say to them.

A loss of text or poses that ships has to see models at every stage of their training, as those of
classes do (`recipes.py`). So small networks learn, in some seconds:

    lines    a line of up to nine digits with uneven gaps, read from its pixels into ten places
    answers  among 24 digits, the longest row of those that are 5 or more, by its start and end
    spots    the middle of a digit in a picture of 24 x 20 pixels, beside a fainter one; its size
             varies

Their scores are taken at several moments, on sets of 32 that they were not trained on.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.tokens import decode_spans
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.surrogates.wrappers import ordinary_for

_END = 10  # the token behind the digits 0 to 9
_SET = 32
_MOMENTS = (0, 3, 8, 20, 50, 120, 320)
_BATCH = 64
_DRAWN = 12  # sets at every moment
_PLACES = 10
_LONG = 24
_PICTURE = (24, 20)

Drawn = tuple[Tensor, Tensor]


class SmallTask(NamedTuple):
    """A task: what is judged, how batches are drawn, what learns it, and shapes of made-up sets."""

    metric: Metric  # as the models are judged
    plain: Metric  # as the loss is for: without ids that are the task's own
    draw: Callable[[int, torch.Generator], Drawn]
    network: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    about: str


class _Lines(nn.Module):
    """Scores of tokens for every place, from the pixels of the whole line."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8 * 12 * _PLACES, 192), nn.ReLU(), nn.Linear(192, _PLACES * (_END + 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1)).unflatten(-1, (_PLACES, _END + 1))


class _Answers(nn.Module):
    """Start and end scores of every place, from the digits around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(64, 48, 1), nn.ReLU(), nn.Conv1d(48, 48, 9, padding=4), nn.ReLU()
        )
        self.ends = nn.Conv1d(48, 2, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.ends(self.layers(x.mT)).mT


class _Spots(nn.Module):
    """A heatmap of one joint, from a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 7, padding=3), nn.ReLU()
        )
        self.last = nn.Conv2d(12, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x.unsqueeze(1)))


def small_task(name: str) -> SmallTask | None:
    """The task for the loss of a metric that ships; None if it needs none."""
    lines = ((16, 8, 12), (_SET, 20, 30))
    match name:
        case "bleu":
            plain = to_metric("bleu")
            metric = to_metric("bleu", end=_END)
            return SmallTask(metric, plain, _lines, _Lines, lines, "lines of digits")
        case "edit_distance":
            plain = to_metric("edit_distance", normalized=True)
            metric = to_metric("edit_distance", normalized=True, end=_END)
            return SmallTask(metric, plain, _lines, _Lines, lines, "lines of digits")
        case "span_f1":
            metric = to_metric("span_f1", decode=decode_spans)
            shapes = ((_SET, 16, 2), (_SET, 64, 2))
            return SmallTask(metric, metric, _answers, _Answers, shapes, "rows of large digits")
        case "pck":
            metric = to_metric("pck")
            shapes = ((16, 2, 20, 16), (8, 1, 32, 24))
            return SmallTask(metric, metric, _spots, _Spots, shapes, "digits in pictures")
        case _:
            return None


def task_scores(task: SmallTask, seeds: Iterable[int], *, progress: bool = True) -> list[ScoreSets]:
    """The scores of networks of some seeds, along their training on the ordinary loss."""
    seeds = list(seeds)
    found: list[ScoreSets] = []
    with to_progress("training networks to learn from", len(seeds), progress) as tell:
        for seed in seeds:
            found += _along_training(task, seed)
            tell(1)
    return found


def _along_training(task: SmallTask, seed: int) -> list[ScoreSets]:
    """The scores of one network at several moments, on new data."""
    generator = torch.Generator().manual_seed(seed)
    ordinary = ordinary_for(task.metric)
    assert ordinary is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    found = []
    for step in range(max(_MOMENTS) + 1):
        if step in _MOMENTS:
            x, target = task.draw(_DRAWN * _SET, generator)
            with torch.no_grad():
                scores = model(x)
            sets = (part.unflatten(0, (_DRAWN, _SET)) for part in (scores, target))
            found.append(ScoreSets(*sets))
        x, target = task.draw(_BATCH, generator)
        loss = ordinary(model(x), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return found


@cache
def _digits() -> Drawn:
    """Images `[1797, 8, 8]` from 0 to 1, and what they are."""
    from sklearn.datasets import load_digits  # here, as the library itself imports without it

    images, digits = (torch.as_tensor(np.asarray(part)) for part in load_digits(return_X_y=True))
    return (images / 16).float().unflatten(-1, (8, 8)), digits


def _some(number: tuple[int, ...], generator: torch.Generator) -> Drawn:
    """So many digits at random."""
    images, digits = _digits()
    index = torch.randint(len(digits), number, generator=generator)
    return images[index], digits[index]


def _lines(number: int, generator: torch.Generator) -> Drawn:
    """Lines `[N, 8, W]` of one to nine digits, and their tokens `[N, T]`, the end behind them."""
    images, digits = _some((number, _PLACES), generator)
    places = torch.arange(_PLACES)
    lengths = torch.randint(1, _PLACES, (number, 1), generator=generator)
    gaps = torch.randint(0, 5, (number, _PLACES), generator=generator)
    starts = 8 * places + gaps.cumsum(-1)
    columns = starts.unsqueeze(-1) + torch.arange(8)
    shown = images * (places < lengths)[..., None, None]
    index = columns.clamp(max=12 * _PLACES - 1).flatten(1).unsqueeze(1).expand(-1, 8, -1)
    pixels = shown.movedim(2, 1).flatten(2)
    line = torch.zeros(number, 8, 12 * _PLACES).scatter_add(-1, index, pixels)
    target = torch.where(places < lengths, digits, _END)
    return line, torch.where(places <= lengths, target, -1)


def _answers(number: int, generator: torch.Generator) -> Drawn:
    """Texts `[N, 24, 64]` of digits, and the positions of the longest row of 5 or more."""
    images, digits = _some((number, _LONG), generator)
    large = digits >= 5
    large[:, 0] |= ~large.any(-1)
    run = torch.zeros(number, dtype=torch.int64)
    runs = []
    for column in large.unbind(-1):
        run = torch.where(column, run + 1, 0)
        runs.append(run)
    longest, last = torch.stack(runs, -1).max(-1, keepdim=True)
    places = torch.arange(_LONG)
    inside = (places <= last) & (places > last - longest)
    return images.flatten(-2), torch.where(inside, places, -1)


def _spots(number: int, generator: torch.Generator) -> Drawn:
    """Pictures `[N, 24, 20]` with a digit and a fainter one, its middle and its size."""
    images, _ = _some((number, 2), generator)
    height, width = _PICTURE
    corner = torch.rand(number, 2, 2, generator=generator)
    x, y = (corner * torch.tensor([width - 8.0, height - 8.0])).round().long().unbind(-1)
    picture = 0.2 * torch.rand(number, height, width, generator=generator)
    items = torch.arange(number)[:, None, None]
    fainter = 0.5 + 0.4 * torch.rand(number, 1, 1, generator=generator)
    for which, strength in ((0, 1.0), (1, fainter)):
        rows = y[:, which, None, None] + torch.arange(8).unsqueeze(-1)
        columns = x[:, which, None, None] + torch.arange(8)
        picture[items, rows, columns] += strength * images[:, which]
    size = 2 + 4 * torch.rand(number, generator=generator)
    middle = torch.stack([x[:, 0] + 3.5, y[:, 0] + 3.5, size], -1)
    return picture, middle.unsqueeze(1)
