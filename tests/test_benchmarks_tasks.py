"""Tasks with images on tiny made-up data: every loss of their tables trains, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

import metricgrad as mg
from benchmarks import long_tail, poses, retrieval, segmentation, task_relations
from benchmarks.data import Data, Part, checked
from benchmarks.maps import CLASSES
from benchmarks.pose_data import Poses
from benchmarks.relations import correlations, learned_relation
from benchmarks.table import table
from benchmarks.task import Examples, Task, run_task, train

MIRRORED = [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 12, 13]
TINY: dict[str, dict[str, Any]] = {
    "segmentation": {"size": [16, 16], "width": 2},
    "poses_head": {"width": 4, "batch": 20},
    "poses_joints": {"width": 4, "batch": 20, "fraction": 0.3},
    "long_tail": {"blocks": 1, "imbalance": 2.0, "batch": 60},
    "retrieval": {"width": 2, "embedding": 3, "batch": 32},
}
MODULES = {"segmentation": segmentation, "long_tail": long_tail, "retrieval": retrieval}
SHORT: dict[str, Any] = {"epochs": 2, "batch": 4, "rates": [0.01, 0.02], "half": False}
LEARNING: dict[str, Any] = {
    "learning_epochs": 2,
    "learning_rate": 0.01,
    "learning_items": 132,
    "learning_steps": 2,
    "learning_sets": 4,
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scenes(*_: Any) -> Data:
    target = torch.randint(CLASSES + 1, (16, 16, 16), generator=torch.Generator().manual_seed(0))
    part = Part(numbers(16, 3, 16, 16), target)
    return Data(part, part, part)


def people(*_: Any) -> Poses:
    places = 16 * torch.rand(40, 14, 2, generator=torch.Generator().manual_seed(0))
    part = Examples(numbers(40, 3, 32, 32), torch.cat([places, torch.full((40, 14, 1), 4.0)], -1))
    return Poses(part, part, part, MIRRORED, head=13, room=1.3)


def pictures(*_: Any) -> Data:
    part = Part(numbers(240, 3, 32, 32), torch.arange(240) % 10)
    return Data(part, part, part)


def clothes(*_: Any) -> tuple[Examples, Examples, Examples]:
    part = Examples(numbers(132, 1, 28, 28), torch.arange(132) % 4)
    return part, part, part


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "camvid", scenes)
    monkeypatch.setattr(poses, "poses_of", people)
    monkeypatch.setattr(long_tail, "load", pictures)
    monkeypatch.setattr(retrieval, "fashion", clothes)
    monkeypatch.setattr(long_tail, "_SET", 16)


def settings_of(name: str, row: str) -> dict[str, Any]:
    run = next(run for run in table(name).runs("small", 1) if run.row == row)
    return {**run.configuration, **SHORT, **LEARNING, **TINY[name]}


CASES = [(name, row) for name in TINY for row in table(name).rows]


@pytest.mark.filterwarnings("ignore:the loss has not learned")  # two steps are not enough
@pytest.mark.parametrize(("name", "row"), CASES)
def test_every_row_trains_its_loss_and_gives_the_values_of_its_table(name: str, row: str) -> None:
    settings = settings_of(name, row)
    module = MODULES.get(name, poses)
    kept: list[Any] = []
    found = module.run(settings, 0, None, [], lambda trials: kept.append(list(trials)))
    assert set(found["values"]) == set(table(name).content["values"])
    assert [len(trials) for trials in kept] == [1, 2]
    assert [trial["learning_rate"] for trial in found["trials"]] == settings["rates"]
    assert all(len(trial["curve"]["rows"]) == 2 for trial in found["trials"])
    assert all(0 <= value <= 100 for value in found["values"].values())


def made_task(**changed: Any) -> Task:
    """A task whose metric is an item's share of points, and whose scores are its inputs."""
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    part = Examples(inputs, torch.tensor([0, 1, 0, 1]))
    values = {
        "metric": mg.metric("accuracy"),
        "values": {"accuracy": lambda scores, part: float((scores.argmax(-1) == 0).float().mean())},
        "train": part,
        "valid": part,
        "test": part,
        "network": lambda: torch.nn.Linear(2, 2),
        "ordinary": lambda scores, batch: scores.sum() * 0,
        "loss": lambda steps: lambda scores, batch: scores[:, 1].sum(),
    }
    return Task(**{**values, **changed})


PLAIN: dict[str, Any] = {"epochs": 4, "batch": 2, "rates": [0.1]}


