"""Isotonic regression and projected ranks: against scikit-learn, and their gradients."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor

from metricgrad import ops
from tests.trainings import seeded


def scikit_learns(rows: Tensor) -> Tensor:
    return torch.tensor(np.stack([isotonic_regression(row.numpy()) for row in rows]))


def hard_rows(kind: str, size: int) -> Tensor:
    drawn = torch.randn(3, size, generator=seeded(), dtype=torch.float64)
    match kind:
        case "ties":
            return drawn.round()
        case "walk":
            return drawn.cumsum(-1)
        case "falling":
            return -drawn.sort(-1).values
        case "one by one":  # the last value pulls down all before it, one after the other
            rising = torch.arange(size, dtype=torch.float64).repeat(3, 1)
            rising[:, -1] = -size
            return rising
        case _:
            return drawn


@pytest.mark.parametrize("kind", ["plain", "ties", "walk", "falling", "one by one"])
@pytest.mark.parametrize("size", [1, 2, 5, 31, 32, 33, 64, 100, 513])
def test_isotonic_regression_equals_scikit_learns(kind: str, size: int) -> None:
    rows = hard_rows(kind, size)
    torch.testing.assert_close(ops.isotonic(rows), scikit_learns(rows), atol=1e-9, rtol=1e-9)


@hypothesis.given(
    hnp.arrays(np.float64, st.integers(1, 90), elements=st.integers(-4, 4).map(float))
)
def test_any_row_equals_scikit_learns(row: np.ndarray) -> None:
    rows = torch.tensor(row)[None]
    torch.testing.assert_close(ops.isotonic(rows), scikit_learns(rows), atol=1e-9, rtol=1e-9)


def test_projected_ranks_are_the_nearest_point_of_the_permutahedron() -> None:
    """No point has lower sums than 1 + ... + k, and the nearest one satisfies both optimalities."""
    values = torch.randn(50, 9, generator=seeded(), dtype=torch.float64)
    ranks = ops.projected_rank(values, 2.0)
    least = torch.arange(1.0, 10, dtype=torch.float64).cumsum(-1)
    assert (ranks.sort(-1).values.cumsum(-1) >= least - 1e-9).all()
    torch.testing.assert_close(ranks.sum(-1), least[-1].expand(50))
    # Nearest: no corner, a ranking, lies further along what is left over.
    rest = 2 * values - ranks
    corner = ops.hard_rank(rest)
    assert ((rest * (corner - ranks)).sum(-1) < 1e-9).all()


def test_projected_ranks_approach_the_hard_ones_and_leave_out_what_does_not_count() -> None:
    values = torch.randn(4, 70, generator=seeded(), dtype=torch.float64)
    where = torch.rand(4, 70, generator=seeded(1)) < 0.7
    spoiled = torch.where(where, values, torch.nan)
    torch.testing.assert_close(ops.projected_rank(values, 1e7), ops.hard_rank(values))
    torch.testing.assert_close(
        ops.projected_rank(spoiled, 1e7, where), ops.hard_rank(values, where)
    )
    for row, counts, ranks in zip(
        values, where, ops.projected_rank(spoiled, 9.0, where), strict=True
    ):
        torch.testing.assert_close(ranks[counts], ops.projected_rank(row[counts], 9.0))
        assert not ranks[~counts].any()
    assert ops.projected_rank(torch.zeros(3, 0)).shape == (3, 0)


@pytest.mark.parametrize("slope", [0.1, 1.0, 4.0])
def test_projected_ranks_pass_gradcheck(slope: float) -> None:
    values = torch.randn(2, 40, generator=seeded(), dtype=torch.float64, requires_grad=True)
    where = torch.arange(40) < torch.tensor([[40], [25]])
    assert torch.autograd.gradcheck(lambda v: ops.projected_rank(v, slope), (values,))
    assert torch.autograd.gradcheck(lambda v: ops.projected_rank(v, slope, where), (values,))


def test_ranks_of_many_values_need_no_pairs() -> None:
    """A matrix of all pairs would have 40 billion entries."""
    values = torch.randn(200_000, generator=seeded())
    ranks = ops.projected_rank(values, 1e6)
    assert (ranks - ops.hard_rank(values)).abs().max() < 3  # a few values are too close to part
