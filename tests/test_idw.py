"""Inverse distance weighting against Eqn. 10 as a plain loop in float64: leads, portions, poses."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.surrogates.interpolation import Near, sample_anchors
from metricgrad.surrogates.inverse_distance import Gradient

ITEMS, CLASSES = 6, 4
TARGET = torch.arange(ITEMS) % CLASSES
OWN = torch.nn.functional.one_hot(TARGET, CLASSES).bool().flatten()  # not compared with itself
SIZE = ITEMS * CLASSES


def logits(lead: float, wrong: int) -> Tensor:
    """Scores whose targets lead by about `lead`, with some items that are as wrong by as much."""
    noise = torch.rand(ITEMS, CLASSES, generator=torch.Generator().manual_seed(0)) - 0.5
    sign = torch.where(torch.arange(ITEMS) < wrong, -1.0, 1.0)
    return noise + lead * sign.unsqueeze(-1) * torch.nn.functional.one_hot(TARGET, CLASSES)


def configurations(scores: Tensor) -> Tensor:
    """The best one, six with one bit lost, six one flip away, the current one, six at random."""
    source = torch.Generator().manual_seed(1)
    current = (scores.gather(-1, TARGET.unsqueeze(-1)) > scores).flatten()
    places = (~OWN).nonzero().squeeze(-1)
    places = places[torch.randperm(len(places), generator=source)[:6]]
    flips = torch.eye(SIZE, dtype=torch.bool)[places]
    random = torch.rand(6, SIZE, generator=source) < 0.5
    return torch.cat([torch.ones(1, SIZE).bool(), ~flips, current ^ flips, current[None], random])


def eqn_10(
    scores: Tensor, anchors: Tensor, slope: float, gradient: Gradient, used: Tensor
) -> Tensor:
    """The gradient of 1 - e~ of accuracy with all pairs, by loops over anchors and comparisons.

    With w_i = 1 / d_i and S their sum, it is -sum_ij (g_i - g_j) w_j w_i' / S^2; the released code
    has g_i + g_j. No digits are lost in either, or in |u - bit|.
    """
    leaf = scores.detach().double().requires_grad_()
    values: list[float] = []
    weights: list[Tensor] = []
    for anchor in anchors.reshape(-1, ITEMS, CLASSES).tolist():
        squared = torch.zeros(()).double()
        right = 0
        for i, own in enumerate(TARGET.tolist()):
            right += all(anchor[i][c] for c in range(CLASSES) if c != own)
            for c in range(CLASSES):
                if c != own and used[i * CLASSES + c]:
                    lead = slope * (leaf[i, own] - leaf[i, c])
                    squared = squared + 1 / (1 + torch.exp(lead if anchor[i][c] else -lead)) ** 2
        values.append(right / ITEMS)
        weights.append(1 / squared.sqrt())
    sign = -1 if gradient == "exact" else 1
    total = sum(each.item() for each in weights)
    found = torch.zeros_like(scores, dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        pull = sum((value + sign * v) * w.item() for v, w in zip(values, weights, strict=True))
        (slopes,) = torch.autograd.grad(weight, leaf, retain_graph=True)
        found -= pull / total**2 * slopes
    return found


def idw(anchors: Tensor, **options: Any) -> mg.UniLoss:
    """UniLoss of accuracy with all pairs and given anchors."""
    return mg.UniLoss(
        "accuracy", pairs="all", interpolation="idw", anchors=lambda *_: anchors, **options
    )


def gradient_of(loss: mg.UniLoss, scores: Tensor) -> Tensor:
    leaf = scores.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf, TARGET), leaf)
    return found


@pytest.mark.parametrize("gradient", ["exact", "released"])
@pytest.mark.parametrize("slope", [1.0, 5.0])
@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize("lead", [0.0, 3.0, 8.0, 10.0, 12.0, 15.0])
def test_float32_keeps_the_gradient_close_to_an_anchor(
    lead: float, wrong: int, slope: float, gradient: Gradient
) -> None:
    scores = logits(lead, wrong)
    anchors = configurations(scores)
    expected = eqn_10(scores, anchors, slope, gradient, ~OWN)
    found = gradient_of(idw(anchors, slope=slope, gradient=gradient), scores)
    assert found.dtype == torch.float32
    assert expected.norm() > 0
    assert (found - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("gradient", ["exact", "released"])
@pytest.mark.parametrize("lead", [15.0, 60.0, 90.0, 102.0, 340.0, 1e4, 1e30])
def test_any_lead_has_a_finite_gradient(lead: float, gradient: Gradient) -> None:
    scores = logits(lead, 0)
    for dtype in (torch.float32, torch.float64):
        loss = idw(configurations(scores), slope=1.0, gradient=gradient)
        assert gradient_of(loss, scores.to(dtype)).isfinite().all()


def test_ties_keep_their_gradient() -> None:
    scores = torch.zeros(ITEMS, CLASSES)
    anchors = configurations(scores)
    expected = eqn_10(scores, anchors, 1.0, "exact", ~OWN)
    found = gradient_of(idw(anchors, slope=1.0), scores)
    torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("gradient", ["exact", "released"])
def test_a_portion_measures_distances_with_the_comparisons_drawn(gradient: Gradient) -> None:
    """Anchors keep all their bits, and the value that these have."""
    scores = logits(1.0, 2)
    anchors = configurations(scores)
    drawn = torch.rand(SIZE, generator=torch.Generator().manual_seed(5)) < 0.4
    expected = eqn_10(scores, anchors, 2.0, gradient, drawn)
    again = torch.Generator().manual_seed(5)
    loss = idw(anchors, slope=2.0, gradient=gradient, portion=0.4, generator=again)
    found = gradient_of(loss, scores)
    torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("near", ["any", "wrong"])
def test_anchors_of_a_portion_are_whole_configurations(near: Near) -> None:
    metric = mg.metric("accuracy", pairs="all")
    assert isinstance(metric, ComparisonMetric)
    scores = logits(1.0, 3)
    plan = metric.reexpress(scores.shape, TARGET, None, torch.float64)
    comparisons, live = plan.comparisons(scores)
    bits = comparisons > 0
    used = live & (torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) < 0.3)
    anchors = sample_anchors(
        plan, bits, live, torch.Generator().manual_seed(1), number=50, near=near, used=used
    )
    best, good, nearby, bad = anchors.split([1, 50, 50, 50])
    assert plan.from_bits(best).item() == 1  # the ideal value
    for flipped in (~good, nearby ^ bits):
        assert flipped[:, used].sum(-1).eq(1).all()
        assert not flipped[:, live & ~used].any()
    assert 0.4 < bad[:, live & ~used].float().mean() < 0.6
    if near == "wrong":
        assert not bits[used].all()
        assert not (bits & ~nearby).any()


@pytest.mark.parametrize(
    ("name", "shape"), [("accuracy", (32, 10)), ("average_precision", (40,)), ("f1", (40,))]
)
def test_a_portion_has_the_gradient_of_the_whole_on_average(
    name: str, shape: tuple[int, ...]
) -> None:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(shape[0]) % (10 if name == "accuracy" else 4)
    target = target if name == "accuracy" else target == 0
    options = {"pairs": "all"} if name == "accuracy" else {}
    means = []
    for portion in (1.0, 0.5, 0.25):
        loss = mg.UniLoss(
            mg.metric(name, **options),
            interpolation="idw",
            slope=1.0,
            portion=portion,
            generator=torch.Generator().manual_seed(1),
        )
        total = sum(torch.autograd.grad(loss(scores, target), scores)[0] for _ in range(300))
        assert isinstance(total, Tensor)
        means.append(total / 300)
    for mean in means[1:]:
        assert 0.7 < mean.norm() / means[0].norm() < 1.4
        assert torch.cosine_similarity(mean.flatten(), means[0].flatten(), dim=0) > 0.9


def test_published_poses_have_the_gradient_of_eqn_10() -> None:
    """The paper's code for poses uses autograd on raw heatmaps: no wrong sign, no sigmoid."""
    maps = torch.randn(3, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    joints = torch.tensor([[[1.0, 1.0]], [[3.0, 0.0]], [[0.0, 2.0]]])
    loss = mg.UniLoss.as_published(
        mg.metric("pck", radius=1.0), generator=torch.Generator().manual_seed(0)
    )
    number = loss.anchors
    assert isinstance(number, int)
    drawn: list[Tensor] = []

    def kept(
        plan: Reexpression, bits: Tensor, live: Tensor, source: torch.Generator | None
    ) -> Tensor:
        drawn.append(sample_anchors(plan, bits, live, source, number=number, near=loss.near))
        return drawn[0]

    loss.anchors = kept
    leaf = maps.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf, joints), leaf)

    far = [
        [math.hypot(p % 4 - x, p // 4 - y) > 1 for p in range(12)] for [[x, y]] in joints.tolist()
    ]
    inside = [[p for p in range(12) if not each[p]] for each in far]
    outside = [[p for p in range(12) if each[p]] for each in far]
    again = maps.double().requires_grad_()
    above, below = torch.zeros(()).double(), torch.zeros(()).double()
    for anchor in drawn[0].reshape(-1, 3, max(map(len, inside)), max(map(len, outside))).tolist():
        squared = torch.zeros(()).double()
        right = 0
        for pixels, bits, one, other in zip(again.flatten(1), anchor, inside, outside, strict=True):
            right += any(all(bits[p][: len(other)]) for p in range(len(one)))
            for (p, high), (q, low) in itertools.product(enumerate(one), enumerate(other)):
                squared = (
                    squared + (torch.sigmoid(pixels[high] - pixels[low]) - int(bits[p][q])) ** 2
                )
        above = above + right / 3 / squared.sqrt()
        below = below + 1 / squared.sqrt()
    (expected,) = torch.autograd.grad(1 - above / below, again)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-4)


def test_published_poses_have_the_exact_gradient_and_no_sigmoid() -> None:
    poses, others = mg.UniLoss.as_published("pck"), mg.UniLoss.as_published("f1")
    assert (poses.gradient, poses.near, poses.squash) == ("exact", "released", False)
    assert (others.gradient, others.near, others.squash) == ("released", "released", True)
    assert mg.UniLoss.as_published("pck", gradient="released").gradient == "released"
    assert mg.UniLoss.as_published("f1", gradient="exact").gradient == "exact"


def mistakes(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) != (target == 1)).float().sum()


