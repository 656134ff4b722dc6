"""mg.fit: every method trains, choices are made on validation data alone, an interrupted training goes on exactly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import metricgrad as mg
from metricgrad import storage
from metricgrad.training import fit, heat, tournament
from metricgrad.training.entrants import BASELINES, contenders, method_names
from metricgrad.training.feeding import Drawing, Items, Loader, cut, to_feed
from metricgrad.training.judging import Judge, Seen
from tests.trainings import seeded

Data = tuple[Tensor, Tensor]


def made(number: int = 400, seed: int = 0, noise: float = 0.5) -> Data:
    """About one in six is positive, and a linear model gets most of them."""
    x = torch.randn(number, 5, generator=seeded(seed))
    return x, (x[:, 0] + noise * torch.randn(number, generator=seeded(seed + 1)) > 1).long()


def linear(outputs: int = 1, features: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, outputs)


def quick(model: nn.Module, data: Any, valid: Any = None, **options: Any) -> mg.Fit:
    return mg.fit(model, data, valid, **{"metric": "f1", "epochs": 4, "rate": 0.1, "progress": False, **options})


def weights(found: mg.Fit) -> list[Tensor]:
    return list(found.model.state_dict().values())


def same(one: mg.Fit, other: mg.Fit) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


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


class Squares(Dataset[Data]):
    """Items that no tensor holds."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, index: int) -> Data:
        return self.data[0][index], self.data[1][index]


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


