"""Weights of the items: in metrics, in their re-expression, in losses and in tuned decisions."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric, tried_flip_gains
from metricgrad.metrics.registry import with_options
from metricgrad.metrics.threshold import stable_threshold
from tests.cases import CASES, VARIANTS, Case
from tests.sets import make_set

WEIGHED = [case for case in CASES if case.metric.row_names]
EVERY = [*WEIGHED, *(case for case in VARIANTS if case.metric.row_names)]
REFUSED = {"interpolated", "cycles"}  # options of average precision without a weighted bit form


def a_set(case: Case, seed: int, kind: Any = "plain", size: int = 9) -> tuple[Tensor, Tensor]:
    """Scores and target, distinct from their neighbours' unless there are to be ties."""
    scores, target = make_set(case.family, kind, np.random.default_rng(seed), size)
    return torch.tensor(scores), torch.tensor(target)


def repeated(weight: Tensor, *parts: Tensor) -> list[Tensor]:
    """Items as often as their weight says."""
    return [part.repeat_interleave(weight, 0) for part in parts]


@pytest.mark.parametrize("kind", ["plain", "ties", "imbalanced"])
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_whole_weights_repeat_items(case: Case, kind: str) -> None:
    for seed in range(3):
        scores, target = a_set(case, seed, kind)
        weight = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, len(scores)))
        weight[:3] += 1
        value = case.metric(scores, target, sample_weight=weight)
        expected = case.metric(*repeated(weight, scores, target))
        torch.testing.assert_close(value, expected)


def multi(fn: Any, **options: Any) -> Any:
    """A scikit-learn function of classes as one of scores `[N, C]`."""
    return lambda y, s, w: fn(y, s.argmax(-1), sample_weight=w, **options)


def curve(fn: Any, **options: Any) -> Any:
    return lambda y, s, w: fn(y, s, sample_weight=w, **options)


def decided(fn: Any, **options: Any) -> Any:
    """A scikit-learn function of decisions as one of binary scores, or scores of labels."""
    return lambda y, s, w: fn(y, s > 0, sample_weight=w, **options)


def crossing(y: np.ndarray, s: np.ndarray, w: np.ndarray) -> float:
    """The equal error rate: where a fine grid along the ROC curve meets fpr = 1 - tpr."""
    fpr, tpr, _ = sk.roc_curve(y, s, sample_weight=w, drop_intermediate=False)
    place = np.linspace(0, len(fpr) - 1, 400_001)
    rate = np.interp(place, np.arange(len(fpr)), fpr)
    excess = np.abs(rate + np.interp(place, np.arange(len(fpr)), tpr) - 1)
    return float(rate[excess.argmin()])


def recall_at(y: np.ndarray, s: np.ndarray, w: np.ndarray) -> float:
    precision, recall, _ = sk.precision_recall_curve(y, s, sample_weight=w)
    return float(recall[precision >= 0.5].max())


