"""Soft bits among many classes: a class against the soft maximum of the others."""

from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.margins import (
    best_other_margin,
    best_pixel_margin,
    own_margin,
    soft_other_margin,
    soft_own_margin,
    soft_pixel_margin,
)


def made(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("slope", [0.5, 1.0, 5.0])
def test_the_sigmoid_of_a_soft_margin_is_the_softmax(slope: float) -> None:
    scores = 3 * made(20, 6)
    chance = (slope * soft_other_margin(scores, slope)).sigmoid()
    torch.testing.assert_close(chance, (slope * scores).softmax(-1))
    target = torch.arange(20) % 6
    own = (slope * soft_own_margin(scores, slope, target=target)).sigmoid()
    torch.testing.assert_close(own, chance.gather(-1, target.unsqueeze(-1)).squeeze(-1))


def test_steep_soft_margins_are_those_of_the_best_rival() -> None:
    scores = made(20, 6)
    target = torch.arange(20) % 6
    near = made(20, 6, seed=1) > 0
    near[:, 0] = True
    near[:, 1] = False
    pairs = [
        (soft_other_margin(scores, 1e5), best_other_margin(scores)),
        (soft_own_margin(scores, 1e5, target=target), own_margin(scores, target, 1)),
        (soft_pixel_margin(scores, near, 1e5), best_pixel_margin(scores, near)),
    ]
    for soft, best in pairs:
        torch.testing.assert_close(soft, best, rtol=0, atol=1e-4)


def test_far_and_equal_scores_have_finite_margins_and_gradients() -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [500.0, 500.0, 499.0]])
    scores.requires_grad_()
    margins = soft_other_margin(scores, 5.0)
    margins.sum().backward()
    assert margins.isfinite().all()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    exact = soft_other_margin(scores.detach().double(), 5.0)
    torch.testing.assert_close(margins, exact, rtol=0, atol=1e-3, check_dtype=False)


def test_joints_without_pixels_on_one_side_are_settled() -> None:
    pixels = made(2, 4).requires_grad_()
    near = torch.tensor([[True] * 4, [False] * 4])
    margins = soft_pixel_margin(pixels, near, 2.0)
    assert margins.tolist() == [1.0, -1.0]
    margins.sum().backward()
    assert pixels.grad is not None
    assert not pixels.grad.any()


def test_relaxed_accuracy_is_the_models_own_probability() -> None:
    scores = made(3, 10, 4)
    target = torch.arange(10).expand(3, 10) % 4
    own = scores.softmax(-1).gather(-1, target.unsqueeze(-1)).mean((1, 2))
    torch.testing.assert_close(mg.UniLoss("accuracy").relaxed(scores, target), 1 - own)


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc", "kappa", "balanced_accuracy"])
def test_every_class_has_a_gradient_unless_the_best_rival_alone_is_asked_for(name: str) -> None:
    scores = made(8, 5).requires_grad_()
    target = torch.arange(8) % 5
    mg.UniLoss(name)(scores, target).backward()
    assert scores.grad is not None
    assert (scores.grad != 0).all(-1).any()
    rival = mg.metric(name, pairs="best")
    (best,) = torch.autograd.grad(mg.UniLoss("accuracy", pairs="best")(scores, target), scores)
    assert ((best != 0).sum(-1) == 2).all()
    (other,) = torch.autograd.grad(mg.UniLoss(rival)(scores, target), scores)
    assert not torch.allclose(other, scores.grad)


@pytest.mark.parametrize(
    ("metric", "slope"),
    [("accuracy", 1.0), (mg.metric("accuracy", pairs="best"), 5.0), ("mean_iou", 5.0)],
)
def test_the_slope_is_gentle_among_classes_unless_it_is_given(metric: Any, slope: float) -> None:
    shape = (2, 3, 4, 4) if metric == "mean_iou" else (8, 3)
    scores = made(*shape)
    target = torch.arange(32).reshape(2, 4, 4) % 3 if metric == "mean_iou" else torch.arange(8) % 3
    chosen = mg.UniLoss(metric).relaxed(scores, target)
    torch.testing.assert_close(chosen, mg.UniLoss(metric, slope=slope).relaxed(scores, target))
    assert not torch.allclose(chosen, mg.UniLoss(metric, slope=2.0).relaxed(scores, target))


def test_two_classes_have_the_slope_of_binary_scores() -> None:
    scores = made(8, 2)
    target = torch.arange(8) % 2
    margin = scores[:, 1] - scores[:, 0]
    for slope in (None, 3.0):
        loss = mg.UniLoss("f1", slope=slope)
        torch.testing.assert_close(loss.relaxed(scores, target), loss.relaxed(margin, target))


def right(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(-1) == target).double().mean()


def near_enough(scores: Tensor, target: Tensor) -> Tensor:
    return 1 - (scores.argmax(-1) - target).abs().double().mean() / 4


@pytest.mark.parametrize("slope", [None, 3.0])
def test_a_function_with_an_argmax_has_the_gradient_of_the_built_in_metric(
    slope: float | None,
) -> None:
    scores = made(2, 9, 4)
    target = torch.arange(9).expand(2, 9) % 4
    gradients = []
    for metric in ("accuracy", right):
        leaf = scores.clone().requires_grad_()
        mg.UniLoss(metric, slope=slope)(leaf, target).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_an_argmax_used_as_a_number_reaches_every_class() -> None:
    scores = made(6, 4).requires_grad_()
    mg.UniLoss(near_enough)(scores, torch.arange(6) % 4).backward()
    assert scores.grad is not None
    assert (scores.grad != 0).all(-1).any()


def test_scores_of_minus_infinity_leave_the_others_finite() -> None:
    def open_classes(scores: Tensor, target: Tensor) -> Tensor:
        closed = torch.arange(scores.shape[-1]) == 3
        return (scores.masked_fill(closed, -torch.inf).argmax(-1) == target).double().mean()

    scores = made(6, 4).requires_grad_()
    mg.UniLoss(open_classes)(scores, torch.arange(6) % 3).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad.any()
    assert not scores.grad[:, 3].any()


def test_drawn_bits_follow_the_probabilities_of_the_classes() -> None:
    metric = mg.UniLoss("accuracy").metric
    scores = made(5, 4)
    target = torch.arange(5) % 4
    plan = metric.reexpress(scores.shape, target, None, scores.dtype)
    drawn = plan.draw(scores, 1.0, 20_000, torch.Generator().manual_seed(0))
    chance = scores.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(drawn.double().mean(0), chance, rtol=0, atol=0.02)


@pytest.mark.parametrize("loss", [mg.UniLoss, mg.MetricLoss])
def test_a_slope_that_was_not_given_stays_so_in_a_file(loss: Any, tmp_path: Any) -> None:
    scores = made(8, 3)
    target = torch.arange(8) % 3
    made_loss = loss("f1")
    made_loss.save(tmp_path / "loss.safetensors")
    again = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert again.config() == made_loss.config()
    assert again.config()["slope"] is None
    (one, other) = (scores.clone().requires_grad_() for _ in range(2))
    made_loss(one, target).backward()
    again(other, target).backward()
    torch.testing.assert_close(one.grad, other.grad)
