"""Ranking metrics against torchmetrics, on scores above 0 without ties, where both agree."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional import retrieval

import metricgrad as mg
from tests import references as ref


@pytest.mark.parametrize(
    ("metric", "theirs", "options"),
    [
        (mg.metric("mrr"), retrieval.retrieval_reciprocal_rank, {}),
        (mg.metric("mrr", k=3), retrieval.retrieval_reciprocal_rank, {"top_k": 3}),
        (mg.metric("precision_at_k", k=5), retrieval.retrieval_precision, {"top_k": 5}),
        (mg.metric("precision_at_k", k=50), retrieval.retrieval_precision, {"top_k": 50}),
        (mg.metric("recall_at_k", k=5), retrieval.retrieval_recall, {"top_k": 5}),
        (mg.metric("map"), retrieval.retrieval_average_precision, {}),
        (mg.metric("ndcg", k=5), retrieval.retrieval_normalized_dcg, {"top_k": 5}),
    ],
    ids=lambda value: str(value) if isinstance(value, mg.Metric) else "",
)
def test_equals_torchmetrics_without_ties(
    metric: mg.Metric, theirs: Callable[..., Any], options: dict[str, int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        size = int(torch.randint(1, 30, (), generator=generator))
        scores = 1 + torch.randperm(size, generator=generator).double()
        target = torch.randint(0, 2, (size,), generator=generator)
        expected = float(theirs(scores, target, **options))
        assert metric(scores, target).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("mrr", retrieval.retrieval_reciprocal_rank),
        ("precision_at_k", retrieval.retrieval_precision),
        ("recall_at_k", retrieval.retrieval_recall),
    ],
)
def test_relevant_items_count_whatever_their_sign(name: str, theirs: Callable[..., Any]) -> None:
    """Torchmetrics takes relevant items with scores of 0 and below as irrelevant; we do not."""
    scores, target = torch.tensor([0.9, 0.4, 0.2, 0.1]), torch.tensor([0, 1, 1, 0])
    metric = mg.metric(name, k=3)
    value = metric(scores, target)
    assert value.item() == pytest.approx(theirs(scores, target, top_k=3).item())
    assert metric(scores - 1, target) == value
    assert theirs(scores - 1, target, top_k=3) == 0
    assert metric.reference.endswith("of scores above 0")


def test_a_model_that_scores_everything_alike_never_looks_good() -> None:
    scores, target = torch.zeros(10), torch.tensor([1, 1] + [0] * 8)
    assert mg.metric("precision_at_k", k=2)(scores, target) == 0
    assert mg.metric("recall_at_k", k=8)(scores, target) == 0
    assert mg.metric("mrr")(scores, target) == pytest.approx(1 / 9)
    assert mg.metric("map")(scores, target) == pytest.approx(0.2)
    assert mg.metric("auc")(scores, target) == 0.5
    assert mg.metric("average_precision")(scores, target) == pytest.approx(0.2)


def test_graded_targets_are_relevant_above_zero() -> None:
    scores, grades = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 0.3, 4.0])
    for name in ("map", "mrr", "precision_at_k", "recall_at_k"):
        assert mg.metric(name)(scores, grades) == mg.metric(name)(scores, (grades > 0).long())


def test_float32_ndcg_of_a_long_list_is_precise() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 50_000, (100_000,), generator=generator).float()
    grades = torch.randint(0, 4, (100_000,), generator=generator)
    exact = mg.metric("ndcg")(scores.double(), grades)
    assert mg.metric("ndcg")(scores, grades).item() == pytest.approx(exact.item(), abs=1e-5)


def test_huge_grades_do_not_overflow() -> None:
    scores = torch.tensor([2.0, 1.0, 3.0])
    for grades in ([200.0, 0.0, 199.0], [3e38, 3e38, 0.0]):
        for gain in ("linear", "exponential"):
            value = mg.metric("ndcg", gain=gain)(scores, torch.tensor(grades))
            assert 0 < value < 1 or value == pytest.approx(1)
    exact = mg.metric("ndcg", gain="exponential")(scores, torch.tensor([5.0, 1.0, 3.0]))
    assert exact.item() == pytest.approx(
        ref.ndcg(scores.numpy(), np.array([5.0, 1.0, 3.0]), exponential=True), abs=1e-6
    )


def test_shapes_must_agree() -> None:
    with pytest.raises(
        ValueError, match=r"ndcg takes scores \[..., N\] .* got scores \[3, 2\] and target \[3\]"
    ):
        mg.metric("ndcg")(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(
        ValueError, match=r"groups must be one integer id per item .* for scores \[2, 3\]"
    ):
        mg.metric("ndcg")(torch.zeros(2, 3), torch.zeros(2, 3), groups=torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match="groups must be one integer id per item"):
        mg.metric("ndcg")(torch.zeros(3), torch.zeros(3), groups=torch.tensor([[0, 0, 1]]))


def test_groups_check_everything_in_the_users_own_layout() -> None:
    scores, target, groups = torch.zeros(6), torch.zeros(6), torch.tensor([0, 1, 0, 1, 2, 2])
    with pytest.raises(ValueError, match=r"where must have shape \[6\] here; got \[7\]"):
        mg.metric("auc")(scores, target, where=torch.ones(7), groups=groups)
    with pytest.raises(ValueError, match=r"where must hold only 0 and 1; got 0\.5"):
        mg.metric("auc")(scores, target, where=torch.full((6,), 0.5), groups=groups)
    with pytest.raises(ValueError, match=r"of 6 \(shape \[6\]\), at \[4\]"):
        mg.metric("auc")(scores.index_fill(0, torch.tensor([4]), torch.nan), target, groups=groups)
    for where in (None, torch.ones(3, 4)):
        with pytest.raises(
            ValueError, match=r"one flat set; .* for scores \[3, 4\] and target \[3, 4\]"
        ):
            mg.metric("auc")(
                torch.zeros(3, 4), torch.zeros(3, 4), where=where, groups=torch.tensor([0, 1, 1])
            )
