"""`mg.fit` in several real processes: what one process finds, one writer, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import metricgrad as mg
from metricgrad.processes import clock, from_first, own_rank
from metricgrad.training import trial_group
from tests.commands import QUICK, run, table
from tests.fitted_together import (
    ESTIMATORS,
    GENTLE,
    NAMES,
    Fitted,
    all_fits,
    alone,
    double,
    fit,
    network,
)
from tests.processes import launch, results, stop


class Numbers(IterableDataset[Any]):
    """The same items in every process, and a length."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        return iter(list(zip(*double(40), strict=True)))


def refusals() -> dict[str, str]:
    """What processes say that are called differently, or with what cannot be divided."""
    rank = own_rank()
    x, y = double()
    loader = DataLoader(TensorDataset(x, y), 20 + 10 * rank)
    calls = {
        "data": lambda: fit((x + rank, y)),
        "seed": lambda: fit(seed=rank),
        "model": lambda: fit(model=network(1, nn.Linear(6, 6 + rank), nn.Linear(6 + rank, 6))),
        "loader": lambda: fit(loader, loader),
        "stream": lambda: fit(DataLoader(Numbers(), 20), double(40)),
        "wrapped": lambda: fit(model=DistributedDataParallel(network())),
        "first": lambda: from_first(lambda: mg.metric("nothing")),
        "all": lambda: fit(epochs=0),
    }
    said = {}
    for name, call in calls.items():
        with pytest.raises((ValueError, RuntimeError)) as refusal:
            call()
        said[name] = str(refusal.value)
    return said


def within_a_budget() -> tuple[Fitted, float]:
    """A search whose clocks differ: that of the first process decides."""
    import time

    own = time.monotonic
    time.monotonic = lambda: own() + 1000.0 * own_rank()
    try:
        return fit(rate=None, budget=1.0, epochs=50, folds=2), clock()
    finally:
        time.monotonic = own


def with_own_statistics() -> tuple[Fitted, list[str], Any]:
    """Batch normalisation and dropout, of which every process sees a part; all end alike."""
    model = network(1, nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3))
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        found = fit(model=model, method="cross_entropy", folds=1)
    buffers = [each.clone() for each in model.buffers()]
    return found, [str(each.message) for each in noticed], buffers


def masks() -> torch.Tensor:
    """The items that dropout keeps in the first step, which no two processes have alike."""
    seen: list[torch.Tensor] = []
    model = nn.Sequential(nn.Linear(5, 1), nn.Dropout(0.5)).double()
    kept = trial_group.TrialGroup._item_scores

    def watched(self: Any, batch: Any) -> torch.Tensor:
        scores = kept(self, batch)
        seen.append(scores.detach())
        return scores

    trial_group.TrialGroup._item_scores = watched
    try:
        fit(model=model, method="cross_entropy", folds=1, epochs=1, batch=40)
    finally:
        trial_group.TrialGroup._item_scores = kept
    return next(each for each in seen if (each == 0).any()) == 0


def everything() -> dict[str, Any]:
    """All that the tests below compare, in one launch."""
    return {
        "fits": all_fits(NAMES[2]),
        "refused": refusals(),
        "budget": within_a_budget(),
        "own": with_own_statistics(),
        "masks": masks(),
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of two processes found."""
    return results(launch(everything, 2, tmp_path_factory.mktemp("two")))


@pytest.fixture(scope="module")
def fits(together: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The fits of each of 2 and 4 processes."""
    four = launch(all_fits, 4, tmp_path_factory.mktemp("four"), NAMES[4])
    return {2: [each["fits"] for each in together], 4: results(four)}


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in NAMES.items() for name in names]
)
def test_a_fit_is_the_same_in_any_number_of_processes(
    size: int, name: str, fits: dict[int, Any]
) -> None:
    one = alone(name, size)
    tolerance = 1e-4 if name in ESTIMATORS else 1e-6  # their networks are of float32
    for each in fits[size]:
        found: Fitted = each[name]
        assert found.winner == one.winner
        for ours, expected in zip(found, one, strict=True):
            if not isinstance(expected, str):
                torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance, equal_nan=True)
        first: Fitted = fits[size][0][name]
        assert found.weights.equal(first.weights)
        assert found.curves.equal(first.curves)