def test_the_best_epoch_on_validation_data_is_tested_and_the_best_rate_chosen() -> None:
    found = {
        0.1: {"valid": 0.5, "epoch": 2, "test": {"accuracy": 0.9}},
        0.2: {"valid": 0.7, "epoch": 1, "test": {"accuracy": 0.3}},
    }
    trials = [{"learning_rate": rate, **trial} for rate, trial in found.items()]
    result = run_task(made_task(), {"rates": [0.1, 0.2]}, 0, trials, lambda _: None)
    assert result["values"] == {"accuracy": 0.3}
    assert result["chosen"] == {"learning_rate": 0.2, "epoch": 1}


def test_trials_that_are_known_are_not_trained_again() -> None:
    known = [{"learning_rate": 0.1, "valid": 0.5, "epoch": 2, "test": {"accuracy": 0.9}}]
    kept: list[Any] = []
    settings = {**PLAIN, "rates": [0.1, 0.2]}
    result = run_task(made_task(), settings, 0, known, lambda trials: kept.append(len(trials)))
    assert result["trials"][0] == known[0]
    assert kept == [2]


def test_warm_epochs_train_the_ordinary_loss_and_cannot_win() -> None:
    taken: list[str] = []

    def loss(name: str) -> Any:
        def value(scores: torch.Tensor, batch: Examples) -> torch.Tensor:
            taken.append(name)
            return scores.sum() * 0

        return value

    # The value falls from epoch to epoch, so the first one that counts wins.
    seen = iter(range(100, 0, -1))
    task = made_task(
        ordinary=loss("ordinary"),
        loss=lambda steps: loss(f"row, {steps} steps"),
        values={"accuracy": lambda scores, part: float(next(seen))},
    )
    found = train(task, {**PLAIN, "warm": 0.5}, 0.1, 0)
    assert taken == ["ordinary"] * 4 + ["row, 4 steps"] * 4
    assert found["epoch"] == 3


def test_the_learning_rate_falls_in_half_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam, *arguments: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    train(made_task(), {**PLAIN, "epochs": 2}, 0.1, 0)
    assert rates == pytest.approx([0.1, 0.085355, 0.05, 0.014645], abs=1e-5)


def test_a_training_that_diverges_keeps_its_earlier_epochs() -> None:
    def loss(scores: torch.Tensor, batch: Examples) -> torch.Tensor:
        seen.append(1)
        return scores.sum() * (float("nan") if len(seen) == 3 else 0.0)

    seen: list[int] = []
    found = train(made_task(loss=lambda steps: loss), PLAIN, 0.1, 0)
    assert found["epoch"] == 1
    assert len(found["curve"]["rows"]) == 1
    seen.clear()
    seen += [1, 1]
    with pytest.raises(RuntimeError, match="every training diverged in its first epoch"):
        run_task(made_task(loss=lambda steps: loss), PLAIN, 0, [], lambda _: None)


def test_offsets_are_tuned_on_validation_data_and_added_to_test_scores() -> None:
    """The network sees nothing; the rarer class of the validation part is found by its offset."""
    x = torch.tensor([[0.1, 0.0], [0.0, 0.0], [0.2, 0.0], [0.3, 0.0]])
    part = Examples(x, torch.tensor([0, 1, 0, 0]))
    metric = mg.metric("balanced_accuracy")
    task = made_task(
        metric=metric,
        values={"value": lambda scores, part: float(metric(scores, part.target))},
        train=part,
        valid=part,
        test=part,
        network=lambda: _Doubled(),
        loss=lambda steps: lambda scores, batch: scores.sum() * 0,
        class_dim=-1,
    )
    found = train(task, PLAIN, 0.1, 0)
    assert found["test"]["value"] == 0.5
    assert found["test_tuned"]["value"] == 1.0
    assert found["curve"]["columns"] == ["epoch", "loss", "train", "valid", "valid_tuned"]


