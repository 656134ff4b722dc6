"""Peers on ranked documents (MQ2008) and on embeddings (Fashion-MNIST), beside our losses.

Both share the training of `benchmarks/task.py`: the learning rate and the epoch are chosen on
validation data. LibAUC's NDCG loss keeps a moving average for every document, so a batch says which
queries it has; its optimizer SONG is Adam with a moving average of its own, so Adam takes its
place. The smooth AP of pytorch-metric-learning refuses batches whose classes have different
counts. Its message says to sample as many of each class, so the loss gets as many images of each
class as the rarest class of the batch has.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks import retrieval
from benchmarks.classification import Settings
from benchmarks.peers import formulas
from benchmarks.rankings import Queries, mq2008
from benchmarks.task import Examples, Keep, Loss, Task, run_task

_POSITIVES = 8  # documents that LibAUC's loss draws from a query,
_OTHERS = 32
_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "list_mle": formulas.list_mle,
    "rank_net": formulas.rank_net,
    "squared_error": formulas.squared_error,
    "neural_ndcg": formulas.neural_ndcg,
}


@dataclass(frozen=True)
class NumberedQueries(Examples):
    """Queries that know their place in the training part."""

    place: Tensor | None = None

    def at(self, index: Tensor) -> "NumberedQueries":
        """Some of the queries."""
        assert self.place is not None
        part = super().at(index)
        return NumberedQueries(part.x, part.target, part.where, place=self.place[index])


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains on the loss of the row at every learning rate, and tests the best."""
    if settings["dataset"] == "mq2008":
        task = documents(settings, seed, folder)
    else:
        task = retrieval.task(settings, seed, folder)
        if settings["method"] == "pml_smooth_ap":
            task = replace(task, loss=lambda steps: _pml_smooth_ap())
    return run_task(task, settings, seed, known, keep)


def documents(settings: Settings, seed: int, folder: Path | None) -> Task:
    """MQ2008, whose fold is the seed, a network with one hidden layer, and the loss of the row."""
    data = mq2008(folder, seed % 5)
    hidden = settings["hidden"]
    metric = mg.metric("ndcg", k=10)
    ordinary = mg.baselines.ListNet()
    return Task(
        metric=metric,
        values={"ndcg": _mean_of(metric), "map": _mean_of(mg.metric("map"))},
        train=_numbered(data.train),
        valid=_numbered(data.valid),
        test=_numbered(data.test),
        network=lambda: nn.Sequential(
            nn.Linear(data.train.x.shape[-1], hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
            nn.Flatten(-2),
        ),
        ordinary=lambda scores, batch: ordinary(scores, batch.target, batch.where),
        loss=lambda steps: _loss(settings, data.train, steps),
    )


def _numbered(part: Queries) -> NumberedQueries:
    return NumberedQueries(part.x, part.grades, part.where, place=torch.arange(len(part.x)))


def _mean_of(metric: mg.Metric) -> Callable[[Tensor, Examples], float]:
    """The mean over queries; one without relevant documents counts as 0."""
    return lambda scores, part: float(metric(scores, part.target, where=part.where).mean())


def _loss(settings: Settings, train: Queries, steps: int) -> Loss:
    """The loss of a row of the table of rankings."""
    options = dict(settings.get("loss_options", {}))
    match settings["method"]:
        case "libauc_ndcg":
            return LibAucNdcg(train, **options)
        case "uniloss":
            made: Any = mg.UniLoss(mg.metric("ndcg", k=10), **options)
        case "metric_loss":
            made = mg.MetricLoss(mg.metric("ndcg", k=10), steps=steps, **options)
        case name if name in _FORMULAS:
            made = partial(_FORMULAS[name], **options)
        case name:
            made = getattr(mg.baselines, name)(**options)
    return lambda scores, batch: made(scores, batch.target, batch.where)


class LibAucNdcg:
    """LibAUC's NDCG loss on some relevant and some other documents of each query.

    The loss takes the same number of relevant documents from every query, so they are drawn with
    replacement, as its own data sets for this loss do. Queries without relevant ones are left out.
    """

    def __init__(self, train: Queries, **options: Any) -> None:
        queries, documents = train.grades.shape
        self.documents = documents
        self.number = ((train.grades > 0) & train.where).sum(-1)
        gains = (2.0**train.grades - 1).masked_fill(~train.where, 0).sort(-1, True).values
        discounts = 1 / torch.log2(torch.arange(documents) + 2.0)
        self.ideal = (gains * discounts).sum(-1)
        self.made = import_module("libauc.losses").NDCGLoss(
            N=queries * documents,
            num_user=queries,
            num_item=documents,
            num_pos=_POSITIVES,
            **options,
        )

    def __call__(self, scores: Tensor, batch: Examples) -> Tensor:
        """The loss of a batch of queries."""
        assert isinstance(batch, NumberedQueries)
        assert batch.place is not None
        assert batch.where is not None
        relevant = (batch.target > 0) & batch.where
        others = (batch.target == 0) & batch.where
        kept = relevant.any(-1) & others.any(-1)
        if not kept.any():
            return scores.sum() * 0
        drawn = torch.cat(
            [
                torch.multinomial(relevant[kept].float(), _POSITIVES, replacement=True),
                torch.multinomial(others[kept].float(), _OTHERS, replacement=True),
            ],
            dim=-1,
        )
        place = batch.place[kept]
        return self.made(
            scores[kept].gather(-1, drawn),
            {
                "rating": batch.target[kept].gather(-1, drawn),
                "user_id": place,
                "num_pos_items": self.number[place],
                "ideal_dcg": self.ideal[place],
                "user_item_id": place[:, None] * self.documents + drawn,
            },
        )


def _pml_smooth_ap() -> Loss:
    """The smooth AP of pytorch-metric-learning, on as many images of every class."""
    made = import_module("pytorch_metric_learning.losses").SmoothAPLoss()

    def loss(scores: Tensor, batch: Examples) -> Tensor:
        classes = [torch.where(batch.target == each)[0] for each in batch.target.unique()]
        fewest = min(map(len, classes))
        index = torch.cat([members[:fewest] for members in classes])
        return made(scores[index], batch.target[index])

    return loss