def test_what_differs_between_processes_is_refused_on_all(together: Any) -> None:
    said: dict[str, str] = together[0]["refused"]
    for rank, each in enumerate(together):
        assert {**each["refused"], "first": ""} == {**said, "first": ""}
        first = "" if rank == 0 else "the first process stopped: ValueError: "
        assert each["refused"]["first"].startswith(f"{first}there is no metric named 'nothing'")
    alike = "all processes must call mg.fit with the same arguments and data; on rank 0 "
    assert said["data"].startswith(f"{alike}train is 'data with the digest ")
    assert said["seed"] == f"{alike}seed is 0, on rank 1 it is 1"
    assert "the model's state is {'0.weight': [6, 5]" in said["model"]
    assert f"{alike}train is 'a loader of 6 batches" in said["loader"]
    assert "on rank 1 it is 'a loader of 4 batches" in said["loader"]
    assert said["stream"].startswith("train gives all processes the same first batch.")
    assert said["wrapped"].endswith("pass the model without DistributedDataParallel: model.module")
    assert said["all"] == "epochs must be 1 or more; got 0"


def test_the_clock_of_the_first_process_decides(together: Any) -> None:
    first: Fitted = together[0]["budget"][0]
    for each in together:
        assert each["budget"][0].weights.equal(first.weights)
        assert each["budget"][0].curves.equal(first.curves)
        assert each["budget"][1] == together[0]["budget"][1]


def test_statistics_of_a_part_are_told_and_end_alike(together: Any) -> None:
    first: Fitted = together[0]["own"][0]
    told = "batch normalisation sees only the part of a batch that its process scores"
    for rank, each in enumerate(together):
        found, noticed, buffers = each["own"]
        assert found.weights.equal(first.weights)
        assert all(a.equal(b) for a, b in zip(buffers, together[0]["own"][2], strict=True))
        assert any(told in text for text in noticed) == (rank == 0)
    assert not torch.equal(together[0]["masks"], together[1]["masks"])
    assert together[0]["masks"].shape == together[1]["masks"].shape


def lose_one(folder: Path, looks: int | None) -> Fitted:
    """A fit with checkpoints; the last process is killed at one of its looks at validation data."""
    count = 0
    validate = trial_group.TrialGroup._validate

    def counting(self: trial_group.TrialGroup, losses: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count == looks and own_rank() == dist.get_world_size() - 1:
            stop(signal.SIGKILL)
        validate(self, losses)

    trial_group.TrialGroup._validate = counting
    return killed_fit(folder=folder)


def killed_fit(**options: Any) -> Fitted:
    return fit(epochs=4, folds=2, method="uniloss", options=GENTLE, **options)


def test_a_killed_process_ends_the_others_and_the_fit_resumes(tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    runs = [tmp_path / name for name in ("killed", "resumed")]
    for each in runs:
        each.mkdir()
    first, lost = launch(lose_one, 2, runs[0], kept, 6, timeout=20.0)
    assert lost.code == -signal.SIGKILL
    assert first.code == 1
    assert "RuntimeError: Not all processes answered: one has ended" in first.error
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert sorted(before) == ["challengers-2-0.safetensors", "challengers-2-1.safetensors"]
    resumed = results(launch(lose_one, 2, runs[1], kept, None))
    after = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert [after[name] == before[name] for name in sorted(after)] == [True, False]
    whole = killed_fit()
    for each in resumed:
        assert each.winner == whole.winner
        torch.testing.assert_close(each.weights, whole.weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(each.curves, whole.curves, rtol=0, atol=1e-6)


def test_the_command_finds_the_same_with_torchrun(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    table().to_csv(data, index=False)
    asked = ("--target", "label", "--positive", "yes", "--method", "metric_loss")
    settings = ("train", data, *asked, *QUICK)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = subprocess.run(
        [sys.executable, *torchrun, "-m", "metricgrad", *settings, "--out", tmp_path / "two"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("Positive is yes") == 1  # one process prints
    assert run(*settings, "--out", tmp_path / "one").exit_code == 0
    folders = [tmp_path / name for name in ("two", "one")]
    names = [sorted(str(path.relative_to(each)) for path in each.rglob("*")) for each in folders]
    assert names[0] == names[1]
    ours, expected = (json.loads((each / "result.json").read_text()) for each in folders)
    for result in (ours, expected):
        del result["seconds"], result["command"]
    assert_alike(ours, expected)


def assert_alike(ours: Any, expected: Any) -> None:
    """Equal, with numbers that may differ by rounding."""
    if isinstance(expected, dict):
        assert ours.keys() == expected.keys()
        for name, value in expected.items():
            assert_alike(ours[name], value)
    elif isinstance(expected, list):
        assert len(ours) == len(expected)
        for a, b in zip(ours, expected, strict=True):
            assert_alike(a, b)
    elif isinstance(expected, float):
        assert ours == pytest.approx(expected, abs=1e-5)
    else:
        assert ours == expected


def test_one_process_alone_needs_no_group() -> None:
    assert from_first(lambda: 3) == 3
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="without DistributedDataParallel"):
        mg.fit(Wrapped(), double(), metric="f1")


class Wrapped(DistributedDataParallel):
    """What is refused before anything else is asked of it."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.module = network()