PUBLISHED = {
    "error_rate": (mg.metric("error_rate"), (32,), 2),
    "error_rate of classes": (mg.metric("error_rate"), (32, 5), 5),
    "eer": (mg.metric("eer"), (32,), 2),
    "hamming": (mg.metric("hamming"), (16, 4), 2),
    "edit_distance": (mg.metric("edit_distance"), (4, 6, 5), 5),
    "costs": (mg.from_function(mistakes, higher_is_better=False), (32,), 2),
    "minus costs": (
        mg.from_function(lambda s, y: -mistakes(s, y), higher_is_better=True),
        (32,),
        2,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_released_gradient_descends_whichever_way_is_better(name: str) -> None:
    metric, shape, classes = PUBLISHED[name]
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=source).requires_grad_()
    target = torch.randint(classes, shape if classes == 2 else shape[:-1], generator=source)
    loss = mg.UniLoss.as_published(metric, generator=source)
    assert loss.gradient == "released"
    before = loss(scores, target).item()
    for _ in range(20):
        (slope,) = torch.autograd.grad(loss(scores, target), scores)
        scores.data -= slope / slope.norm()
    after = loss(scores, target).item()
    assert after < before - 0.2 * abs(before)


def test_the_released_gradient_of_an_error_rate_is_that_of_accuracy() -> None:
    found = []
    for name in ("accuracy", "error_rate"):
        loss = mg.UniLoss.as_published(name, generator=torch.Generator().manual_seed(3))
        found.append(gradient_of(loss, logits(0.5, 2)))
    torch.testing.assert_close(found[0], found[1])
    assert found[0].norm() > 0
