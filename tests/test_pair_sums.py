"""Sums over pairs: along the order of the scores as pair by pair."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.order import padded_places

METRICS = ("average_precision", "auc", "eer", "partial_auc", "map", "precision_at_k", "ndcg")
RELAXATIONS = ("sigmoid", "logistic", "squared_hinge", 0.5, 0.05)
EVERY_PAIR = {"_MOST_PAIRS": 1 << 40}
SORTED = {"_MOST_PAIRS": -1, "_PAIRS_PER_ITEM": 0}


@pytest.fixture(name="by")
def _by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The value, gradient and interpolation of a loss, summed in one of the two ways."""

    def found(way: dict[str, int], loss: mg.UniLoss, *inputs: Any) -> tuple[Tensor, ...]:
        for name, value in way.items():
            monkeypatch.setattr(f"metricgrad.surrogates.pair_sums.{name}", value)
        scores = inputs[0].detach().requires_grad_()
        value = loss.per_set(scores, *inputs[1:])
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        return value.detach(), gradient, loss.relaxed(scores, *inputs[1:]).detach()

    return found


def drawn(
    seed: int, *, sets: int, items: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Sets of scores, with ties in every second, grades and a mask."""
    source = torch.Generator().manual_seed(seed)
    scores = torch.randn(sets, items, generator=source, dtype=dtype)
    scores[::2] = (2 * scores[::2]).round() / 2
    grades = torch.randint(0, 4, (sets, items), generator=source) - 1
    where = torch.rand(sets, items, generator=source) < 0.9
    return scores, grades.clamp(min=0), where


@pytest.mark.parametrize("relaxation", RELAXATIONS, ids=str)
@pytest.mark.parametrize("name", METRICS)
def test_the_order_gives_what_all_pairs_give(by: Any, name: str, relaxation: Any) -> None:
    sizes = ((2, 7, 1.0), (3, 33, 0.01), (2, 150, 1e4))
    for (sets, items, scale), slope in itertools.product(sizes, (0.5, 5.0, 60.0)):
        scores, grades, where = drawn(items, sets=sets, items=items)
        target = grades if name == "ndcg" else grades > 0
        loss = mg.UniLoss(name, relaxation=relaxation, slope=slope)
        expected = by(EVERY_PAIR, loss, scale * scores, target, where)
        found = by(SORTED, loss, scale * scores, target, where)
        for one, other in zip(found, expected, strict=True):
            most = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * most + 1e-12)


def test_single_precision_agrees_to_its_own_digits(by: Any) -> None:
    for seed in range(10):
        scores, grades, _ = drawn(seed, sets=4, items=100, dtype=torch.float32)
        for name, slope in itertools.product(("average_precision", "ndcg"), (1.0, 20.0)):
            loss = mg.UniLoss(name, slope=slope)
            target = grades if name == "ndcg" else grades > 0
            expected = by(EVERY_PAIR, loss, scores, target)
            found = by(SORTED, loss, scores, target)
            for one, other in zip(found, expected, strict=True):
                assert (one - other).norm() <= 1e-5 * other.norm()


def test_classes_have_orders_of_their_own(by: Any) -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 60, 3, generator=source, dtype=torch.float64)
    target = torch.randint(0, 3, (2, 60), generator=source)
    loss = mg.UniLoss("auc")
    torch.testing.assert_close(
        by(SORTED, loss, scores, target), by(EVERY_PAIR, loss, scores, target)
    )


@pytest.mark.parametrize("relaxation", RELAXATIONS, ids=str)
def test_the_gradient_is_that_of_the_interpolation(
    monkeypatch: pytest.MonkeyPatch, relaxation: Any
) -> None:
    for name, value in SORTED.items():
        monkeypatch.setattr(f"metricgrad.surrogates.pair_sums.{name}", value)
    scores = torch.randn(70, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(70) % 3
    loss = mg.UniLoss("ndcg", relaxation=relaxation, slope=1.5)
    assert torch.autograd.gradcheck(
        lambda each: loss.relaxed(each, target), scores.requires_grad_(), eps=1e-7
    )


@pytest.mark.parametrize("name", ["auc", "ndcg"])
def test_a_million_scores_have_a_finite_gradient(name: str) -> None:
    scores = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(1_000_000) % 10 == 0
    value = mg.UniLoss(name)(scores, target)
    value.backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    # A pair moves both of its items by the same amount.
    assert scores.grad.double().sum().abs() < 1e-5 * scores.grad.abs().double().sum()
    torch.testing.assert_close(value, 1 - mg.metric(name)(scores.detach(), target))


def test_second_derivatives_are_refused() -> None:
    """They were wrong without a word: the slope that is summed has no derivative."""
    weight = torch.ones(3, requires_grad=True)
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    value = mg.UniLoss("auc")(torch.tanh(features @ weight), torch.arange(20) % 2)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(value, weight, create_graph=True)


def test_hinges_of_huge_scores_have_a_finite_gradient() -> None:
    spread = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 0.3, -0.7, 0.9])
    target = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0])
    for dtype, scale in ((torch.float16, 1e4), (torch.float32, 1e30)):
        for name in ("auc", "eer", "f1", "mcc", "accuracy"):
            scores = (scale * spread).to(dtype).requires_grad_()
            mg.UniLoss(name, relaxation="squared_hinge")(scores, target).backward()
            assert scores.grad is not None
            assert torch.isfinite(scores.grad).all()
            assert scores.grad[1] < 0  # a positive that is last


def test_places_of_chosen_items() -> None:
    chosen = torch.tensor([[False, True, True], [False, False, False], [True, False, False]])
    places, live = padded_places(chosen)
    assert live.tolist() == [[True, True], [False, False], [True, False]]
    assert places[live].tolist() == [1, 2, 0]