class Indexed(Dataset[tuple[Tensor, Tensor]]):
    """Items one by one."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data[0][index], self.data[1][index]


def test_a_dataset_smaller_than_a_batch_is_trained_on_and_cut_by_itself() -> None:
    model = linear()
    before = model.weight.detach().clone()
    found = quick(model, Indexed(made(200)), method="cross_entropy", epochs=20)
    assert not torch.equal(model.weight, before)
    assert found.value > 0.6
    assert found.seen.target.numel() == 40
    feed = to_feed("train", Indexed(made(300)), 256)
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


def test_a_budget_too_short_for_challengers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tournament.Arena, "late", lambda *_: True)
    found = quick(linear(), made(), folds=1)
    assert found.decision.challenger is None
    assert "no time for a challenger" in found.verdict()
    assert "challenger" not in quick(linear(), made(), method="cross_entropy", folds=1).verdict()


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


# ----------------------------------------------------------------------------------------------------- the judge


def judged(metric: Any, number: int = 300, folds: int = 3) -> tuple[Judge, Tensor, Tensor]:
    target = (torch.rand(folds, number, generator=seeded()) < 0.3).long()
    scores = torch.randn(folds, number, generator=seeded(1)) + target
    live = torch.ones(folds, number, dtype=torch.bool)
    live[0, -7:] = False
    return Judge(mg.metric(metric), Seen(target, live)), scores, target


def test_decisions_are_pooled_and_orders_are_averaged() -> None:
    judge, scores, target = judged("f1")
    value, threshold = judge.look(scores)
    live = judge.seen.live
    assert threshold is not None
    assert value == pytest.approx(f1_score(target[live], scores[live] > threshold))
    judge, scores, target = judged("average_precision")
    value, threshold = judge.look(scores)
    each = [average_precision_score(target[k][live[k]], scores[k][live[k]]) for k in range(3)]
    assert threshold is None
    assert value == pytest.approx(sum(each) / 3, abs=1e-5)


def test_luck_is_a_standard_error_for_one_challenger_and_more_for_many() -> None:
    """Two models that differ in whether items are right: the standard error of the difference is known."""
    judge, _, target = judged("accuracy", 2000, 1)
    right = torch.where(torch.rand(6, 1, 2000, generator=seeded(2)) < 0.8, 1, -1)
    scores = list((2 * target - 1) * right.float())
    zero = torch.zeros(())
    pair = [(each > 0).long() == target for each in scores[:2]]
    exact = (pair[1].double() - pair[0].double())[judge.seen.live].std() / judge.seen.live.sum() ** 0.5
    one = judge.luck(scores[:2], [zero, zero], seeded())
    many = judge.luck(scores, [zero] * 6, seeded())
    assert one == pytest.approx(exact.item(), rel=0.25)
    assert many > 1.3 * one


# --------------------------------------------------------------------------------------------------- the tournament


def test_cross_entropy_that_wins_is_the_one_that_is_asked_for() -> None:
    """On labels that no loss can do better on, auto ends where training on cross-entropy ends, bit by bit."""
    x = torch.randn(300, 5, generator=seeded())
    y = (torch.rand(300, generator=seeded(1)) < 0.3).long()
    auto, plain = (
        quick(linear(), (x, y), metric="auc", method=method, rate=None) for method in ("auto", "cross_entropy")
    )
    assert auto.decision.winner is auto.decision.ordinary
    assert "cross-entropy is as good here" in auto.verdict()
    assert same(auto, plain)
    assert auto.value == plain.value


@pytest.mark.parametrize("seed", range(5))
def test_random_labels_show_no_gain(seed: int) -> None:
    x = torch.randn(400, 5, generator=seeded(seed))
    y = (torch.rand(400, generator=seeded(100 + seed)) < 0.2).long()
    found = quick(linear(), (x, y), metric="average_precision", seed=seed)
    assert found.decision.winner is found.decision.ordinary


def test_a_real_gain_is_taken() -> None:
    """A ring of positives that a linear model can only cut through: cross-entropy gives up, F1 does not."""
    x = torch.randn(3000, 2, generator=seeded())
    y = ((x[:, 0] > 1.2) | ((x[:, 0] < -1.5) & (torch.rand(3000, generator=seeded(1)) < 0.8))).long()
    found = quick(linear(features=2), (x, y), rate=0.1, epochs=8)
    assert found.decision.gain > found.decision.luck
    assert found.decision.winner is found.decision.challenger
    assert "is better" in found.verdict()
    plain = quick(linear(features=2), (x, y), method="cross_entropy", rate=0.1, epochs=8)
    loser = found.finalists["cross_entropy"]
    for one, other in zip(loser.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert loser.threshold is not None
    assert plain.threshold is not None
    assert torch.equal(loser.threshold, plain.threshold)


def test_a_budget_shortens_the_training() -> None:
    found = quick(linear(), made(), budget=1.5, epochs=200)
    assert max(entry.epochs for entry in found.entries) < 200
    assert found.seconds < 15


def test_patience_ends_a_training_that_gets_no_better() -> None:
    found = quick(linear(), made(), method="cross_entropy", epochs=60, patience=3, folds=1)
    curve = found.decision.winner.curve
    assert curve[:, 1].isnan().any()
    assert found.decision.winner.epoch + 3 == int((~curve[:, 1].isnan()).sum())


def test_a_training_that_diverges_leaves_the_others_alone() -> None:
    x, y = made()
    found = mg.fit(
        linear(), (1e18 * x, y), metric="f1", method="cross_entropy", epochs=3, progress=False, clip=None, folds=1
    )
    assert found.value > 0.2


def test_memory_joins_small_batches() -> None:
    plain, remembered = (quick(linear(), made(), method="smooth_ap", batch=16, memory=size) for size in (0, 128))
    assert remembered.value > 0.7
    assert not same(plain, remembered)


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


# -------------------------------------------------------------------------------------------------- interruptions


def stop_after(monkeypatch: pytest.MonkeyPatch, looks: int, error: type[BaseException]) -> None:
    """Raises after so many looks at validation data."""
    count, look = 0, heat.Heat._look

    def counting(self: heat.Heat, mean: Tensor) -> None:
        nonlocal count
        look(self, mean)
        count += 1
        if count == looks:
            raise error

    monkeypatch.setattr(heat.Heat, "_look", counting)


@pytest.mark.parametrize(
    ("looks", "options"),
    [
        pytest.param(1, {}, id="at once"),
        pytest.param(19, {}, id="late"),
        pytest.param(6, {"method": "smooth_ap", "memory": 32}, id="with a memory"),
    ],
)
def test_a_training_that_was_killed_goes_on_exactly(
    looks: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quick(linear(), made(), folds=2, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, looks, RuntimeError)
        with pytest.raises(RuntimeError):
            quick(linear(), made(), folder=tmp_path, folds=2, **options)
    resumed = quick(linear(), made(), folder=tmp_path, folds=2, **options)
    assert same(whole, resumed)
    assert resumed.verdict() == whole.verdict()


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 9, KeyboardInterrupt)
    found = quick(linear(), made())
    assert found.stopped
    assert found.value > 0.6
    assert found.decision.ordinary is not None


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quick(linear(), made(), method="cross_entropy", folds=1)
    saved = storage.save_file
    calls = 0

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        saved(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            quick(linear(), made(), method="cross_entropy", folds=1, folder=tmp_path)
    assert same(whole, quick(linear(), made(), method="cross_entropy", folds=1, folder=tmp_path))


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1)
    with pytest.raises(ValueError, match="epochs=4; this one has epochs=5"):
        quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1, epochs=5)
    with pytest.raises(ValueError, match="seed=0; this one has seed=1"):
        quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1, seed=1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: {"data": made(seed=7)}, "data"),
        (lambda: {"model": nn.Linear(5, 1, bias=True)}, "model"),
        (lambda: {"metric": mg.metric("fbeta", beta=5.0)}, "metric"),
        (lambda: {"balanced": True}, "balanced"),
        (lambda: {"tune_threshold": False}, "tune_threshold"),
    ],
)
def test_a_checkpoint_of_other_data_model_or_metric_is_refused(change: Any, name: str, tmp_path: Path) -> None:
    usual = {"metric": mg.metric("fbeta", beta=0.5), "method": "cross_entropy", "folds": 1, "folder": tmp_path}
    quick(linear(), made(), **usual)
    options = {"model": linear(), "data": made(), **usual, **change()}
    with pytest.raises(ValueError, match=f"is of a training with {name}="):
        quick(options.pop("model"), options.pop("data"), **options)


def test_randomness_of_the_user_is_left_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    model = nn.Linear(5, 1)
    torch.manual_seed(4)
    quick(model, made(), folds=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_module_is_documented() -> None:
    assert "validation" in (fit.__doc__ or "")
