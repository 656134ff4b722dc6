"""Functions that cannot be watched, such as those of NumPy, scikit-learn and torchmetrics."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
import torchmetrics.functional.classification as tm
from sklearn import metrics as sk
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import (
    BlackBoxMetric,
    NotDecidedError,
    WatchedMetric,
    black_boxes,
    watched,
)

Function = Callable[..., Any]

QUIET: dict[str, Any] = {"zero_division": 0.0}

# scikit-learn's and NumPy's, of sets in which nothing is positive
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("User", "Runtime")]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape: int, seed: int = 0, share: float = 0.4) -> Tensor:
    target = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share).long()
    target[..., 0], target[..., 1] = 1, 0
    return target


def black_box(fn: Function, **options: Any) -> BlackBoxMetric:
    metric = mg.reexpress(fn, watch=False, **options)
    assert isinstance(metric, BlackBoxMetric)
    return metric


def tried_out(fn: Function, **options: Any) -> BlackBoxMetric:
    """A black box of which it is known what it looks at."""
    metric = black_box(fn, **options)
    for seed in range(90, 94):
        target = labels(2, 11, seed=seed).T if "multilabel" in options else labels(11, seed=seed)
        metric.comparisons(normal(*target.shape, seed=seed), target)
    return metric


def gradient(
    metric: Any, scores: Tensor, target: Tensor, where: Tensor | None = None, **options: Any
) -> Tensor:
    scores = scores.detach().clone().requires_grad_()
    mg.UniLoss(metric, **options)(scores, target, where).backward()
    assert scores.grad is not None
    return scores.grad


def numpy_accuracy(scores: Any, target: Any) -> float:
    return float(np.mean((np.asarray(scores) > 0) == np.asarray(target)))


def numpy_auc(scores: Any, target: Any) -> float:
    scores, target = np.asarray(scores), np.asarray(target)
    return float(np.mean(scores[target == 1][:, None] > scores[target == 0][None, :]))


def sklearn_f1(scores: Any, target: Any) -> float:
    return float(sk.f1_score(target, np.asarray(scores) > 0, **QUIET))


def weighted_accuracy(scores: Any, target: Any) -> float:
    """Items are not alike: each has a weight of its own."""
    scores, target = np.asarray(scores), np.asarray(target)
    weight = np.arange(1, len(scores) + 1)
    return float(np.average((scores > 0) == target, weights=weight))


def weighted_auc(scores: Any, target: Any) -> float:
    scores, target = np.asarray(scores), np.asarray(target)
    weight = np.arange(1, len(scores) + 1)[target == 1]
    return float(
        np.average((scores[target == 1][:, None] > scores[target == 0]).mean(1), weights=weight)
    )


# The same gradients as those of metrics that are known from inside


SAME: dict[str, Function] = {
    "f1": sk.f1_score,
    "mcc": sk.matthews_corrcoef,
    "average_precision": sk.average_precision_score,
    "auc": sk.roc_auc_score,
    "accuracy": numpy_accuracy,
    "balanced_accuracy": sk.balanced_accuracy_score,
}


@pytest.mark.parametrize("name", SAME)
def test_the_gradient_is_that_of_the_librarys_metric(name: str) -> None:
    """On the first set and on the next ones."""
    loss = mg.UniLoss(mg.from_function(SAME[name], best=1.0))
    for seed in range(3, 7):
        scores, target = normal(20, seed=seed).requires_grad_(), labels(20, seed=seed)
        loss(scores, target).backward()
        assert scores.grad is not None
        assert scores.grad.any()
        expected = gradient(name, scores, target)
        torch.testing.assert_close(scores.grad, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["mcc", "auc", "balanced_accuracy"])
def test_it_is_so_whatever_the_first_set_is(name: str) -> None:
    for seed in range(15):
        given = normal(20, seed=seed), labels(20, seed=seed)
        found = gradient(black_box(SAME[name], best=1.0), *given)
        torch.testing.assert_close(found, gradient(name, *given), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("f1", 1.0),
        ("mcc", 2.0),
        ("auc", 1.0),
        pytest.param("average_precision", None),
    ],
)
def test_as_it_stands_it_is_unbounded_and_scaled_by_its_range(
    name: str, span: float | None
) -> None:
    scores, target = normal(20, seed=3), labels(20, seed=3)
    loss = mg.UniLoss(SAME[name])
    assert isinstance(loss.metric, WatchedMetric)  # until it has been tried
    assert loss(scores, target).item() == pytest.approx(mg.UniLoss(name)(scores, target).item() - 1)
    assert isinstance(loss.metric, BlackBoxMetric)
    if span is None:
        worst = torch.cat([1 / torch.arange(20 - int(target.sum()) + 1, 21)]) * torch.arange(
            1, int(target.sum()) + 1
        )
        span = 1 - float(worst.mean())
    found = gradient(SAME[name], scores, target)
    torch.testing.assert_close(found * span, gradient(name, scores, target), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("fn", "name"),
    [(tm.binary_f1_score, "f1"), (tm.binary_auroc, "auc"), (torchmetrics.F1Score("binary"), "f1")],
    ids=["f1", "auroc", "object"],
)
def test_torchmetrics_are_taken_as_they_stand(fn: Function, name: str) -> None:
    scores, target = normal(20, seed=3), labels(20, seed=3)
    found = gradient(mg.from_function(fn, best=1.0), scores, target)
    torch.testing.assert_close(found, gradient(name, scores, target), rtol=0, atol=1e-6)


def test_many_classes_are_each_compared_with_the_best_other() -> None:
    scores, target = normal(12, 3), torch.arange(12) % 3

    def in_torch(scores: Tensor, target: Tensor) -> Tensor:
        return (
            torch.eye(3).double()[target, scores.argmax(-1)].mean()
        )  # the classes have equal numbers

    found = gradient(mg.from_function(sk.balanced_accuracy_score, best=1.0), scores, target)
    torch.testing.assert_close(
        found, gradient(mg.reexpress(in_torch, best=1.0), scores, target), rtol=0, atol=1e-8
    )
    assert mg.reexpress(sk.balanced_accuracy_score, watch=False).comparisons(scores, target)[
        0
    ].shape == (36,)


def macro_f1(scores: Any, target: Any) -> float:
    return float(sk.f1_score(target, np.asarray(scores) > 0, average="macro", **QUIET))


def macro_ap(scores: Any, target: Any) -> float:
    return float(sk.average_precision_score(target, scores, average="macro"))


@pytest.mark.parametrize(("fn", "name"), [(macro_f1, "f1"), (macro_ap, "average_precision")])
def test_many_labels_are_as_many_columns(fn: Function, name: str) -> None:
    scores, target = normal(9, 3), labels(3, 9).T
    found = gradient(black_box(fn, best=1.0, multilabel=True), scores, target)
    torch.testing.assert_close(
        found, gradient(mg.metric(name, multilabel=True), scores, target), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0),
        2,
    ],
)
def test_labels_that_only_count_together_are_followed(seed: int) -> None:
    def in_numpy(scores: Any, target: Any) -> float:
        return float(((np.asarray(scores) > 0) == np.asarray(target)).all(-1).mean())

    def in_torch(scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == target.bool()).all(-1).double().mean()

    scores, target = normal(9, 3, seed=seed), labels(3, 9, seed=seed).T
    found, expected = (
        gradient(mg.reexpress(fn, watch=watch, best=1.0, multilabel=True), scores, target)
        for fn, watch in ((in_numpy, False), (in_torch, True))
    )
    assert expected.any()
    torch.testing.assert_close(found, expected)


def test_other_thresholds_are_passed() -> None:
    scores, target = normal(20), labels(20)

    def at_a_half(scores: Any, target: Any) -> float:
        return numpy_accuracy(np.asarray(scores) - 0.5, target)

    found = gradient(black_box(at_a_half, best=1.0, thresholds=(0.5,)), scores, target)
    torch.testing.assert_close(
        found, gradient(mg.metric("accuracy", threshold=0.5), scores, target)
    )
    with pytest.raises(
        NotDecidedError,
        match=r"sides of \[0.0\]: .*other thresholds do \(mg.reexpress\(fn, watch=False",
    ):
        gradient(black_box(at_a_half, best=1.0), scores, target)


def test_several_thresholds_make_grades() -> None:
    scores, target = normal(20), torch.arange(20) % 3

    def in_numpy(scores: Any, target: Any) -> float:
        return -float(np.abs(np.digitize(scores, [-0.5, 0.5]) - np.asarray(target)).mean())

    def in_torch(scores: Tensor, target: Tensor) -> Tensor:
        return (
            -(torch.bucketize(scores, torch.tensor([-0.5, 0.5]).double()) - target)
            .abs()
            .double()
            .mean()
        )

    found = gradient(
        black_box(in_numpy, best=0.0, thresholds=(0.5, -0.5)), scores, target
    )  # in any order
    torch.testing.assert_close(found, gradient(mg.reexpress(in_torch, best=0.0), scores, target))


@pytest.mark.parametrize("thresholds", [(), (float("nan"),), (0.0, float("inf"))], ids=str)
def test_thresholds_must_be_numbers(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="thresholds must be finite numbers, at least one"):
        mg.reexpress(numpy_accuracy, watch=False, thresholds=thresholds)


@pytest.mark.parametrize(
    "fn", [numpy_auc, sklearn_f1, weighted_accuracy, weighted_auc, sk.average_precision_score]
)
def test_the_bits_of_other_scores_give_their_value(fn: Function) -> None:
    target = labels(10)
    metric = mg.from_function(fn, best=1.0)
    box = black_box(fn, best=1.0)
    plan = box.reexpress((10,), target, None, torch.float64)
    plan.comparisons(normal(10))
    others = [normal(10, seed=seed) for seed in range(1, 7)]
    bits = torch.stack([box.comparisons(other, target)[0] > 0 for other in others])
    torch.testing.assert_close(
        plan.from_bits(bits), torch.stack([metric(other, target) for other in others])
    )


def f1_and_auc(scores: Any, target: Any) -> float:
    return sklearn_f1(scores, target) + numpy_auc(scores, target)


def test_the_bits_of_order_and_thresholds_together_give_their_value() -> None:
    target = labels(10)
    box = black_box(f1_and_auc, best=2.0)
    plan = box.reexpress((10,), target, None, torch.float64)
    plan.comparisons(normal(10))
    others = [normal(10, seed=seed) for seed in range(1, 7)]
    bits = torch.stack([box.comparisons(other, target)[0] > 0 for other in others])
    values = torch.tensor([f1_and_auc(other, target) for other in others], dtype=torch.float64)
    torch.testing.assert_close(plan.from_bits(bits), values)


# What it looks at is found out


def test_explain_says_what_is_compared_from_outside() -> None:
    scores, target = normal(6), torch.tensor([1, 0, 0, 1, 0, 0])
    order = tried_out(numpy_auc).explain(scores, target).split("\n")
    assert order[1].split() == ["outside", "pairs", "of", "scores", "8"]
    metric = tried_out(numpy_accuracy, thresholds=(0.0,))
    sides = metric.explain(scores, target).split("\n")
    assert sides[1].split() == ["outside", "scores", "against", "0", "6"]
    assert sides[-2].endswith(
        f"from 6 comparisons; a black box, called {metric.known.calls} times so far"
    )
    classes = (
        black_box(sk.balanced_accuracy_score)
        .explain(normal(4, 3), torch.tensor([0, 1, 2, 1]))
        .split("\n")
    )
    assert classes[1].split() == ["outside", "highest", "class", "12"]


@pytest.mark.parametrize(
    ("fn", "order", "sides", "alike"),
    [
        (numpy_auc, True, False, True),
        (sklearn_f1, False, True, True),
        (weighted_auc, True, False, False),
        (weighted_accuracy, False, True, False),
        (f1_and_auc, True, True, True),
    ],
)
def test_it_is_tried_out_what_a_function_looks_at(
    fn: Function, order: bool, sides: bool, alike: bool
) -> None:
    metric = black_box(fn)
    for seed in range(3):
        metric.comparisons(normal(11, seed=seed), labels(11, seed=seed))
    assert (metric.known.order, metric.known.sides, metric.known.alike) == (order, sides, alike)


def test_ties_are_not_taken_for_thresholds() -> None:
    metric = black_box(sk.roc_auc_score)
    metric.comparisons(normal(12).round(), labels(12))
    assert (metric.known.order, metric.known.sides) == (True, False)


@pytest.mark.parametrize(
    ("fn", "name", "scores", "target"),
    [
        pytest.param(numpy_auc, "auc", [-2.0, -1.0, 1.0, 2.0], [1, 0, 0, 1], id="order"),
        pytest.param(numpy_accuracy, "accuracy", [1.0, -1.0, 2.0, -2.0], [1, 1, 0, 0], id="sides"),
    ],
)
def test_one_try_that_changes_nothing_proves_nothing(
    fn: Function, name: str, scores: list[float], target: list[int]
) -> None:
    given = torch.tensor(scores).double(), torch.tensor(target)
    torch.testing.assert_close(gradient(black_box(fn, best=1.0), *given), gradient(name, *given))


def test_items_that_are_not_alike_are_tried_one_by_one() -> None:
    scores, target = normal(10), labels(10)

    def accuracy(scores: Tensor, target: Tensor) -> Tensor:
        weight = torch.arange(1, len(scores) + 1).double()
        return (weight * ((scores > 0) == target)).sum() / weight.sum()

    def auc(scores: Tensor, target: Tensor) -> Tensor:
        weight = torch.arange(1, len(scores) + 1).double()[target == 1]
        won = (scores[target == 1].unsqueeze(1) > scores[target == 0]).double().mean(1)
        return (weight * won).sum() / weight.sum()

    found = gradient(black_box(weighted_accuracy, best=1.0), scores, target)
    torch.testing.assert_close(found, gradient(mg.reexpress(accuracy, best=1.0), scores, target))
    # An order that is counted from comparisons moves whole items, so the gains of a pair are shared
    # with others' pairs.
    found, expected = (
        gradient(metric, scores, target)
        for metric in (black_box(weighted_auc, best=1.0), mg.reexpress(auc, best=1.0))
    )
    assert float((found * expected).sum() / (found.norm() * expected.norm())) > 0.9


def test_what_is_remembered_is_not_taken_for_another_target() -> None:
    metric, scores = black_box(weighted_auc, best=1.0), normal(8)
    loss = mg.UniLoss(metric)
    for target in (torch.tensor([1, 0, 1, 0, 0, 1, 0, 0]), torch.tensor([0, 1, 0, 0, 1, 0, 0, 1])):
        assert loss(scores, target).item() == pytest.approx(1 - weighted_auc(scores, target))


def test_sets_that_cannot_tell_items_apart_prove_nothing() -> None:
    """At the start of training, all scores are often on one side."""
    metric, target = black_box(weighted_accuracy, best=1.0), torch.tensor([1, 1, 0, 0, 0, 0, 0, 1])
    loss = mg.UniLoss(metric)
    for seed in range(3):
        loss(-normal(8, seed=seed).abs(), target)
    for signs in ([1, -1, -1, -1, 1, -1, 1, -1], [-1, 1, -1, 1, -1, 1, -1, -1]):
        scores = normal(8).abs() * torch.tensor(signs)
        assert loss(scores, target).item() == pytest.approx(1 - weighted_accuracy(scores, target))


# Calls

TRYING_OUT = 24  # calls, at most, by which it is found out what a function looks at


def test_calls_do_not_grow_with_a_set_of_items_that_are_alike() -> None:
    for size in (30, 300):
        metric = black_box(sklearn_f1, best=1.0)
        assert metric.runs == 0
        gradient(metric, normal(size), labels(size))
        assert 0 < metric.known.calls <= 4 + TRYING_OUT  # of each label, on each side
        assert metric.runs == metric.known.calls


def test_calls_are_bounded_by_flips() -> None:
    scores, target = normal(200), labels(200)
    calls = []
    for flips in (7, 256):
        metric = black_box(
            numpy_auc, best=1.0, flips=flips, generator=torch.Generator().manual_seed(0)
        )
        found = gradient(metric, scores, target)
        assert found.any()
        calls.append(metric.known.calls)
    assert calls[0] <= 7 + TRYING_OUT
    assert int(target.sum()) / 2 < calls[1] <= 2 * int(target.sum()) + TRYING_OUT


def test_drawn_flips_are_right_on_average() -> None:
    scores, target = normal(9, seed=2), labels(9, seed=2)
    exact = gradient(black_box(numpy_auc, best=1.0), scores, target)
    metric = black_box(numpy_auc, best=1.0, flips=2, generator=torch.Generator().manual_seed(0))
    drawn = torch.stack([gradient(metric, scores, target) for _ in range(100)])
    assert drawn.std(0).any()
    assert ((drawn.mean(0) - exact).abs() <= 4 * drawn.std(0) / 10 + 1e-12).all()


def test_configurations_that_are_known_are_not_called_again() -> None:
    scores, target = normal(120), labels(120)
    metric = black_box(numpy_auc, best=1.0)
    first = gradient(metric, scores, target)
    known = len(metric.known.values)
    assert known > 2 * TRYING_OUT
    for other in (scores, scores, 3 * scores.tanh()):  # the last has the same order
        before = metric.known.calls
        found = gradient(metric, other, target)
        assert metric.known.calls - before <= TRYING_OUT
        assert torch.equal(found, first) == (other is scores)
    assert len(metric.known.values) == known


def test_only_the_first_sets_are_tried_out_and_checked() -> None:
    metric = black_box(numpy_auc, best=1.0)
    for seed in range(black_boxes._TRIED_SETS + 2):
        gradient(metric, normal(8, seed=seed), labels(8))
    assert metric.known.checked == black_boxes._TRIED_SETS


def test_the_value_that_was_not_used_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(black_boxes, "_MAX_VALUES", 2)
    known = black_boxes.Knowledge()
    for key in (b"a", b"b", b"a", b"c"):
        known.value(key, lambda: 1.0)
    assert list(known.values) == [b"a", b"c"]
    assert known.value(b"a", lambda: 2.0) == 1.0


# What does not work, and how that is said


@pytest.mark.parametrize(
    "fn",
    [
        sk.log_loss,
        sk.brier_score_loss,
        lambda scores, target: float(np.mean((np.asarray(scores) - np.asarray(target)) ** 2)),
    ],
    ids=["log_loss", "brier_score_loss", "mse"],
)
def test_what_order_and_thresholds_do_not_decide_is_said_and_what_would_do(fn: Function) -> None:
    loss = mg.UniLoss(mg.from_function(fn, higher_is_better=False, best=0.0))
    moved = "when scores were moved without changing their order"
    instead = "A learned surrogate, ReLoss or BilevelLoss, takes any function"
    with pytest.raises(NotDecidedError, match=f"{moved} .*{instead}"):
        loss(normal(10), labels(10))


def test_more_than_the_highest_class_is_too_much() -> None:
    def top_two(scores: Any, target: Any) -> float:
        return float(sk.top_k_accuracy_score(target, np.asarray(scores), k=2))

    with pytest.raises(
        NotDecidedError,
        match=r"other scores with the same highest classes.*Write it in plain torch",
    ):
        mg.UniLoss(mg.reexpress(top_two, watch=False))(normal(9, 3), torch.arange(9) % 3)


def test_other_shapes_are_too_much() -> None:
    metric = black_box(
        lambda scores, target: float((np.asarray(scores) > 0).mean()), set_dims=(1, 2)
    )
    with pytest.raises(
        ValueError, match=r"scores \[4\] and target \[4, 2\]: write it in plain torch"
    ):
        mg.UniLoss(metric)(normal(4), normal(4, 2))


# UniLoss decides by itself, and says so


def torch_f1(scores: Tensor, target: Tensor) -> Tensor:
    predicted, positive = scores > 0, target == 1
    return 2 * (predicted & positive).sum() / (predicted.sum() + positive.sum()).double()


def f1_with_a_branch(scores: Tensor, target: Tensor) -> Tensor:
    if not (scores > 0).any():
        return torch.zeros(())
    return torch_f1(scores, target)


def f1_of_arrays(scores: Any, target: Any) -> float:
    predicted = scores.astype(float) > 0
    return 2 * (predicted & (target == 1)).sum() / (predicted.sum() + target.sum())


@pytest.mark.parametrize(
    ("fn", "kind", "level", "message"),
    [
        (torch_f1, WatchedMetric, logging.INFO, "torch_f1 is re-expressed by watching it"),
        (
            f1_with_a_branch,
            BlackBoxMetric,
            logging.WARNING,
            "f1_with_a_branch is taken as a black box, as it decides a Python branch, where no "
            "other outcome can be",
        ),
        (
            sk.f1_score,
            BlackBoxMetric,
            logging.WARNING,
            "f1_score is taken as a black box, as it leaves torch by",
        ),
        (
            sklearn_f1,
            BlackBoxMetric,
            logging.WARNING,
            "sklearn_f1 is taken as a black box, as it leaves torch for",
        ),
        pytest.param(
            f1_of_arrays, BlackBoxMetric, logging.WARNING, "f1_of_arrays is taken as a black box"
        ),
    ],
)
def test_which_way_was_taken_is_logged_once(
    fn: Function, kind: type, level: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    scores, target = normal(20), labels(20)
    watched._warn.cache_clear()  # of other tests
    mine = mg.from_function(fn, best=1.0)
    loss = mg.UniLoss(mine)
    found = scores.clone().requires_grad_()
    with caplog.at_level(logging.INFO, logger="metricgrad"):
        loss(found, target).backward()
        loss(scores, target)
        if level == logging.WARNING:
            mg.UniLoss(mine)(scores, target)
    assert [(record.levelno, record.message.startswith(message)) for record in caplog.records] == [
        (level, True)
    ]
    assert isinstance(loss.metric, kind)
    assert found.grad is not None
    torch.testing.assert_close(found.grad, gradient("f1", scores, target), rtol=0, atol=1e-8)


def test_a_function_of_arrays_is_taken_if_it_is_called_a_black_box() -> None:
    scores, target = normal(20), labels(20)
    found = gradient(black_box(f1_of_arrays, best=1.0), scores, target)
    torch.testing.assert_close(found, gradient("f1", scores, target), rtol=0, atol=1e-8)


# Many sets, and sets that are not as usual


@pytest.mark.parametrize(
    ("fn", "multilabel"),
    [
        (weighted_accuracy, False),
        (f1_and_auc, False),
        (macro_f1, True),
    ],
)
def test_many_sets_are_as_many_single_ones(fn: Function, multilabel: bool) -> None:
    scores = normal(3, 9, 2) if multilabel else normal(3, 9)
    target = labels(3, 2, 9).transpose(1, 2) if multilabel else labels(3, 9)
    where = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.7
    where[:, :3] = True
    options: dict[str, Any] = {"best": 1.0, "multilabel": True} if multilabel else {"best": 1.0}
    together = tried_out(fn, **options)
    alone = copy.deepcopy(together)
    found = gradient(together, scores, target, where)
    losses = mg.UniLoss(together).per_set(scores, target, where)
    for index, counts in enumerate(where):
        one = scores[index, counts], target[index, counts]
        torch.testing.assert_close(losses[index], mg.UniLoss(alone)(*one))
        torch.testing.assert_close(found[index, counts], gradient(alone, *one) / 3)
        assert not found[index, ~counts].any()


def test_a_set_that_shows_nothing_is_no_trouble_for_the_next() -> None:
    scores, target = normal(2, 10), torch.stack([torch.zeros(10).long(), labels(10)])
    found = gradient(black_box(sklearn_f1, best=1.0), scores, target)
    torch.testing.assert_close(found[1], gradient("f1", scores[1], target[1]) / 2)


@pytest.mark.parametrize("fn", [sklearn_f1, numpy_auc])
def test_a_set_that_shows_nothing_has_no_gradient(fn: Function) -> None:
    assert not gradient(black_box(fn, best=1.0), normal(10), torch.zeros(10).long()).any()


def f1_without_items(scores: Any, target: Any) -> float:
    return sklearn_f1(scores, target) if len(target) else 0.0


@pytest.mark.parametrize("size", [0, 10])
def test_a_set_without_items_has_no_gradient(size: int) -> None:
    masked = torch.zeros(size, dtype=torch.bool)
    scores = normal(size).requires_grad_()
    loss = mg.UniLoss(black_box(f1_without_items, best=1.0, flips=16))
    loss(normal(10), labels(10))  # shows that thresholds matter
    loss(scores, torch.ones(size).long(), masked).backward()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_a_set_without_a_value_is_left_out() -> None:
    scores, target = normal(2, 10), torch.stack([labels(10), torch.zeros(10).long()])
    loss = mg.UniLoss(black_box(numpy_auc, best=1.0))
    assert loss(scores, target).item() == pytest.approx(1 - numpy_auc(scores[0], target[0]))


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (sklearn_f1, torch.bfloat16),
        (weighted_accuracy, torch.float16),
        (f1_and_auc, torch.float32),
    ],
)
def test_shorter_floats_and_ties_have_a_gradient(fn: Function, dtype: torch.dtype) -> None:
    scores = (2 * normal(12)).round().to(dtype)
    found = gradient(black_box(fn), scores, labels(12))
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert found.any()


# Training


@pytest.mark.parametrize(
    ("fn", "options", "rest"),
    [
        (f1_and_auc, {}, 0.3),
        (numpy_auc, {"interpolation": "idw"}, 0.6),
        (numpy_auc, {"samples": 2}, 0.3),
    ],
)
def test_descent_improves_it(fn: Function, options: dict[str, Any], rest: float) -> None:
    scores, target = normal(16, seed=1).requires_grad_(), labels(16, seed=1)
    best = 2.0 if fn is f1_and_auc else 1.0
    loss = mg.UniLoss(
        mg.from_function(fn, best=best),
        slope=1.0,
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    optimizer = torch.optim.Adam([scores], lr=0.2)
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        value = loss(scores, target)
        value.backward()
        values.append(value.item())
        optimizer.step()
    assert values[-1] < rest * values[0]


def test_descent_improves_a_metric_of_classes() -> None:
    scores, target = normal(12, 3).requires_grad_(), torch.arange(12) % 3
    loss = mg.UniLoss(mg.from_function(sk.balanced_accuracy_score, best=1.0), slope=1.0)
    optimizer = torch.optim.Adam([scores], lr=0.2)
    before = loss(scores, target).item()
    for _ in range(25):
        optimizer.zero_grad()
        loss(scores, target).backward()
        optimizer.step()
    assert loss(scores, target).item() < 0.3 * before


@pytest.mark.parametrize("threshold", [0.3, 0.8])
def test_another_threshold_is_noticed_on_sets_where_its_own_value_is_found_again(
    threshold: float,
) -> None:
    """Evenly spaced scores may fall on the sides of the other threshold as the set's own do."""

    def accuracy(scores: Any, target: Any) -> float:
        return float(((scores.numpy() > threshold) == target.numpy()).mean())

    scores = torch.tensor([-0.5, 0.2, 0.9, 1.0], dtype=torch.float64)
    with pytest.raises(NotDecidedError, match="other thresholds do"):
        mg.UniLoss(accuracy)(scores, torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.001, False),
        (1.0, -1.0, False),
        (0.0, 0.0, True),
        (0.0, 1e-9, False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
    ],
)
def test_values_are_close_up_to_rounding(one: float, other: float, close: bool) -> None:
    assert black_boxes._close(one, other) is close
