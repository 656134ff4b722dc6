"""The laws of re-expression, in both forms where a decision is an AND."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric, tried_flip_gains
from tests.cases import CASES, Case
from tests.sets import ideal_set, make_set
from tests.test_contracts import generator, tensors

DECIDED = [case for case in CASES if isinstance(case.metric, ComparisonMetric)]
ALL_PAIRS = [
    replace(case, options={**case.options, "pairs": "all"})
    for case in DECIDED
    if case.family in ("multi-class", "segmentation", "pose")
    and hasattr(case.metric, "pairs")
    and not {"k", "average", "ignore_index"} & set(case.options)
]
every_form = pytest.mark.parametrize("case", DECIDED + ALL_PAIRS, ids=str)


def comparison_metric(case: Case) -> ComparisonMetric:
    metric = case.metric
    assert isinstance(metric, ComparisonMetric)
    return metric


def separated(
    case: Case, rng: np.random.Generator, size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A set without ties."""
    return tensors(
        *make_set(case.family, "plain" if size else rng.choice(["plain", "tiny"]), rng, size)
    )


def test_all_families_but_text_are_decided_by_comparisons() -> None:
    assert {case.family for case in CASES} - {case.family for case in DECIDED} == {
        "text",
        "text-references",
    }


@every_form
def test_bits_of_the_comparisons_give_the_metric(case: Case) -> None:
    metric, rng = comparison_metric(case), generator(case)
    for _ in range(12):
        scores, target = separated(case, rng)
        values, live = metric.comparisons(scores, target)
        assert values.shape == live.shape
        found = metric.from_bits(values > 0, target, shape=scores.shape)
        torch.testing.assert_close(found, metric(scores, target), rtol=0, atol=1e-9)


@every_form
def test_many_sets_and_masks(case: Case) -> None:
    metric, rng = comparison_metric(case), generator(case)
    sets = [separated(case, rng, 6) for _ in range(4)]
    scores, target = (
        torch.stack(column).unflatten(0, (2, 2)) for column in zip(*sets, strict=True)
    )
    where = torch.as_tensor(rng.random((2, 2, 6)) < 0.8)
    values, live = metric.comparisons(scores, target, where=where)
    found = metric.from_bits(values > 0, target, where=where, shape=scores.shape)
    torch.testing.assert_close(found, metric(scores, target, where=where), rtol=0, atol=1e-9)
    bits = torch.as_tensor(rng.random((3, *values.shape)) < 0.5)
    flipped = torch.where(live, bits, ~bits)
    same = metric.from_bits(bits, target, where=where, shape=scores.shape)
    torch.testing.assert_close(
        metric.from_bits(flipped, target, where=where, shape=scores.shape), same
    )
    one_by_one = torch.stack(
        [metric.from_bits(b, target, where=where, shape=scores.shape) for b in bits]
    )
    torch.testing.assert_close(same, one_by_one)
    assert same.shape == (3, 2, 2)


@every_form
def test_flip_gains_are_exact(case: Case) -> None:
    maps = case.family in ("pose", "segmentation")
    for size in (1, 2 if maps else 5):
        gains_are_exact(case, size)


def gains_are_exact(case: Case, size: int) -> None:
    metric = comparison_metric(case)
    rng = generator(case)
    scores, target = separated(case, rng, size)
    inputs = metric.check(scores, target, None)
    plan = metric.reexpress(inputs.scores.shape, inputs.target, None, torch.float64)
    values, live = plan.comparisons(inputs.scores)
    for won in (0.0, 0.5, 0.9, 1.0):
        bits = torch.where(live, torch.as_tensor(rng.random((2, *values.shape)) < won), values > 0)
        bits[0] = values > 0
        gains = plan.flip_gains(bits)
        tried = torch.where(live, tried_flip_gains(plan, bits), 0.0)
        torch.testing.assert_close(gains, tried, rtol=0, atol=1e-9)


