"""The swap table's tasks on tiny made-up data: one loss is exchanged, and nothing else."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from benchmarks import swap, swap_tasks
from benchmarks.data import Data, Part
from benchmarks.maps import CLASSES
from benchmarks.rankings import Fold, Queries
from benchmarks.runner import run_all
from benchmarks.table import Run
from metricgrad.studies import LocalProcesses

COMMON: dict[str, Any] = {
    "epochs": 1,
    "rates": [0.01, 0.1],
    "schedules": ["constant", "cosine"],
    "optimizer": "adam",
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halves(x: torch.Tensor, y: torch.Tensor) -> Data:
    return Data(*(Part(part, labels) for part, labels in zip(x.chunk(3), y.chunk(3), strict=True)))


def table(*_: Any) -> Data:
    x = numbers(180, 4)
    return halves(x, (x[:, 0] + x[:, 1] > 1).long())


def pictures(*_: Any) -> Data:
    return halves(numbers(24, 3, 32, 32), torch.arange(24) % 10)


def scenes(*_: Any) -> Data:
    target = torch.randint(CLASSES + 1, (12, 16, 16), generator=torch.Generator().manual_seed(0))
    return halves(numbers(12, 3, 16, 16), target)


def queries(*_: Any) -> Fold:
    where = torch.arange(6).expand(8, -1) < 5
    part = Queries(numbers(8, 6, 46), torch.arange(48.0).reshape(8, 6) % 3, where)
    return Fold(part, part, part)


KINDS: dict[str, dict[str, Any]] = {
    "tables": {"dataset": "made", "rows": 50, "batch": 20, "hidden": [4], "metric": "f1",
               "hand_made": "SoftFBeta"},
    "images": {"dataset": "made", "rows": 50, "batch": 4, "blocks": 1, "optimizer": "sgd",
               "metric": "accuracy", "hand_made": "Focal"},
    "maps": {"dataset": "made", "batch": 2, "width": 2, "hand_made": "Lovasz"},
    "rankings": {"dataset": "made", "batch": 4, "hidden": 3, "hand_made": "LambdaLoss"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"made": table, "cifar10": pictures}
    monkeypatch.setattr(swap_tasks, "load", lambda name, *_: made[name]())
    monkeypatch.setattr(swap_tasks, "camvid", scenes)
    monkeypatch.setattr(swap_tasks, "mq2008", queries)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # tiny batches are told to be tiny
def test_a_run_has_every_loss_in_every_setting(kind: str) -> None:
    found = swap.run({**COMMON, "kind": kind, **KINDS[kind]}, 0, None, [], keep=lambda _: None)
    assert list(found["values"]) == list(swap.LOSSES)
    trials = found["trials"]
    assert [(each["schedule"], each["learning_rate"]) for each in trials] == [
        ("constant", 0.01), ("constant", 0.1), ("cosine", 0.01), ("cosine", 0.1),
    ]  # fmt: skip
    gains = [each["metric_loss"] - each["ordinary"] for each in trials]
    assert found["values"]["metric_loss"] == pytest.approx(statistics.fmean(gains))
    assert all(0 <= each[name] <= 1 for each in trials for name in swap.LOSSES)


def quietly(run: Run) -> list[str]:
    return run_all([run], None, LocalProcesses(), Console(quiet=True))


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_was_stopped_continues_after_its_last_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"task": "swap", **COMMON, "kind": "tables", **KINDS["tables"]}
    whole, stopped = (
        Run("swap", "made", "all", 0, settings, tmp_path / "small" / f"{name}.json", ())
        for name in ("whole", "stopped")
    )
    assert quietly(whole) == []
    train = swap.train
    calls: list[float] = []

    def stops(*arguments: Any) -> float:
        calls.append(arguments[3])
        if len(calls) == 12:  # in the third of four settings with five losses each
            raise OSError("stopped")
        return train(*arguments)

    monkeypatch.setattr(swap, "train", stops)
    assert quietly(stopped) == ["stopped: OSError: stopped"]
    assert quietly(stopped) == []
    assert len(calls) == 12 + 10
    results = [json.loads(each.path.read_text())["result"] for each in (whole, stopped)]
    assert results[0] == results[1]
    assert sorted(each.name for each in whole.path.parent.iterdir()) == [
        "stopped.json", "whole.json",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_the_same_seed_trains_the_same_network_on_the_same_batches() -> None:
    settings = {**COMMON, "kind": "tables", **KINDS["tables"]}
    task = swap_tasks.TASKS["tables"](settings, None, 0)
    first, again = (swap.train(task, settings, "ordinary", 0.1, "constant", 0) for _ in range(2))
    assert first == again
    seen = [batch.x for batch in task.batches(torch.Generator().manual_seed(0))]
    assert [len(x) for x in seen] == [20, 20]
    assert task.steps == 2


def test_unknown_pixels_do_not_count_in_the_ordinary_loss(tmp_path: Path) -> None:
    task = swap_tasks.TASKS["maps"]({**COMMON, **KINDS["maps"]}, tmp_path, 0)
    batch = next(iter(task.batches(torch.Generator().manual_seed(0))))
    assert batch.where is not None
    assert not batch.where.all()
    scores = numbers(2, CLASSES, 16, 16, seed=1)
    pixels = scores.movedim(1, -1)[batch.where]
    expected = F.cross_entropy(pixels, batch.target[batch.where])
    torch.testing.assert_close(task.ordinary(batch, scores), expected)
