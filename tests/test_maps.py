"""Segmentation and pose: masks finer than items, radii, shapes."""

import pytest
import torch

import metricgrad as mg
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