BINARY: dict[str, Any] = {
    "accuracy": decided(sk.accuracy_score),
    "error_rate": decided(sk.zero_one_loss),
    "balanced_accuracy": decided(sk.balanced_accuracy_score),
    "precision": decided(sk.precision_score, zero_division=0),
    "recall": decided(sk.recall_score),
    "f1": decided(sk.f1_score),
    "f2": decided(partial(sk.fbeta_score, beta=2)),
    "jaccard": decided(sk.jaccard_score),
    "mcc": decided(sk.matthews_corrcoef),
    "kappa": decided(sk.cohen_kappa_score),
    "auc": curve(sk.roc_auc_score),
    "partial_auc": curve(sk.roc_auc_score, max_fpr=0.1),
    "average_precision": curve(sk.average_precision_score),
    "eer": crossing,
}
CLASSES: dict[str, tuple[dict[str, Any], Any]] = {
    "accuracy": ({}, multi(sk.accuracy_score)),
    "balanced_accuracy": ({}, multi(sk.balanced_accuracy_score)),
    "f1": ({"average": "macro"}, multi(sk.f1_score, average="macro")),
    "jaccard": ({"average": "weighted"}, multi(sk.jaccard_score, average="weighted")),
    "recall": ({"average": "micro"}, multi(sk.recall_score, average="micro")),
    "mcc": ({}, multi(sk.matthews_corrcoef)),
    "kappa": (
        {"weights": "quadratic"},
        multi(sk.cohen_kappa_score, weights="quadratic", labels=range(4)),
    ),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("ties", [False, True])
def test_binary_values_are_scikit_learns(name: str, ties: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        scores = rng.normal(size=40).round(0 if ties else 9)
        target = rng.integers(0, 2, 40)
        weight = rng.random(40) * 3
        value = mg.metric(name)(scores, target, sample_weight=weight)
        expected = BINARY[name](target, scores, weight)
        assert value == pytest.approx(expected, abs=2e-5 if name == "eer" else 1e-9)


def test_recall_at_precision_is_on_scikit_learns_curve() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40)
    target = rng.integers(0, 2, 40)
    weight = rng.random(40)
    value = mg.metric("recall_at_precision", min_precision=0.5)(
        scores, target, sample_weight=weight
    )
    assert value == pytest.approx(recall_at(target, scores, weight))


@pytest.mark.parametrize("name", CLASSES)
def test_values_of_classes_are_scikit_learns(name: str) -> None:
    options, reference = CLASSES[name]
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 4))
    target = rng.integers(0, 4, 60)
    weight = rng.random(60) * 3
    value = mg.metric(name, **options)(scores, target, sample_weight=weight)
    assert value == pytest.approx(reference(target, scores, weight))


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
def test_averages_over_classes_and_labels_are_scikit_learns(average: Any) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 3))
    target = rng.integers(0, 3, 60)
    labels = rng.integers(0, 2, (60, 3))
    weight = rng.random(60) * 3
    chances = torch.tensor(scores).softmax(-1).numpy()
    auc = mg.metric("auc", average=average)(scores, target, sample_weight=weight)
    reference = sk.roc_auc_score(
        target, chances, average=average, multi_class="ovr", sample_weight=weight
    )
    assert auc == pytest.approx(reference)
    for name, fn in {"f1": decided(sk.f1_score), "average_precision": None}.items():
        metric = mg.metric(name, average=average, multilabel=True)
        value = metric(scores, labels, sample_weight=weight)
        fn = (
            decided(sk.f1_score, average=average)
            if fn
            else curve(sk.average_precision_score, average=average)
        )
        assert value == pytest.approx(fn(labels, scores, weight))
    hamming = mg.metric("hamming")(scores, labels, sample_weight=weight)
    assert hamming == pytest.approx(decided(sk.hamming_loss)(labels, scores, weight))


@pytest.mark.parametrize("case", WEIGHED, ids=str)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20), whole=st.booleans())
def test_bits_give_the_weighted_value_and_its_gains(case: Case, seed: int, whole: bool) -> None:
    metric = case.metric
    if not isinstance(metric, ComparisonMetric) or REFUSED & set(case.options):
        return
    scores, target = a_set(case, seed, size=6)
    generator = torch.Generator().manual_seed(seed)
    weight = 3 * torch.rand(6, generator=generator, dtype=torch.float64)
    weight = weight.round() if whole else weight
    bound = metric.with_rows({"sample_weight": weight})
    comparisons, live = bound.comparisons(scores, target)
    if (comparisons[live] == 0).any():
        return
    bits = comparisons > 0
    value = metric(scores, target, sample_weight=weight)
    torch.testing.assert_close(bound.from_bits(bits, target, shape=scores.shape), value)
    inputs = bound.check(scores, target, None)
    plan = bound.reexpress(inputs.scores.shape, inputs.target, inputs.where, inputs.scores.dtype)
    gains = plan.flip_gains(bits)
    torch.testing.assert_close(gains[live], tried_flip_gains(plan, bits)[live])


