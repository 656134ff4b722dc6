"""How data is split: how many folds, which items, and what is refused."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import metricgrad as mg
from metricgrad.training import split as split_module
from metricgrad.training.data import (
    FoldBatches,
    Items,
    Loader,
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
        (100, None, "all 100 targets are 1, so there is nothing to learn"),
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
    assert found.batches == loader
    assert found.data.index is None
    assert torch.equal(found.validation.items.target, made(90)[1].unsqueeze(0))
    assert found.validation.items.live.shape == (1, 90)
    assert found.validation.items.live.all()


def test_labels_from_a_loader_are_validation_items_too() -> None:
    labels = torch.arange(60).reshape(30, 2) % 2
    loader = Loader(DataLoader(Squares((torch.zeros(30, 1), labels)), 7))
    items = split_data(loader, loader, plan(), 0).validation.items
    assert items.target.shape == (1, 30, 2)
    assert items.live.shape == (1, 30)


def test_a_dataset_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="all 30 targets are 0, so there is nothing to learn"):
        split_dataset(Squares((torch.zeros(30, 1), torch.zeros(30, dtype=torch.long))), 0.2, 0)
    targets = torch.rand(30)  # not classes, so no class is missing
    assert len(split_dataset(Squares((torch.zeros(30, 1), targets)), 0.2, 0)[1]) == 6


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


def test_constants_are_those_of_the_documentation() -> None:
    assert (split_module._ENOUGH, split_module._FOLDS) == (1000, 5)
