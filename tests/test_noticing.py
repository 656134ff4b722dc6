"""Mistakes that would train on in silence: each is told once, and the right use is not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.metrics.mistakes import warn_once
from tests.fitting import linear, made, quick

Make = Callable[[Tensor], Tensor]
TARGET = torch.arange(24) % 3 == 0


@pytest.fixture(autouse=True)
def nothing_told_yet() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


def logits(drawn: Tensor) -> Tensor:
    return 2 * drawn


def train(
    loss: Any, target: Tensor, make: Make = logits, steps: int = 60, classes: int = 0
) -> None:
    """Calls the loss on scores made from random numbers; warnings are errors."""
    source = torch.Generator().manual_seed(0)
    shape = (*target.shape, classes) if classes else target.shape
    for _ in range(steps):
        loss(make(torch.randn(shape, generator=source).requires_grad_()), target)


def told_once(loss: Any, match: str, target: Tensor, make: Make = logits, classes: int = 0) -> None:
    with pytest.warns(UserWarning, match=match) as found:
        train(loss, target, make, classes=classes)
    assert len(found) == 1, [str(each.message) for each in found]
    train(loss, target, make, classes=classes)


def wrong_share(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) != target.bool()).float().mean()


def right_share(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) == target.bool()).float().mean()


# Direction.


@pytest.mark.parametrize("make", [mg.UniLoss, mg.MetricLoss])
def test_a_function_that_is_the_wrong_way_round_is_refused(make: Any) -> None:
    scores = torch.randn(24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    wrong = (
        r"wrong_share is 0 for scores that follow the target and 0\.6667 for scores that go "
        r"against it, so a loss would train backwards; pass higher_is_better=False to mg"
    )
    with pytest.raises(ValueError, match=wrong):
        make(wrong_share)(scores, TARGET)
    make(mg.from_function(wrong_share, higher_is_better=False))(scores, TARGET)
    make(mg.from_function(wrong_share, higher_is_better=True))(scores, TARGET)  # if one insists
    make(right_share)(scores, TARGET)


def test_the_direction_is_asked_of_the_first_target_that_tells() -> None:
    calls = 0

    def share(scores: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return wrong_share(scores, target)

    loss = mg.BilevelLoss(share)
    loss(torch.randn(6, requires_grad=True), torch.zeros(6))
    assert calls == 0
    with pytest.raises(ValueError, match="train backwards"):
        loss(torch.randn(6, requires_grad=True), torch.arange(6) % 2)
    loss = mg.BilevelLoss(mg.from_function(lambda s, y: share(-s, y)))
    calls = 0
    train(loss, TARGET, steps=5)
    assert calls == 2


def test_classes_and_label_maps_tell_the_direction_too() -> None:
    def wrong(dim: int) -> Any:
        return lambda s, y: (s.argmax(dim) != y).float().mean()

    with pytest.raises(ValueError, match="train backwards"):
        mg.UniLoss(wrong(-1))(torch.randn(12, 3, requires_grad=True), torch.arange(12) % 3)
    maps = torch.randn(2, 3, 4, 5, requires_grad=True)
    with pytest.raises(ValueError, match="train backwards"):
        mg.UniLoss(wrong(1))(maps, torch.arange(40).reshape(2, 4, 5) % 3)


def test_fit_asks_for_the_direction_before_it_trains() -> None:
    with pytest.raises(ValueError, match=r"wrong_share .* train backwards"):
        quick(linear(), made(), metric=wrong_share, method="uniloss")


# Probabilities in place of logits.


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda: mg.UniLoss("f1"), "so every decision at 0 is positive"),
        (lambda: mg.MetricLoss("f1"), "so every decision at 0 is positive"),
        (lambda: mg.UniLoss("auc"), "so it learns slowly from them"),
        (mg.baselines.CrossEntropy, "so every decision at 0 is positive"),
    ],
)
def test_probabilities_are_told_after_many_batches(loss: Any, why: str) -> None:
    told_once(
        loss(), f"first 50 batches lie between 0 and 1, .*{why}; pass logits", TARGET, torch.sigmoid
    )
    train(loss(), TARGET)
    train(loss(), TARGET, lambda s: s.relu() / 10)
    train(loss(), TARGET, lambda s: s.sigmoid() - 0.5)


def test_a_threshold_between_the_probabilities_is_meant() -> None:
    train(mg.UniLoss(mg.metric("f1", threshold=0.5)), TARGET, torch.sigmoid)


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc"])
def test_classes_that_sum_to_one_are_told_at_once(name: str) -> None:
    target = torch.arange(12) % 3
    match = "classes of every item sum to 1, as probabilities do; pass logits"
    told_once(mg.UniLoss(name), match, target, lambda s: s.softmax(-1), classes=3)
    train(mg.UniLoss(name), target, lambda s: s.log_softmax(-1), classes=3)


def test_maps_that_sum_to_one_are_told() -> None:
    target = torch.arange(40).reshape(2, 4, 5) % 3
    maps = torch.randn(2, 3, 4, 5, requires_grad=True)
    with pytest.warns(UserWarning, match="classes of every item sum to 1"):
        mg.UniLoss("mean_iou")(maps.softmax(1), target)
    mg.UniLoss("mean_iou")(maps, target)


def test_fit_tells_of_a_sigmoid_at_the_end() -> None:
    model = nn.Sequential(linear(), nn.Sigmoid())
    with pytest.warns(UserWarning, match="ends in probabilities, so every decision at 0 is posi"):
        quick(model, made(), method="cross_entropy", epochs=1)


def test_fit_tells_of_a_sigmoid_that_cannot_be_seen() -> None:
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).sigmoid()

    with pytest.warns(UserWarning, match="scores of the trained model lie between 0 and 1"):
        quick(Squashed(), made(), method="cross_entropy", epochs=1)


def test_fit_does_not_take_logits_that_happen_to_be_small_for_probabilities() -> None:
    layer = linear()
    with torch.no_grad():
        layer.weight.mul_(1e-3)
        layer.bias.fill_(0.5)
    quick(nn.Sequential(layer), made(), method="cross_entropy", epochs=1, rate=1e-5)


def test_metrics_that_decide_at_zero_tell_of_probabilities() -> None:
    target = torch.arange(40) % 2
    chances = torch.rand(40, generator=torch.Generator().manual_seed(0))
    for metric in (mg.metric("f1"), mg.metric(f1_score), mg.metric("f1", multilabel=True)):
        shape = (20, 2) if metric.layout == "labels" else (40,)
        with pytest.warns(UserWarning, match=r"decides at 0, so every decision is positive; pass"):
            metric(chances.reshape(shape), target.reshape(shape))
        metric(chances.reshape(shape), target.reshape(shape))
        warn_once.cache_clear()
        metric(chances.reshape(shape) - 0.5, target.reshape(shape))
    mg.metric("f1", threshold=0.5)(chances, target)
    mg.metric("auc")(chances, target)
    mg.metric("f1")(chances[:8], target[:8])
    mg.metric("accuracy")(torch.stack([1 - chances, chances], -1), target)


# Shapes.


def test_sets_that_may_be_labels_are_told() -> None:
    target = torch.arange(40).reshape(10, 4) % 2
    read = r"\[10, 4\] are read as 10 sets of 4 items; if they are 10 items with 4 labels, pass "
    told_once(mg.UniLoss("f1"), read + r"mg\.metric\('f1', multilabel=True\)", target)
    own = mg.UniLoss(mg.from_function(right_share, True))
    told_once(own, read + r"mg\.from_function\(fn, multilabel=True\)", target)
    train(mg.UniLoss(mg.metric("f1", multilabel=True)), target)
    train(mg.UniLoss("ndcg"), target)
    train(mg.baselines.CrossEntropy(), target)
    train(mg.UniLoss("f1"), target, steps=9)


# Losses that cannot teach.


def test_a_bilevel_loss_that_has_learned_nothing_is_told() -> None:
    told_once(
        mg.BilevelLoss("f1"), r"has not learned f1 yet and .*learn_universal\(\) first", TARGET
    )
    loss = mg.BilevelLoss("f1")
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    loss.misfit(torch.randn(24), TARGET).backward()
    optimizer.step()
    train(loss, TARGET)
    train(mg.BilevelLoss("f1"), TARGET, steps=9)


@pytest.mark.parametrize("loss", [mg.UniLoss("f1"), mg.baselines.CrossEntropy()])
def test_scores_without_a_gradient_are_told(loss: Any) -> None:
    told_once(loss, "do not depend on a model.*without detach", TARGET, lambda s: s.detach() * 2)


def test_measuring_is_no_training() -> None:
    train(mg.UniLoss("f1").eval(), TARGET, Tensor.detach)
    with torch.no_grad():
        train(mg.UniLoss("f1"), TARGET, logits)


# Batches that are too small.


@pytest.mark.parametrize("make", [mg.UniLoss, mg.MetricLoss])
def test_batches_without_a_value_are_told(make: Any) -> None:
    nothing = torch.zeros(8)
    match = r"50 of the first 50 batches had no value of the metric .*mg\.with_memory\(loss\)"
    told_once(make("f1"), match, nothing)


@pytest.mark.parametrize("name", ["f1", "average_precision", "auc", "mcc"])
def test_rare_positives_are_told(name: str) -> None:
    one = torch.arange(30) == 0
    match = rf"had 1\.0 items of their rarer class on average, too few for {name} .*with_memory"
    told_once(mg.UniLoss(name), match, one)
    told_once(mg.UniLoss(name), match, ~one)
    train(mg.UniLoss(name), torch.arange(30) < 2)
    train(mg.UniLoss("accuracy"), one)
    train(mg.with_memory(mg.UniLoss(name)), one)
    train(mg.UniLoss("mrr"), one)


def test_fewer_items_than_classes_are_told() -> None:
    target = torch.arange(8)
    told_once(mg.UniLoss("f1"), "8 items for 10 classes, so most classes", target, classes=10)
    train(mg.UniLoss("accuracy"), target, classes=10)
    train(mg.UniLoss("f1"), target, classes=8)


@pytest.mark.parametrize("name", ["precision_at_k", "recall_at_k"])
def test_a_cut_off_that_takes_all_items_is_told(name: str) -> None:
    told_once(mg.UniLoss(mg.metric(name, k=24)), "takes all 24 items of a set.*smaller k", TARGET)
    train(mg.UniLoss(mg.metric(name, k=23)), TARGET)
    train(mg.UniLoss(mg.metric("ndcg", k=24)), TARGET)
