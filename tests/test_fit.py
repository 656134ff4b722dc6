"""mg.fit: every method trains, for every kind of metric and model."""

from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.training.candidates import BASELINES, candidates_of, method_names
from metricgrad.training.data import Items
from metricgrad.training.split import split_items
from tests.fitting import linear, made, quick, weights
from tests.trainings import seeded

# ---------------------------------------------------------------------------
# methods

BINARY = ["cross_entropy", "focal", "uniloss", "reloss", "soft_f_beta", "soft_jaccard", "soft_mcc",
          "smooth_ap", "pairwise_ranking", "global_objective", "rank_loss"]  # fmt: skip


@pytest.mark.parametrize("method", BINARY)
def test_every_method_learns(method: str) -> None:
    data = made()
    before = mg.metric("f1")(linear()(data[0]).squeeze(-1).detach(), data[1]).item()
    found = quick(linear(), data, method=method)
    assert found.value > max(0.7, before)
    assert found.method.startswith(method)
    assert found.measure(*made(seed=5)) > 0.55


def test_a_bilevel_loss_trains_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.lessons.UNIVERSAL_STEPS", 200)
    found = quick(linear(), made(), method="bilevel", folds=1)
    assert found.value > 0.6
    assert found.method == "bilevel"


def test_the_names_of_methods_are_those_of_surrogates() -> None:
    assert {
        "cross_entropy",
        "uniloss",
        "reloss",
        "bilevel",
        "pairwise_ranking",
        "smooth_ap",
    } <= set(method_names())
    assert BASELINES["approx_ndcg"] is mg.baselines.ApproxNDCG


def test_a_surrogate_can_be_passed() -> None:
    found = quick(linear(), made(), method=mg.UniLoss("f1", slope=3.0))
    assert found.method.startswith("uniloss")
    assert found.value > 0.7


def test_options_replace_what_would_be_tried() -> None:
    assert len(candidates_of("uniloss")) == 6
    assert {
        candidate.options["slope"] for candidate in candidates_of("uniloss", {"slope": 4.0})
    } == {4.0}
    found = quick(linear(), made(), method="focal", options={"gamma": 1.0})
    assert "gamma 1" in found.method


# ---------------------------------------------------------------------------
# tasks


def test_classes_labels_and_functions() -> None:
    x, _ = made(600)
    classes = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    three = quick(
        linear(3), (x, classes), metric="accuracy", method="uniloss", options={"slope": 5.0}
    )
    assert (three.predict(x) == classes).float().mean() > 0.75
    assert three.threshold is None
    labels = (x[:, :3] > 0.5).long()
    many = quick(linear(3), (x, labels), metric=mg.metric("f1", multilabel=True), folds=1)
    assert many.threshold is not None
    assert many.threshold.shape == (3,)
    assert f1_score(labels, many.predict(x), average="macro") == pytest.approx(
        many.measure(x, labels), abs=1e-5
    )

    def right(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target == 1)).float().mean()

    own = quick(linear(), made(), metric=right, method="uniloss", options={"slope": 5.0}, folds=1)
    assert own.value > 0.85


def images() -> tuple[Tensor, Tensor, Tensor]:
    """Noise with one dark pixel each, the joints at these pixels, and label maps of them."""
    x = 0.3 * torch.randn(60, 1, 5, 6, generator=seeded())
    place = torch.randint(30, (60,), generator=seeded(1))
    dark = torch.nn.functional.one_hot(place, 30).reshape(60, 5, 6)
    joints = torch.stack([place % 6, place // 6], -1).float().unsqueeze(1)
    return x - 3 * dark.unsqueeze(1), joints, dark


@pytest.mark.parametrize("method", ["auto", "heatmap_mse"])
def test_poses(method: str) -> None:
    x, joints, _ = images()
    model = nn.Conv2d(1, 1, 1)
    nn.init.ones_(model.weight)  # takes the brightest pixel for the joint
    metric = mg.metric("pck", radius=1.0)
    found = quick(model, (x, joints), metric=metric, method=method, epochs=2, folds=1)
    assert found.measure(x, joints) > 0.9


@pytest.mark.parametrize(
    ("method", "channels"),
    [("auto", 2), ("cross_entropy", 2), ("cross_entropy", 1), ("metric_loss", 1)],
)
def test_label_maps(method: str, channels: int) -> None:
    x, _, labels = images()
    model = nn.Conv2d(1, channels, 1)
    found = quick(model, (x, labels), metric="mean_iou", method=method, epochs=2, folds=1)
    assert found.measure(x, labels) > 0.9
    assert (found.predict(x) == labels)[labels > 0].float().mean() > 0.8


@pytest.mark.parametrize("method", ["cross_entropy", "focal", "reloss", "bilevel"])
def test_a_method_without_a_loss_for_heatmaps_is_refused_by_the_metrics_name(method: str) -> None:
    x, joints, _ = images()
    metric = mg.metric("pck", radius=1.0)
    message = (
        "for pck, whose scores are heatmaps, method must be 'auto', 'heatmap_mse', 'metric_loss', "
        f"'uniloss' or a surrogate that takes them; got '{method}'"
    )
    with pytest.raises(ValueError, match=message):
        mg.fit(nn.Conv2d(1, 1, 1), (x, joints), metric=metric, method=method)


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


# ---------------------------------------------------------------------------
# and stacking


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
    stacked, apart = (
        quick(model, made(), rate=None, method="focal") for model in (linear(), Apart())
    )
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
    assert found.value == pytest.approx(measured_again(found), abs=1e-6)
    assert found.value > 0.6


def measured_again(found: mg.Fit) -> float:
    """The model's metric on its validation items."""
    (fold,) = split_items(Items(*made()), 1, 0.2, 0)
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
    found = quick(
        nn.Sequential(nn.BatchNorm1d(5), linear()),
        (pixels, y[:, None]),
        method="cross_entropy",
        folds=1,
    )
    assert found.measure(pixels, y[:, None]) == found.measure(pixels.float(), y)
    assert found.predict(pixels).shape == (400,)


def test_a_surrogate_that_is_passed_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.lessons.UNIVERSAL_STEPS", 20)
    loss = mg.BilevelLoss("f1", generator=seeded())
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    quick(linear(), made(), method=loss, folds=1)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 0.5}, "no weight decay; pass decay=0. Got 0.5"),
        ({"balanced": True}, "pass balanced=False"),
    ],
)
def test_options_without_effect_on_a_bilevel_loss_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        quick(linear(), made(), method="bilevel", folds=1, **options)


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_a_usual_loss_that_does_not_take_many_classes_stays_away(metric: str) -> None:
    x, _ = made()
    classes = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    found = quick(linear(3), (x, classes), metric=metric, epochs=2, folds=1)
    methods = {trial.candidate.method for trial in found.trials}
    assert methods == {"cross_entropy", "metric_loss", "uniloss"}


def test_a_loss_with_memory_may_be_passed() -> None:
    found = quick(
        linear(), made(), method=mg.with_memory(mg.UniLoss("f1"), size=300), batch=20, folds=1
    )
    assert found.value > 0.6
