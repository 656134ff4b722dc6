"""Mistakes in tables, targets and functions of one's own: each is told, with what to pass."""

import functools
import logging
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.metrics.mistakes import warn_once
from tests.fitting import linear, made, quick


def right_share(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) == target.bool()).float().mean()


# Shapes.


def test_functions_of_label_maps_need_no_word_for_it() -> None:
    def pixels(scores: Tensor, target: Tensor) -> Tensor:
        return (scores.argmax(1) == target).double().mean()

    source = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 4, 5, generator=source).requires_grad_()
    target = torch.randint(3, (2, 4, 5), generator=source)
    metric = mg.from_function(pixels)
    torch.testing.assert_close(metric(maps, target).double(), pixels(maps, target))
    stacked = metric(torch.stack([maps, -maps]), torch.stack([target, target]))
    torch.testing.assert_close(stacked[1].double(), pixels(-maps, target))
    for loss in (mg.UniLoss(pixels), mg.MetricLoss(pixels)):
        value = loss(maps, target)
        torch.testing.assert_close(-value.double(), pixels(maps, target))
        (gradient,) = torch.autograd.grad(value, maps)
        assert gradient.any()
    with pytest.raises(ValueError, match=r"set_dims=\(4, 3\) for label maps, or \(2, 1\) for clas"):
        metric(torch.zeros(2, 4, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"pass set_dims=\(4, 3\); got scores \[2, 3, 4, 5\]"):
        metric(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 2))


def test_cross_entropy_of_label_maps_is_that_of_torch() -> None:
    source = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 4, 5, generator=source)
    target = torch.randint(3, (2, 4, 5), generator=source)
    where = torch.rand(2, 4, 5, generator=source) < 0.7
    expected = nn.functional.cross_entropy(maps, target.masked_fill(~where, -100))
    loss = mg.baselines.CrossEntropy()
    torch.testing.assert_close(loss(maps, target, where), expected)
    torch.testing.assert_close(loss(maps, target), nn.functional.cross_entropy(maps, target))


def test_a_function_of_all_lists_is_told_what_to_pass() -> None:
    def first(scores: Tensor, target: Tensor) -> Tensor:
        return target.gather(1, scores.argmax(1, keepdim=True)).float().mean()

    scores = torch.randn(4, 6, requires_grad=True)
    target = torch.arange(24).reshape(4, 6) % 5
    with pytest.raises(RuntimeError, match=r"on set 1 of 4 .*pass set_dims=\(2, 2\)"):
        mg.UniLoss(first)(scores, target)
    assert mg.from_function(first, set_dims=(2, 2))(scores, target) == first(scores, target)


# Targets that mark what does not count.


@pytest.mark.parametrize("mark", [-100, 255])
def test_marks_of_what_does_not_count_are_named(mark: int) -> None:
    target = torch.tensor([0, 1, mark, 1, 0, 1])
    told = rf"got {mark} .*if {mark} marks what does not count, pass where=target != {mark}, or"
    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for metric, given in (("f1", scores), ("f1", scores[:, 0])):
        with pytest.raises(ValueError, match=told):
            mg.UniLoss(metric)(given, target)
        mg.UniLoss(metric)(given, target, target != mark)
    with pytest.raises(ValueError, match=r"got 7 .*class indices need|got 7 among its values"):
        mg.UniLoss("f1")(scores[:, 0], target.masked_fill(target == mark, 7))


def test_marks_among_grades_and_minus_one_as_a_class() -> None:
    with pytest.raises(ValueError, match=r"where=target != -1"):
        mg.metric("ndcg")(torch.zeros(3), torch.tensor([0, 2, -1]))
    with pytest.raises(ValueError, match=r"if -1 is the negative class, pass target > 0"):
        mg.metric("f1")(torch.zeros(3), torch.tensor([1, -1, -1]))


def test_the_ordinary_loss_leaves_out_ignored_pixels() -> None:
    source = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 4, 5, generator=source).requires_grad_()
    target = torch.randint(3, (2, 4, 5), generator=source)
    target[0, 0] = 255
    loss = mg.MetricLoss(mg.metric("mean_iou", ignore_index=255), intercept=False)
    (gradient,) = torch.autograd.grad(loss(maps, target), maps)
    masked = mg.MetricLoss("mean_iou", intercept=False)(maps, target, target != 255)
    torch.testing.assert_close(gradient, torch.autograd.grad(masked, maps)[0])
    assert not gradient[0, :, 0].any()


# The positive class of a table.


