"""mg.fit: data of every kind, cut, drawn and refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import metricgrad as mg
from metricgrad.training.data import FoldBatches, Items, Loader, to_data
from metricgrad.training.split import SplitPlan, split_data, split_items
from tests.fitting import Data, Squares, linear, made, quick, same


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(lambda data: (data[0].numpy(), data[1].numpy()), id="arrays"),
        pytest.param(lambda data: TensorDataset(*data), id="tensor data set"),
        pytest.param(Squares, id="data set"),
        pytest.param(lambda data: DataLoader(Squares(data), 64, shuffle=True), id="loader"),
    ],
)
def test_data_of_every_kind(kind: Callable[[Data], Any]) -> None:
    found = quick(linear(), kind(made()), kind(made(seed=3)), method="uniloss", epochs=8, batch=64)
    again = quick(linear(), kind(made()), kind(made(seed=3)), method="uniloss", epochs=8, batch=64)
    assert found.value > 0.65
    assert same(found, again)
    assert found.folds == 1


def test_a_loader_can_hold_a_tournament() -> None:
    loader = DataLoader(Squares(made()), 100, shuffle=True)
    found = quick(linear(), loader, made(seed=3), metric="average_precision")
    assert found.decision.ordinary is not None
    assert found.decision.challenger is not None


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        pytest.param(
            (torch.zeros(5, 2), torch.zeros(4)), {}, r"x \[5, 2\] and y \[4\]", id="lengths"
        ),
        pytest.param(
            (torch.zeros(0, 2), torch.zeros(0)),
            {},
            "as many features as targets, and at least one",
            id="empty",
        ),
        pytest.param(
            (torch.full((9, 2), torch.nan), torch.arange(9) % 2),
            {},
            "18 values that are missing",
            id="nan",
        ),
        pytest.param(
            (torch.zeros(9, 5), torch.ones(9)), {}, r"all 9 targets are 1\.0", id="constant"
        ),
        pytest.param(
            (torch.zeros(9, 5), torch.arange(9) == 0),
            {},
            "class True has only 1 of 9 items, too few",
            id="one positive",
        ),
        pytest.param(
            3, {}, "must be .* arrays or tensors, a Dataset or a DataLoader; got int", id="a number"
        ),
        pytest.param(made(), {"rate": -1.0}, "rate must be above 0; got -1.0", id="rate"),
        pytest.param(made(), {"clip": 0.0}, "clip must be above 0; got 0.0", id="clip"),
        pytest.param(made(), {"decay": -0.1}, "decay must be 0 or more; got -0.1", id="decay"),
        pytest.param(made(), {"share": 2.0}, "share must be between 0 and 1; got 2.0", id="share"),
        pytest.param(made(), {"patience": 0}, "patience must be 1 or more; got 0", id="patience"),
        pytest.param(
            made(), {"options": {"slope": 1.0}}, "auto chooses them itself", id="options of auto"
        ),
        pytest.param(
            made(), {"method": "f1"}, "no method 'f1'; available: auto, approx_ndcg", id="method"
        ),
        pytest.param(made(), {"metric": "nothing"}, "no metric named 'nothing'", id="metric"),
        pytest.param(made(), {"epochs": 0}, "epochs must be", id="epochs"),
        pytest.param(made(), {"budget": -1}, "budget must be above 0 seconds; got -1", id="budget"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    data: Any, options: dict[str, Any], message: str
) -> None:
    model = linear()
    before = model.weight.detach().clone()
    with pytest.raises((ValueError, TypeError), match=message):
        quick(model, data, **options)
    assert torch.equal(model.weight, before)


def test_options_of_a_surrogate_that_is_passed_are_refused() -> None:
    with pytest.raises(ValueError, match="a surrogate has its own"):
        quick(linear(), made(), method=mg.UniLoss("f1"), options={"slope": 1.0})
    with pytest.raises(ValueError, match="no parameters to train"):
        quick(nn.Flatten(), made())
    loader = DataLoader(TensorDataset(*made()), 50)
    with pytest.raises(ValueError, match="balanced batches are drawn from items in memory"):
        quick(linear(), loader, made(seed=9), balanced=True)
    empty = DataLoader(TensorDataset(*made(20)), 50, drop_last=True)
    with pytest.raises(ValueError, match="the loader gave no batch"):
        quick(linear(), empty, made(seed=9), method="cross_entropy")


@pytest.mark.filterwarnings("ignore:validation data has")
def test_a_dataset_smaller_than_a_batch_is_trained_on_and_cut_by_itself() -> None:
    model = linear()
    before = model.weight.detach().clone()
    found = quick(model, Squares(made(200)), method="cross_entropy", epochs=20)
    assert not torch.equal(model.weight, before)
    assert found.value > 0.6
    assert found.validation.target.numel() == 40
    feed = to_data("train", Squares(made(300)), 256)
    assert isinstance(feed, Loader)
    assert [len(batch.y[0]) for batch in feed.epoch(0, 1)] == [150, 150]


def test_a_column_of_targets_is_one_class_for_each_item() -> None:
    x, y = made()
    column, flat = (
        quick(linear(), (x, each), method="cross_entropy", folds=1) for each in (y.unsqueeze(-1), y)
    )
    assert same(column, flat)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.7])
def test_one_cut_has_the_share_that_was_asked_for(share: float) -> None:
    (fold,) = split_items(Items(*made(1000)), 1, share, 0)
    assert len(fold.valid) == pytest.approx(1000 * share, abs=2)


def test_a_loader_needs_validation_data() -> None:
    with pytest.raises(ValueError, match="pass valid="):
        quick(linear(), DataLoader(Squares(made()), 64))


def test_folds_are_stratified_and_share_nothing() -> None:
    x, y = made(1003)
    folds = split_items(Items(x, y), 5, 0.2, 0)
    held = torch.cat([fold.valid for fold in folds])
    assert torch.equal(held.sort().values, torch.arange(1003))
    for fold in folds:
        assert not set(fold.train.tolist()) & set(fold.valid.tolist())
        assert y[fold.valid].sum().item() == pytest.approx(y.sum().item() / 5, abs=1)
    (one,) = split_items(Items(x, y), 1, 0.25, 0)
    assert len(one.valid) == pytest.approx(251, abs=2)


def test_balanced_batches_hold_all_classes_alike() -> None:
    x, y = made(500)
    items = Items(x, y)
    for balanced, share in ((False, y.float().mean().item()), (True, 0.5)):
        drawing = FoldBatches(items, split_items(items, 1, 0.2, 0), 50, balanced, 0)
        batch = next(drawing.epoch(0, 2))
        assert batch.x.shape == (2, 50, 5)
        assert batch.y.float().mean().item() == pytest.approx(share, abs=0.02)
    with pytest.raises(ValueError, match="balanced batches need one class"):
        quick(
            linear(2),
            (x, torch.stack([y, y], -1)),
            metric=mg.metric("f1", multilabel=True),
            balanced=True,
        )


@pytest.mark.filterwarnings("ignore:validation data has")
def test_folds_beside_validation_data_are_refused() -> None:
    with pytest.raises(ValueError, match=r"validation data already.*Got folds=5"):
        quick(linear(), made(), made(seed=3), folds=5)
    with pytest.raises(ValueError, match=r"validation data already.*Got folds=5"):
        quick(linear(), Squares(made()), folds=5)


def test_a_validation_loader_may_not_shuffle_by_itself() -> None:
    """Its targets would be those of other items."""
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(Squares(made(seed=3)), 64, shuffle=True, generator=order)
    with pytest.raises(
        ValueError, match="validation loader gives other items, or another order, each time"
    ):
        quick(linear(), made(), loader, method="cross_entropy")


def test_very_many_validation_items_are_looked_at_at_random() -> None:
    target = (torch.arange(60_000) >= 55_000).long()  # sorted: the first 50,000 are of one class
    plan = SplitPlan(mg.metric("f1"), tune=True, batch=64, balanced=False, folds=None, share=0.2)
    split = split_data(Items(*made()), Items(torch.zeros(60_000, 5), target), plan, 0)
    assert split.validation.items.target.float().mean().item() == pytest.approx(1 / 12, rel=0.05)


def test_one_cut_has_every_class_on_both_sides() -> None:
    target = (torch.arange(101) >= 98).long()
    for share in (0.2, 0.9):
        for seed in range(5):
            (fold,) = split_items(Items(torch.zeros(101, 2), target), 1, share, seed)
            assert set(target[fold.valid].tolist()) == set(target[fold.train].tolist()) == {0, 1}
            assert len(fold.valid) + len(fold.train) == 101


def test_a_dataset_is_cut_class_by_class_and_few_positives_are_warned_of() -> None:
    x, _ = made(300)
    rare = (torch.arange(300) % 75 == 0).long()  # four
    with pytest.warns(
        UserWarning,
        match="validation data has 1 items of its rarest class, so choices made on it",
    ):
        found = quick(linear(), Squares((x, rare)), method="cross_entropy")
    assert found.validation.target.sum() == 1
    with pytest.raises(ValueError, match="all 300 targets are 0, so there is nothing to learn"):
        quick(linear(), Squares((x, torch.zeros(300, dtype=torch.long))))


class Rows(Dataset[tuple[Any, Any]]):
    """Items of numpy's own types, each with its target in a list of one."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = made()
        return x[index].double().numpy(), y[index : index + 1].numpy()


