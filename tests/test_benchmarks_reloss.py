"""The benchmark tasks of ReLoss: rank correlations, and networks trained on learned losses."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from benchmarks import alignment, images
from benchmarks.data import Data, Part
from metricgrad.training import digit_scores, recipes
from tests.trainings import seeded

IMAGES: dict[str, Any] = {
    "dataset": "made", "hidden": [16], "classes": 3, "batch": 32, "weight_decay": 0.0,
    "grid": {"learning_rate": [0.01, 0.1]}, "screen": 0.3, "epochs": 4, "augment": False,
    "learning_steps": 4, "method": "cross_entropy",
}  # fmt: skip
ALIGNMENT: dict[str, Any] = {
    "dataset": "made", "hidden": [8], "learning_rate": 0.03, "set": 32, "items": 256, "batch": 32,
    "learning_steps": 3, "moments": [0, 5, 20], "metric": "accuracy",
    "losses": {"reloss": {}, "margin": {"sees": "margin", "relabel": True}},
}  # fmt: skip


def made(shape: tuple[int, ...] = (12,), classes: int = 3) -> Data:
    """Items of a class lie around its centre."""
    centres = torch.randn(classes, *shape, generator=seeded())

    def part(seed: int) -> Part:
        y = torch.randint(classes, (300,), generator=seeded(seed))
        return Part(centres[y] + 2.0 * torch.randn(300, *shape, generator=seeded(seed)), y)

    return Data(part(1), part(2), part(3))


@cache
def digit_scores_once(many: bool, seeds: range, progress: bool) -> list[Any]:
    return digit_scores(many, seeds, progress=progress)


@pytest.fixture(autouse=True)
def made_data_and_scores_that_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (alignment, images):
        monkeypatch.setattr(task, "load", lambda name, folder, seed: made())
    for user in (images, recipes):
        monkeypatch.setattr(user, "digit_scores", digit_scores_once)


def run_images(**settings: Any) -> dict[str, Any]:
    return images.run({**IMAGES, **settings}, 0, None, [])


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="cross-entropy"),
        pytest.param({"method": "reloss", "ordinary": 1.0}, id="reloss and cross-entropy"),
        pytest.param({"method": "rank_loss"}, id="rank loss"),
        pytest.param({"method": "uniloss"}, id="uniloss"),
        pytest.param({"method": "embeddings", "ordinary": 1.0, "classes": 10}, id="embeddings"),
    ],
)
def test_a_network_is_trained_and_the_best_epoch_kept(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings.get("classes") == 10:
        monkeypatch.setattr(images, "load", lambda name, folder, seed: made(classes=10))
    found = run_images(**settings)
    chosen = found["chosen"]
    assert found["valid"] == pytest.approx(max(row[2] for row in found["curve"]["rows"]), abs=1e-5)
    assert found["curve"]["rows"][chosen["epoch"] - 1][2] == pytest.approx(found["valid"], abs=1e-5)
    best = max(found["trials"], key=lambda trial: trial["valid"])
    assert chosen["learning_rate"] == best["learning_rate"]
    assert found["values"]["accuracy"] > 40  # 33 or 10 by chance
    if not settings:
        assert found == run_images()


def test_cross_entropy_is_added_with_its_weight() -> None:
    scores = torch.randn(8, 3, generator=seeded())
    target = torch.arange(8) % 3
    base = mg.ReLoss.pretrained("accuracy")
    usual = torch.nn.functional.cross_entropy(scores, target)
    assert torch.equal(images.objective({}, None, scores, target), usual)
    assert torch.equal(images.objective({}, base, scores, target), base(scores, target))
    both = images.objective({"ordinary": 0.5}, base, scores, target)
    torch.testing.assert_close(both, base(scores, target) + 0.5 * usual)


def test_alternate_training_changes_a_copy_of_the_loss() -> None:
    data = made()
    base = mg.ReLoss("accuracy", generator=seeded())
    base.learn(steps=2, classes=3, progress=False, generator=seeded())
    before = [each.clone() for each in base.parameters()]
    settings = {**IMAGES, "method": "reloss", "ordinary": 1.0, "batch": 8}
    fixed, alternate = (
        images.train({**settings, "alternate": steps}, base, 0.1, data, 0, 3).curve
        for steps in (0, 4)
    )
    assert fixed[0] == alternate[0]
    assert fixed[1:] != alternate[1:]
    assert all(
        torch.equal(one, other) for one, other in zip(before, base.parameters(), strict=True)
    )


def test_images_are_shifted_and_mirrored() -> None:
    image = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8).expand(400, 3, 8, 8)
    found = images.augmented(image, seeded())
    assert found.shape == image.shape
    padded = torch.nn.functional.pad(image[:1], (4, 4, 4, 4))
    allowed = {
        tuple(window.flatten().tolist())
        for base in (padded, padded.flip(-1))
        for window in (
            base[0, :, row : row + 8, column : column + 8]
            for row in range(9)
            for column in range(9)
        )
    }
    drawn = {tuple(each.flatten().tolist()) for each in found}
    assert drawn <= allowed
    assert len(drawn) > 100


def test_a_resnet_where_blocks_are_named() -> None:
    data = made((3, 8, 8))
    model = images.image_network({"blocks": 1}, data)
    scores: Tensor = model(data.train.x[:5])
    assert scores.shape == (5, 3)


def test_losses_are_compared_on_the_scores_of_a_network_they_did_not_see() -> None:
    found = alignment.run(ALIGNMENT, 0, None, [])
    values = found["values"]
    names = ("ordinary", "reloss", "margin", "pretrained")
    assert {f"{name}_{kind}" for name in names for kind in ("spearman", "kendall")} <= values.keys()
    left = (1 - values["margin_spearman"]) / (1 - values["ordinary_spearman"])
    assert values["margin_left"] == pytest.approx(left)
    assert found == alignment.run(ALIGNMENT, 0, None, [])


def test_scores_get_better_along_a_training() -> None:
    data = made()
    sets = alignment.along_training(ALIGNMENT, data, data.test, 0)
    first, *_, last = [mg.metric("accuracy")(*each[:2]).mean() for each in sets]
    assert last > first + 0.2
