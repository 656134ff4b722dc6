"""Tensor maths against SciPy and against plain loops."""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from metricgrad import ops

stats: Any = scipy.stats  # its stubs know less than its results

grids = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=2, max_dims=3, max_side=12), elements=st.integers(-4, 4)
)


def pairs_with_ties(seed: int, shape: tuple[int, ...] = (6, 30)) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, 9, (2, *shape), generator=generator).double()
    return x, y + x, torch.rand(shape, generator=generator) < 0.7


@hypothesis.given(grids)
def test_hard_rank_equals_scipy(values: np.ndarray) -> None:
    expected = stats.rankdata(values, axis=-1)
    np.testing.assert_array_equal(ops.hard_rank(torch.as_tensor(values)).numpy(), expected)
    np.testing.assert_array_equal(ops.hard_rank(torch.as_tensor(values).float()).numpy(), expected)


@pytest.mark.parametrize(
    ("ours", "scipys"), [(ops.spearman, stats.spearmanr), (ops.kendall, stats.kendalltau)]
)
@pytest.mark.parametrize("seed", range(5))
def test_rank_correlations_equal_scipy(
    ours: Callable[..., Tensor], scipys: Callable[..., Any], seed: int
) -> None:
    x, y, where = pairs_with_ties(seed)
    expected = [scipys(a.numpy(), b.numpy()).statistic for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(ours(x, y).numpy(), expected, atol=1e-12)
    kept = [
        scipys(a[w].numpy(), b[w].numpy()).statistic for a, b, w in zip(x, y, where, strict=True)
    ]
    np.testing.assert_allclose(ours(x, y, where).numpy(), kept, atol=1e-12)
    grid = ours(x.reshape(3, 2, 30), y.reshape(3, 2, 30), where.reshape(3, 2, 30))
    np.testing.assert_allclose(grid.flatten().numpy(), kept, atol=1e-12)


@hypothesis.given(hnp.arrays(np.int64, (2, 9), elements=st.integers(-2, 2)))
def test_kendall_has_no_counter_example(pair: np.ndarray) -> None:
    x, y = torch.as_tensor(pair).double()
    expected = stats.kendalltau(pair[0], pair[1]).statistic
    np.testing.assert_allclose(ops.kendall(x, y).item(), np.nan_to_num(expected), atol=1e-12)


def test_kendall_of_many_values_needs_no_pair_matrix() -> None:
    x, y = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(0)).double()
    expected = stats.kendalltau(x.numpy(), y.numpy()).statistic
    assert ops.kendall(x, y).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("correlation", [ops.pearson, ops.spearman, ops.kendall])
def test_correlations_of_constants_and_nothing_are_zero(correlation: Callable[..., Tensor]) -> None:
    x = torch.arange(4.0)
    assert correlation(x, torch.ones(4)) == 0
    assert correlation(x, x, torch.zeros(4, dtype=torch.bool)) == 0
    assert correlation(x[:1], x[:1]) == 0
    assert correlation(x[:0], x[:0]) == 0
    assert correlation(x, x).item() == pytest.approx(1)
    assert correlation(x, -x).item() == pytest.approx(-1)


def test_pearson_has_a_gradient() -> None:
    x, y = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    where = torch.arange(7) < torch.tensor([[7], [5], [6]])
    assert torch.autograd.gradcheck(
        lambda a, b: ops.pearson(a, b, where), (x.requires_grad_(), y.requires_grad_())
    )
    constant = torch.ones(4, requires_grad=True)
    ops.pearson(constant, torch.arange(4.0)).backward()
    assert constant.grad is not None
    assert constant.grad.isfinite().all()


