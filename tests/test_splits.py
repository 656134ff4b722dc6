"""How a table is split into training and test rows, and that a split copies nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metricgrad.studies.splits import stratified_split


def table(counts: list[int]) -> tuple[pd.DataFrame, pd.Series]:
    """Rows of classes `a`, `b`, ... in random order, as often as asked for."""
    y = np.random.default_rng(0).permutation(
        np.repeat(np.array(list("abcdefgh"))[: len(counts)], counts)
    )
    return pd.DataFrame({"x": np.arange(len(y), dtype=float)}), pd.Series(y, name="target")


@given(
    st.lists(st.integers(2, 60), min_size=2, max_size=8),
    st.floats(0.01, 0.9),
    st.integers(0, 2**31),
)
def test_every_class_is_in_both_parts_at_its_share(
    counts: list[int], share: float, seed: int
) -> None:
    x, y = table(counts)
    train, test = stratified_split(x, y, share, seed)
    assert train.rows is not None
    assert test.rows is not None
    assert sorted([*train.rows, *test.rows]) == list(range(len(y)))
    for number, count in enumerate(counts):
        held = (test.target == "abcdefgh"[number]).sum()
        assert 1 <= held <= count - 1
        assert abs(held - share * count) <= 1


def test_a_split_follows_its_seed_and_keeps_the_order_of_the_file() -> None:
    x, y = table([50, 20])
    first, again, other = (stratified_split(x, y, 0.25, seed)[1] for seed in (3, 3, 4))
    assert first.rows is not None
    assert again.rows is not None
    assert other.rows is not None
    assert (first.rows == again.rows).all()
    assert (np.diff(first.rows) > 0).all()
    assert set(first.rows) != set(other.rows)
    assert first.x is x
    assert (
        len(first) == len(first.target) == 17
    )  # 12.5 of one class, which rounds to an even number, and 5


def test_a_class_of_one_row_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"class 'b' of column 'target' is in 1 rows only.*leave it out, or pass"
    ):
        stratified_split(*table([5, 1]), 0.25, 0)
