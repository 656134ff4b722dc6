"""Retrieval: embeddings of clothes, judged on kinds of clothes that no training has seen.

Of Fashion-MNIST's ten classes, four train a small network, three validate and three test; the seed
draws which. Every image is a query, and the others are ranked by the cosine of their embedding with
that of the query. Images of the same class are relevant. Average precision is that of each query,
and recall at 1 says how often the first image found is relevant.

A batch is as many sets as it has images: `scale` times the cosines `[B, B]`, without the query.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import checked, data_folder
from benchmarks.sheets import as_sheet
from benchmarks.task import Examples, Keep, Loss, ScoreSets, Task, Value, all_scores, run_task

_FILE = "fashion_mnist_15k.npz"
_SUM = "a30d9776eff49f728bbaf77c00ff328e0be7c8713ce8f712d0357b13d5044462"
_TRAIN, _VALID = 4, 3  # classes
_MARGIN = 0.5
_QUERIES = 500  # whose similarities are computed together
_SET = 128
_SHOWN, _FOUND = 2, 6  # queries of each class in a picture, and images found for each


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains embeddings on the loss of the row, and tests how they rank unseen classes."""
    return run_task(task(settings, seed, folder), settings, seed, known, keep)


def task(settings: Settings, seed: int, folder: Path | None) -> Task:
    """Fashion-MNIST cut by class, and the loss that the settings name."""
    train, valid, test = fashion(folder, seed)
    scale = settings["scale"]
    metric = mg.metric("map")
    first = mg.metric("precision_at_k", k=1)
    return Task(
        metric=metric,
        values={
            "map": over_queries(metric),
            "recall": over_queries(first),
        },
        train=train,
        valid=valid,
        test=test,
        network=lambda: Embedding(settings["width"], settings["embedding"]),
        ordinary=contrastive,
        loss=lambda steps: retrieval_loss(settings, train, steps),
        sets=lambda scores, part, generator: query_sets(scores, part, scale, generator),
        shown=lambda scores, part: found_images(scores, part, settings),
    )


def fashion(folder: Path | None, seed: int) -> tuple[Examples, Examples, Examples]:
    """Images `[N, 1, 28, 28]` and classes of three parts that share no class."""
    with np.load(checked(data_folder(folder) / "fashion_mnist" / _FILE, _SUM)) as file:
        images = np.concatenate([file["x_train"], file["x_test"]])
        target = np.concatenate([file["y_train"], file["y_test"]])
    x = torch.from_numpy(images).float().unsqueeze(1) / 255
    everything = Examples((x - x.mean()) / x.std(), torch.from_numpy(target).long())
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split([_TRAIN, _TRAIN + _VALID])
    first, second, third = (everything.at(torch.isin(everything.target, part)) for part in parts)
    return first, second, third


class Embedding(nn.Module):
    """Three convolutions and a linear layer.

    Example:
        >>> Embedding(width=8, size=16)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 16])
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(4 * width, size)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings `[N, size]` of images `[N, 1, H, W]`."""
        return self.last(self.layers(images))


def similarities(embeddings: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of all pairs, which of them are relevant, and which of them count, `[B, B]`."""
    unit = F.normalize(embeddings, dim=-1)
    itself = torch.eye(len(target), dtype=torch.bool)
    return unit @ unit.T, target[:, None] == target, ~itself


def over_queries(metric: mg.Metric) -> Value:
    """The mean of a metric over all queries of a part."""

    def value(scores: Tensor, part: Examples) -> float:
        unit = F.normalize(scores, dim=-1)
        total = 0.0
        for queries in torch.arange(len(unit)).split(_QUERIES):
            relevant = part.target[queries, None] == part.target
            where = queries[:, None] != torch.arange(len(unit))
            total += float(metric(unit[queries] @ unit.T, relevant, where=where).sum())
        return total / len(unit)

    return value


def contrastive(scores: Tensor, batch: Examples) -> Tensor:
    """Pulls relevant images together, pushes others apart (Hadsell et al., 2006, by cosines)."""
    cosines, relevant, where = similarities(scores, batch.target)
    together = (1 - cosines)[relevant & where].square()
    apart = (cosines - _MARGIN).relu()[~relevant].square()
    return together.mean() + apart.mean()


def retrieval_loss(settings: Settings, train: Examples, steps: int) -> Loss:
    """The loss of a row."""
    options = settings.get("loss_options", {})
    match settings["method"]:
        case "contrastive":
            return contrastive
        case "cross_entropy":
            return Proxies(train, settings["embedding"], settings["scale"])
        case "list_net":
            surrogate: mg.Surrogate = mg.baselines.ListNet()
        case "smooth_ap":
            surrogate = mg.baselines.SmoothAP(**options)
        case "uniloss":
            surrogate = mg.UniLoss("map", **options)
        case "metric_loss":
            surrogate = mg.MetricLoss("map", steps=steps, **options)
        case method:
            raise ValueError(f"there is no method {method!r} for retrieval")

    def loss(scores: Tensor, batch: Examples) -> Tensor:
        cosines, relevant, where = similarities(scores, batch.target)
        return surrogate(settings["scale"] * cosines, relevant, where)

    return loss


class Proxies(nn.Module):
    """Cross-entropy of scaled cosines with one learned vector per class (Zhai and Wu, 2019)."""

    def __init__(self, train: Examples, size: int, scale: float) -> None:
        super().__init__()
        self.classes = train.target.unique()
        self.scale = scale
        self.vectors = nn.Parameter(torch.randn(len(self.classes), size))

    def forward(self, scores: Tensor, batch: Examples) -> Tensor:
        """The mean over a batch of embeddings `[B, size]`."""
        cosines = F.normalize(scores, dim=-1) @ F.normalize(self.vectors, dim=-1).T
        return F.cross_entropy(self.scale * cosines, torch.searchsorted(self.classes, batch.target))


def query_sets(
    scores: Tensor, part: Examples, scale: float, generator: torch.Generator
) -> ScoreSets:
    """One set per query among 128 random images, as scaled cosines `[128, 127]`."""
    chosen = torch.randperm(len(scores), generator=generator)[:_SET]
    cosines, relevant, where = similarities(scores[chosen], part.target[chosen])
    others = where.nonzero()[:, 1].reshape(_SET, -1)
    return [(scale * cosines.gather(1, others), relevant.long().gather(1, others))]


def found_images(scores: Tensor, part: Examples, settings: Settings) -> dict[str, Any]:
    """The images that rank first for a few queries, before the training and after it.

    A row of the sheet has the query, what was found before, and what was found after.
    """
    classes = part.target.unique()
    queries = torch.cat([(part.target == each).nonzero()[:_SHOWN, 0] for each in classes])
    torch.manual_seed(0)  # as every training begins, so this is the network before it
    before = Embedding(settings["width"], settings["embedding"])
    embeddings = {"before": all_scores(before, part, settings), "after": scores}
    found = {name: _first(each, queries) for name, each in embeddings.items()}
    columns = torch.cat([queries[:, None], *found.values()], 1)
    relevant = {
        name: (part.target[each] == part.target[queries, None]).int().tolist()
        for name, each in found.items()
    }
    return {"sheet": as_sheet(part.x[columns].squeeze(2)), "relevant": relevant}


def _first(embeddings: Tensor, queries: Tensor) -> Tensor:
    """Indices of the images that are nearest to each query, without itself, `[Q, 6]`."""
    unit = F.normalize(embeddings, dim=-1)
    cosines = unit[queries] @ unit.T
    cosines.scatter_(1, queries[:, None], -torch.inf)
    return cosines.topk(_FOUND).indices
