"""UniLoss's options: samples, published settings, strongest rivals, anchors, and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.surrogates.interpolation import sample_anchors


@pytest.mark.parametrize("name", ["eer", "mrr", "partial_auc"])
def test_samples_spread_the_gradient_of_a_metric_with_a_cut_off(name: str) -> None:
    scores = torch.randn(20, 100, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(100).expand(20, 100) % 10 == 0
    reached = []
    for samples in (0, 64):
        loss = mg.UniLoss(
            name, slope=1.0, samples=samples, generator=torch.Generator().manual_seed(1)
        )
        (gradient,) = torch.autograd.grad(loss(scores, target), scores)
        reached.append((gradient[target] != 0).float().mean().item())
    assert reached[1] > max(0.5, 3 * reached[0])


@pytest.mark.parametrize("name", ["auc", "ndcg", "f1"])
def test_configurations_are_drawn_with_the_soft_bits_as_chances(name: str) -> None:
    metric, generator = mg.metric(name), torch.Generator().manual_seed(0)
    scores, target = torch.tensor([0.5, -0.3, 0.1, 0.0]).double(), torch.tensor([1, 0, 1, 0])
    assert isinstance(metric, ComparisonMetric)
    scores, checked, _ = metric.check(scores, target, None)
    plan = metric.reexpress(scores.shape, checked, None, scores.dtype)
    comparisons, live = plan.comparisons(scores)
    drawn = plan.draw(scores, 2.0, 20000, generator).double().mean(0)
    assert torch.allclose(drawn[live], (2 * comparisons).sigmoid()[live], atol=0.02)


def test_published_settings() -> None:
    loss = mg.UniLoss.as_published("average_precision")
    assert loss.metric == mg.metric("average_precision", interpolated=True, cycles="zero")
    assert (loss.interpolation, loss.gradient, loss.relaxation.slope, loss.squash) == (
        "idw",
        "released",
        1.0,
        True,
    )
    assert mg.UniLoss.as_published("accuracy").metric == mg.metric("accuracy", pairs="all")
    scores = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.randint(0, 5, (12,), generator=torch.Generator().manual_seed(1))
    mg.UniLoss.as_published("accuracy")(scores, target).backward()
    assert scores.grad is not None
    assert (scores.grad.gather(-1, target.unsqueeze(-1)) < 0).all()


RIVALS: list[dict[str, Any]] = [
    {"slope": 1.0},
    {"slope": 1.0, "interpolation": "idw"},
    {"slope": 1.0, "interpolation": "idw", "near": "wrong", "gradient": "released", "squash": True},
    {"slope": 1.0, "relaxation": "logistic", "portion": 0.7, "samples": 2},
]


@pytest.mark.parametrize("options", RIVALS, ids=str)
@pytest.mark.parametrize("name", ["accuracy", "error_rate", "balanced_accuracy", "gmean"])
@pytest.mark.parametrize("rivals", [1, 4])
def test_only_the_strongest_rivals_are_compared_with(
    name: str, rivals: int, options: dict[str, Any]
) -> None:
    target = torch.arange(24).expand(2, 24) % 6
    scores = torch.randn(2, 24, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = (
        scores + 2.5 * torch.nn.functional.one_hot(target, 10)
    ).requires_grad_()  # some of each class are right
    seed = torch.Generator().manual_seed(0)
    loss = mg.UniLoss(name, pairs="all", rivals=rivals, generator=seed, **options)
    metric = mg.metric(name)
    values = metric(scores, target)
    torch.testing.assert_close(
        loss.per_set(scores, target), 1 - values if metric.higher_is_better else values
    )
    (gradient,) = torch.autograd.grad(loss(scores, target), scores)
    others = scores.detach().scatter(-1, target.unsqueeze(-1), -torch.inf)
    weak = others.argsort(-1, descending=True)[..., rivals:-1]
    assert gradient.any()
    assert not gradient.gather(-1, weak).any()
    where = torch.arange(24).expand(2, 24) < 12
    (masked,) = torch.autograd.grad(loss(scores, target, where), scores)
    assert masked.any()
    assert not masked[~where].any()


def test_one_rival_is_the_best_one_and_all_of_them_are_all_pairs() -> None:
    scores = torch.randn(
        30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    target = torch.arange(30) % 6
    one, best = mg.UniLoss("accuracy", pairs="all", rivals=1), mg.UniLoss("accuracy")
    many, every = (
        mg.UniLoss("accuracy", pairs="all", rivals=50),
        mg.UniLoss("accuracy", pairs="all"),
    )
    for some, same in ((one, best), (many, every)):
        torch.testing.assert_close(some.relaxed(scores, target), same.relaxed(scores, target))
        torch.testing.assert_close(
            *(torch.autograd.grad(loss(scores, target), scores)[0] for loss in (some, same))
        )


def test_an_item_is_right_if_it_wins_the_comparisons_that_are_kept() -> None:
    """It lost to both rivals: neither comparison decides alone; the only one that is kept does."""
    scores, target = torch.tensor([[0.0, 2.0, 1.0]], requires_grad=True), torch.tensor([0])
    (both,) = torch.autograd.grad(
        mg.UniLoss("accuracy", pairs="all", rivals=2)(scores, target), scores
    )
    (one,) = torch.autograd.grad(
        mg.UniLoss("accuracy", pairs="all", rivals=1)(scores, target), scores
    )
    assert not both.any()
    assert one[0].sign().tolist() == [-1, 1, 0]


def test_rivals_are_saved(tmp_path: Path) -> None:
    loss = mg.UniLoss.as_published("accuracy", rivals=3)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert isinstance(loaded, mg.UniLoss)
    assert loaded.rivals == 3
    assert loaded.config() == loss.config()


def test_rivals_need_a_target_among_classes() -> None:
    with pytest.raises(
        ValueError, match=r"which accuracy, .* make with pairs='all'; got rivals=5 with Accuracy\("
    ):
        mg.UniLoss("accuracy", rivals=5)
    with pytest.raises(ValueError, match=r"got rivals=5 with F1\("):
        mg.UniLoss("f1", pairs="all", rivals=5)
    with pytest.raises(ValueError, match=r"rivals must be 1 or more; got 0"):
        mg.UniLoss("accuracy", pairs="all", rivals=0)
    with pytest.raises(TypeError, match=r"rivals must be a whole number; got 0\.5"):
        mg.UniLoss("accuracy", pairs="all", rivals=0.5)  # pyright: ignore[reportArgumentType]
    loss = mg.UniLoss("accuracy", pairs="all", rivals=5)
    with pytest.raises(
        ValueError,
        match=r"rivals=5 needs scores \[\.\.\., N, C\] of many classes; got scores \[4\]",
    ):
        loss(torch.zeros(4), torch.tensor([0, 1, 0, 1]))


def test_anchors_are_drawn_evenly_from_live_bits() -> None:
    metric, target = mg.metric("average_precision"), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    assert isinstance(metric, ComparisonMetric)
    inputs = metric.check(torch.zeros(2, 4), target, None)
    plan = metric.reexpress(inputs.scores.shape, inputs.target, None, torch.float32)
    bits = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    live = plan.comparisons(inputs.scores)[1]
    anchors = sample_anchors(plan, bits, live, torch.Generator().manual_seed(0), number=4000)
    best, good, near, bad = anchors.split([1, 4000, 4000, 4000])
    assert anchors[:, ~live].eq(bits[~live]).all()
    assert best[0][live].all()
    for flipped in (~good[:, live], near[:, live] ^ bits[live]):
        assert flipped.sum() == 8000
        shares = flipped.double().mean(0)
        torch.testing.assert_close(
            shares, torch.where(torch.arange(7) < 4, 1 / 4, 1 / 3).to(shares), rtol=0, atol=0.04
        )
    torch.testing.assert_close(
        bad[:, live].double().mean(0), torch.full((7,), 0.5).double(), rtol=0, atol=0.04
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"interpolation": "nearest"},
            "interpolation must be 'multilinear' or 'idw'; got 'nearest'",
        ),
        ({"gradient": "none"}, "gradient must be 'exact' or 'released'; got 'none'"),
        (
            {"interpolation": "idw", "relaxation": "logistic"},
            "idw needs soft bits in .* got relaxation='logistic'",
        ),
        ({"relaxation": 1.5}, "relaxation must be 'sigmoid', .* got 1.5"),
        ({"slope": 0}, "slope must be above 0; got 0"),
        ({"portion": 0}, "portion must be above 0 and at most 1; got 0"),
        ({"anchors": 0}, "anchors must be 1 or more, or a function; got 0"),
        ({"samples": -1}, "samples must be 0 or more; got -1"),
        ({"near": "far"}, "near must be 'any', 'wrong' or 'released'; got 'far'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mg.UniLoss("f1", **options)


def test_metrics_that_comparisons_do_not_decide_are_refused() -> None:
    class Words(mg.Metric):
        name = "words"

        def check(self, scores: Any, target: Any, where: Any) -> Any:
            return scores, target, where

        def evaluate(self, scores: Any, target: Any, where: Any) -> Any:
            return scores.mean()

    with pytest.raises(TypeError, match=r"words is not\. Train on a learned surrogate"):
        mg.UniLoss(Words())
