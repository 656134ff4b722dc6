"""Watched metrics on data that is not as usual, without bounds, written in other ways, and kept."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import WatchedMetric
from tests.watched import (
    CLASS_SCORES,
    CLASS_TARGET,
    SCORES,
    TARGET,
    Function,
    accuracy,
    auc,
    confident_mistakes,
    f1,
    gradient,
    normal,
    precision_of_picked,
)

EVERY_KIND: dict[str, tuple[Function, bool]] = {
    "threshold": (f1, False),
    "pairs": (lambda s, y: (s.unsqueeze(0) > s.unsqueeze(1)).double().mean(-1) @ y.double(), False),
    "sorted labels": (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), False),
    "ranks": (lambda s, y: (s.argsort().argsort() * y).double().mean(), False),
    "members": (lambda s, y: y[s.topk(1).indices].double().mean(), False),
    "picked": (precision_of_picked, False),
    "smooth too": (confident_mistakes, False),
    "classes": (accuracy, True),
    "class numbers": (lambda s, y: (s.argmax(-1) - y).abs().double().mean(), True),
}
every_kind = pytest.mark.parametrize(("fn", "of_classes"), EVERY_KIND.values(), ids=EVERY_KIND)


@every_kind
@pytest.mark.parametrize(
    ("dtype", "tied"),
    [(torch.float16, True), (torch.bfloat16, False), (torch.float32, True)],
    ids=["float16, tied", "bfloat16", "float32, tied"],
)
def test_every_precision_has_a_loss_and_a_gradient(
    fn: Function, of_classes: bool, dtype: torch.dtype, tied: bool
) -> None:
    scores, target = (CLASS_SCORES, CLASS_TARGET) if of_classes else (SCORES, TARGET)
    scores = (scores.round() if tied else scores).to(dtype).clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn, higher_is_better=True))(scores, target)
    loss.backward()
    torch.testing.assert_close(
        loss.double(), -fn(scores.detach().double(), target).double(), rtol=0, atol=1e-3
    )
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


@every_kind
def test_scores_that_are_all_equal_have_a_loss_and_a_gradient(
    fn: Function, of_classes: bool
) -> None:
    scores = torch.zeros(4, 3) if of_classes else torch.zeros(6)
    target = CLASS_TARGET if of_classes else TARGET
    scores.requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn, higher_is_better=True))(scores, target)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    if fn is precision_of_picked:  # nothing is picked: there is no precision
        assert loss == 0
        return
    assert float(loss.detach()) == pytest.approx(-float(fn(scores.detach(), target)))
    assert scores.grad.any()


@every_kind
def test_one_item_has_a_loss_and_a_gradient(fn: Function, of_classes: bool) -> None:
    scores, target = (
        (CLASS_SCORES[:1], CLASS_TARGET[:1]) if of_classes else (SCORES[:1], TARGET[:1])
    )
    scores = scores.clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn, higher_is_better=True))(scores, target)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-float(fn(scores.detach(), target)))
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(
    ("fn", "scores", "target"),
    [
        (auc, SCORES, torch.zeros(6).long()),
        (lambda s, y: y[s.argsort()].double().cumsum(0).mean(), SCORES, torch.ones(6).long()),
        (lambda s, y: torch.tensor(0.5), SCORES, TARGET),
        (f1, SCORES[:0], TARGET[:0]),
        (auc, torch.zeros(0, 6), torch.zeros(0, 6).long()),
    ],
    ids=["one class", "one label", "constant", "no item", "no set"],
)
def test_where_nothing_is_compared_the_gradient_is_zero(
    fn: Function, scores: Tensor, target: Tensor
) -> None:
    scores = scores.clone().requires_grad_()
    loss = mg.UniLoss(mg.reexpress(fn, higher_is_better=True))(scores, target)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_no_sets_have_no_comparisons() -> None:
    values, live = mg.reexpress(auc).comparisons(torch.zeros(0, 6), torch.zeros(0, 6).long())
    assert values.shape == live.shape == (0, 0)


def test_one_class_among_many_sets_is_no_trouble() -> None:
    scores, target = (
        torch.stack([SCORES, -SCORES]).requires_grad_(),
        torch.stack([TARGET, torch.ones_like(TARGET)]),
    )
    loss = mg.UniLoss(mg.reexpress(f1, best=1.0))
    torch.testing.assert_close(
        loss.per_set(scores, target).detach(), 1 - torch.stack([*map(f1, scores, target)]).double()
    )


def test_a_set_without_a_value_is_left_out() -> None:
    """auc is NaN where there is but one class."""
    target = torch.stack([TARGET, torch.zeros_like(TARGET), 1 - TARGET])
    scores = normal(3, 6).requires_grad_()
    loss = mg.UniLoss(mg.reexpress(auc, best=1.0))
    value = loss(scores, target)
    value.backward()
    assert scores.grad is not None
    assert not scores.grad[1].any()
    rest = scores[[0, 2]].detach().requires_grad_()
    alone = loss(rest, target[[0, 2]])
    alone.backward()
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(scores.grad[[0, 2]], rest.grad)


# Metrics without bounds


def earned(scores: Tensor, profit: Tensor) -> Tensor:
    return (profit * (scores > 0)).sum()


def in_thousands(fn: Function) -> Function:
    return lambda scores, profit: 1000 * fn(scores, profit)


@pytest.mark.parametrize("options", [{}, {"interpolation": "idw"}, {"samples": 2}], ids=str)
def test_profit_in_units_and_in_thousands_have_one_gradient(options: dict[str, Any]) -> None:
    scores, profit = normal(20), normal(20, seed=1)

    def of(fn: Function) -> Tensor:
        return gradient(
            mg.reexpress(fn), scores, profit, generator=torch.Generator().manual_seed(0), **options
        )

    torch.testing.assert_close(of(in_thousands(earned)), of(earned))
    assert 0.1 < of(earned).abs().sum() < 10


def test_the_gradient_is_that_of_the_metric_over_its_range() -> None:
    scores, profit = normal(20), normal(20, seed=1)
    span = float(
        profit.clamp(min=0).sum() - profit.clamp(max=0).sum()
    )  # all gains alone, all losses alone
    bounded = gradient(mg.reexpress(earned, best=span), scores, profit)
    ideal_scores_of_others = gradient(mg.reexpress(earned), scores, profit) / bounded
    torch.testing.assert_close(ideal_scores_of_others, ideal_scores_of_others[0].expand(20))
    assert float(ideal_scores_of_others[0]) == pytest.approx(
        1 / span, rel=0.2
    )  # cut at the middle, not at 0


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "black box"])
def test_the_scale_is_the_range_over_the_configurations_that_are_tried(watch: bool) -> None:
    """The current bits, those of scores made from the target, and the opposites of both."""
    scores, profit = normal(2, 12), normal(2, 12, seed=1)
    metric = mg.reexpress(lambda s, p: ((s > 0) * p).sum(), watch=watch)
    plan = metric.reexpress(scores.shape, profit, None, scores.dtype)
    plan.comparisons(scores)
    middle = (profit.amin(-1, keepdim=True) + profit.amax(-1, keepdim=True)) / 2
    picks = torch.stack([scores > 0, scores < 0, profit > middle, profit < middle])
    values = (picks * profit).sum(-1)
    found = plan.scale()
    assert found is not None
    torch.testing.assert_close(found, values.amax(0) - values.amin(0))
    again = metric.reexpress(scores.shape, profit, None, scores.dtype)
    again.comparisons(scores.requires_grad_())
    for same in (plan.scale(), again.scale()):
        assert same is not None
        assert not same.requires_grad
        assert torch.equal(same, found)


def test_a_bounded_metric_has_no_scale_and_a_constant_one_has_one() -> None:
    plans = [
        mg.reexpress(fn, best=best).reexpress(SCORES.shape, TARGET, None, SCORES.dtype)
        for fn, best in ((f1, 1.0), (lambda s, y: 0 * (s > 0).sum(), None))
    ]
    for plan in plans:
        plan.comparisons(SCORES)
    assert plans[0].scale() is None
    assert plans[1].scale() == 1


def test_a_range_is_found_for_targets_of_many_columns() -> None:
    scores, target = normal(20), normal(20, 2, seed=1)

    def of_the_first(scores: Tensor, target: Tensor) -> Tensor:
        return earned(scores, target[:, 0])

    one, other = (
        gradient(mg.reexpress(fn, set_dims=(1, 2)), scores, target)
        for fn in (of_the_first, in_thousands(of_the_first))
    )
    torch.testing.assert_close(one, other)


def test_a_range_is_found_though_ideal_scores_have_no_value() -> None:
    scores, profit = normal(20), normal(20, seed=1) / 10

    def mean_of_the_bold(scores: Tensor, profit: Tensor) -> Tensor:
        return profit[scores > 1].mean()

    one, other = (
        gradient(mg.reexpress(fn), scores, profit)
        for fn in (mean_of_the_bold, in_thousands(mean_of_the_bold))
    )
    torch.testing.assert_close(one, other)


# Ways of writing that look as good as any other


@pytest.mark.parametrize(
    ("fn", "same"),
    [
        pytest.param(
            lambda s, y: (
                (torch.bucketize(s, boundaries=torch.tensor([0.0]).double()) == y).double().mean()
            ),
            lambda s, y: (torch.bucketize(s, torch.tensor([0.0]).double()) == y).double().mean(),
            id="bucketize(boundaries=)",
        ),
        pytest.param(
            lambda s, y: ((torch.clamp(input=s, min=-1) > 0) == y).double().mean(),
            lambda s, y: ((torch.clamp(s, min=-1) > 0) == y).double().mean(),
            id="clamp(input=)",
        ),
        pytest.param(
            lambda s, y: (s.sgn() == 2 * y - 1).double().mean(),
            lambda s, y: (s.sign() == 2 * y - 1).double().mean(),
            id="sgn",
        ),
        pytest.param(
            lambda s, y: (torch.div(s, 0.4, rounding_mode="floor") >= y).double().mean(),
            lambda s, y: (torch.floor(s / 0.4) >= y).double().mean(),
            id="rounding_mode",
        ),
        pytest.param(
            lambda s, y: (s // 0.4 >= y).double().mean(),
            lambda s, y: (torch.floor(s / 0.4) >= y).double().mean(),
            id="//",
        ),
        pytest.param(
            lambda s, y: (((s / 10).round(decimals=1) > 0) == y).double().mean(),
            lambda s, y: ((s.round() > 0) == y).double().mean(),
            id="round(decimals=)",
        ),
        pytest.param(torch.inference_mode()(f1), f1, id="inference_mode"),
        pytest.param(torch.no_grad()(f1), f1, id="no_grad"),
        pytest.param(lambda s, y: f1(s.detach().clone().cpu().contiguous(), y), f1, id="detach"),
        pytest.param(lambda s, y: f1(input_of(s), y), f1, id="as_tensor"),
        pytest.param(lambda s, y: torch.stack([f1(s, y), f1(s, y)]).mean(), f1, id="twice"),
        pytest.param(
            lambda s, y: torch.sum(torch.gt(input=s, other=0) == (y == 1)) / len(s),
            lambda s, y: ((s > 0) == (y == 1)).double().mean(),
            id="gt(input=, other=)",
        ),
    ],
)
def test_another_way_of_writing_has_the_same_gradient(fn: Function, same: Function) -> None:
    one, other = (gradient(mg.reexpress(some, best=1.0), SCORES, TARGET) for some in (fn, same))
    torch.testing.assert_close(one, other)
    assert other.any()


def input_of(scores: Any) -> Tensor:
    return torch.as_tensor(scores, dtype=torch.float64)


# Keeping a loss


def test_a_saved_loss_is_loaded_with_its_function(tmp_path: Path) -> None:
    metric = mg.reexpress(f1, best=1.0)
    loss = mg.UniLoss(metric, slope=2.0, relaxation=0.5)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric=metric)
    assert isinstance(loaded, mg.UniLoss)
    torch.testing.assert_close(
        loaded.relaxed(SCORES, TARGET), loss.relaxed(SCORES, TARGET), rtol=0, atol=0
    )
    plain = mg.load_surrogate(tmp_path / "loss.safetensors", metric=f1)
    torch.testing.assert_close(
        plain(SCORES, TARGET), loss(SCORES, TARGET) - 1
    )  # nobody said that 1 is the best
    with pytest.raises(
        ValueError, match=r"your own function, f1, which cannot be stored in a file; pass it again"
    ):
        mg.load_surrogate(tmp_path / "loss.safetensors")


def test_a_saved_loss_that_was_used_is_loaded_too(tmp_path: Path) -> None:
    loss = mg.UniLoss(f1)
    loss(SCORES, TARGET)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric=f1)
    torch.testing.assert_close(loaded(SCORES, TARGET), loss(SCORES, TARGET))


def test_a_loss_can_be_copied_after_a_step() -> None:
    loss = mg.UniLoss(mg.reexpress(f1, best=1.0))
    loss(2 * SCORES.clone().requires_grad_(), TARGET).backward()
    assert copy.deepcopy(loss)(SCORES, TARGET) == loss(SCORES, TARGET)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        pytest.param(torch.inference_mode),
    ],
)
def test_evaluation_modes_change_nothing(mode: Function) -> None:
    loss = mg.UniLoss(mg.reexpress(confident_mistakes, higher_is_better=False))
    expected = confident_mistakes(SCORES, TARGET)
    with mode():
        torch.testing.assert_close(loss(SCORES.clone(), TARGET.clone()), expected)


def test_a_first_look_in_inference_mode_decides_nothing_for_good() -> None:
    """As validation before training does it."""
    loss = mg.UniLoss(lambda scores, target: f1(scores.sigmoid() - 0.5, target))
    with torch.inference_mode():
        loss(SCORES.clone(), TARGET.clone())
    loss(SCORES, TARGET)
    assert isinstance(loss.metric, WatchedMetric)