@pytest.mark.parametrize("case", WEIGHED, ids=str)
def test_a_loss_trains_on_the_weighted_metric(case: Case) -> None:
    if not isinstance(case.metric, ComparisonMetric) or REFUSED & set(case.options):
        return
    scores, target = a_set(case, 3, size=12)
    scores.requires_grad_()
    weight = 0.5 + torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = mg.UniLoss(case.metric)
    value = loss(scores, target, sample_weight=weight)
    metric = case.metric(scores, target, sample_weight=weight)
    expected = metric if not case.metric.higher_is_better else case.metric.best - metric
    torch.testing.assert_close(value.detach(), expected)
    alike = torch.autograd.grad(loss(scores, target, sample_weight=torch.ones(12)), scores)[0]
    plain = torch.autograd.grad(loss(scores, target), scores)[0]
    torch.testing.assert_close(alike, plain)
    assert not loss.metric.rows  # nothing stays bound after a call


@pytest.mark.parametrize("name", ["f1", "mcc", "auc", "average_precision", "eer"])
def test_the_gradient_is_that_of_the_weighted_interpolation(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(3, 10, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.arange(30).reshape(3, 10) % 3 == 0
    weight = torch.rand(3, 10, generator=generator, dtype=torch.float64)
    weight[:, 0] = 0
    loss = mg.UniLoss(name)
    assert torch.autograd.gradcheck(
        lambda s: loss.relaxed(s, target, sample_weight=weight), scores, eps=1e-7, atol=1e-5
    )
    each = [
        loss(*parts, sample_weight=own) for *parts, own in zip(scores, target, weight, strict=True)
    ]
    together = loss.per_set(scores, target, sample_weight=weight)
    torch.testing.assert_close(torch.stack(each), together)
    (gradient,) = torch.autograd.grad(together.sum(), scores)
    assert (gradient[:, 0] == 0).all()
    assert gradient.abs().sum() > 0


def test_a_heavy_item_pulls_harder() -> None:
    scores = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.0, -0.1], requires_grad=True)
    target = torch.tensor([0, 1, 0, 1, 0, 1])
    weight = torch.tensor([1.0, 5.0, 1.0, 1.0, 1.0, 1.0])
    for name in ("auc", "average_precision", "recall"):
        for loss in (mg.UniLoss(name), mg.MetricLoss(name)):
            heavy, plain = (
                torch.autograd.grad(loss(scores, target, sample_weight=each), scores)[0]
                for each in (weight, torch.ones(6))
            )
            assert heavy[1] / heavy[5].abs() < plain[1] / plain[5].abs() < 0


def test_cross_entropy_is_weighted() -> None:
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(20, 3)))
    target = torch.tensor(rng.integers(0, 3, 20))
    labels = torch.tensor(rng.integers(0, 2, (20, 3)))
    weight = torch.tensor(rng.random(20))
    loss = mg.baselines.CrossEntropy()
    value = loss(scores, target, sample_weight=weight)
    chances = scores.softmax(-1).numpy()
    assert value == pytest.approx(sk.log_loss(target, chances, sample_weight=weight.numpy()))
    assert loss(scores, target) == pytest.approx(sk.log_loss(target, chances))
    beside = mg.MetricLoss(mg.metric("f1", multilabel=True)).ordinary
    value = beside(scores, labels, sample_weight=weight)
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        scores, labels.double(), reduction="none"
    )
    assert value == pytest.approx((each.mean(-1) * weight).sum() / weight.sum())


