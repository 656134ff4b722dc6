"""mg.fit: every method trains, on data and models of every kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import metricgrad as mg
from metricgrad.training.entrants import BASELINES, contenders, method_names
from metricgrad.training.feeding import Drawing, Items, Loader, cut, to_feed
from metricgrad.training.ground import Plan, to_ground
from tests.fitting import Data, Squares, linear, made, quick, same, weights
from tests.trainings import seeded

# ---------------------------------------------------------------------------------------------------------- methods

BINARY = ["cross_entropy", "focal", "uniloss", "reloss", "soft_f_beta", "soft_jaccard", "soft_mcc", "smooth_ap",
          "pairwise_ranking", "global_objective", "rank_loss"]  # fmt: skip


@pytest.mark.parametrize("method", BINARY)
def test_every_method_learns(method: str) -> None:
    data = made()
    before = mg.metric("f1")(linear()(data[0]).squeeze(-1).detach(), data[1]).item()
    found = quick(linear(), data, method=method)
    assert found.value > max(0.7, before)
    assert found.method.startswith(method)
    assert found.measure(*made(seed=5)) > 0.55


def test_a_bilevel_loss_trains_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.joint_heat._UNIVERSAL_STEPS", 200)
    found = quick(linear(), made(), method="bilevel", folds=1)
    assert found.value > 0.6
    assert found.method == "bilevel"


def test_the_names_of_methods_are_those_of_surrogates() -> None:
    assert {"cross_entropy", "uniloss", "reloss", "bilevel", "pairwise_ranking", "smooth_ap"} <= set(method_names())
    assert BASELINES["approx_ndcg"] is mg.baselines.ApproxNDCG


def test_a_surrogate_can_be_passed() -> None:
    found = quick(linear(), made(), method=mg.UniLoss("f1", slope=3.0))
    assert found.method.startswith("uniloss")
    assert found.value > 0.7


def test_options_replace_what_would_be_tried() -> None:
    assert len(contenders("uniloss", mg.metric("f1"))) == 6
    assert {entrant.options["slope"] for entrant in contenders("uniloss", mg.metric("f1"), {"slope": 4.0})} == {4.0}
    found = quick(linear(), made(), method="focal", options={"gamma": 1.0})
    assert "gamma 1" in found.method


# ------------------------------------------------------------------------------------------------------------ tasks


def test_classes_labels_and_functions() -> None:
    x, _ = made(600)
    classes = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    three = quick(linear(3), (x, classes), metric="accuracy", method="uniloss", options={"slope": 5.0})
    assert (three.predict(x) == classes).float().mean() > 0.75
    assert three.threshold is None
    labels = (x[:, :3] > 0.5).long()
    many = quick(linear(3), (x, labels), metric=mg.metric("f1", multilabel=True), folds=1)
    assert many.threshold is not None
    assert many.threshold.shape == (3,)
    assert f1_score(labels, many.predict(x), average="macro") == pytest.approx(many.measure(x, labels), abs=1e-5)

    def right(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target == 1)).float().mean()

    own = quick(linear(), made(), metric=right, method="uniloss", options={"slope": 5.0}, folds=1)
    assert own.value > 0.85


def test_a_two_class_model_is_one_of_binary_scores() -> None:
    found = quick(linear(2), made(), metric="auc", method="cross_entropy")
    assert found.value > 0.85
    x, y = made()
    decided = quick(linear(2), (x, y), method="cross_entropy", folds=1)
    assert f1_score(y, decided.predict(x)) == pytest.approx(decided.measure(x, y), abs=1e-6)


def test_predictions_are_decided_at_the_threshold_that_was_tuned() -> None:
    x, y = made()
    found = quick(linear(), (x, y), method="cross_entropy", folds=1)
    assert found.threshold is not None
    decisions = found.predict(x)
    assert torch.equal(decisions, (found.scores(x) > found.threshold).long())
    assert f1_score(y, decisions) == pytest.approx(found.measure(x, y), abs=1e-6)
    untuned = quick(linear(), (x, y), method="cross_entropy", folds=1, tune_threshold=False)
    assert untuned.threshold is None
    assert untuned.value <= found.value


# ------------------------------------------------------------------------------------------------- kinds of data


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
        pytest.param((torch.zeros(5, 2), torch.zeros(4)), {}, r"x \[5, 2\] and y \[4\]", id="lengths"),
        pytest.param((torch.zeros(0, 2), torch.zeros(0)), {}, "as many features as targets, and some", id="empty"),
        pytest.param((torch.full((9, 2), torch.nan), torch.arange(9) % 2), {}, "18 values that are missing", id="nan"),
        pytest.param((torch.zeros(9, 5), torch.ones(9)), {}, r"all 9 targets are 1\.0", id="constant"),
        pytest.param(
            (torch.zeros(9, 5), torch.arange(9) == 0),
            {},
            "class True has only 1 of 9 items, too few",
            id="one positive",
        ),
        pytest.param(3, {}, "must be .* arrays or tensors, a Dataset or a DataLoader; got int", id="a number"),
        pytest.param(made(), {"rate": -1.0}, "rate must be above 0; got -1.0", id="rate"),
        pytest.param(made(), {"clip": 0.0}, "clip must be above 0; got 0.0", id="clip"),
        pytest.param(made(), {"decay": -0.1}, "decay must be 0 or more; got -0.1", id="decay"),
        pytest.param(made(), {"share": 2.0}, "share must be between 0 and 1; got 2.0", id="share"),
        pytest.param(made(), {"patience": 0}, "patience must be 1 or more; got 0", id="patience"),
        pytest.param(made(), {"options": {"slope": 1.0}}, "auto chooses them itself", id="options of auto"),
        pytest.param(made(), {"method": "f1"}, "no method 'f1'; there are auto, approx_ndcg", id="method"),
        pytest.param(made(), {"metric": "f0"}, "no metric named 'f0'", id="metric"),
        pytest.param(made(), {"epochs": 0}, "epochs must be", id="epochs"),
        pytest.param(made(), {"budget": -1}, "budget must be above 0 seconds; got -1", id="budget"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(data: Any, options: dict[str, Any], message: str) -> None:
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
    assert found.seen.target.numel() == 40
    feed = to_feed("train", Squares(made(300)), 256)
    assert isinstance(feed, Loader)
    assert [len(batch.y[0]) for batch in feed.epoch(0, 0, 1)] == [150, 150]


def test_a_column_of_targets_is_one_class_for_each_item() -> None:
    x, y = made()
    column, flat = (quick(linear(), (x, each), method="cross_entropy", folds=1) for each in (y.unsqueeze(-1), y))
    assert same(column, flat)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.7])
def test_one_cut_has_the_share_that_was_asked_for(share: float) -> None:
    (fold,) = cut(Items(*made(1000)), 1, share, 0)
    assert len(fold.valid) == pytest.approx(1000 * share, abs=2)


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_a_usual_loss_that_does_not_take_many_classes_stays_away(metric: str) -> None:
    x, _ = made()
    classes = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    found = quick(linear(3), (x, classes), metric=metric, epochs=2, folds=1)
    assert {entry.contender.method for entry in found.entries} == {"cross_entropy", "uniloss"}


def test_a_loss_with_memory_may_be_passed() -> None:
    found = quick(linear(), made(), method=mg.with_memory(mg.UniLoss("f1"), size=300), batch=20, folds=1)
    assert found.value > 0.6


def test_a_loader_needs_validation_data() -> None:
    with pytest.raises(ValueError, match="pass valid="):
        quick(linear(), DataLoader(Squares(made()), 64))


def test_folds_are_stratified_and_share_nothing() -> None:
    x, y = made(1003)
    folds = cut(Items(x, y), 5, 0.2, 0)
    held = torch.cat([fold.valid for fold in folds])
    assert torch.equal(held.sort().values, torch.arange(1003))
    for fold in folds:
        assert not set(fold.train.tolist()) & set(fold.valid.tolist())
        assert y[fold.valid].sum().item() == pytest.approx(y.sum().item() / 5, abs=1)
    (one,) = cut(Items(x, y), 1, 0.25, 0)
    assert len(one.valid) == pytest.approx(251, abs=2)


def test_balanced_batches_hold_all_classes_alike() -> None:
    x, y = made(500)
    items = Items(x, y)
    for balanced, share in ((False, y.float().mean().item()), (True, 0.5)):
        drawing = Drawing(items, cut(items, 1, 0.2, 0), 50, balanced, 0)
        batch = next(drawing.epoch(0, 2))
        assert batch.x.shape == (2, 50, 5)
        assert batch.y.float().mean().item() == pytest.approx(share, abs=0.02)
    with pytest.raises(ValueError, match="balanced batches need one class"):
        quick(linear(2), (x, torch.stack([y, y], -1)), metric=mg.metric("f1", multilabel=True), balanced=True)


# ------------------------------------------------------------------------------------------- models and stacking


def test_models_with_normalisation_and_dropout() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
    found = quick(nn.Sequential(*layers), made(), method="uniloss", options={"slope": 5.0})
    assert found.value > 0.7
    assert not found.model.training
    assert found.model.state_dict()["1.running_mean"].abs().sum() > 0


class Apart(nn.Module):
    """A model that vmap cannot run: its way depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum().item() < 1e9 else x


