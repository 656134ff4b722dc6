"""Offsets of classes: equal to brute force, safe for rare classes, applied once by fits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.offsets import stable_offsets
from metricgrad.training import Trained
from metricgrad.training.validation import Validation, ValidationItems

EXACT: dict[str, Any] = {"draws": 0, "candidates": 10_000, "sweeps": 30}
PRIORS = torch.tensor([0.6, 0.26, 0.1, 0.02, 0.02], dtype=torch.float64)
SPREAD = torch.tensor([1.0, 1.3, 1.0, 1.5, 1.0], dtype=torch.float64)


def drawn(seed: int, items: int, classes: int) -> tuple[Tensor, Tensor]:
    """Random scores that know a little about the classes."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (items,), generator=generator)
    noise = torch.randn(items, classes, generator=generator, dtype=torch.float64)
    return noise + torch.nn.functional.one_hot(target, classes), target


def rare(seed: int, items: int) -> tuple[Tensor, Tensor]:
    """Log-posteriors of a model that is right but for the spread of the classes; two are rare."""
    generator = torch.Generator().manual_seed(seed)
    target = PRIORS.multinomial(items, replacement=True, generator=generator)
    centres = 1.3 * torch.eye(5, dtype=torch.float64)
    noise = torch.randn(items, 5, generator=generator, dtype=torch.float64)
    x = centres[target] + noise * SPREAD[target].unsqueeze(-1)
    return -(x.unsqueeze(1) - centres).square().sum(-1) / 2 + PRIORS.log(), target


def brute_force(scores: Tensor, offsets: Tensor, target: Tensor, metric: mg.Metric) -> float:
    """The best value that changing the offset of any one class reaches, all cuts tried."""
    found = []
    labels = scores.shape == target.shape
    for c in range(scores.shape[1]):
        moved = scores + offsets
        others = torch.cat([moved[:, :c], moved[:, c + 1 :]], 1)
        leads = scores[:, c] - (0.0 if labels else others.amax(1))
        edges = leads.sort().values
        cuts = torch.cat([edges[:1] - 1, (edges[1:] + edges[:-1]) / 2, edges[-1:] + 1])
        for cut in cuts:
            tried = offsets.clone()
            tried[c] = -cut
            found.append(metric(scores + tried, target).item())
    return max(found) if metric.higher_is_better else min(found)


TABLE = [
    mg.metric("f1"),
    mg.metric("f1", average="weighted"),
    mg.metric("fbeta", beta=2.0, average="micro"),
    mg.metric("jaccard"),
    mg.metric("recall"),
    mg.metric("mcc"),
    mg.metric("kappa"),
    mg.metric("balanced_accuracy"),
    mg.metric("gmean"),
    mg.metric("accuracy"),
    mg.metric("error_rate"),
]


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: f"{metric.name}-{metric.average}")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_other_offset_of_one_class_is_better(metric: mg.Metric, seed: int) -> None:
    scores, target = drawn(seed, 25, 4)
    offsets = mg.best_offsets(scores, target, metric, **EXACT)
    value = metric(scores + offsets, target).item()
    assert value == pytest.approx(brute_force(scores, offsets, target, metric), abs=1e-9)
    gain = value - metric(scores, target).item()
    assert gain >= 0 if metric.higher_is_better else gain <= 0
    assert offsets.mean().item() == pytest.approx(0.0, abs=1e-9)


def test_offsets_beat_the_model_s_own_decisions() -> None:
    scores, target = drawn(0, 200, 4)
    f1 = mg.metric("f1")
    offsets = mg.best_offsets(scores, target, f1, **EXACT)
    assert f1(scores + offsets, target) > f1(scores, target) + 0.01
    moved = mg.best_offsets(scores + 7.0, target, f1, **EXACT)
    assert torch.allclose(offsets, moved)