@pytest.mark.parametrize("name", ["f1", "mcc", "balanced_accuracy"])
def test_best_threshold_and_offsets_of_weighted_items_are_those_of_repeated_ones(name: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scores = torch.tensor(rng.normal(size=(30, 3)))
        target = torch.tensor(rng.integers(0, 3, 30))
        weight = torch.tensor(rng.integers(0, 4, 30))
        binary = (scores[:, 0], target == 0)
        found = mg.best_threshold(*binary, metric=name, sample_weight=weight)
        assert found == mg.best_threshold(*repeated(weight, *binary), metric=name)
        offsets = mg.best_offsets(
            scores, target, name, draws=0, candidates=99, sample_weight=weight
        )
        more = repeated(weight, scores, target)
        again = mg.best_offsets(*more, metric=name, draws=0, candidates=999)
        torch.testing.assert_close(offsets, again)


def test_offsets_drawn_with_weights_spread_as_those_of_repeated_items() -> None:
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(400, 3)))
    target = torch.tensor(np.where(rng.random(400) < 0.1, 2, rng.integers(0, 2, 400)))
    scores[torch.arange(400), target] += 1
    plain = mg.best_offsets(scores, target, "f1")
    alike = mg.best_offsets(scores, target, "f1", sample_weight=torch.full((400,), 2.0))
    torch.testing.assert_close(plain, alike)
    heavy = torch.where(target == 2, 10.0, 1.0)
    weighed = mg.best_offsets(scores, target, "f1", sample_weight=heavy)
    assert weighed[2] > plain[2]


def test_what_has_no_weights_says_so() -> None:
    scores = torch.randn(8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.arange(8) % 2
    ones = torch.ones(8)
    for name in ("ndcg", "map", "precision_at_k"):
        with pytest.raises(TypeError, match=r"Weights are for metrics of .* got sample_weight"):
            mg.metric(name)(scores, target, sample_weight=ones)
    for loss in (mg.ReLoss("f1"), mg.BilevelLoss("f1"), mg.baselines.SoftFBeta()):
        with pytest.raises(TypeError, match=r"takes scores and target alone here; got sample_wei"):
            loss(scores, target, sample_weight=ones)
    half = mg.with_ordinary(mg.ReLoss("accuracy"))
    with pytest.raises(TypeError, match=r"takes scores and target alone here; got sample_weight"):
        half(scores, target, sample_weight=ones)
    beside = mg.MetricLoss("f1", ordinary=mg.baselines.SoftFBeta())
    with pytest.raises(TypeError, match=r"for mg\.MetricLoss with cross-entropy"):
        beside(scores, target, sample_weight=ones)
    enveloped = mg.UniLoss(mg.metric("average_precision", interpolated=True))
    with pytest.raises(ValueError, match=r"interpolated=True .* has no form with sample_weight"):
        enveloped(scores, target, sample_weight=ones)


def test_wrong_weights_are_told() -> None:
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    weight = torch.ones(2, 4)
    for call in (mg.metric("f1"), mg.UniLoss("auc"), mg.baselines.CrossEntropy()):
        with pytest.raises(
            ValueError, match=r"sample_weight must be 0 or more .* got -1 for 1 of 8"
        ):
            call(
                scores,
                target,
                sample_weight=weight.index_put(
                    (torch.tensor(0), torch.tensor(1)), torch.tensor(-1.0)
                ),
            )
        with pytest.raises(ValueError, match=r"sample_weight must have a value for each item"):
            call(scores, target, sample_weight=weight[:, 1:])
        with pytest.raises(ValueError, match=r"sample_weight is NaN for 8 of 8"):
            call(scores, target, sample_weight=weight * torch.nan)
        where = torch.tensor([[True, True, False, True]]).expand(2, 4)
        spoiled = weight.masked_fill(~where, torch.nan)
        masked = call(scores, target, where=where, sample_weight=spoiled)
        torch.testing.assert_close(masked, call(scores, target, where=where))
    nothing = mg.metric("f1")(scores, target, sample_weight=0 * weight)
    assert (nothing == 0).all()


def test_groups_take_their_weights_along() -> None:
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=12))
    target = torch.arange(12) % 2
    weight = torch.tensor(rng.random(12))
    ids = torch.arange(12) // 4
    value = mg.metric("auc")(scores, target, groups=ids, sample_weight=weight)
    sets = [part.reshape(3, 4) for part in (scores, target, weight)]
    torch.testing.assert_close(value, mg.metric("auc")(*sets[:2], sample_weight=sets[2]))


