"""The same `mg.fit` in any number of processes, to be compared: what they have in common."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import metricgrad as mg
from metricgrad.processes import number_of_processes, own_rank
from metricgrad.training import data as data_module
from tests.fitting import Data, Squares, made


class Fitted(NamedTuple):
    """What must be alike: weights, threshold, decision, curves of loss and metric, scores."""

    weights: Tensor
    threshold: Tensor
    winner: str
    values: Tensor
    curves: Tensor
    scores: Tensor


def double(number: int = 120, seed: int = 0) -> Data:
    x, y = made(number, seed)
    return x.double(), y


def network(outputs: int = 1, *layers: nn.Module) -> nn.Sequential:
    """Weights that only the first process has; the others must take them over."""
    torch.manual_seed(own_rank())
    middle = layers or (nn.Tanh(),)
    return nn.Sequential(nn.Linear(5, 6), *middle, nn.Linear(6, outputs)).double()


def fitted(found: mg.Fit) -> Fitted:
    winner = found.decision.winner
    missing = torch.tensor(torch.nan)
    return Fitted(
        torch.cat([each.detach().flatten() for each in found.model.parameters()]).double(),
        missing if found.threshold is None else found.threshold.double(),
        f"{winner.candidate} {winner.rate} {winner.epoch} {found.folds}",
        torch.tensor([each.value or torch.nan for each in found.trials], dtype=torch.float64),
        torch.cat([each.curve.double() for each in found.trials]).nan_to_num(-1.0),
        winner.scores.double(),
    )


@contextmanager
def short_epochs() -> Iterator[None]:
    """Epochs of 8 batches, as processes on a busy machine wait long for each other."""
    usual = data_module._PASSES
    data_module._PASSES = (8, 8)
    try:
        yield
    finally:
        data_module._PASSES = usual


def fit(data: Any = None, valid: Any = None, model: nn.Module | None = None, **options: Any) -> Any:
    """A short fit of float64; 27 items are cut unevenly, and the first are all negative."""
    settings = {"epochs": 1, "rate": 0.05, "batch": 27, "progress": False, **options}
    used = model or network()
    given = double() if data is None else data
    with short_epochs():
        return fitted(mg.fit(used, given, valid, **{"metric": "f1", **settings}))


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return ((scores > 0) * (target * amount - 0.5)).mean()


def own_metric() -> Fitted:
    x, y = double()
    return fit((x, y, {"amount": x[:, 1].abs()}), metric=profit, method="cross_entropy", folds=2)


def taught() -> mg.BilevelLoss:
    loss = mg.BilevelLoss("f1", generator=torch.Generator().manual_seed(0))
    loss.learn_universal(
        steps=20, pool=200, progress=False, generator=torch.Generator().manual_seed(0)
    )
    return loss.double()


def sgd() -> Fitted:
    def factory(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, rate, momentum=0.9)

    return fit(method="soft_f_beta", folds=2, optimizer=factory)


def ranked() -> Fitted:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(160, 4))
    grades = (x[:, 0] + generator.normal(size=160) > 0.8) * 2
    queries = np.sort(generator.integers(0, 24, 160))
    ranker = mg.MetricRanker(
        "ndcg", method="list_net", hidden=(), epochs=1, folds=2, rate=0.05, batch=5, random_state=0
    )
    with short_epochs():
        found = fitted(ranker.fit(x, grades, groups=queries).fit_)
    # A constant in all scores changes no ranking, so rounding alone moves the bias.
    return found._replace(weights=found.weights[:-1], scores=found.values)


def classified() -> Fitted:
    x, y = made(120)
    model = mg.MetricClassifier(
        "f1", method="cross_entropy", hidden=(), epochs=1, folds=2, rate=0.05, random_state=0
    )
    with short_epochs():
        return fitted(model.fit(x.numpy(), y.numpy()).fit_)


def one_by_one() -> Fitted:
    """Models that cannot run side by side (`nn.LSTM`), and batches smaller than the group."""
    torch.manual_seed(own_rank())
    model = Recurrent().double()
    return fit(model=model, method="soft_f_beta", batch=3, folds=2)


class Recurrent(nn.Module):
    """Which `torch.vmap` cannot run, and which does not take an empty batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 3, batch_first=True)
        self.last = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x.unsqueeze(-1))[0].view(len(x), -1, 3)[:, -1])