@pytest.mark.parametrize("draws", [0, 32])
def test_few_cuts_are_nearly_as_good_as_all(draws: int) -> None:
    scores, target = rare(0, 3000)
    f1 = mg.metric("f1")
    few = mg.best_offsets(scores, target, f1, draws=draws, candidates=64)
    every = mg.best_offsets(scores, target, f1, draws=draws, candidates=10_000)
    assert f1(scores + few, target).item() == pytest.approx(
        f1(scores + every, target).item(), abs=0.012
    )


def test_cuts_are_dense_where_a_rare_class_is_decided() -> None:
    first = torch.linspace(3, 0, 3000, dtype=torch.float64)
    scores = torch.stack([torch.zeros_like(first), first], 1)
    target = torch.zeros(3000, dtype=torch.int64)
    target[4] = 1
    macro = mg.metric("f1", average="macro")
    offsets = mg.best_offsets(scores, target, macro, draws=0)
    assert scores.add(offsets).argmax(-1).sum() < 8


@pytest.mark.parametrize("name", ["f1", "mcc", "kappa", "error_rate"])
def test_each_label_has_its_best_threshold(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(2, (40, 3), generator=generator)
    scores = torch.randn(40, 3, generator=generator, dtype=torch.float64) + target
    metric = mg.metric(name, multilabel=True)
    offsets = mg.best_offsets(scores, target, metric, draws=0, candidates=1000, sweeps=1)
    threshold = mg.best_threshold(scores, target, metric)
    own = mg.metric(name, multilabel=True, threshold=threshold)(scores, target)
    assert metric(scores + offsets, target) == own


def test_labels_that_are_counted_together_are_tuned_in_turn() -> None:
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(2, (30, 3), generator=generator)
    scores = torch.randn(30, 3, generator=generator, dtype=torch.float64) + target
    metric = mg.metric("f1", multilabel=True, average="micro", threshold=[0.5, -0.5, 0.0])
    offsets = mg.best_offsets(scores, target, metric, **EXACT)
    value = metric(scores + offsets, target).item()
    best = mg.metric("f1", multilabel=True, average="micro")
    moved = offsets - torch.tensor([0.5, -0.5, 0.0])
    assert value == pytest.approx(brute_force(scores, moved, target, best))
    where = torch.rand(30, 3, generator=generator) < 0.7
    counted = mg.best_offsets(scores, target, metric, where=where, **EXACT)
    hidden = scores.masked_fill(~where, 99.0)
    assert torch.equal(mg.best_offsets(hidden, target, metric, where=where, **EXACT), counted)


def test_label_maps_are_pixels() -> None:
    scores, target = drawn(4, 60, 3)
    maps = scores.reshape(2, 5, 6, 3).movedim(-1, 1)
    labels = target.reshape(2, 5, 6)
    flat = mg.best_offsets(scores, target, "jaccard", **EXACT)
    assert torch.equal(mg.best_offsets(maps, labels, "mean_iou", **EXACT), flat)
    hidden = labels.clone()
    hidden[:, 0] = 255
    ignoring = mg.metric("mean_iou", ignore_index=255)
    found = mg.best_offsets(maps, hidden, ignoring, **EXACT)
    kept = (maps[:, :, 1:], labels[:, 1:])
    assert torch.equal(found, mg.best_offsets(*kept, "mean_iou", **EXACT))


def test_where_leaves_items_out() -> None:
    scores, target = drawn(5, 80, 4)
    where = torch.arange(80) % 3 > 0
    scores[~where] = torch.nan
    found = mg.best_offsets(scores, target, "f1", where=where)
    assert torch.equal(found, mg.best_offsets(scores[where], target[where], "f1"))
    nothing = mg.best_offsets(scores, target, "f1", where=torch.zeros(80, dtype=torch.bool))
    assert torch.equal(nothing, torch.zeros(4, dtype=torch.float64))


def test_two_classes_have_one_threshold() -> None:
    scores, target = drawn(6, 50, 2)
    metric = mg.metric("f1", threshold=0.3)
    offsets = mg.best_offsets(scores, target, metric, **EXACT)
    binary = scores[:, 1] - scores[:, 0]
    best = mg.metric("f1", threshold=mg.best_threshold(binary, target, "f1"))(binary, target)
    assert metric(scores + offsets, target) == best
    assert offsets[0] == -offsets[1] != 0
    where = torch.arange(50) % 2 > 0
    part = mg.best_offsets(scores, target, metric, where=where, **EXACT)
    assert torch.equal(part, mg.best_offsets(scores[where], target[where], metric, **EXACT))
    macro = mg.metric("f1", average="macro")
    offsets = mg.best_offsets(scores, target, macro, **EXACT)
    value = macro(scores + offsets, target).item()
    assert value == pytest.approx(brute_force(scores, offsets, target, macro))


def test_what_counts_cannot_tell_is_tried() -> None:
    scores, target = drawn(7, 60, 4)

    def wrong(moved: Tensor, truth: Tensor) -> float:
        return float((moved.argmax(-1) - truth).abs().double().mean())

    cases: list[Any] = [
        mg.metric("kappa", weights="quadratic"),
        mg.metric("accuracy", k=2),
        mg.from_function(wrong, higher_is_better=False),
    ]
    for metric in cases:
        offsets = mg.best_offsets(scores, target, metric, draws=0)
        gain = metric(scores + offsets, target) - metric(scores, target)
        assert gain > 0.01 if metric.higher_is_better else gain < -0.01
        shrunk = mg.best_offsets(scores, target, metric)
        certain = shrunk[0] / offsets[0]
        assert 0 < certain < 1
        assert torch.allclose(shrunk, certain * offsets)


def test_functions_of_labels_and_of_maps_are_tried() -> None:
    scores, target = drawn(8, 60, 3)
    truth = torch.nn.functional.one_hot(target, 3)
    labels = mg.from_function(lambda s, y: ((s > 0) == y).double().mean(), multilabel=True)
    offsets = mg.best_offsets(scores, truth, labels, draws=0)
    assert labels(scores + offsets, truth) > labels(scores, truth)
    maps = mg.from_function(lambda s, y: (s.argmax(1) == y).double().mean(), set_dims=(4, 3))
    images = scores.reshape(4, 3, 5, 3).movedim(-1, 1)
    indices = target.reshape(4, 3, 5)
    offsets = mg.best_offsets(images, indices, maps, draws=0)
    assert maps(images + offsets.reshape(3, 1, 1), indices) > maps(images, indices)


def test_a_function_that_is_undefined_moves_nothing() -> None:
    scores, target = drawn(8, 30, 3)
    nothing = mg.from_function(lambda *_: float("nan"))
    assert torch.equal(mg.best_offsets(scores, target, nothing), torch.zeros(3).double())


@pytest.mark.parametrize("draws", [0, 32])
def test_a_class_without_items_is_treated_as_the_others_are(draws: int) -> None:
    scores, target = drawn(9, 100, 4)
    target = target.where(target != 2, 0)
    offsets = mg.best_offsets(scores, target, "f1", draws=draws)
    assert offsets[2].item() == pytest.approx(offsets[[0, 1, 3]].mean().item(), abs=0.5)
    assert offsets.isfinite().all()


def test_equal_scores_stay_as_they_are() -> None:
    target = torch.tensor([0, 1, 2, 2])
    scores = torch.zeros(4, 3)
    for draws in (0, 32):
        offsets = mg.best_offsets(scores, target, "f1", draws=draws)
        value = mg.metric("f1")(scores + offsets, target)
        assert offsets.isfinite().all()
        assert value >= mg.metric("f1")(scores, target)
    perfect = 10.0 * torch.eye(3)[target]
    assert torch.equal(mg.best_offsets(perfect, target, "f1"), torch.zeros(3))


def test_the_same_data_gives_the_same_offsets() -> None:
    scores, target = rare(0, 300)
    found = mg.best_offsets(scores.tolist(), target.numpy(), "f1")
    torch.manual_seed(5)
    assert torch.equal(found, mg.best_offsets(scores, target, "f1"))
    assert mg.best_offsets(scores.float(), target, "f1").dtype == torch.float32
    assert stable_offsets(scores, target, mg.metric("f1")).shape == (5,)


def gains(name: str, draws: int) -> Tensor:
    """What offsets of a thousand items, twenty each of two classes, gain on fresh items."""
    metric = mg.metric(name)
    found = []
    for seed in range(8):
        offsets = mg.best_offsets(*rare(seed, 1000), metric, draws=draws)
        scores, target = rare(100 + seed, 10_000)
        found.append(metric(scores + offsets, target) - metric(scores, target))
    return torch.stack(found)


def test_offsets_of_rare_classes_hold_on_fresh_data() -> None:
    f1 = gains("f1", 32)
    assert f1.mean() > gains("f1", 0).mean() + 0.002
    assert f1.mean() > 0.01
    mcc = gains("mcc", 32)
    assert mcc.mean() > gains("mcc", 0).mean() + 0.005
    assert min(f1.min(), mcc.min()) > -0.005
    assert gains("balanced_accuracy", 32).mean() > 0.08


def test_offsets_are_left_alone_where_there_is_nothing_to_gain() -> None:
    accuracy = mg.metric("accuracy")
    lost = []
    for seed in range(8):
        scores, target = drawn(seed, 300, 5)
        offsets = mg.best_offsets(2 * scores, target, accuracy)
        fresh, truth = drawn(100 + seed, 10_000, 5)
        lost.append(accuracy(2 * fresh, truth) - accuracy(2 * fresh + offsets, truth))
    assert torch.stack(lost).mean() < 0.005


@pytest.mark.parametrize(
    ("scores", "target", "metric", "message"),
    [
        ((6,), (6,), "f1", r"pass them to best_threshold.*got scores \[6\] and target \[6\]"),
        ((6, 3), (6, 3), "f1", r"multilabel=True; got scores \[6, 3\]"),
        ((2, 6, 3), (2, 6), "f1", r"one set, scores \[N, C\] with target \[N\] for f1; got scores"),
        ((6, 3), (6,), "auc", "auc depends only on the order of the scores"),
        (
            (6, 3, 4, 4),
            (6, 3, 2),
            mg.metric("pck", radius=1.0),
            "pck has no classes to choose from",
        ),
        ((6, 3), (6,), "mean_iou", r"\[N, C, H, W\] with target \[N, H, W\] for mean_iou"),
        ((6, 3), (6,), mg.metric("f1", multilabel=True), r"scores and target \[N, C\] for f1"),
    ],
)
def test_what_has_no_offsets_is_refused(
    scores: tuple[int, ...], target: tuple[int, ...], metric: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mg.best_offsets(torch.zeros(scores), torch.zeros(target, dtype=torch.int64), metric)


@pytest.mark.parametrize(("option", "least"), [("draws", 0), ("candidates", 2), ("sweeps", 1)])
def test_wrong_options_are_refused(option: str, least: int) -> None:
    scores, target = drawn(0, 10, 3)
    wrong: dict[str, Any] = {option: least - 1}
    with pytest.raises(ValueError, match=f"{option} must be {least} or more; got {least - 1}"):
        mg.best_offsets(scores, target, "f1", **wrong)


def validation(metric: mg.Metric, target: Tensor) -> Validation:
    """One fold with all items."""
    live = torch.ones(1, len(target), dtype=torch.bool)
    return Validation(metric, ValidationItems(target.unsqueeze(0), live))


@pytest.mark.parametrize("name", ["f1", "mcc", "balanced_accuracy", "kappa"])
def test_validation_tunes_the_offsets_of_classes(name: str) -> None:
    scores, target = rare(0, 1000)
    metric = mg.metric(name)
    value, threshold = validation(metric, target).measure(scores.unsqueeze(0))
    assert threshold is not None
    assert torch.equal(threshold, -stable_offsets(scores, target, metric))
    assert value == metric(scores - threshold, target).item()


def test_validation_leaves_a_share_of_right_items_alone() -> None:
    scores, target = rare(0, 200)
    for name in ("accuracy", "error_rate"):
        assert validation(mg.metric(name), target).measure(scores[None]).threshold is None


def made(items: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes of two features, two of them rare."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.tensor([0.7, 0.2, 0.1]).multinomial(items, True, generator=generator)
    centres = torch.tensor([[0.0, 0.0], [1.2, 0.0], [0.0, 1.2]])
    return centres[target] + torch.randn(items, 2, generator=generator), target


def test_fit_applies_its_offsets_once() -> None:
    x, y = made(600)
    options: dict[str, Any] = {"metric": "f1", "method": "cross_entropy", "rate": 0.03, "epochs": 3}
    found = mg.fit(torch.nn.Linear(2, 3), (x, y), **options)
    assert found.offsets is not None
    assert found.offsets.abs().max() > 0.1
    decided = found.model(x).detach() + found.offsets
    assert torch.equal(found.predict(x), decided.argmax(-1))
    assert found.measure(x, y) == mg.metric("f1")(decided, y).item()
    assert "3 offsets from" in repr(found)
    fresh, truth = made(3000, seed=1)
    assert found.measure(fresh, truth) > mg.metric("f1")(found.scores(fresh), truth) + 0.02
    plain = mg.fit(torch.nn.Linear(2, 3), (x, y), tune_threshold=False, **options)
    assert plain.offsets is None
    assert "offsets" not in repr(plain)


def test_label_maps_are_tuned_and_decided_with_offsets() -> None:
    scores, target = drawn(4, 600, 3)
    x = scores.float().reshape(6, 10, 10, 3).movedim(-1, 1)
    y = target.reshape(6, 10, 10)
    metric = mg.metric("mean_iou")
    value, threshold = validation(metric, y).measure(x.unsqueeze(0))
    assert threshold is not None
    assert threshold.shape == (3,)
    moved = x - threshold.reshape(3, 1, 1)
    assert value == metric(moved, y).item() != metric(x, y).item()
    same = torch.nn.Conv2d(3, 3, 1, bias=False)
    same.weight.data = torch.eye(3).reshape(3, 3, 1, 1)
    trained = Trained(model=same, metric=metric, threshold=threshold)
    assert trained.offsets is not None
    assert torch.equal(trained.predict(x), moved.argmax(1))
    assert trained.measure(x, y) == pytest.approx(value)
    assert Trained(model=same, metric=metric, threshold=None).predict(x).shape == (6, 10, 10)


def test_classifiers_decide_with_offsets_and_store_them(tmp_path: Path) -> None:
    x, y = made(400)
    model = mg.MetricClassifier(
        "f1", method="cross_entropy", hidden=(), epochs=3, rate=0.03, random_state=0
    ).fit(x.numpy(), y.numpy())
    offsets = model.trained_.offsets
    assert offsets is not None
    assert offsets.abs().max() > 0.1
    scores = model.trained_.scores(model.prepared(x.numpy()))
    moved = torch.from_numpy(model.decision_function(x.numpy()))
    assert torch.allclose(moved, scores + offsets)
    decided = model.predict(x.numpy())
    assert (decided == (scores + offsets).argmax(-1).numpy()).all()
    assert (decided == model.predict_proba(x.numpy()).argmax(-1)).all()
    assert model.score(x.numpy(), y.numpy()) == mg.metric("f1")(moved, y).item()
    model.save(tmp_path / "model")
    again = mg.MetricClassifier.load(tmp_path / "model")
    assert again.trained_.offsets is not None
    assert torch.equal(again.trained_.offsets, offsets)
    assert (again.predict(x.numpy()) == decided).all()


def test_files_from_before_there_were_offsets_still_load(tmp_path: Path) -> None:
    x, y = made(300)
    model = mg.MetricClassifier(
        "f1", method="cross_entropy", hidden=(), epochs=2, rate=0.03, random_state=0
    ).fit(x.numpy(), y.numpy())
    model.trained_.threshold = None  # what such a file says
    model._cut = torch.zeros(())
    model.save(tmp_path / "model")
    again = mg.MetricClassifier.load(tmp_path / "model")
    scores = model.trained_.scores(model.prepared(x.numpy()))
    assert again.trained_.offsets is None
    assert (again.predict(x.numpy()) == scores.argmax(-1).numpy()).all()
