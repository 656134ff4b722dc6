"""The best threshold against trying all of them."""

from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics as sk
import torch

import metricgrad as mg
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.threshold import bagged_threshold, stable_threshold

DECIDED = [
    name
    for name in mg.metric_names()
    if isinstance(mg.metric(name), ConfusionMetric) and name != "hamming"
]


def brute_force(name: str, scores: torch.Tensor, target: torch.Tensor) -> float:
    """The best value over all thresholds."""
    levels = [-torch.inf, *scores.tolist()]
    values = [mg.metric(name, threshold=level)(scores, target).item() for level in levels]
    return max(values) if mg.metric(name).higher_is_better else min(values)


@pytest.mark.parametrize("name", DECIDED)
@hypothesis.given(
    hnp.arrays(np.float32, 9, elements=st.integers(-3, 3).map(float)),
    hnp.arrays(np.int64, 9, elements=st.integers(0, 1)),
)
def test_no_threshold_is_better(name: str, scores: np.ndarray, target: np.ndarray) -> None:
    s, y = torch.as_tensor(scores), torch.as_tensor(target)
    found = mg.best_threshold(s, y, name)
    assert mg.metric(name, threshold=found)(s, y).item() == pytest.approx(
        brute_force(name, s, y), abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DECIDED)
def test_neighbouring_floats_and_huge_scores_are_told_apart(name: str, dtype: torch.dtype) -> None:
    for base in (0.0, 1.0, -1.0, 1e8, -1e30, 3e-39):
        low = torch.tensor(base, dtype=dtype)
        scores = torch.stack([low, torch.nextafter(low, torch.tensor(torch.inf, dtype=dtype))])
        for target in ([0, 1], [1, 0], [1, 1], [0, 0]):
            y = torch.tensor(target)
            found = mg.best_threshold(scores, y, name)
            assert found.isfinite()
            assert mg.metric(name, threshold=found)(scores, y).item() == pytest.approx(
                brute_force(name, scores, y), abs=1e-6
            )


def test_many_sets_and_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(2, 3, 25, generator=generator),
        torch.randint(0, 2, (2, 3, 25), generator=generator),
    )
    where = torch.rand(2, 3, 25, generator=generator) < 0.6
    found = mg.best_threshold(scores, target, "f1", where=where)
    assert found.shape == (2, 3)
    for index in np.ndindex(2, 3):
        kept = where[index]
        assert mg.best_threshold(scores[index][kept], target[index][kept], "f1") == found[index]


@pytest.mark.parametrize("metric", ["f1", lambda s, y: ((s > 0) == (y > 0)).float().mean()])
def test_a_column_of_scores_has_one_threshold(metric: Any) -> None:
    scores = torch.tensor([3.0, 2.0, 1.0, 0.5, -1.0, -2.0])
    target = torch.tensor([1, 0, 1, 1, 0, 0])
    expected = mg.best_threshold(scores, target, metric)
    column = scores.unsqueeze(-1)
    assert mg.best_threshold(column, target, metric) == expected
    assert mg.best_threshold(column, target.unsqueeze(-1), metric).shape == ()
    assert mg.best_threshold(column, target.unsqueeze(-1), metric) == expected


def test_one_threshold_per_label_or_one_for_all() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(40, 3, generator=generator),
        torch.randint(0, 2, (40, 3), generator=generator),
    )
    found = mg.best_threshold(scores, target, mg.metric("f1", multilabel=True))
    assert found.tolist() == [
        mg.best_threshold(scores[:, i], target[:, i], "f1").item() for i in range(3)
    ]
    tuned = mg.metric("f1", multilabel=True, threshold=found)(scores, target)
    assert tuned > mg.metric("f1", multilabel=True)(scores, target)
    pooled = mg.best_threshold(scores, target, mg.metric("f1", multilabel=True, average="micro"))
    assert pooled == mg.best_threshold(scores.flatten(), target.flatten(), "f1")
    several = mg.metric("f1", multilabel=True, average="micro", threshold=(9.0, 9.0, 9.0))
    assert mg.best_threshold(scores, target, several) == pooled


