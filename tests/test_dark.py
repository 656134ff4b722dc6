"""Joints between the pixels of maps."""

import pytest
import torch

import metricgrad as mg
from benchmarks.dark import refined, share_within


def gaussians(joints: torch.Tensor, sigma: float) -> torch.Tensor:
    return mg.baselines.HeatmapMSE.target_maps(joints, (20, 24), sigma=sigma)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_the_middle_of_a_gaussian_is_found(sigma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    joints = 8 + 6 * torch.rand(2, 5, 3, 2, generator=generator)
    maps = gaussians(joints, sigma) * torch.rand(2, 5, 3, 1, 1, generator=generator)
    found = refined(maps, sigma=1.0)
    assert found.dtype == maps.dtype
    torch.testing.assert_close(found, joints, atol=2e-2, rtol=0)


def test_noise_moves_the_middle_less_than_the_highest_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    joints = 8 + 6 * torch.rand(300, 2, generator=generator)
    maps = gaussians(joints, 1.5) + 0.02 * torch.randn(300, 20, 24, generator=generator)
    highest = maps.flatten(1).argmax(-1)
    pixels = torch.stack([highest % 24, highest // 24], -1)
    away = [(places - joints).norm(dim=-1).mean() for places in (refined(maps), pixels)]
    assert away[0] < 0.3 * away[1]


def test_maps_without_such_a_maximum_keep_their_highest_pixel() -> None:
    """At an edge, on a plain, below zero, and on a slope that leads far away."""
    maps = torch.zeros(4, 9, 9)
    maps[0, 1, 0] = 1.0
    maps[2] = -1.0
    maps[2, 4, 4] = -0.5
    maps[3] = torch.linspace(0.1, 1.0, 9)
    maps[3, 4, 4] = 1.01
    expected = torch.tensor([[0.0, 1.0], [0.0, 0.0], [4.0, 4.0], [4.0, 4.0]])
    assert torch.equal(refined(maps), expected)


def test_places_within_a_radius_are_counted() -> None:
    joints = torch.zeros(2, 2, 2)
    places = torch.tensor([[[0.6, 0.8], [0.0, 1.1]], [[0.0, 0.0], [5.0, 0.0]]])
    assert share_within(places, joints, 1.0) == 0.5
    where = torch.tensor([[True, True], [True, False]])
    assert share_within(places, joints, 1.0, where) == pytest.approx(2 / 3)
