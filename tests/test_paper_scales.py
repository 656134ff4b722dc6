"""Every table has the paper's scale, or says why not; and each of these starts.

A configuration starts if the real network takes its first step on made-up data. Trees have no
steps, so a few of them are grown.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import metricgrad as mg
from benchmarks import data, maps, poses, retrieval, segmentation, swap_tasks
from benchmarks.data import TABULAR, Data, Part
from benchmarks.pose_data import Poses
from benchmarks.runner import Start, measured
from benchmarks.table import Run, table, table_names
from benchmarks.task import Examples

NAMES = [name for name in table_names() if "paper" in table(name).content["scale"]]
OTHERS = (
    *("default_model", "models"),  # run the command, whose only settings are rows and model
    # Their grids train as one stack, without the steps of an optimizer.
    *("surrogates", "surrogate_losses"),
    # Tests of their own train them on files of the same format.
    *("hundred_classes", "answers", "words", "translation", "reading"),
)
SMALLER: dict[str, dict[str, Any]] = {  # than the paper's, where made-up data is
    "images": {"batch": 4},
    "long_tail": {"batch": 8},
    "segmentation": {"batch": 2},
    "poses": {"batch": 2},
    "retrieval": {"batch": 8},
    "peers.lists": {"batch": 8},
    "swap": {"batch": 8},
    "boosting": {"trees": [2, 4]},
}


class StartedError(BaseException):
    """Training has taken its first step. Not an Exception, so no task takes it for an error."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def pictures(*_: Any, **__: Any) -> Data:
    part = Part(numbers(240, 3, 32, 32), torch.arange(240) % 10)
    return Data(part, part, part)


def digits(folder: Any, zero_against_rest: bool) -> Data:
    digit = torch.arange(200) % 10
    part = Part(numbers(200, 784), (digit == 0).long() if zero_against_rest else digit)
    return Data(part, part, part)


def scenes(folder: Any, *_: Any, size: Any = None, **__: Any) -> Data:
    width, height = size or (120, 88)
    part = Part(numbers(12, 3, height, width), torch.arange(12 * height * width) % maps.CLASSES)
    part = part._replace(y=part.y.reshape(12, height, width))
    return Data(part, part, part)


def people(*_: Any, **__: Any) -> Poses:
    places = 16 * torch.rand(2, 14, 2, generator=torch.Generator().manual_seed(0))
    part = Examples(numbers(2, 3, 32, 32), torch.cat([places, torch.full((2, 14, 1), 4.0)], -1))
    return Poses(part, part, part, list(range(14)), head=13)


def clothes(*_: Any) -> tuple[Examples, Examples, Examples]:
    part = Examples(numbers(64, 1, 28, 28), torch.arange(64) % 4)
    return part, part, part


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and queries in files as the benchmarks read them."""
    place = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for path in TABULAR.values():
        (place / path).parent.mkdir(exist_ok=True)
        x = random.normal(size=(400, 6)).astype(np.float32)
        np.savez(place / path, X=x, y=(x[:, 0] + random.normal(size=400) > 1).astype(np.int64))
    (place / "mq2008").mkdir()
    np.savez(
        place / "mq2008" / "mq2008.npz",
        X=random.normal(size=(600, 5)).astype(np.float32),
        y=random.integers(0, 3, 600),
        qid=np.repeat(np.arange(60), 10),
        part=np.repeat(np.arange(60) % 5 + 1, 10),
    )
    return place


@pytest.fixture
def stops_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Made-up data in place of images, and an error after the first step of an optimizer."""
    monkeypatch.setattr(data, "_cifar10", pictures)
    monkeypatch.setattr(data, "_mnist", digits)
    for module in (segmentation, swap_tasks):
        monkeypatch.setattr(module, "camvid", scenes)
    monkeypatch.setattr(poses, "poses_of", people)
    monkeypatch.setattr(retrieval, "fashion", clothes)

    def stop(*_: Any) -> None:
        raise StartedError

    original = mg.StackedTraining.advance

    def advance(self: Any, iterations: int, **options: Any) -> Any:
        original(self, 1, **options)
        raise StartedError

    monkeypatch.setattr(mg.StackedTraining, "advance", advance)
    handle = register_optimizer_step_post_hook(stop)
    yield
    handle.remove()


def test_every_table_has_the_papers_scale_or_says_why_not() -> None:
    for name in table_names():
        content = table(name).content
        assert ("paper" in content["scale"]) != ("no_paper" in content), name
        assert content.get("no_paper", ".").endswith("."), name
        if "paper" in content["scale"]:
            assert table(name).runs("paper", seeds=1), name


def first_runs() -> list[Any]:
    """The first run of each kind of data in a table, on its ordinary loss or what comes first."""
    found = []
    for name in NAMES:
        if name in OTHERS:
            continue
        kinds: dict[Any, Run] = {}
        for run in table(name).runs("paper", seeds=1):
            settings = run.configuration
            if settings.get("method") == "constant":
                continue
            kinds.setdefault((settings.get("dataset"), settings.get("kind")), run)
        chosen = list(kinds.values())[:1] if name != "swap" else _one_of_each_kind(kinds)
        found += [pytest.param(run, id=f"{name}-{run.row}") for run in chosen]
    return found


def _one_of_each_kind(kinds: dict[Any, Run]) -> list[Run]:
    return list({kind: run for (_, kind), run in kinds.items()}.values())


@pytest.mark.usefixtures("stops_at_the_first_step")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("run", first_runs())
def test_a_configuration_of_the_papers_scale_starts(run: Run, folder: Path) -> None:
    smaller = SMALLER.get(run.configuration["task"], {})
    smaller = {key: value for key, value in smaller.items() if key in run.configuration}
    run = replace(run, configuration={**run.configuration, **smaller})
    start = Start(run, trials=[], point=None, seconds=0.0, keeps=False)
    if run.configuration["task"] == "boosting":
        assert measured(folder, start)["result"]
    else:
        with pytest.raises(StartedError):
            measured(folder, start)