def test_of_equally_good_thresholds_the_nearest_is_taken() -> None:
    scores, target = torch.tensor([-3.0, -1.0, 1.0, 5.0]), torch.tensor([0, 0, 1, 1])
    assert mg.best_threshold(scores, target, "recall") == 0
    assert mg.best_threshold(scores, target, mg.metric("precision", threshold=4.0)) == 3
    assert mg.best_threshold(scores, target, mg.metric("precision", threshold=-9.0)) == 0


def test_functions_are_tried_at_every_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(2, 40, generator=generator),
        torch.randint(0, 2, (2, 40), generator=generator),
    )
    found = mg.best_threshold(scores, target, lambda s, y: sk.f1_score(y, s > 0))
    torch.testing.assert_close(found, mg.best_threshold(scores, target, "f1"))
    wrong = mg.from_function(sk.zero_one_loss, higher_is_better=False)
    torch.testing.assert_close(
        mg.best_threshold(scores, target, wrong), mg.best_threshold(scores, target, "error_rate")
    )
    few = mg.best_threshold(scores, target, lambda s, y: sk.f1_score(y, s > 0), candidates=5)
    assert few.isfinite().all()


def test_functions_are_tried_where_decisions_change() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (5000,), generator=generator)
    target = (scores + 2 * torch.randn(5000, generator=generator) > 1).long()
    f1 = mg.from_function(lambda s, y: sk.f1_score(y, s > 0), arrays=True)
    assert mg.best_threshold(scores, target, f1, candidates=8) == mg.best_threshold(
        scores, target, "f1"
    )
    where = torch.arange(3000) % 150 == 0
    apart, truth = torch.randn(3000, generator=generator), torch.zeros(3000)
    truth[where] = (apart[where] > apart[where].median()).float()
    found = mg.best_threshold(apart, truth, f1, where=where, candidates=30)
    assert mg.metric("f1", threshold=found)(apart, truth, where=where) == 1
    sometimes = mg.from_function(
        lambda s, y: float("nan") if (s > 0).all() else -float((s > 0).sum())
    )
    assert mg.best_threshold(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), sometimes) == 4
    for wrong in (0, 1, 2.5):
        with pytest.raises((ValueError, TypeError), match="candidates must be"):
            mg.best_threshold(scores, target, f1, candidates=wrong)  # type: ignore[arg-type]
    labels = mg.from_function(sk.f1_score, multilabel=True)
    with pytest.raises(ValueError, match="f1_score does not use a threshold"):
        mg.best_threshold(torch.zeros(5, 3), torch.zeros(5, 3), labels)


def test_infinite_thresholds_are_replaced() -> None:
    scores, target = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 1, 1])
    for own in (torch.inf, -torch.inf):
        assert mg.best_threshold(scores, target, mg.metric("f1", threshold=own)) == 2.5
    lowest = torch.tensor([torch.finfo().min, 1.0])
    found = mg.best_threshold(lowest, torch.tensor([1, 1]), "f1")
    assert mg.metric("f1", threshold=found)(lowest, torch.tensor([1, 1])) == 1
    with pytest.raises(ValueError, match="threshold must be a number; got nan"):
        mg.metric("f1", threshold=float("nan"))


def test_a_million_scores_are_cut_in_linear_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1_000_000, generator=generator)
    target = scores + torch.randn(1_000_000, generator=generator) > 1.5
    found = mg.best_threshold(scores, target, "f1")
    tuned = mg.metric("f1", threshold=found)(scores, target)
    assert all(
        mg.metric("f1", threshold=t)(scores, target) <= tuned for t in np.linspace(-1, 3, 50)
    )


def test_degenerate_sets_have_a_threshold() -> None:
    assert mg.best_threshold(torch.zeros(0), torch.zeros(0), "f1") == 0
    assert (
        mg.best_threshold(
            torch.ones(3), torch.ones(3), "f1", where=torch.zeros(3, dtype=torch.bool)
        )
        == 0
    )


