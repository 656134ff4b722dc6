"""Segmentation and pose: masks finer than items, radii, shapes."""

import pytest
import torch

import metricgrad as mg
from metricgrad.metrics.counts import count_flags
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.surrogates.wrappers import ordinary_for
from tests.references import pck


def test_pixels_may_be_masked_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(2, 3, 4, 5, generator=generator),
        torch.randint(0, 3, (2, 4, 5), generator=generator),
    )
    where = torch.rand(2, 4, 5, generator=generator) < 0.7
    as_items = mg.metric("jaccard", average="macro")(scores.movedim(1, -1)[where], target[where])
    assert mg.metric("mean_iou")(scores, target, where=where) == as_items
    void = target.masked_fill(~where, 255)
    assert mg.metric("mean_iou", ignore_index=255)(scores, void) == as_items
    with pytest.raises(ValueError, match=r"class indices 0 to 2, as scores has 3 classes; got 255"):
        mg.metric("mean_iou")(scores, void)


def test_segmentation_shapes() -> None:
    with pytest.raises(
        ValueError, match=r"mean_iou takes scores \[..., N, C, H, W\] .* got scores \[3, 4, 5\]"
    ):
        mg.metric("mean_iou")(torch.zeros(3, 4, 5), torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"got scores \[1, 3, 4, 5\] and target \[1, 4, 4\]"):
        mg.metric("dice")(torch.zeros(1, 3, 4, 5), torch.zeros(1, 4, 4))


@pytest.mark.parametrize("shape", [(0, 3), (2, 254, 3), (2, 0, 0), (255, 2), (3, 1, 1020, 4)])
def test_flags_are_counted_beyond_what_a_byte_holds(shape: tuple[int, ...]) -> None:
    flags = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.9
    assert torch.equal(count_flags(flags), flags.sum(-2))
    every = torch.ones(2, 2, 700, dtype=torch.bool).mT
    assert count_flags(every).tolist() == [[700, 700]] * 2


def two_images() -> tuple[torch.Tensor, torch.Tensor]:
    """A large object, found almost whole, and a small one, of which half is missed."""
    target = torch.zeros(2, 4, 4, dtype=torch.int64)
    target[0, :3] = 1
    target[1, 0, :2] = 1
    found = target.clone()
    found[1, 0, 0] = 0
    return torch.stack([1.0 - 2 * found, 2.0 * found - 1], 1), target


def test_every_image_counts_alike_per_image() -> None:
    scores, target = two_images()
    together = mg.metric("mean_iou")(scores, target)
    assert together.item() == pytest.approx((18 / 19 + 13 / 14) / 2)
    each = mg.metric("mean_iou", per_image=True)(scores, target)
    assert each.item() == pytest.approx((1 + (14 / 15 + 1 / 2) / 2) / 2)
    where = torch.tensor([True, False])
    assert mg.metric("mean_iou", per_image=True)(scores, target, where=where) == 1


