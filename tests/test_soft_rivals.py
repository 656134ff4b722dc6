"""Soft bits among many classes: a class against the soft maximum of the others."""

import math
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


def test_equal_scores_as_large_as_floats_go_have_the_margins_of_equal_scores() -> None:
    scores = torch.tensor([[1e30, 1e30, 1e30, -1e30]])
    margins = soft_other_margin(scores, 1.0)
    torch.testing.assert_close(margins[0, :3], torch.full((3,), -math.log(2)))
    assert margins.isfinite().all()
    loss = mg.MetricLoss("f1")(scores.requires_grad_(), torch.tensor([0]))
    loss.backward()
    assert loss.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


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
    loss = mg.UniLoss("accuracy", soft_rivals=True)
    torch.testing.assert_close(loss.relaxed(scores, target), 1 - own)


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc", "kappa", "balanced_accuracy"])
def test_soft_rivals_give_every_class_a_gradient(name: str) -> None:
    scores = made(8, 5).requires_grad_()
    target = torch.arange(8) % 5
    (soft,) = torch.autograd.grad(mg.UniLoss(name, soft_rivals=True)(scores, target), scores)
    (best,) = torch.autograd.grad(mg.UniLoss(name)(scores, target), scores)
    assert (soft != 0).all(-1).any()
    assert ((soft != 0).sum(-1) >= (best != 0).sum(-1)).all()
    if name == "accuracy":
        assert ((best != 0).sum(-1) == 2).all()


@pytest.mark.parametrize("loss", [mg.UniLoss("f1", soft_rivals=True), mg.UniLoss("f1")])
def test_the_relaxed_function_has_the_gradient_of_the_loss(loss: mg.UniLoss) -> None:
    scores = made(2, 7, 4).requires_grad_()
    target = torch.arange(7).expand(2, 7) % 4
    assert torch.autograd.gradcheck(lambda leaf: loss.relaxed(leaf, target), scores)
    (one,) = torch.autograd.grad(loss.per_set(scores, target).sum(), scores)
    (other,) = torch.autograd.grad(loss.relaxed(scores, target).sum(), scores)
    torch.testing.assert_close(one, other)


def test_the_slope_is_gentle_with_soft_rivals_unless_it_is_given() -> None:
    scores = made(8, 3)
    target = torch.arange(8) % 3

    def relaxed(**options: Any) -> Tensor:
        return mg.UniLoss("accuracy", **options).relaxed(scores, target)

    torch.testing.assert_close(relaxed(soft_rivals=True), relaxed(soft_rivals=True, slope=1.0))
    torch.testing.assert_close(relaxed(), relaxed(slope=5.0))
    assert not torch.allclose(relaxed(soft_rivals=True, slope=2.0), relaxed(soft_rivals=True))


def test_soft_rivals_are_refused_for_inverse_distances() -> None:
    with pytest.raises(ValueError, match="soft_rivals is for interpolation='multilinear'; got"):
        mg.UniLoss("accuracy", interpolation="idw", soft_rivals=True)


def test_two_classes_have_the_slope_of_binary_scores() -> None:
    scores = made(8, 2)
    target = torch.arange(8) % 2
    margin = scores[:, 1] - scores[:, 0]
    for slope in (None, 3.0):
        loss = mg.UniLoss("f1", slope=slope, soft_rivals=True)
        torch.testing.assert_close(loss.relaxed(scores, target), loss.relaxed(margin, target))


def right(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.argmax(-1) == target).double().mean()


def near_enough(scores: Tensor, target: Tensor) -> Tensor:
    return 1 - (scores.argmax(-1) - target).abs().double().mean() / 4


@pytest.mark.parametrize(("slope", "soft"), [(None, True), (3.0, True), (None, False)])
def test_a_function_with_an_argmax_has_the_gradient_of_the_built_in_metric(
    slope: float | None, soft: bool
) -> None:
    scores = made(2, 9, 4)
    target = torch.arange(9).expand(2, 9) % 4
    gradients = []
    for metric in ("accuracy", right):
        leaf = scores.clone().requires_grad_()
        mg.UniLoss(metric, slope=slope, soft_rivals=soft)(leaf, target).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_an_argmax_used_as_a_number_reaches_every_class() -> None:
    scores = made(6, 4).requires_grad_()
    mg.UniLoss(near_enough, soft_rivals=True)(scores, torch.arange(6) % 4).backward()
    assert scores.grad is not None
    assert (scores.grad != 0).all(-1).any()


def test_scores_of_minus_infinity_leave_the_others_finite() -> None:
    def open_classes(scores: Tensor, target: Tensor) -> Tensor:
        closed = torch.arange(scores.shape[-1]) == 3
        return (scores.masked_fill(closed, -torch.inf).argmax(-1) == target).double().mean()

    scores = made(6, 4).requires_grad_()
    mg.UniLoss(open_classes, soft_rivals=True)(scores, torch.arange(6) % 3).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad.any()
    assert not scores.grad[:, 3].any()


@pytest.mark.parametrize("loss", [mg.UniLoss, mg.MetricLoss])
def test_a_slope_that_was_not_given_stays_so_in_a_file(loss: Any, tmp_path: Any) -> None:
    scores = made(8, 3)
    target = torch.arange(8) % 3
    made_loss = loss("f1") if loss is mg.MetricLoss else loss("f1", soft_rivals=True)
    made_loss.save(tmp_path / "loss.safetensors")
    again = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert again.config() == made_loss.config()
    assert again.config()["slope"] is None
    (one, other) = (scores.clone().requires_grad_() for _ in range(2))
    made_loss(one, target).backward()
    again(other, target).backward()
    torch.testing.assert_close(one.grad, other.grad)
