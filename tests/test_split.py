"""How data is split and drawn: folds, shares, batches, seeds, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import metricgrad as mg
from metricgrad.training import data as data_module
from metricgrad.training import split as split_module
from metricgrad.training.data import (
    FoldBatches,
    Items,
    Loader,
    features,
    fingerprint,
    numbers,
    one_class_each,
    stream_seed,
    to_data,
    without_column,
)
from metricgrad.training.split import (
    Split,
    SplitPlan,
    everything,
    split_data,
    split_dataset,
    split_items,
)
from tests.fitting import Squares, made

# As they were when the tables under benchmarks/ were made.
PINNED = [
    [1, 5, 6, 10, 17, 25, 28, 34, 36, 37, 44, 58],
    [0, 4, 7, 11, 13, 18, 22, 27, 35, 38, 41, 45, 46, 48, 49, 51, 55, 57],
    [0, 1, 4, 7, 14, 15, 21, 25, 27, 35, 37, 40, 41, 42, 45, 46, 49, 50, 53, 59],
]
PINNED_FINGERPRINT = "1496b8f246477961"


def plan(folds: int | None = None, metric: Any = "f1", **more: Any) -> SplitPlan:
    options = {"tune": True, "batch": 64, "balanced": False, "share": 0.2, **more}
    return SplitPlan(mg.metric(metric), folds=folds, **options)


def rare(positives: int, number: int) -> Items:
    return Items(torch.zeros(number, 2), (torch.arange(number) < positives).long())


# ---------------------------------------------------------------------------
# how many folds


@pytest.mark.parametrize(
    ("positives", "number", "folds"), [(999, 3000, 5), (1000, 3000, 1), (2900, 3000, 5)]
)
def test_a_thousand_items_of_the_rarest_class_are_enough_for_one_split(
    positives: int, number: int, folds: int
) -> None:
    assert len(split_data(rare(positives, number), None, plan(), 0).folds) == folds


@pytest.mark.parametrize(("number", "folds"), [(4999, 5), (5000, 1)])
def test_a_fifth_of_other_items_stands_for_a_class(number: int, folds: int) -> None:
    items = Items(torch.zeros(number, 2), torch.rand(number))
    assert items.classes() is None
    metric = mg.from_function(lambda scores, target: (scores - target).mean())
    assert len(split_data(items, None, plan(metric=metric), 0).folds) == folds


def test_folds_arrive() -> None:
    for folds in (1, 2, 3, 7):
        found = split_data(Items(*made()), None, plan(folds), 0)
        assert len(found.folds) == folds
        assert len(found.validation.items.live) == folds
        assert isinstance(found.batches, FoldBatches)
        assert found.batches.folds is found.folds


@pytest.mark.parametrize(
    ("positives", "folds", "message"),
    [
        (1, None, r"class 1 has only 1 of 100 items.*\(5 folds\); leave it out, or collect more"),
        (4, None, r"class 1 has only 4 of 100 items.*\(5 folds\); pass folds=1"),
        (1, 1, r"class 1 has only 1 of 100 items.*\(1 folds\); leave it out"),
        (99, None, "class 0 has only 1 of 100 items"),
        (100, None, "all 100 targets are 1: there is nothing to tell apart"),
    ],
)
def test_too_few_items_of_a_class_are_refused(
    positives: int, folds: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split_data(rare(positives, 100), None, plan(folds), 0)


def test_just_enough_items_of_a_class_will_do() -> None:
    assert len(split_data(rare(5, 100), None, plan(), 0).folds) == 5
    assert len(split_data(rare(2, 100), None, plan(1), 0).folds) == 1


# ---------------------------------------------------------------------------
# the splits themselves


def test_validation_items_are_those_that_were_not_trained_on() -> None:
    items = Items(torch.arange(103).float().unsqueeze(-1), (torch.arange(103) % 3 == 0).long())
    found = split_data(items, None, plan(4), 0)
    assert found.data.index is not None
    assert found.data.data is items
    live = found.validation.items.live
    assert live.sum(-1).tolist() == [26, 26, 26, 25]
    for fold, index, counts, target in zip(
        found.folds, found.data.index, live, found.validation.items.target, strict=True
    ):
        assert torch.equal(index[counts], fold.valid)
        assert torch.equal(target, items.y[index])
        assert sorted([*fold.train.tolist(), *fold.valid.tolist()]) == list(range(103))


def test_splits_depend_on_the_seed_alone() -> None:
    items = Items(*made())
    one, same, other = (split_items(items, 5, 0.2, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a.valid, b.valid) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a.valid, b.valid) for a, b in zip(one, other, strict=True))


def test_splits_are_those_of_committed_results() -> None:
    """Committed tables depend on these very items."""
    items = Items(*made(60))
    assert split_items(items, 1, 0.2, 0)[0].valid.tolist() == PINNED[0]
    assert split_items(items, 1, 0.3, 0)[0].valid.tolist() == PINNED[1]
    assert split_items(items, 3, 0.2, 1)[2].valid.tolist() == PINNED[2]


@pytest.mark.parametrize("share", [0.2, 0.25, 0.3, 0.5, 0.6, 0.9])
def test_one_split_has_its_share_of_every_class(share: float) -> None:
    y = torch.arange(1000) % 3
    (fold,) = split_items(Items(torch.zeros(1000, 1), y), 1, share, 0)
    for each in range(3):
        own = (y == each).sum().item()
        assert (y[fold.valid] == each).sum().item() == pytest.approx(share * own, abs=1)


def test_items_without_classes_are_split_at_random() -> None:
    y = torch.rand(500, 3)
    (fold,) = split_items(Items(torch.zeros(500, 1), y), 1, 0.2, 0)
    assert len(fold.valid) == 100
    assert not torch.equal(fold.valid, torch.arange(100) * 5 + 2)


def test_a_class_that_one_side_lacks_is_given_one_item() -> None:
    target = torch.tensor([0] * 10 + [1, 1, 1] + [2])
    none = torch.zeros(14, dtype=torch.bool)
    found = split_module._all_classes(none, target)
    assert found.nonzero().squeeze(-1).tolist() == [5, 11]  # the middle one; a single one stays
    assert split_module._all_classes(~none, target).sum() == 12
    half = torch.arange(14) % 2 == 0
    assert torch.equal(split_module._all_classes(half, target), half)
    assert not none.any()


def test_everything_is_trained_on_where_validation_data_is_passed() -> None:
    train, valid = Items(*made()), Items(*made(50, seed=3))
    found = split_data(train, valid, plan(), 0)
    (fold,) = found.folds
    assert torch.equal(fold.train, torch.arange(400))
    assert len(fold.valid) == 0
    assert found.validation.items.target.shape == (1, 50)
    assert found.validation.items.live.all()
    assert torch.equal(found.validation.items.target[0], valid.y)
    (none,) = everything(Loader(DataLoader(Squares(made()), 50)))
    assert len(none.train) == 0


def test_a_loader_of_validation_data_is_read_once() -> None:
    loader = Loader(DataLoader(Squares(made(90)), 40))
    found = split_data(loader, loader, plan(), 0)
    assert found.batches is loader
    assert found.data.index is None
    assert torch.equal(found.validation.items.target, made(90)[1].unsqueeze(0))
    assert found.validation.items.live.shape == (1, 90)
    assert found.validation.items.live.all()


def test_settings_arrive_in_batches_and_validation() -> None:
    split: Split = split_data(
        Items(*made()), None, plan(2, metric="auc", tune=False, batch=33, balanced=True), 7
    )
    assert isinstance(split.batches, FoldBatches)
    assert split.batches.size == 33
    assert split.batches.balanced
    assert not split.validation.tune
    assert split.validation.metric.name == "auc"
    other = split_data(Items(*made()), None, plan(2, batch=33), 8)
    assert isinstance(other.batches, FoldBatches)
    assert not torch.equal(next(split.batches.epoch(0, 1)).x, next(other.batches.epoch(0, 1)).x)
    valid = split_data(Items(*made()), Items(*made()), plan(batch=33, balanced=True, tune=False), 7)
    assert isinstance(valid.batches, FoldBatches)
    assert (valid.batches.size, valid.batches.balanced, valid.validation.tune) == (33, True, False)


def test_at_most_fifty_thousand_items_are_validated() -> None:
    assert split_module._MOST_VALIDATED == 50_000
    many = Items(torch.zeros(50_001, 1), torch.arange(50_001) % 2)
    found = split_data(Items(*made()), many, plan(), 0)
    assert found.data.index is not None
    assert found.data.index.shape == (1, 50_000)
    assert (found.data.index.diff() > 0).all()


@pytest.mark.parametrize(("number", "warned"), [(29, True), (30, False)])
def test_a_dataset_with_few_validation_items_of_a_class_is_warned_of(
    number: int, warned: bool, recwarn: pytest.WarningsRecorder
) -> None:
    y = (torch.arange(1000) < 5 * number).long()
    train, valid = split_dataset(Squares((torch.zeros(1000, 1), y)), 0.2, 0)
    assert (len(train), len(valid)) == (800, 200)
    assert sum(int(each[1]) for each in valid) == number
    assert len(recwarn) == warned


def test_data_in_memory_is_not_split_as_a_dataset() -> None:
    for each in (made(), TensorDataset(*made()), DataLoader(Squares(made()))):
        assert split_dataset(each, 0.2, 0) == (each, None)
    with pytest.raises(ValueError, match="train is a Dataset without items"):
        split_dataset(Squares((torch.zeros(0, 1), torch.zeros(0))), 0.2, 0)


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
            return next(loader.epoch(epoch, seed, 2)).x

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
    assert without_column(column).shape == (4,)
    assert without_column(torch.zeros(4, 2)).shape == (4, 2)
    assert without_column(torch.zeros(4)).shape == (4,)
    assert without_column(torch.zeros(4, 1, 1)).shape == (4, 1, 1)
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
    assert target(function, column) == (4, 1)
    with pytest.raises(ValueError, match=r"targets \[4, 2\] are labels.*'f1', multilabel=True"):
        target("f1", torch.zeros(4, 2))
    loader = Loader(DataLoader(Squares((x, column)), 2))
    assert one_class_each(loader, labels) is loader
    squeezed = one_class_each(loader, mg.metric("f1"))
    assert isinstance(squeezed, Loader)
    assert next(squeezed.epoch(0, 0, 3)).y.shape == (3, 2)
    assert next(loader.epoch(0, 0, 3)).y.shape == (3, 2, 1)


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
    assert [len(each.y[0]) for each in found.epoch(0, 0, 1)] == sizes
    order = to_data("valid", Squares(made(number)), batch)
    assert isinstance(order, Loader)
    assert torch.equal(torch.cat([each.y[0] for each in order.epoch(5, 5, 1)]), made(number)[1])
    shuffled = torch.cat([each.x[0] for each in found.epoch(5, 5, 1)])
    assert not torch.equal(shuffled, made(number)[0])


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
    assert (split_module._ENOUGH, split_module._FOLDS) == (1000, 5)
    assert data_module._PASSES == (25, 150)