def test_soft_rank_is_differentiable_and_approaches_the_hard_one() -> None:
    values = torch.randn(
        2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    where = torch.arange(8) < torch.tensor([[8], [5]])
    assert torch.autograd.gradcheck(lambda v: ops.soft_rank(v, 2.0), (values,))
    assert torch.autograd.gradcheck(lambda v: ops.soft_rank(v, 2.0, where), (values,))
    torch.testing.assert_close(ops.soft_rank(values, 1e6), ops.hard_rank(values))
    torch.testing.assert_close(ops.soft_rank(values, 1e6, where), ops.hard_rank(values, where))
    ties = torch.tensor([1.0, 2.0, 2.0])
    torch.testing.assert_close(ops.soft_rank(ties, 1e6), ops.hard_rank(ties))


def test_masked_reductions_ignore_what_does_not_count() -> None:
    values = torch.tensor([[1.0, 2.0, float("nan")], [4.0, 5.0, 6.0]])
    where = torch.tensor([[True, True, False], [False, False, False]])
    assert ops.masked_sum(values, where).tolist() == [3, 0]
    assert ops.masked_mean(values, where).tolist() == [1.5, 0]
    assert ops.masked_mean(values[1]) == 5


@pytest.mark.parametrize("scale", [1.0, 10.0, 60.0])
def test_log_odds_keep_the_order_that_probabilities_lose(scale: float) -> None:
    scores = scale * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    others = scores.double().unsqueeze(-2).expand(200, 5, 5).clone()
    others.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    exact = scores.double() - others.logsumexp(-1)
    torch.testing.assert_close(ops.log_odds(scores).double(), exact, rtol=1e-5, atol=1e-4)
    assert ops.spearman(ops.log_odds(scores).flatten(), exact.flatten()) > 0.99999


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 7, 40])
def test_log_odds_of_swapped_or_shifted_classes_are_equal(classes: int, dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randint(-40, 40, (300, classes), generator=source).to(dtype) / 8
    orders = torch.rand(300, classes, generator=source).argsort(-1)
    odds = ops.log_odds(scores)
    assert ops.log_odds(scores.gather(-1, orders)).equal(odds.gather(-1, orders))
    assert ops.log_odds(scores + 3).equal(odds)


def test_log_odds_of_nearly_equal_scores_keep_their_order() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(200, 4, generator=source, dtype=torch.float64)
    # For small scores, the log-odds grow with s_c minus the mean of the others.
    lead = scores - (scores.sum(-1, keepdim=True) - scores) / 3
    for scale in (1e-9, 1e-12):
        assert ops.spearman(ops.log_odds(scale * scores).flatten(), lead.flatten()) > 0.99999


def test_log_odds_have_their_gradient_at_the_smallest_steps() -> None:
    scores = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(ops.log_odds, (scores,), eps=1e-7, atol=1e-6)


def test_groups_of_similar_size_come_together() -> None:
    groups = torch.tensor([4, 1, 4, 1, 1, 9, 1, 4])
    batches = [(w.tolist(), i.tolist(), m.tolist()) for w, i, m in ops.group_batches(groups)]
    assert batches[0] == ([2], [[5]], [[True]])
    assert batches[1] == (
        [0, 1],
        [[1, 3, 4, 6], [0, 2, 7, 0]],
        [[True] * 4, [True, True, True, False]],
    )
    assert not list(ops.group_batches(torch.zeros(0, dtype=torch.int64)))


def test_groups_of_very_different_sizes_need_little_padding() -> None:
    groups = torch.cat([torch.zeros(5000), torch.arange(1, 5001)]).long()
    assert sum(index.numel() for _, index, _ in ops.group_batches(groups)) <= 2 * len(groups)


@pytest.mark.parametrize("scale", [1e-20, 1e-12, 1e10, 1e18])
def test_correlations_do_not_depend_on_scale(scale: float) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 5.0])
    assert ops.pearson(x * scale, x * scale).item() == pytest.approx(1)
    assert ops.pearson(x * scale, -x).item() == pytest.approx(-1)


def test_correlations_of_many_and_of_short_floats() -> None:
    many = torch.arange(5_000_000.0)
    assert ops.spearman(many, many).item() == pytest.approx(1)
    short = (100 * torch.randn(3000, generator=torch.Generator().manual_seed(0))).half()
    assert ops.pearson(short, short).item() == pytest.approx(1, abs=1e-5)
    assert ops.masked_mean(torch.full((100_000,), 2.0, dtype=torch.float16)) == 2


def test_masked_nan_leaves_gradients_alone() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, float("nan")], requires_grad=True)
    where = torch.tensor([True, True, True, False])
    (
        ops.soft_rank(values, 1.0, where).sum()
        + ops.pearson(values, torch.tensor([1.0, 3.0, 2.0, 0.0]), where)
    ).backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