@pytest.mark.parametrize("pairs", ["best", "all"])
@pytest.mark.parametrize("weights", ["linear", "quadratic"])
def test_weighted_kappa_gains_are_exact_for_sets_masks_and_one_class(
    weights: str, pairs: str
) -> None:
    metric, rng = mg.metric("kappa", weights=weights, pairs=pairs), np.random.default_rng(0)
    assert isinstance(metric, ComparisonMetric)
    target = torch.as_tensor(rng.integers(0, 5, (3, 4)))
    target[1] = 2  # a set of one class has a kappa of 0 whatever is predicted
    where = torch.as_tensor(rng.random((3, 4)) < 0.8)
    plan = metric.reexpress((3, 4, 5), target, where, torch.float64)
    values, live = plan.comparisons(torch.as_tensor(rng.normal(size=(3, 4, 5))))
    for won in (0.0, 0.5, 0.9, 0.99, 1.0):
        bits = torch.as_tensor(rng.random((20, *values.shape)) < won)
        tried = torch.where(live, tried_flip_gains(plan, bits), 0.0)
        torch.testing.assert_close(plan.flip_gains(bits), tried, rtol=0, atol=1e-12)
        assert tried[:, 0].any()
        assert tried[:, 2].any()


@pytest.mark.parametrize(
    "case", [case for case in DECIDED + ALL_PAIRS if case.reaches_best], ids=str
)
def test_all_comparisons_won_is_best(case: Case) -> None:
    metric = comparison_metric(case)
    scores, target = tensors(*ideal_set(case.family, generator(case), size=5))
    ideal = metric.ideal_bits(target, shape=scores.shape)
    assert metric.from_bits(ideal, target, shape=scores.shape).item() == pytest.approx(
        metric.best, abs=1e-9
    )


@every_form
def test_degenerate_sets_have_finite_bits_and_gains(case: Case) -> None:
    metric = comparison_metric(case)
    scores, target = separated(case, generator(case), 3)
    one_class = [(scores[:n], torch.full_like(target[:n], c)) for n in (0, 1, 3) for c in (0, 1)]
    for s, y in one_class:
        values, live = metric.comparisons(s, y)
        assert values[live].isfinite().all()
        found = metric.from_bits(values > 0, y, shape=s.shape)
        torch.testing.assert_close(found, metric(s, y), rtol=0, atol=1e-9)
        assert metric.flip_gains(values > 0, y, shape=s.shape).isfinite().all()


@every_form
def test_comparisons_carry_a_gradient(case: Case) -> None:
    metric = comparison_metric(case)
    scores, target = separated(case, generator(case), 3)
    target.reshape(len(target), -1)[:2] = torch.tensor([[0], [1]])
    values, live = metric.comparisons(scores.requires_grad_(), target)
    (gradient,) = torch.autograd.grad(values[live].sum() + 0 * scores.sum(), scores)
    assert gradient.isfinite().all()
    assert gradient.any() or not live.any()


def test_bits_that_fit_no_order_are_worth_nothing_to_the_papers_code() -> None:
    target = torch.tensor([1, 1, 0, 0])
    cyclic = torch.tensor([True, False, False, True])  # a > c > b > d > a
    fitting = torch.tensor([True, True, False, True])
    published = mg.metric("average_precision", cycles="zero")
    counted = mg.metric("average_precision")
    assert isinstance(published, ComparisonMetric)
    assert isinstance(counted, ComparisonMetric)
    assert published.from_bits(cyclic, target) == 0
    assert counted.from_bits(cyclic, target) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert (
        published.from_bits(fitting, target)
        == counted.from_bits(fitting, target)
        == pytest.approx((1 + 2 / 3) / 2)
    )


def test_ties_are_lost() -> None:
    for name in ("auc", "average_precision", "f1", "accuracy", "mcc"):
        metric = mg.metric(name)
        assert isinstance(metric, ComparisonMetric)
        scores, target = torch.zeros(4), torch.tensor([1, 0, 1, 0])
        values, _ = metric.comparisons(scores, target)
        assert not (values > 0).any()
        assert metric.from_bits(values > 0, target) <= metric(scores, target)


def test_all_pairs_of_classes_decide_only_the_first_place() -> None:
    metric = mg.metric("accuracy", k=2, pairs="all")
    assert isinstance(metric, ComparisonMetric)
    with pytest.raises(ValueError, match="decides k=1 only; got k=2"):
        metric.comparisons(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="pairs must be 'best' or 'all'; got 'some'"):
        mg.metric("f1", pairs="some")
    with pytest.raises(ValueError, match="pairs must be 'best' or 'all'; got 'some'"):
        mg.metric("mean_iou", pairs="some")
    with pytest.raises(ValueError, match="pairs must be 'best' or 'all'; got 'some'"):
        mg.metric("pck", pairs="some")
