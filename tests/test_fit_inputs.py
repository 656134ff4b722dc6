"""mg.fit: models of every dtype and output, and streams without a length."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import metricgrad as mg
from metricgrad.training import streams
from tests.fitting import Data, linear, made, quick, same


@pytest.mark.parametrize("method", ["cross_entropy", "metric_loss"])
def test_a_model_of_float64_is_trained_in_float64(method: str) -> None:
    x, y = made()
    double = quick(linear().double(), (x.double(), y), method=method, folds=1)
    single = quick(linear(), (x, y), method=method, folds=1)
    assert double.scores(x).dtype == torch.float64
    assert double.measure(x.numpy(), y) == pytest.approx(single.measure(x, y), abs=0.02)
    # Features keep the digits that a float32 does not have.
    fine = x.double() + 1e-9
    assert not torch.equal(double.scores(fine), double.scores(x))
    loader = DataLoader(torch.utils.data.TensorDataset(x, y), 100)
    assert quick(linear().double(), loader, loader, method=method).value > 0.6


def test_a_model_of_float64_is_trained_along_with_its_loss() -> None:
    loss = mg.BilevelLoss("f1", generator=torch.Generator().manual_seed(0))
    loss.learn_universal(steps=50, pool=512)
    found = quick(linear().double(), made(), method=loss, folds=1, epochs=1)
    assert found.model.weight.dtype == torch.float64
    assert found.value > 0.2


class Mixed(nn.Module):
    """Two layers of different dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).double())


class Other(nn.Module):
    """A model that returns something else than scores."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = linear()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        scores = self.layer(x)
        found = {
            "tuple": (scores, x),
            "logits": {"loss": None, "logits": scores},
            "named": {"scores": scores},
            "list": [],
        }
        return found[self.kind]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (linear().half(), r"all torch\.float32 or all torch\.float64; got torch\.float16"),
        (linear().bfloat16(), r"got torch\.bfloat16. Pass model\.float\(\)"),
        (Mixed(), r"got torch\.float32 and torch\.float64. Pass model\.float\(\)"),
        (linear().requires_grad_(False), r"requires a gradient.*layer\.requires_grad_\(\)"),
        (Other("tuple"), r"one tensor of scores; the model returned a tuple.*as model\(x\)\[0\]"),
        (Other("logits"), r"returned a dict with 'loss', 'logits'.*as model\(x\)\['logits'\]"),
        (Other("named"), r"returned a dict with 'scores'.*as model\(x\)\['scores'\]"),
        (Other("list"), r"returned a list; wrap it in a module"),
    ],
    ids=["half", "bfloat16", "mixed", "frozen", "tuple", "logits", "dict", "empty"],
)
def test_models_that_cannot_be_trained_are_refused_in_a_sentence(
    model: nn.Module, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        quick(model, made(), method="cross_entropy")


def test_frozen_layers_beside_others_are_left_as_they_are() -> None:
    first = linear(3).requires_grad_(False)
    before = first.weight.clone()
    quick(nn.Sequential(first, nn.ReLU(), linear(1, 3)), made(), method="cross_entropy", epochs=1)
    assert torch.equal(first.weight, before)


class Stream(IterableDataset[Data]):
    """Items one by one; nobody knows how many."""

    def __init__(self, data: Any, endless: bool = False) -> None:
        self.data = data
        self.endless = endless

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*self.data, strict=True)
        while self.endless:
            yield from zip(*self.data, strict=True)


class Sized(Stream):
    """The same with a length."""

    def __len__(self) -> int:
        return len(self.data[1])


def test_a_stream_is_read_once_and_trained_on_as_items_in_memory() -> None:
    options = {"method": "cross_entropy", "epochs": 2}
    plain = quick(linear(), made(), **options)
    for data in (Stream(made()), DataLoader(Stream(made()), 64)):
        found = quick(linear(), data, **options)
        assert found.folds == 5
        assert same(found, plain)
    beside = quick(linear(), made(), made(seed=3), **options)
    assert same(quick(linear(), Stream(made()), Stream(made(seed=3)), **options), beside)


def test_a_stream_may_hold_what_the_metric_takes_of_every_item() -> None:
    x, y = made()

    def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
        return ((scores > 0) * (2 * target - 1) * amount).sum()

    amount = torch.rand(len(y), generator=torch.Generator().manual_seed(1))
    options = {"method": "cross_entropy", "epochs": 1, "metric": profit}
    found = quick(linear(), Stream((x, y, amount)), **options)
    assert same(found, quick(linear(), (x, y, amount), **options))


def test_a_stream_with_a_length_is_trained_on_batch_by_batch() -> None:
    found = quick(linear(), Sized(made()), made(seed=3), method="cross_entropy", batch=64)
    loader = DataLoader(Sized(made()), 64)
    assert same(found, quick(linear(), loader, made(seed=3), method="cross_entropy"))
    with pytest.raises(ValueError, match="a loader cannot be split"):
        quick(linear(), Sized(made()))


@pytest.mark.parametrize(("limit", "value"), [("_MOST_ITEMS", 1000), ("_MOST_BYTES", 30_000)])
def test_a_stream_that_does_not_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(streams, limit, value)
    for train, valid, name in (
        (Stream(made(), endless=True), None, "train"),
        (made(), DataLoader(Stream(made(), endless=True), 64), "valid"),
    ):
        with pytest.raises(ValueError, match=rf"{name} is a stream without a length.*__len__"):
            quick(linear(), train, valid)


def test_streams_that_make_no_table_are_refused() -> None:
    with pytest.raises(ValueError, match="train is a stream without items"):
        quick(linear(), Stream(([], [])))
    x, y = made(100)
    uneven = [(x[:50], y[:50]), (x[50:, :3], y[50:])]
    with pytest.raises(ValueError, match=r"shapes, such as \[50, 5\] and \[50, 3\]; pad them"):
        quick(linear(), DataLoader(Stream(list(zip(*uneven, strict=True))), batch_size=None))
    with pytest.raises(TypeError, match=r"must give batches \(x, y\); got Tensor"):
        quick(linear(), DataLoader(_Features(), 8))


class _Features(IterableDataset[Tensor]):
    """Items without targets."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(made(20)[0])
