"""The data that models are trained on: batches, seeds, columns, and fingerprints."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import metricgrad as mg
from metricgrad.metrics.one_score import item_target
from metricgrad.training import data as data_module
from metricgrad.training.data import (
    FoldBatches,
    Items,
    Loader,
    features,
    fingerprint,
    numbers,
    stream_seed,
    to_data,
)
from metricgrad.training.split import (
    everything,
    split_items,
)
from metricgrad.training.streams import one_class_each
from tests.fitting import Squares, made

PINNED_FINGERPRINT = "1496b8f246477961"

# ---------------------------------------------------------------------------
# batches


@pytest.mark.parametrize(
    ("number", "steps"), [(60, 25), (25 * 64, 25), (26 * 64, 26), (150 * 64, 150), (200 * 64, 150)]
)
def test_an_epoch_has_25_to_150_batches(number: int, steps: int) -> None:
    items = Items(torch.zeros(number, 1), torch.arange(number) % 2)
    batches = FoldBatches(items, everything(items), 64, False, 0)
    assert batches.steps == steps
    assert batches.size == min(64, number)
    assert len(list(batches.epoch(0, 1))) == steps


def drawn(batches: FoldBatches, epoch: int, copies: int = 1) -> Tensor:
    return next(batches.epoch(epoch, copies)).x.squeeze(-1)


def test_folds_epochs_and_seeds_have_batches_of_their_own() -> None:
    x = torch.arange(400).float().unsqueeze(-1)
    items = Items(x, (torch.arange(400) % 4 == 0).long())
    same = everything(items) * 2  # two folds of the same items
    batches = FoldBatches(items, same, 50, False, 0)
    other = FoldBatches(items, same, 50, False, 1)
    first = drawn(batches, 0)
    assert first.shape == (2, 50)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(drawn(batches, 0), first)
    assert not torch.equal(drawn(batches, 1), first)
    assert not torch.equal(drawn(other, 0), first)
    assert torch.equal(drawn(batches, 0, copies=3), first.repeat(3, 1))


def test_batches_are_of_what_a_fold_trains_on() -> None:
    x = torch.arange(400).float().unsqueeze(-1)
    items = Items(x, (torch.arange(400) % 4 == 0).long())
    folds = split_items(items, 4, 0.2, 0)
    for batch in FoldBatches(items, folds, 50, False, 0).epoch(0, 1):
        for row, fold in zip(batch.x.squeeze(-1).long(), folds, strict=True):
            assert not set(row.tolist()) & set(fold.valid.tolist())
        assert ((batch.y.sum(-1) - 12.5).abs() < 1).all()  # a quarter of the items is positive


def test_items_that_are_sets_are_drawn_with_what_counts_in_them() -> None:
    items = Items(torch.rand(30, 4, 2), torch.ones(30, 4), torch.rand(30, 4) < 0.5)
    batch = next(FoldBatches(items, everything(items), 8, False, 0).epoch(0, 2))
    assert batch.where is not None
    assert batch.where.shape == (2, 8, 4)
    assert items.classes() is None
    with pytest.raises(ValueError, match="among 8 items; pass balanced=False, or a larger batch"):
        FoldBatches(items, everything(items), 8, True, 0)


def test_seeds_of_all_uses_differ() -> None:
    seeds = {
        stream_seed(seed, stream, epoch)
        for seed in range(4)
        for stream in range(8)
        for epoch in range(50)
    }
    assert len(seeds) == 4 * 8 * 50
    assert stream_seed(2, 3, 4) == 2 * 1_000_003 + 3 * 10_007 + 4
    assert 0 <= stream_seed(2**60, 1, 1) < 2**62


def test_a_loader_is_shuffled_by_seed_and_epoch() -> None:
    loader = Loader(DataLoader(Squares(made()), 40, shuffle=True))

    def first(epoch: int, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return next(replace(loader, seed=seed).epoch(epoch, 2)).x

    assert first(0, 0).shape == (2, 40, 5)
    assert torch.equal(first(0, 0)[0], first(0, 0)[1])
    assert torch.equal(first(3, 1), first(3, 1))
    assert not torch.equal(first(0, 0), first(1, 0))
    assert not torch.equal(first(0, 0), first(0, 1))
    before = torch.random.get_rng_state()
    batch = loader.first()
    assert batch.x.shape == (40, 5)
    assert torch.equal(batch.x, first(0, 0)[0])
    assert torch.equal(torch.random.get_rng_state(), before)


# ---------------------------------------------------------------------------
# what data may be


def test_columns_of_targets() -> None:
    column = torch.zeros(4, 1)
    assert item_target(column).shape == (4,)
    assert item_target(torch.zeros(4, 2)).shape == (4, 2)
    assert item_target(torch.zeros(4)).shape == (4,)
    assert item_target(torch.zeros(4, 1, 1)).shape == (4, 1, 1)
    x = torch.zeros(4, 3)
    labels = mg.metric("f1", multilabel=True)
    function = mg.from_function(lambda scores, target: scores.sum())

    def target(metric: Any, y: Tensor, where: Tensor | None = None) -> torch.Size:
        found = one_class_each(Items(x, y, where), mg.metric(metric))
        assert isinstance(found, Items)
        return found.y.shape

    assert target("f1", column) == (4,)
    assert target("auc", torch.zeros(4)) == (4,)
    assert target("ndcg", torch.zeros(4, 2)) == (4, 2)
    assert target("ndcg", column, column > 0) == (4, 1)  # queries of one document
    assert target(labels, column) == (4, 1)
    assert target(function, column) == (4,)
    own_sets = mg.from_function(lambda scores, target: scores.sum(), set_dims=(2, 2))
    assert target(own_sets, column) == (4, 1)
    with pytest.raises(ValueError, match=r"targets \[4, 2\] are labels.*'f1', multilabel=True"):
        target("f1", torch.zeros(4, 2))
    loader = Loader(DataLoader(Squares((x, column)), 2))
    assert one_class_each(loader, labels) is loader
    squeezed = one_class_each(loader, mg.metric("f1"))
    assert isinstance(squeezed, Loader)
    assert next(squeezed.epoch(0, 3)).y.shape == (3, 2)
    assert next(loader.epoch(0, 3)).y.shape == (3, 2, 1)


def test_features_are_floats_unless_they_are_indices() -> None:
    for dtype in (torch.float64, torch.float16, torch.bool, torch.uint8):
        assert features(torch.ones(2, dtype=dtype)).dtype == torch.float32
    for dtype in (torch.int64, torch.int32):
        assert features(torch.ones(2, dtype=dtype)).dtype == dtype
    assert numbers([1, 2]).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"must be numbers; got .*, such as .*'a'.*Number the"):
        numbers(["a"])
    with pytest.raises(ValueError, match="such as nothing"):
        numbers(np.array([], dtype=object))


@pytest.mark.parametrize(
    ("number", "batch", "sizes"),
    [(300, 256, [150, 150]), (256, 256, [256]), (10, 256, [10]), (513, 256, [171] * 3)],
)
def test_batches_of_a_dataset_are_even(number: int, batch: int, sizes: list[int]) -> None:
    found = to_data("train", Squares(made(number)), batch)
    assert isinstance(found, Loader)
    assert [len(each.y[0]) for each in found.epoch(0, 1)] == sizes
    order = to_data("valid", Squares(made(number)), batch)
    assert isinstance(order, Loader)
    assert torch.equal(
        torch.cat([each.y[0] for each in replace(order, seed=5).epoch(5, 1)]), made(number)[1]
    )
    shuffled = torch.cat([each.x[0] for each in replace(found, seed=5).epoch(5, 1)])
    assert not torch.equal(shuffled, made(number)[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, r"train must be \(x, y\) of arrays or tensors, a Dataset or a DataLoader; got int"),
        ((1,), "got tuple"),
        ((1, 2, 3), "the metric takes x and y alone; got 3 parts"),
        ("ab", "got str"),
        ((torch.zeros(5, 2), torch.zeros(4)), r"got x \[5, 2\] and y \[4\]"),
        ((torch.zeros(0, 2), torch.zeros(0)), "and at least one"),
        ((torch.tensor([[1.0], [torch.nan]]), torch.zeros(2)), "has 1 values that are missing"),
        (Squares((torch.zeros(0, 2), torch.zeros(0))), "train is a Dataset without items"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(data: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        to_data("train", data, 8)


def test_data_of_every_kind_is_taken() -> None:
    x, y = made(20)
    items = Items(x, y)
    loader = Loader(DataLoader(Squares((x, y)), 4))
    assert to_data("train", items, 8) is items
    assert to_data("train", loader, 8) is loader
    assert to_data("train", loader.batches, 8) == loader
    for data in ((x, y), [x, y], (x.numpy(), y.numpy()), TensorDataset(x, y)):
        found = to_data("train", data, 8)
        assert isinstance(found, Items)
        assert torch.equal(found.x, x)
        assert torch.equal(found.y, y)
    with pytest.raises(TypeError, match="the metric takes x and y alone; got 3 parts"):
        to_data("train", TensorDataset(x, y, y), 8)
    whole = to_data("train", (torch.ones(3, 2, dtype=torch.int64), torch.zeros(3)), 8)
    assert isinstance(whole, Items)  # whole numbers cannot be missing

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(x[0], y[0])] * 20)

    stream = to_data("train", Stream(), 8)
    assert isinstance(stream, Loader)
    assert stream.batches.batch_size == 8


def test_fingerprints_tell_data_apart() -> None:
    x, y = made()
    where = torch.ones(400, 1, dtype=torch.bool)
    loaders = [Loader(DataLoader(Squares(made(n)), 10)) for n in (100, 200)]
    parts: list[Any] = [
        Items(x, y),
        Items(x, 1 - y),
        Items(x + 1, y),
        Items(x, y, where),
        Items(x, y, ~where),
        Items(x.reshape(-1, 1), y),
        {"w": x},
        *loaders,
        None,
    ]
    found = [fingerprint(each) for each in parts]
    assert len(set(found)) == len(parts)
    assert all(len(each) == 16 for each in found)
    assert fingerprint(Items(x.clone(), y)) == found[0]
    assert fingerprint(Items(x, y), Items(x, 1 - y)) not in found
    assert fingerprint({"w": torch.arange(3)}) == PINNED_FINGERPRINT


def test_constants_are_those_of_the_documentation() -> None:
    assert data_module._PASSES == (25, 150)
