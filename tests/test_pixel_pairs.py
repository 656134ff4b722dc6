"""PCK by all pairs of pixels, with the anchors of the released code."""

import math

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.pixel_pairs import PixelPairs

SIDE = 6
JOINTS = torch.tensor([[[2.0, 2.0]], [[4.0, 1.0]], [[0.0, 5.0]]])  # three images with one joint


def plan_for(joints: Tensor = JOINTS, radius: float = 1.0) -> PixelPairs:
    shape = (*joints.shape[:-1], SIDE, SIDE)
    metric = mg.UniLoss.as_published(mg.metric("pck", radius=radius)).metric
    found = metric.reexpress(shape, joints, None, torch.float64)
    assert isinstance(found, PixelPairs)
    return found


def maps(number: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, 1, SIDE, SIDE, dtype=torch.float64, generator=generator)


def drawn(number: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors by image, `[A, 3, P, M]`, with the current bits and the live ones of each image."""
    plan = plan_for()
    comparisons, live = plan.comparisons(maps())
    generator = torch.Generator().manual_seed(seed)
    bits = comparisons > 0
    anchors = mg.sample_anchors(plan, bits, live, generator, number=number, near="released")
    shape = plan._live().shape
    return anchors.unflatten(-1, shape), bits.reshape(shape), live.reshape(shape)


def kind_of(anchor: Tensor, current: Tensor) -> str:
    """Which kind an anchor `[P, M]` of one image is, by what tells the kinds apart."""
    if torch.equal(anchor, current):
        return "current"
    if anchor.all():
        return "best"
    changed = anchor ^ current
    if changed.any(1).sum() == 1 and anchor[changed.any(1)].all():
        return "row"
    if changed.any(0).sum() == 1 and not anchor[:, changed.any(0)].any():
        return "column"
    return "good" if (~anchor).sum() <= 2 * len(anchor) else "bad"


@pytest.mark.parametrize("number", [5, 10, 16])
def test_every_image_has_the_anchors_of_the_released_code_in_an_order_of_its_own(
    number: int,
) -> None:
    anchors, bits, live = drawn(number)
    assert len(anchors) == 3 * number + 2
    orders = []
    for image in range(3):
        within = live[image].any(1)
        outside = live[image].any(0)
        current = bits[image][within][:, outside]
        kinds = [kind_of(each[image][within][:, outside], current) for each in anchors]
        assert kinds.count("best") == 1
        assert kinds.count("good") == number
        assert kinds.count("bad") == number
        # A row that is all won, or a column that is all lost, leaves the current bits as they are.
        assert kinds.count("row") <= (number + 1) // 2
        assert kinds.count("column") <= number // 2
        assert kinds.count("row") + kinds.count("column") + kinds.count("current") == number + 1
        assert kinds.count("row") > 0
        assert kinds.count("column") > 0
        orders.append(kinds)
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def test_good_anchors_lose_as_many_bits_as_the_released_code_clears() -> None:
    """Of P * M bits, max(2 P, floor(3.6 P - 28)) draws with replacement leave that many lost."""
    anchors, bits, live = drawn(400)
    for image in range(3):
        within = int(live[image].any(1).sum())
        outside = int(live[image].any(0).sum())
        draws = max(2 * within, math.floor(3.6 * within - 28))
        size = within * outside
        expected = size * (1 - (1 - 1 / size) ** draws)
        lost = (~anchors[:, image] & live[image]).sum((-1, -2)).double()
        good = lost[(lost > 0) & (lost <= draws)]
        assert good.mean() == pytest.approx(expected, rel=0.03)
        assert not (~anchors[:, image] & ~live[image] & bits[image]).any()


def test_many_pixels_lose_more() -> None:
    joints = torch.tensor([[[2.0, 2.0]]])
    plan = plan_for(joints, radius=2.9)
    within = int(plan.near.sum())
    draws = math.floor(3.6 * within - 28)
    assert draws > 2 * within
    best = torch.ones(within * (SIDE * SIDE - within), dtype=torch.bool)
    spoiled = plan._spoiled(best.reshape(1, within, -1), (500, 1), torch.Generator().manual_seed(0))
    lost = (~spoiled).sum((-1, -2, -3))
    assert lost.max() <= draws
    assert lost.double().mean() == pytest.approx(
        best.numel() * (1 - (1 - 1 / best.numel()) ** draws), rel=0.02
    )


def interpolated(scores: Tensor, anchors: list[Tensor], joints: Tensor, radius: float) -> Tensor:
    """Eqn. 10 by loops over images and pixels, from the description of the released code.

    Bits are -1 and 1, soft ones 2 sigmoid(difference) - 1; squared distances are summed over the
    images, and the metric is their mean.
    """
    squared = torch.zeros(len(anchors[0]), dtype=scores.dtype)
    values = torch.zeros(len(anchors[0]), dtype=scores.dtype)
    for image in range(len(scores)):
        near = []
        far = []
        for y in range(SIDE):
            for x in range(SIDE):
                away = math.hypot(x - float(joints[image, 0, 0]), y - float(joints[image, 0, 1]))
                (near if away <= radius else far).append(scores[image, 0, y, x])
        soft = torch.stack([torch.stack([2 * (a - b).sigmoid() - 1 for b in far]) for a in near])
        signs = 2 * anchors[image].to(scores.dtype) - 1
        squared = squared + (signs - soft).square().sum((-1, -2))
        values = values + anchors[image].all(-1).any(-1).to(scores.dtype) / len(scores)
    weights = 1 / (squared.sqrt() + 1e-8)
    return (values * weights).sum() / weights.sum()


def test_value_and_gradient_are_those_of_the_released_formula() -> None:
    scores = maps().requires_grad_()
    metric = mg.metric("pck", radius=1.0)
    loss = mg.UniLoss.as_published(metric, anchors=6, generator=torch.Generator().manual_seed(3))
    found = loss.relaxed(scores, JOINTS)
    plan = plan_for()
    comparisons, live = plan.comparisons(scores.detach())
    generator = torch.Generator().manual_seed(3)
    drawn_again = mg.sample_anchors(
        plan, comparisons > 0, live, generator, number=6, near="released"
    ).unflatten(-1, plan._live().shape)
    by_image = []
    for image in range(3):
        kept = plan._live()[image]
        chosen = drawn_again[:, image][:, kept.any(1)][:, :, kept.any(0)]
        by_image.append(chosen)
    expected = 1 - interpolated(scores, by_image, JOINTS, 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(found, scores)[0]
    theirs = torch.autograd.grad(expected, scores)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)
    assert ours.abs().sum() > 0


def published(seed: int) -> mg.UniLoss:
    generator = torch.Generator().manual_seed(seed)
    return mg.UniLoss.as_published(mg.metric("pck", radius=1.0), generator=generator)


def test_the_same_generator_gives_the_same_loss() -> None:
    gradients = []
    for seed in (5, 5, 6):
        scores = maps().requires_grad_()
        published(seed)(scores, JOINTS).backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)
    assert not torch.equal(gradients[0], gradients[2])


def test_the_published_settings_are_saved() -> None:
    loss = published(5)
    assert loss.config()["near"] == "released"
    assert loss.config()["anchors"] == 16
    assert loss.gradient == "exact"
    assert not loss.squash