def test_models_that_cannot_be_stacked_train_one_by_one() -> None:
    stacked, apart = (quick(model, made(), rate=None, method="focal") for model in (linear(), Apart()))
    assert apart.value == pytest.approx(stacked.value, abs=1e-3)
    for one, other in zip(weights(stacked), weights(apart), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_the_users_model_is_trained_in_place() -> None:
    model = linear()
    found = quick(model, made(), method="focal")
    assert found.model is model
    assert not torch.equal(model.weight, linear().weight)


class Tied(nn.Module):
    """Two layers with one weight, and a buffer that is not saved."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x * self.scale).relu()).relu())


def test_models_with_tied_weights_and_unsaved_buffers() -> None:
    torch.manual_seed(0)
    found = quick(Tied(), made(), method="cross_entropy", folds=1, epochs=10, rate=0.03)
    assert found.value == pytest.approx(judged_again(found), abs=1e-6)
    assert found.value > 0.6


def judged_again(found: mg.Fit) -> float:
    """The model's metric on its validation items, which are items 2, 7, 12, ... of the sorted ones."""
    (fold,) = cut(Items(*made()), 1, 0.2, 0)
    x, y = made()
    return found.measure(x[fold.valid], y[fold.valid])


def test_frozen_parameters_stay_as_they_are_under_decay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quick(model, made(), method="cross_entropy", decay=0.5, folds=1)
    after = model.state_dict()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["2.weight"], before["2.weight"])


