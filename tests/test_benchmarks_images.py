"""Tables about classes of images, and pictures drawn from reports, on tiny made-up data."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import metricgrad as mg
from benchmarks import classes, data, hundred, image_nets, pictures, retrieval, sheets, task
from benchmarks.data import Data, Part
from benchmarks.table import Table, table
from benchmarks.task import Examples, run_task, train
from tests.trainings import seeded

TABLES = ("cifar10", "hundred_classes", "reloss_networks", "reloss_runs")
TINY: dict[str, Any] = {
    "batch": 20, "epochs": 2, "screen": 1, "rates": [0.01, 0.02], "half": False, "blocks": 1,
}  # fmt: skip


def made(number: int = 60, classes: int = 30) -> Data:
    """Noise of 8 x 8 pixels, in 30 classes, so that 20 rivals are not all of them."""
    part = Part(torch.randn(number, 3, 8, 8, generator=seeded()), torch.arange(number) % classes)
    return Data(part, part, part)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "load", lambda name, folder, seed: made())
    monkeypatch.setattr(
        classes, "row_loss", lambda settings, seed: mg.ReLoss.pretrained("accuracy")
    )
    monkeypatch.setattr(
        classes, "alignment", lambda base, seed: {"spearman": 98.0, "kendall": 89.0}
    )


def learned_from(plain: Any, settings: Any, seed: int, loss: mg.ReLoss) -> mg.Surrogate:
    """In place of a long training: the sets to learn from fit the loss."""
    assert not loss.learned
    sets = plain.sets(torch.randn(256, 30, generator=seeded()), examples(256), seeded())
    assert sets[0][0].shape == (2, 128, 30)
    return mg.ReLoss.pretrained("accuracy")


def examples(number: int) -> Examples:
    return Examples(*made(number).train)


def settings_of(name: str, row: str) -> dict[str, Any]:
    run = next(run for run in table(name).runs("small", 1) if run.row == row)
    return {**run.configuration, **TINY}


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name in TABLES for row in table(name).rows if row[-1] not in "2345"],
)
def test_every_row_trains_its_loss(name: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "learned_relation", learned_from)
    settings = settings_of(name, row)
    kept: list[int] = []
    found = classes.run(settings, 0, None, [], lambda trials: kept.append(len(trials)))
    columns = table(name).content["values"]
    assert set(found["values"]) == set(columns)
    assert kept == [1, 2, 3]
    lengths = [len(trial["curve"]["rows"]) for trial in found["trials"]]
    assert lengths == [1, 1, 2 * settings.get("times", 1)]
    assert 0 <= found["values"]["accuracy"] <= 100


@pytest.mark.parametrize("network", ["mlp", "cnn", "resnet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_take_their_images(network: str, channels: int) -> None:
    images = torch.randn(4, channels, 8, 16, generator=seeded())
    model = image_nets.image_classifier({"network": network, "blocks": 1}, images, 7)
    assert model(images).shape == (4, 7)
    with pytest.raises(ValueError, match="no network 'vit'; pass resnet, cnn or mlp"):
        image_nets.image_classifier({"network": "vit"}, images, 7)


def test_a_metric_loss_starts_anew_in_every_training_and_a_learned_loss_is_kept() -> None:
    def built(method: str) -> list[Any]:
        made_task = classes.task(
            {**settings_of("cifar10", "metric_loss"), "method": method}, 0, None
        )
        return [made_task.loss(4).__closure__ for _ in range(2)]  # what the losses hold

    ours, again = built("metric_loss")
    learned, same = built("pretrained")
    surrogates = [
        next(cell.cell_contents for cell in each if isinstance(cell.cell_contents, mg.Surrogate))
        for each in (ours, again, learned, same)
    ]
    assert surrogates[0] is not surrogates[1]
    assert surrogates[2] is surrogates[3]


def tiny_task() -> task.Task:
    return classes.task(settings_of("cifar10", "cross_entropy"), 0, None)


def test_only_the_rate_that_is_best_after_the_screening_gets_a_whole_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[float, int]] = []

    def trained(task: Any, settings: Any, rate: float, seed: int) -> dict[str, Any]:
        seen.append((rate, settings["epochs"]))
        return {"valid": -rate, "epoch": 1, "test": {"accuracy": 10 * rate}}

    monkeypatch.setattr(task, "train", trained)
    settings = {"rates": [0.3, 0.1, 0.2], "screen": 2, "epochs": 9}
    result = run_task(tiny_task(), settings, 0, [], lambda _: None)
    assert seen == [(0.3, 2), (0.1, 2), (0.2, 2), (0.1, 9)]
    assert result["values"] == {"accuracy": 1.0}
    known = result["trials"]
    for number in range(5):  # a run that was stopped trains what is missing
        seen.clear()
        assert run_task(tiny_task(), settings, 0, known[:number], lambda _: None) == result
        assert len(seen) == 4 - number if number < 4 else not seen


def test_a_warm_up_has_its_own_rate_and_decay_shrinks_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    step = torch.optim.SGD.step

    def noted(self: torch.optim.SGD, *arguments: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        assert self.param_groups[0]["weight_decay"] == 0.0001
        assert self.param_groups[0]["momentum"] == 0.9
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    settings = {**settings_of("cifar10", "published_warm"), "warm": 0.5, "warm_rate": 0.4}
    train(tiny_task(), settings, 0.1, 0)
    assert rates[0] == 0.4
    assert rates[3] == 0.1
    assert rates == sorted(rates, reverse=True)


def test_the_curve_has_the_metric_of_training_batches() -> None:
    """At a rate of 0 the network stays as it is, and both parts of the data are the same."""
    still = dataclasses.replace(
        tiny_task(),
        network=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 30)),
        augment=task.as_they_are,
        class_dim=None,
    )
    curve = train(still, settings_of("cifar10", "cross_entropy"), 0.0, 0)["curve"]
    assert curve["columns"] == ["epoch", "loss", "train", "valid"]
    (_, _, seen, valid), _ = curve["rows"]
    assert seen == pytest.approx(valid, abs=1e-4)
    assert seen > 0


# Readers


def records(number: int, seed: int) -> np.ndarray:
    """The bytes of images of CIFAR-100 in the binary version."""
    drawn = np.random.default_rng(seed).integers(0, 256, (number, 3074), dtype=np.uint8)
    drawn[:, 0] = np.arange(number) % 20
    drawn[:, 1] = np.arange(number) % 100
    return drawn


def test_cifar_100_is_read_from_its_binary_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hundred, "_TRAIN", 1000)
    monkeypatch.setattr(hundred, "_TEST", 200)
    (tmp_path / "cifar100").mkdir()
    for name, number in (("train", 1000), ("test", 200)):
        records(number, number).tofile(tmp_path / "cifar100" / f"{name}.bin")
    images, fine = hundred.binary_part(tmp_path / "cifar100" / "test.bin", 200)
    stored = records(200, 200)
    assert fine.tolist() == [number % 100 for number in range(200)]
    # Green comes after 1,024 bytes of red; rows follow one another.
    assert images[3, 1, 2, 5] == np.float32(stored[3, 2 + 1024 + 2 * 32 + 5]) / 255
    found = data.load("cifar100", tmp_path, 0)
    assert [len(part.y) for part in found] == [900, 100, 200]
    assert found.train.x.mean((0, 2, 3)).abs().max() < 1e-4
    assert found.test.x.shape == (200, 3, 32, 32)
    assert found.valid.y.bincount().tolist() == [1] * 100


def test_other_files_are_not_cifar_100(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    with pytest.raises(ValueError, match=r"no file .*train\.bin; put train\.bin and test\.bin"):
        hundred.binary_part(path, 10)
    records(9, 0).tofile(path)
    with pytest.raises(ValueError, match=r"has 27666 bytes; 10 images .* have 30740"):
        hundred.binary_part(path, 10)
    wrong = records(10, 0)
    wrong[4, 1] = 100
    wrong.tofile(path)
    with pytest.raises(ValueError, match="has a fine class 100; those of CIFAR-100 are 0 to 99"):
        hundred.binary_part(path, 10)


def test_a_pair_has_two_digits_side_by_side_and_no_digit_twice() -> None:
    digits = np.arange(40) % 10
    images = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None], (40, 28, 28))
    found, number = hundred.pairs(images, digits, 20)
    assert found.shape == (20, 1, 28, 56)
    left = (255 * found[:, 0, 0, 0]).round().astype(int)
    right = (255 * found[:, 0, 0, 55]).round().astype(int)
    assert (number == 10 * digits[left] + digits[right]).all()
    assert sorted([*left, *right]) == list(range(40))


# Pictures


def half_circle(number: int) -> torch.Tensor:
    """Embeddings on half a circle, in order."""
    angle = torch.arange(number) / number * torch.pi
    return torch.stack([angle.cos(), angle.sin()], -1)


def test_a_query_is_shown_with_what_it_finds_before_and_after() -> None:
    x = torch.rand(24, 1, 28, 28, generator=seeded())
    target = torch.arange(24) // 12
    part = Examples(x, target)
    found = retrieval.found_images(half_circle(24), part, {"width": 2, "embedding": 3})
    tiles = torch.from_numpy(sheets.tiles_of(found["sheet"], 4, 13).copy())
    wanted = (255 * (x[:, 0] - x.min()) / (x.max() - x.min())).round()
    shown = [[int((wanted == tile).all(-1).all(-1).nonzero()) for tile in row] for row in tiles]
    assert [row[0] for row in shown] == [0, 1, 12, 13]  # two of each class
    assert [sorted(row[7:]) for row in shown] == [
        [1, 2, 3, 4, 5, 6],
        [0, 2, 3, 4, 5, 6],
        [9, 10, 11, 13, 14, 15],
        [10, 11, 12, 14, 15, 16],
    ]
    assert [row[1:7] for row in shown] != [row[7:] for row in shown]
    for name, start in (("before", 1), ("after", 7)):
        right = [
            [int(one // 12 == row[0] // 12) for one in row[start : start + 6]] for row in shown
        ]
        assert found["relevant"][name] == right


def results(*lines: list[float]) -> list[dict[str, Any]]:
    """Reports of one row, whose whole training had these validation values."""
    short = {"columns": ["epoch", "valid"], "rows": [[1, 0.0]]}
    return [
        {
            "chosen": {"learning_rate": 0.1},
            "trials": [
                {"learning_rate": 0.1, "curve": short},
                {"learning_rate": 0.2, "curve": {**short, "rows": [[1, 9.0], [2, 9.0]]}},
                {
                    "learning_rate": 0.1,
                    "curve": {**short, "rows": [[at + 1, value] for at, value in enumerate(line)]},
                },
            ],
        }
        for line in lines
    ]


def test_a_curve_is_that_of_the_chosen_whole_training() -> None:
    epochs, cells = pictures.curve(results([1.0, 2.0, 4.0], [3.0, 4.0]), "valid", 0.0)
    assert epochs == [1, 2]
    assert [cell.mean for cell in cells] == [2.0, 3.0]
    _, smooth = pictures.curve(results([1.0, 2.0, 4.0]), "valid", 0.25)
    assert [cell.mean for cell in smooth] == [1.0, 1.75, 3.4375]
    old = [{"curve": {"columns": ["epoch", "valid"], "rows": [[1, 5.0]]}}]
    assert pictures.curve(old, "valid", 0.0)[1][0].mean == 5.0


def drawn(name: str, content: dict[str, Any], found: Any, path: Path) -> Path:
    shown = Table(name, {"rows": {row: {"label": row} for row in found}, **content})
    draw = pictures.curves if "curves" in content else pictures._PICTURES[name]
    draw(found, shown, path)
    return path


def test_pictures_are_drawn_from_reports(tmp_path: Path) -> None:
    curves = {"lines": ["valid"], "label": "accuracy", "lowest": 0.0}
    found: Any = {"one": results([1.0, 2.0]), "other": results([2.0, 3.0])}
    assert drawn("cifar10", {"curves": curves}, found, tmp_path / "curves.png").stat().st_size > 0
    values = {"ordinary_spearman": 0.5, "reloss_spearman": 0.9}
    dots = {"ordinary": [1.0, 2.0], "reloss": [1.0, 3.0], "metric": [0.1, 0.2]}
    found = {"poses": [{"values": values, "shown": dots}]}
    assert drawn("relations", {}, found, tmp_path / "dots.png").stat().st_size > 0
    shown = {
        "sheet": sheets.as_sheet(torch.rand(2, 5, 28, 28, generator=seeded())),
        "relevant": {"before": [[1, 0], [0, 0]], "after": [[1, 1], [1, 0]]},
    }
    found = {"contrastive": [{"shown": shown}], "metric_loss": [{"shown": shown}]}
    assert drawn("retrieval", {}, found, tmp_path / "found.png").stat().st_size > 0


def test_frames_say_what_is_right() -> None:
    picture = pictures._framed(np.zeros((1, 3, 4, 4), np.uint8), np.array([[1, 0, -1]]))
    assert picture.shape == (8, 24, 3)
    corners = [tuple(picture[0, 8 * column].tolist()) for column in range(3)]
    assert corners == [pictures._RIGHT, pictures._WRONG, (255, 255, 255)]
    assert (picture[2:6, 2:6] == 0).all()


@pytest.mark.parametrize("name", ["cifar10", "relations", "retrieval", "reloss_cifar10"])
def test_pictures_wait_for_their_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "finished", lambda run: False)
    content = table(name)
    wanted = content.content.get("curves") or content.content["picture"]
    assert set(wanted.get("rows", [])) <= set(content.rows)
    assert wanted["title"]
    pictures.draw(content, tmp_path)
    assert not list(tmp_path.iterdir())
