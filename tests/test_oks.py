"""Average precision of poses: images with several people, options, refusals, and losses of it."""

import numpy as np
import pytest
import torch

import metricgrad as mg
from tests import references as ref

SIGMAS = (0.1, 0.2, 0.4)


def crowd(
    rng: np.random.Generator, number: int, images: int, size: int = 9
) -> tuple[np.ndarray, np.ndarray]:
    """People side by side in a few images, each in a crop of its own: maps and eight columns."""
    image = rng.integers(images, size=number)
    centre = rng.uniform(0, 30, (number, 1, 2))
    joints = centre + rng.uniform(-8, 8, (number, 3, 2))
    scale = rng.uniform(1.5, 3.0, number)
    corner = centre[:, 0] - scale[:, None] * size / 2
    place = (joints - corner[:, None]) / scale[:, None, None]
    rows, columns = np.indices((size, size))
    far = (columns - place[..., 0, None, None]) ** 2 + (rows - place[..., 1, None, None]) ** 2
    maps = np.exp(-far / 4) * rng.uniform(0.5, 3) + 0.4 * rng.normal(size=(number, 3, size, size))
    # Some crops show the pose of the person beside.
    maps[:: rng.integers(2, 5)] = maps[0]
    area = rng.uniform(40, 400, number) / scale**2
    visible = rng.random((number, 3)) < 0.8
    same = np.stack([image, *corner.T, scale], -1)[:, None].repeat(3, 1)
    wide = area[:, None, None].repeat(3, 1)
    return maps, np.concatenate([place, wide, visible[..., None], same], -1)


@pytest.mark.parametrize("oks", [None, 0.5])
def test_poses_of_an_image_are_given_to_its_people_as_coco_does(oks: float | None) -> None:
    rng = np.random.default_rng(0)
    found = []
    for trial in range(60):
        maps, target = crowd(rng, int(rng.integers(1, 12)), 1 + trial % 4)
        if trial % 3 == 0:
            maps = maps.round(1)  # some poses are equally sure
        value = mg.metric("oks_ap", sigmas=SIGMAS, oks=oks)(maps, target).item()
        assert value == pytest.approx(ref.oks_ap(maps, target, SIGMAS, oks), abs=1e-9)
        found.append(value)
    assert len(set(found)) > 30


def test_only_the_twenty_surest_poses_of_an_image_take_part() -> None:
    maps, target = crowd(np.random.default_rng(1), 30, 1)
    metric = mg.metric("oks_ap", sigmas=SIGMAS)
    value = metric(maps, target).item()
    assert value == pytest.approx(ref.oks_ap(maps, target, SIGMAS), abs=1e-9)
    target[..., 4] = np.arange(30)[:, None]
    assert metric(maps, target).item() != pytest.approx(value)


def test_a_person_is_given_away_once() -> None:
    """Two poses at one of two people: the surer is right, the other has no person left."""
    maps = torch.zeros(2, 1, 5, 5)
    maps[0, 0, 1, 1] = 2.0
    maps[1, 0, 1, 1] = 1.0
    target = torch.zeros(2, 1, 8)
    target[..., 2] = 1.0
    target[..., 3] = 1.0
    target[..., 7] = 1.0
    target[0, 0, :2] = 1.0
    target[1, 0, :2] = 4.0
    metric = mg.metric("oks_ap", sigmas=0.1)
    assert metric(maps, target).item() == pytest.approx(51 / 101)
    target[1, 0, :2] = 1.0
    assert metric(maps, target) == 1


def test_sets_with_images_are_independent_and_people_may_be_masked() -> None:
    rng = np.random.default_rng(2)
    sets = [crowd(rng, 8, 2) for _ in range(4)]
    metric = mg.metric("oks_ap", sigmas=SIGMAS)
    maps = torch.from_numpy(np.stack([maps for maps, _ in sets]))
    target = torch.from_numpy(np.stack([target for _, target in sets]))
    together = metric(maps, target)
    torch.testing.assert_close(together, torch.stack([metric(*each) for each in sets]))
    where = torch.from_numpy(rng.random((4, 8)) < 0.6)
    expected = [metric(m[w], t[w]) for m, t, w in zip(maps, target, where, strict=True)]
    maps[~where] = torch.nan
    target[~where] = torch.inf
    torch.testing.assert_close(metric(maps, target, where=where), torch.stack(expected))