def test_items_of_float64_with_targets_in_a_column() -> None:
    found, plain = (
        quick(
            linear(), DataLoader(each, 100), DataLoader(each, 100), method="cross_entropy", epochs=1
        )
        for each in (Rows(), Squares(made()))
    )
    assert same(found, plain)
    assert found.value == plain.value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            (torch.ones(90, 5).long(), torch.arange(90) % 2),
            r"torch\.int64: .*x\.float\(\)",
            id="whole x",
        ),
        pytest.param(
            (torch.ones(90, 4), torch.arange(90) % 2), r"the model fails on x \[64, 4\]", id="width"
        ),
        pytest.param(
            (torch.ones(90, 5), ["yes", "no"] * 45),
            "must be numbers; got <U3, such as .*'yes'",
            id="text",
        ),
        pytest.param(
            (torch.ones(90, 5), torch.ones(90, 2)), r"multilabel=True\), or one class", id="labels"
        ),
    ],
)
def test_data_that_the_model_or_the_metric_does_not_take(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(linear(), data, method="cross_entropy")


class Named(Squares):
    """Items by name."""

    def __getitem__(self, index: int) -> Any:
        return {"x": self.data[0][index], "y": self.data[1][index]}


def test_items_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must give items \(x, y\); got dict"):
        quick(linear(), Named(made()))


def test_measure_takes_targets_in_a_column_for_classes_too() -> None:
    x, y = made()
    fit = quick(nn.Linear(x.shape[1], 2), (x, y.unsqueeze(-1)), method="cross_entropy", folds=1)
    assert fit.measure(x, y.unsqueeze(-1)) == fit.measure(x, y)
    three = mg.metric("f1", average="macro")
    fit = quick(nn.Linear(x.shape[1], 3), (x, y), metric=three, method="cross_entropy", folds=1)
    assert fit.measure(x, y.unsqueeze(-1)) == fit.measure(x, y)