def test_what_is_trained_on_can_be_predicted() -> None:
    """Pixels as bytes, and targets in a column."""
    x, y = made()
    pixels = (40 * x + 128).clamp(0, 255).to(torch.uint8)
    found = quick(nn.Sequential(nn.BatchNorm1d(5), linear()), (pixels, y[:, None]), method="cross_entropy", folds=1)
    assert found.measure(pixels, y[:, None]) == found.measure(pixels.float(), y)
    assert found.predict(pixels).shape == (400,)


def test_a_surrogate_that_is_passed_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.joint_heat._UNIVERSAL_STEPS", 20)
    loss = mg.BilevelLoss("f1", generator=seeded())
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    quick(linear(), made(), method=loss, folds=1)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"decay": 0.5}, "no weight decay; pass decay=0. Got 0.5"), ({"balanced": True}, "pass balanced=False")],
)
def test_options_without_effect_on_a_bilevel_loss_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(linear(), made(), method="bilevel", folds=1, **options)


@pytest.mark.filterwarnings("ignore:validation data has")
def test_folds_beside_validation_data_are_refused() -> None:
    with pytest.raises(ValueError, match=r"validation data already\. Got folds=5"):
        quick(linear(), made(), made(seed=3), folds=5)
    with pytest.raises(ValueError, match=r"validation data already\. Got folds=5"):
        quick(linear(), Squares(made()), folds=5)


def test_a_validation_loader_may_not_shuffle_by_itself() -> None:
    """Its targets would be those of other items."""
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(Squares(made(seed=3)), 64, shuffle=True, generator=order)
    with pytest.raises(ValueError, match="validation loader gives other items, or another order, each time"):
        quick(linear(), made(), loader, method="cross_entropy")


def test_very_many_validation_items_are_looked_at_at_random() -> None:
    target = (torch.arange(60_000) >= 55_000).long()  # sorted: the first 50,000 are of one class
    plan = Plan(mg.metric("f1"), tune=True, batch=64, balanced=False, folds=None, share=0.2)
    _, ground = to_ground(Items(*made()), Items(torch.zeros(60_000, 5), target), plan, 0)
    assert ground.judge.seen.target.float().mean().item() == pytest.approx(1 / 12, rel=0.05)


def test_one_cut_has_every_class_on_both_sides() -> None:
    target = (torch.arange(101) >= 98).long()
    for share in (0.2, 0.9):
        for seed in range(5):
            (fold,) = cut(Items(torch.zeros(101, 2), target), 1, share, seed)
            assert set(target[fold.valid].tolist()) == set(target[fold.train].tolist()) == {0, 1}
            assert len(fold.valid) + len(fold.train) == 101


def test_a_dataset_is_cut_class_by_class_and_few_positives_are_warned_of() -> None:
    x, _ = made(300)
    rare = (torch.arange(300) % 75 == 0).long()  # four
    with pytest.warns(UserWarning, match="validation data has 1 items of its rarest class, on which choices are half"):
        found = quick(linear(), Squares((x, rare)), method="cross_entropy")
    assert found.seen.target.sum() == 1
    with pytest.raises(ValueError, match="all 300 targets are 0: there is nothing to tell apart"):
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
        quick(linear(), DataLoader(each, 100), DataLoader(each, 100), method="cross_entropy", epochs=1)
        for each in (Rows(), Squares(made()))
    )
    assert same(found, plain)
    assert found.value == plain.value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param((torch.ones(90, 5).long(), torch.arange(90) % 2), r"torch\.int64: .*x\.float\(\)", id="whole x"),
        pytest.param((torch.ones(90, 4), torch.arange(90) % 2), r"the model fails on x \[64, 4\]", id="width"),
        pytest.param((torch.ones(90, 5), ["yes", "no"] * 45), "must be numbers; got <U3, such as .*'yes'", id="text"),
        pytest.param((torch.ones(90, 5), torch.ones(90, 2)), r"multilabel=True\), or one class", id="labels"),
    ],
)
def test_data_that_the_model_or_the_metric_does_not_take(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(linear(), data, method="cross_entropy")