@pytest.mark.parametrize("metric", ["f1", "accuracy", "auc"])
def test_the_rarer_name_is_positive_and_told(metric: str) -> None:
    x, y = made(100)
    table = x.numpy()
    named = np.where(y.numpy() == 1, "bad", "good")
    rare = "bad" if (named == "bad").sum() < 50 else "good"
    other = "good" if rare == "bad" else "bad"
    options = {"method": "cross_entropy", "hidden": (), "epochs": 1, "rate": 0.1, "folds": 2}
    model = mg.MetricClassifier(metric, **options)
    if metric == "f1":
        told = f"'{rare}' is the positive class.*rarer.*pass positive='{rare}'.*positive='{other}'"
        with pytest.warns(UserWarning, match=told):
            model.fit(table, named)
        assert model.target_.ordered[1] == rare
    else:  # the same for both classes, so that scikit-learn's order stays
        model.fit(table, named)
        assert model.target_.ordered.tolist() == ["bad", "good"]
    warn_once.cache_clear()
    for meant in ("good", "bad"):
        chosen = mg.MetricClassifier(metric, positive=meant, **options).fit(table, named)
        assert chosen.target_.ordered[1] == meant
    numbers = mg.MetricClassifier(metric, **options).fit(table, np.where(named == rare, 3, 7))
    assert numbers.target_.ordered.tolist() == [3, 7]


# Functions of one's own.


def test_fit_says_how_a_function_gets_labels() -> None:
    x, y = made(60)
    labels = torch.stack([y, 1 - y], -1)
    with pytest.raises(ValueError, match=r"pass metric=mg\.from_function\(fn, multilabel=True\)"):
        quick(linear(2), (x, labels), metric=right_share, method="uniloss")
    own = mg.from_function(right_share, multilabel=True)
    quick(linear(2), (x, labels), metric=own, method="cross_entropy", epochs=1)


def test_sklearn_gets_all_labels_in_one_call() -> None:
    shapes = set()

    def macro(scores: Any, target: Any) -> float:
        shapes.add(tuple(scores.shape))
        return f1_score(target, scores > 0, average="macro")

    x, y = made(60)
    labels = np.stack([y.numpy(), (x[:, 1] > 0).numpy()], -1)
    options = {"method": "cross_entropy", "hidden": (), "epochs": 1, "rate": 0.1, "folds": 1}
    model = mg.MetricClassifier(macro, **options).fit(x.numpy(), labels)
    shapes.clear()
    assert model.score(x.numpy(), labels) == pytest.approx(
        f1_score(labels, model.predict(x.numpy()), average="macro")
    )
    assert shapes == {(60, 2)}


def test_sklearn_does_not_warn_of_undefined_sets() -> None:
    nothing = torch.zeros(2, 4, dtype=torch.int64)
    for metric in (f1_score, lambda s, y: f1_score(y, s > 0)):
        assert mg.metric(metric)(nothing - 1.0, nothing).tolist() == [0.0, 0.0]
    loss = mg.UniLoss(functools.partial(f1_score, average="macro"))
    loss(torch.randn(6, 3, requires_grad=True), torch.zeros(6, dtype=torch.int64))


def test_a_loop_over_items_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def looping(scores: Tensor, target: Tensor) -> Tensor:
        right = [(score > 0) == truth for score, truth in zip(scores, target, strict=True)]
        return torch.stack(right).float().mean()

    scores = torch.randn(40, requires_grad=True)
    target = torch.arange(40) % 2 == 0
    with caplog.at_level(logging.WARNING, "metricgrad"):
        mg.UniLoss(right_share)(scores, target)
        assert not caplog.messages
        loss = mg.UniLoss(looping)
        loss(scores, target)
        loss(scores, target)
    (message,) = caplog.messages
    assert "looping is slow, as it loops over items in Python: line" in message
    assert "runs 40 times for a set of 40 items" in message
    assert "compute with all items at once" in message


def test_a_black_box_is_told_what_makes_it_slow(caplog: pytest.LogCaptureFixture) -> None:
    def in_numbers(scores: Tensor, target: Tensor) -> float:
        pairs = zip(scores.tolist(), target.tolist(), strict=True)
        return sum((score > 0) == truth for score, truth in pairs) / len(scores)

    with caplog.at_level(logging.WARNING, "metricgrad"):
        mg.UniLoss(in_numbers)(torch.randn(8, requires_grad=True), torch.arange(8) % 2 == 0)
    (message,) = caplog.messages
    assert "a step calls it up to 256 times, so write it with torch operations" in message