class _Doubled(torch.nn.Module):
    """The scores are the inputs, with the first class ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.none = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + 0.01 * torch.tensor([1.0, 0.0]) + self.none


def test_parameters_of_a_loss_are_trained_too() -> None:
    proxies = retrieval.Proxies(clothes()[0], 3, 10.0)
    before = proxies.vectors.clone()
    part = clothes()[0]
    task = made_task(
        train=part,
        valid=part,
        test=part,
        network=lambda: retrieval.Embedding(2, 3),
        loss=lambda steps: proxies,
    )
    train(task, {**PLAIN, "epochs": 1, "batch": 66}, 0.1, 0)
    assert not torch.equal(before, proxies.vectors)


def test_turning_moves_joints_with_the_image() -> None:
    """A bright square at a joint is still there after the image was turned, scaled or mirrored."""
    images = torch.zeros(32, 1, 64, 64)
    places = torch.randint(10, 22, (32, 14, 2), generator=torch.Generator().manual_seed(0)).float()
    for item in range(32):
        x, y = (2 * places[item, 13]).int().tolist()
        images[item, 0, y : y + 2, x : x + 2] = 1.0
    batch = Examples(images, torch.cat([places, torch.full((32, 14, 1), 4.0)], -1))
    moved = poses.turned(batch, torch.Generator().manual_seed(1), mirrored_joints=MIRRORED)
    maps = torch.nn.functional.avg_pool2d(moved.x, 2)
    found = mg.metric("pck", radius=1.5)(maps, moved.target[:, 13:, :2])
    assert found == 1
    mirrored = (moved.target[:, 0, :2] - batch.target[:, 5, :2]).norm(dim=-1)
    kept = (moved.target[:, 0, :2] - batch.target[:, 0, :2]).norm(dim=-1)
    assert (torch.minimum(mirrored, kept) < 12).all()
    assert not torch.equal(moved.target[..., 2], batch.target[..., 2])


def test_classes_of_a_long_tail_get_rarer() -> None:
    target = torch.arange(1000) % 10
    kept = long_tail.long_tail(target, 100.0, torch.Generator().manual_seed(0))
    number = target[kept].bincount()
    assert number.tolist() == [100, 60, 36, 22, 13, 8, 5, 3, 2, 1]
    assert len(kept.unique()) == len(kept)


def test_queries_do_not_find_themselves() -> None:
    embeddings = torch.eye(4)
    target = torch.tensor([0, 0, 1, 1])
    first = retrieval.over_queries(mg.metric("precision_at_k", k=1))
    near = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]])
    assert first(near, Examples(near, target)) == 1.0
    cosines, relevant, where = retrieval.similarities(embeddings, target)
    assert not where.diagonal().any()
    assert torch.equal(cosines, torch.eye(4))
    assert relevant.sum() == 8


@pytest.mark.parametrize("name", ["segmentation", "poses_joints", "retrieval", "long_tail"])
def test_rank_correlations_are_measured_on_sets_of_test_data(name: str) -> None:
    row = "metric_loss"
    settings = {**settings_of(name, row), "half": False}
    task = MODULES.get(name, poses).task(settings, 0, None)
    losses = {"ordinary": mg.MetricLoss(task.metric)}
    found = correlations(task, settings, 0, losses)
    assert list(found) == ["ordinary"]
    assert -1 <= found["ordinary"].kendall <= 1


@pytest.mark.filterwarnings("ignore:the loss has not learned")
@pytest.mark.parametrize("row", ["segmentation", "poses_joints", "long_tail", "retrieval"])
def test_a_learned_loss_is_ranked_beside_the_ordinary_one(row: str) -> None:
    run = next(run for run in table("relations").runs("small", 1) if run.row == row)
    tiny = {"maps": [16, 16]} if row.startswith("poses") else {}
    settings = {**run.configuration, **SHORT, **LEARNING, **TINY[row], **tiny}
    found = task_relations.run(settings, 0, None, [])
    values = found["values"]
    assert set(values) == set(table("relations").content["values"])
    assert values["gain"] == values["reloss_spearman"] - values["ordinary_spearman"]
    dots = found["shown"]
    assert len(dots["ordinary"]) == len(dots["reloss"]) == len(dots["metric"]) <= 60
    assert dots["ordinary"] != dots["reloss"]


def test_the_contrastive_loss_of_a_query_is_that_of_a_batch_with_one_query() -> None:
    near = torch.tensor([[1.0, 0.0], [1.0, 0.3], [1.0, 1.0], [0.1, 1.0]])
    target = torch.tensor([0, 0, 1, 1])
    cosines, relevant, where = retrieval.similarities(near, target)
    queries = [
        task_relations.contrastive(cosines[item][where[item]], relevant[item][where[item]].long())
        for item in range(4)
    ]
    # Every query has one relevant image and two others, so the mean of means is that of all pairs.
    both = retrieval.contrastive(near, Examples(near, target))
    torch.testing.assert_close(torch.stack(queries).mean(), both)


@pytest.mark.filterwarnings("ignore:the loss has not learned")
def test_a_loss_learns_from_sets_of_training_data() -> None:
    settings = settings_of("long_tail", "cross_entropy")
    task = long_tail.task(settings, 0, None)
    loss = learned_relation(task, settings, 0, mg.ReLoss("f1"))
    assert loss.learned


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "joints.npz"
    with pytest.raises(ValueError, match=r"there is no file .*joints\.npz"):
        checked(file, "00")
    file.write_text("something else")
    with pytest.raises(ValueError, match="is another file than the one that was measured"):
        checked(file, "00")
    digest = "c9f6a0f6b8d6d2a6f9f2a5c6dc3a4f0b0e6f6d5d7c4ce7e9a3d1d6d2b6f4d2aa"
    with pytest.raises(ValueError, match=digest):
        checked(file, digest)