@pytest.mark.parametrize("pairs", ["best", "all"])
def test_a_bit_of_an_image_gains_its_share_of_the_mean(pairs: str) -> None:
    """Gains are those of the image alone, divided by the two images that have pixels."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 3, 2, 3, generator=generator)
    target = torch.randint(0, 3, (3, 2, 3), generator=generator)
    where = torch.tensor([True, False, True])
    alone = mg.metric("mean_iou", pairs=pairs)
    metric = mg.metric("mean_iou", pairs=pairs, per_image=True)
    assert isinstance(alone, ComparisonMetric)
    assert isinstance(metric, ComparisonMetric)
    bits = metric.comparisons(scores, target)[0] > 0
    found = metric.flip_gains(bits, target, where=where, shape=scores.shape).reshape(3, -1)
    for image in (0, 2):
        one = slice(image, image + 1)
        expected = alone.flip_gains(
            bits.reshape(3, -1)[image], target[one], shape=scores[one].shape
        )
        torch.testing.assert_close(found[image], expected / 2)
    assert not found[1].any()


def test_offsets_of_a_mean_over_images_are_found_by_trying() -> None:
    """Counts of all pixels together would choose others."""
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(12, 6, 6, generator=generator) < torch.rand(12, 1, 1)).long()
    target[:2] = 2
    scores = torch.randn(12, 3, 6, 6, generator=generator)
    scores += 1.5 * torch.nn.functional.one_hot(target, 3).movedim(-1, 1)
    scores[:, 0] += 1
    metric = mg.metric("mean_iou", per_image=True)
    values = [metric(scores, target).item()]
    for spec in ("mean_iou", metric):
        offsets = mg.best_offsets(scores, target, spec, draws=0)
        values.append(metric(scores + offsets.reshape(-1, 1, 1), target).item())
    assert values[0] < values[1] < values[2]


def one_score() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maps of one score a pixel `[5, 1, 4, 6]`, the same with two, and their target."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 1, 4, 6, generator=generator)
    target = (scores[:, 0] + torch.randn(5, 4, 6, generator=generator) > 0.7).long()
    return scores, torch.cat([torch.zeros_like(scores), scores], 1), target


@pytest.mark.parametrize("options", [{}, {"per_image": True}, {"ignore_index": 0}])
@pytest.mark.parametrize("name", ["mean_iou", "dice"])
def test_one_score_a_pixel_is_two_classes(name: str, options: dict[str, bool]) -> None:
    one, two, target = one_score()
    metric = mg.metric(name, **options)
    assert metric(one, target) == metric(two, target)
    losses = (mg.UniLoss(metric), mg.UniLoss(metric, interpolation="idw"), mg.MetricLoss(metric))
    for loss in losses:
        found = []
        for scores in (one, two):
            leaf = scores.clone().requires_grad_()
            torch.manual_seed(0)
            loss(leaf, target).backward()
            assert leaf.grad is not None
            found.append(leaf.grad[:, -1])
        assert found[0].any()
        if not isinstance(loss, mg.MetricLoss):
            torch.testing.assert_close(found[0], found[1])


def test_pixels_of_one_score_are_decided_at_zero() -> None:
    scores = torch.tensor([[[[0.5, 0.0, -1.0]]]])
    target = torch.tensor([[[1, 0, 0]]])
    assert mg.metric("mean_iou")(scores, target) == 1
    assert mg.metric("dice")(-scores, target) == pytest.approx(1 / 4)
    message = r"target must hold only 0 and 1; got 255 .*; if 255 marks what does not count"
    with pytest.raises(ValueError, match=message):
        mg.metric("dice")(scores, torch.tensor([[[1, 255, 0]]]))


def test_one_score_a_pixel_has_an_ordinary_loss_baselines_and_an_offset() -> None:
    scores, _, target = one_score()
    flat = (scores.movedim(1, -1).flatten(0, -2), target.flatten())
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(flat[0][:, 0], flat[1].float())
    ordinary = ordinary_for(mg.metric("mean_iou"))
    assert ordinary is not None
    torch.testing.assert_close(ordinary(scores, target), entropy)
    torch.testing.assert_close(mg.baselines.CrossEntropy()(*flat), entropy)
    for name in ("SoftJaccard", "SoftFBeta", "Lovasz", "Focal"):
        assert getattr(mg.baselines, name)()(*flat).isfinite()
    shifted = scores - 1.5
    for options in ({}, {"per_image": True}):
        metric = mg.metric("mean_iou", **options)
        offset = mg.best_offsets(shifted, target, metric, draws=0)
        assert offset.shape == (1,)
        assert offset > 0.5
        assert metric(shifted + offset.reshape(-1, 1, 1), target) > metric(shifted, target) + 0.1


def test_the_offset_of_metric_loss_follows_one_score_a_pixel() -> None:
    """It moves to where cross-entropy is least, as that of binary scores does."""
    scores, _, target = one_score()
    loss = mg.MetricLoss("mean_iou")
    flat = mg.MetricLoss("f1")
    for _ in range(20):
        loss(scores.clone().requires_grad_(), target).backward()
        flat(scores.flatten().requires_grad_(), target.flatten()).backward()
    assert loss.offset.shape == (1,)
    assert flat.offset != 0
    torch.testing.assert_close(loss.offset, flat.offset.reshape(1))


@pytest.mark.parametrize("radius", [0.0, 1.0, 2.5])
def test_pck_with_a_radius_in_pixels(radius: float) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(6, 4, 5, 7, generator=generator)
    joints = torch.rand(6, 4, 2, generator=generator) * torch.tensor([7.0, 5.0])
    if radius == 0:
        joints = joints.floor()
    value = mg.metric("pck", radius=radius)(maps, joints)
    assert value.item() == pytest.approx(pck(maps.numpy(), joints.numpy(), radius=radius))


def test_invisible_joints_are_masked_one_by_one() -> None:
    maps, joints = torch.zeros(1, 2, 3, 3), torch.tensor([[[0.0, 0.0], [float("nan"), 0.0]]])
    assert mg.metric("pck", radius=1.0)(maps, joints, where=torch.tensor([[True, False]])) == 1
    with pytest.raises(ValueError, match="mask the joints that are not visible with where"):
        mg.metric("pck", radius=1.0)(maps, joints)


def test_pose_shapes() -> None:
    wanted = r"joints \[..., N, K, 3\], \(x, y, size\) "
    with pytest.raises(
        ValueError, match=wanted + r".* got scores \[1, 2, 3, 3\] and target \[1, 2, 2\]"
    ):
        mg.metric("pck")(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 2))
    with pytest.raises(
        ValueError, match=r"joints \[..., N, K, 2\], \(x, y\) in map pixels, with radius=1"
    ):
        mg.metric("pck", radius=1)(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="sizes of 0 or more"):
        mg.metric("pck")(torch.zeros(1, 1, 3, 3), torch.tensor([[[1.0, 1.0, -2.0]]]))