def test_a_fit_trains_and_validates_on_the_weighted_metric() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator)
    y = (x[:, 0] + torch.randn(300, generator=generator) > 0.5).long()
    weight = torch.rand(300, generator=generator)
    for name in ("f1", "auc"):
        model = torch.nn.Linear(3, 1)
        for method in ("auto", "uniloss"):
            found = mg.fit(
                model, (x, y, weight), metric=name, method=method, rate=0.05, epochs=2, folds=1
            )
            items = found.validation
            (live,) = items.live
            scores = found.decision.winner.scores[0][live]
            metric, moved = mg.metric(name).at_threshold(found.threshold, scores)
            own = items.rows["sample_weight"][0][live]
            value = metric(moved, items.target[0][live], sample_weight=own)
            assert found.value == pytest.approx(float(value), abs=1e-6)
            tried = {trial.candidate.method for trial in found.trials}
            ours = (
                {"uniloss"} if method == "uniloss" else {"cross_entropy", "metric_loss", "uniloss"}
            )
            assert tried == ours  # no loss that would train on something else
    with pytest.raises(ValueError, match=r"soft_f_beta takes no weights of items"):
        mg.fit(model, (x, y, weight), metric="f1", method="soft_f_beta")
    with pytest.raises(ValueError, match=r"past items join a batch without their sample_weight"):
        mg.fit(model, (x, y, weight), metric="f1", memory=64)


def test_a_warm_start_is_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = []
    values = mg.baselines.CrossEntropy.values

    def watched(self: Any, *inputs: Any) -> Tensor:
        bound.append(set(self.rows))
        return values(self, *inputs)

    monkeypatch.setattr(mg.baselines.CrossEntropy, "values", watched)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long(), torch.rand(60))
    mg.fit(torch.nn.Linear(2, 1), data, metric="f1", method="uniloss", rate=0.1, epochs=2, folds=1)
    assert bound
    assert all(each == {"sample_weight"} for each in bound)


def test_other_options_and_thresholds_keep_the_weights() -> None:
    bound = mg.metric("f1").with_rows({"sample_weight": torch.ones(3)})
    moved, _ = bound.at_threshold(torch.tensor(0.5), torch.zeros(3))
    for metric in (moved, with_options(bound, average="macro")):
        assert metric.rows["sample_weight"].tolist() == [1, 1, 1]
    assert not bound.with_rows({}).rows


@pytest.mark.parametrize("average", [None, "macro", "micro"])
def test_a_stable_threshold_follows_the_weights(average: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(400, generator=generator)
    target = torch.where(torch.arange(400) < 200, scores > 1, scores > -1).long()
    metric = mg.metric("f1")
    if average is not None:
        scores, target = (torch.stack([part, part], -1) for part in (scores, target))
        metric = mg.metric("f1", multilabel=True, average=average)
    for cut, counts in ((1.0, torch.arange(400) < 200), (-1.0, torch.arange(400) >= 200)):
        weighed = metric.with_rows({"sample_weight": counts.double()})
        found = stable_threshold(scores, target, weighed)
        assert found.shape == ((2,) if average == "macro" else ())
        torch.testing.assert_close(found, torch.full_like(found, cut), atol=0.1, rtol=0)


def test_of_positives_that_beat_each_other_in_turn_the_heavier_is_before() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=torch.float64)
    target = torch.tensor([1, 1, 1, 0])
    bound = mg.metric("average_precision").with_rows({"sample_weight": weight})
    assert isinstance(bound, ComparisonMetric)
    bits = torch.zeros(3, 1 + 3, dtype=torch.bool)  # all lost to the negative
    bits[1, 1 + 0] = True  # the second is ahead of the first,
    bits[2, 1 + 1] = True  # and the third of the second, but the first of the third
    in_order = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    turned = torch.tensor([3.0, 2.0, 1.0, 4.0], dtype=torch.float64)
    metric = mg.metric("average_precision")
    value = bound.from_bits(bits.flatten(), target)
    torch.testing.assert_close(value, metric(in_order, target, sample_weight=weight))
    assert value > metric(turned, target, sample_weight=weight)