def test_a_masked_map_has_no_say_in_whom_its_pose_resembles() -> None:
    """The pose of the first person lies on the second, as far as its one known map tells."""
    maps = torch.zeros(2, 2, 5, 5)
    maps[0, 0, 3, 3] = 2.0
    maps[0, 1] = torch.nan
    maps[1, :, 0, 0] = 1.0
    target = torch.zeros(2, 2, 8)
    target[..., 2:4] = 1.0
    target[..., 7] = 1.0
    target[1, :, :2] = 3.0
    where = torch.tensor([[True, False], [True, True]])
    # The second pose lies on the first person, of whom one joint is known.
    assert mg.metric("oks_ap", sigmas=0.1)(maps, target, where=where) == 1


def test_joints_that_are_not_visible_do_not_count() -> None:
    maps = torch.zeros(1, 2, 5, 5)
    maps[..., 2, 2] = 1.0
    target = torch.tensor([[[2.0, 2.0, 9.0], [torch.nan, 0.0, 9.0]]])
    seen = torch.tensor([[True, False]])
    assert mg.metric("oks_ap", sigmas=0.1)(maps, target, where=seen) == 1
    with pytest.raises(ValueError, match="finite joints and areas of 0 or more"):
        mg.metric("oks_ap", sigmas=0.1)(maps, target)


def test_the_joints_of_coco_have_their_own_sigmas() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(4, 17, 6, 6, generator=generator)
    target = torch.cat([6 * torch.rand(4, 17, 2, generator=generator), torch.ones(4, 17, 1)], -1)
    target[..., 2] = 3000.0
    coco = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
    value = mg.metric("oks_ap")(maps, target)
    assert value == mg.metric("keypoint_ap", sigmas=coco.tolist())(maps, target)
    assert 0 < value < 1


def test_what_is_refused() -> None:
    maps = torch.zeros(1, 3, 4, 4)
    joints = torch.ones(1, 3, 3)
    with pytest.raises(ValueError, match=r"stands for those of 17 joints, .* has 3; pass one"):
        mg.metric("oks_ap")(maps, joints)
    with pytest.raises(ValueError, match=r"sigmas has 2 joints, but scores \[1, 3, 4, 4\]"):
        mg.metric("oks_ap", sigmas=[0.1, 0.2])(maps, joints)
    with pytest.raises(ValueError, match=r"sigmas must be above 0 and finite; got \(0.1, 0.0\)"):
        mg.metric("oks_ap", sigmas=[0.1, 0.0])
    with pytest.raises(ValueError, match="oks must be above 0 and at most 1; got 2"):
        mg.metric("oks_ap", sigmas=0.1, oks=2)
    with pytest.raises(ValueError, match=r"\(x, y, area\) in map pixels, or 8 columns"):
        mg.metric("oks_ap", sigmas=0.1)(maps, joints[..., :2])
    with pytest.raises(TypeError, match="oks_ap is not"):
        mg.UniLoss(mg.metric("oks_ap", sigmas=0.1))


@pytest.mark.filterwarnings("ignore:the loss has not learned")  # a few steps are not enough
@pytest.mark.parametrize("columns", [3, 8])
def test_a_loss_learns_it_and_squared_error_stands_beside(columns: int) -> None:
    rng = np.random.default_rng(3)
    sets = [crowd(rng, 6, 2) for _ in range(12)]
    maps = torch.from_numpy(np.stack([maps for maps, _ in sets])).float()
    target = torch.from_numpy(np.stack([target[..., :columns] for _, target in sets])).float()
    metric = mg.metric("oks_ap", sigmas=0.5)
    loss = mg.ReLoss(metric, net=mg.nets.Heatmaps((9, 9), width=8))
    loss.learn(sources=[(maps, target)], steps=3)
    scores = maps[0].clone().requires_grad_()
    mg.with_ordinary(loss)(scores, target[0]).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


def test_pixels_within_are_those_whose_similarity_alone_is_enough() -> None:
    metric = mg.metric("oks_ap", sigmas=[0.1, 0.3], oks=0.6)
    people = torch.tensor([[[3.2, 1.0, 40.0], [0.0, 4.0, 40.0]]])
    near = metric.within((1, 2, 6, 5), people)
    for joint, sigma in enumerate((0.1, 0.3)):
        for y in range(6):
            for x in range(5):
                away = (x - people[0, joint, 0]) ** 2 + (y - people[0, joint, 1]) ** 2
                similar = torch.exp(-away / (8 * sigma**2 * 40.0))
                assert near[0, joint, y, x] == (similar >= 0.6)
    assert 0 < near[0, 0].sum() < near[0, 1].sum()