class Shard(IterableDataset[Data]):
    """The part of each process, one after another, as the joined data has them."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        x, y = self.data
        cuts = [0, 20, len(y)]
        part = slice(cuts[own_rank()], cuts[own_rank() + 1]) if dist.is_initialized() else slice(0)
        return iter(list(zip(x[part], y[part], strict=True)))


def stream() -> Fitted:
    data = double() if not dist.is_initialized() else Shard(double())
    return fit(data, folds=2, method="cross_entropy")


def sampled(processes: int) -> Fitted:
    """Each process loads batches of its own; one process loads their union, in their order."""
    train, valid = (_loader(processes, batch) for batch in (24, 40))
    return fit(train, valid, method="smooth_ap", metric="average_precision", epochs=3)


def _loader(processes: int, batch: int) -> DataLoader[Any]:
    data = TensorDataset(*double())
    own = batch // processes
    if dist.is_initialized():
        sampler: Any = DistributedSampler(data, shuffle=False)
        return DataLoader(data, own, sampler=sampler)
    places = torch.arange(len(data)).unflatten(0, (-1, own, processes)).mT.flatten(1)
    return DataLoader(data, batch_sampler=places.tolist())


def loaded() -> Fitted:
    """Batches that all processes load alike, and a Dataset that is split."""
    return fit(Squares(double()), double(60, 1), method="metric_loss", batch=50, epochs=3)


GENTLE = {"slope": 5.0}  # one candidate instead of several
FITS: dict[str, Callable[[], Fitted]] = {
    "cross_entropy": lambda: fit(method="cross_entropy", folds=1),
    "uniloss": lambda: fit(method="uniloss", options=GENTLE, folds=3, epochs=2, patience=1),
    "metric_loss": lambda: fit(method="metric_loss", metric="average_precision", folds=2),
    "reloss": lambda: fit(method="reloss", folds=2),
    "soft_f_beta": lambda: fit(method="soft_f_beta", decay=0.1, clip=None),
    "smooth_ap": lambda: fit(method="smooth_ap", metric="average_precision", memory=40, folds=1),
    "pairwise_ranking": lambda: fit(method="pairwise_ranking", metric="auc", balanced=True),
    "bilevel": lambda: fit(method=taught(), epochs=1, folds=1, batch=27),
    "auto": lambda: fit(folds=2, rate=0.05),
    "valid": lambda: fit(valid=double(41, 1), method="cross_entropy"),
    "classes": lambda: fit(
        (double()[0], double()[0].argmax(-1) % 3), model=network(3), method="metric_loss", folds=2
    ),
    "random anchors": lambda: fit(
        method="uniloss", options={"interpolation": "idw"}, metric="auc", folds=1
    ),
    "own metric": own_metric,
    "own optimizer": sgd,
    "one by one": one_by_one,
    "loaded": loaded,
    "stream": stream,
}
ESTIMATORS: dict[str, Callable[[], Fitted]] = {"ranker": ranked, "classifier": classified}


def alone(name: str, processes: int) -> Fitted:
    """What one process finds that has all the items of so many."""
    return sampled(processes) if name == "sampled" else _found(name)


@functools.cache  # which the tests compare with two processes, and with four
def _found(name: str) -> Fitted:
    return (FITS | ESTIMATORS)[name]()


def all_fits(names: tuple[str, ...]) -> dict[str, Fitted]:
    """All of these, one after another, along with the other processes."""
    return {name: alone(name, number_of_processes()) for name in names}


NAMES = {2: (*FITS, *ESTIMATORS, "sampled"), 4: (*list(FITS)[:8], "one by one", "sampled")}