def test_metrics_without_a_threshold_say_so() -> None:
    scores, target = torch.randn(5), torch.tensor([0, 1, 0, 1, 1])
    for name in ("auc", "average_precision", "eer", "ndcg", "precision_at_k"):
        with pytest.raises(
            ValueError, match=f"{name} depends only on the order of the scores, .* such as 'f1'"
        ):
            mg.best_threshold(scores, target, name)
    with pytest.raises(ValueError, match="bleu does not use a threshold"):
        mg.best_threshold(scores, target, "bleu")
    with pytest.raises(
        ValueError, match=r"f1 of 3 classes takes the highest score, .* got scores \[5, 3\]"
    ):
        mg.best_threshold(torch.randn(5, 3), target, "f1")
    with pytest.raises(
        ValueError, match=r"a threshold belongs to binary scores \[..., N\]; got scores \[5, 3\]"
    ):
        mg.best_threshold(torch.randn(5, 3), target, lambda s, y: 0.0)


@pytest.mark.parametrize("name", ["f1", "mcc", "error_rate"])
def test_a_bagged_threshold_is_the_best_of_what_was_drawn(name: str) -> None:
    """With one draw it is that draw's best; draws count items by their place among the sorted."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(60, generator=generator).mul(4).round().div(4)  # with ties
    target = (scores + torch.randn(60, generator=generator) > 0.5).long()
    metric = mg.metric(name)
    assert isinstance(metric, ConfusionMetric)
    for seed in range(20):
        found = bagged_threshold(scores, target, metric, 1, torch.Generator().manual_seed(seed))
        drawn = torch.randint(60, (1, 60), generator=torch.Generator().manual_seed(seed))[0]
        order = scores.sort(-1, descending=True).indices[drawn]
        best = mg.best_threshold(scores[order], target[order], metric)
        values = [
            mg.metric(name, threshold=each)(scores[order], target[order]) for each in (found, best)
        ]
        assert values[0] == pytest.approx(values[1].item(), abs=1e-6)


def test_a_bagged_threshold_is_steadier_than_the_best() -> None:
    generator = torch.Generator().manual_seed(0)
    metric = mg.metric("f1")
    assert isinstance(metric, ConfusionMetric)
    plain, bagged = [], []
    for _ in range(200):
        target = (torch.rand(120, generator=generator) < 0.2).long()
        scores = torch.randn(120, generator=generator) + target
        plain.append(mg.best_threshold(scores, target, metric))
        bagged.append(bagged_threshold(scores, target, metric, 64, generator))
    assert torch.stack(bagged).std() < 0.95 * torch.stack(plain).std()


def test_a_stable_threshold_is_the_median_of_draws_while_items_are_few() -> None:
    """64 draws of up to 250,000 items in all, seed 0; from 31,251 items on the best threshold."""
    generator = torch.Generator().manual_seed(34)

    f1 = mg.metric("f1")
    assert isinstance(f1, ConfusionMetric)
    for size, draws in ((400, 64), (5_000, 50), (31_250, 8)):
        scores = torch.randn(size, generator=generator)
        target = (scores + torch.randn(size, generator=generator) > 0.5).long()
        found = stable_threshold(scores, target, f1)
        seeded = torch.Generator().manual_seed(0)
        assert found == bagged_threshold(scores, target, f1, draws, seeded)
        assert found != mg.best_threshold(scores, target, f1)
    scores = torch.randn(31_251, generator=generator)
    target = (scores + torch.randn(31_251, generator=generator) > 0.5).long()
    assert stable_threshold(scores, target, f1) == mg.best_threshold(scores, target, f1)


def test_a_stable_threshold_serves_labels_and_functions() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(300, 3, generator=generator)
    target = (scores + torch.randn(300, 3, generator=generator) > 0.5).long()
    found = stable_threshold(scores, target, mg.metric("f1", multilabel=True))
    assert found.shape == (3,)
    assert found[0] == stable_threshold(scores[:, 0], target[:, 0], mg.metric("f1"))
    assert found.unique().numel() == 3
    micro = stable_threshold(scores, target, mg.metric("f1", multilabel=True, average="micro"))
    assert micro == stable_threshold(scores.flatten(), target.flatten(), mg.metric("f1"))
    function = mg.from_function(lambda s, y: sk.f1_score(y, s > 0), arrays=True)
    tried = mg.best_threshold(scores[:, 0], target[:, 0], function, candidates=200)
    assert stable_threshold(scores[:, 0], target[:, 0], function) == tried
