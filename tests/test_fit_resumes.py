"""mg.fit that was killed, stopped or short of disk continues exactly, if nothing changed."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.training import data, trial_group
from tests.fitting import linear, made, quick, same


def stop_after(monkeypatch: pytest.MonkeyPatch, looks: int, error: type[BaseException]) -> None:
    """Raises after so many looks at validation data."""
    count = 0
    validate = trial_group.TrialGroup._validate

    def counting(self: trial_group.TrialGroup, losses: Tensor) -> None:
        nonlocal count
        validate(self, losses)
        count += 1
        if count == looks:
            raise error

    monkeypatch.setattr(trial_group.TrialGroup, "_validate", counting)


@pytest.mark.parametrize(
    ("looks", "options"),
    [
        pytest.param(1, {}, id="at once"),
        pytest.param(19, {}, id="late"),
        pytest.param(6, {"method": "smooth_ap", "memory": 32}, id="with a memory"),
    ],
)
def test_a_training_that_was_killed_goes_on_exactly(
    looks: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "_PASSES", (8, 8))  # batches of an epoch
    whole = quick(linear(), made(), folds=2, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, looks, RuntimeError)
        with pytest.raises(RuntimeError):
            quick(linear(), made(), folder=tmp_path, folds=2, **options)
    resumed = quick(linear(), made(), folder=tmp_path, folds=2, **options)
    assert same(whole, resumed)
    assert resumed.verdict() == whole.verdict()


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 9, KeyboardInterrupt)
    found = quick(linear(), made())
    assert found.stopped
    assert found.value > 0.6
    assert found.decision.ordinary is not None


def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quick(linear(), made(), method="cross_entropy", folds=1)
    saved = safetensors.torch.save_file
    calls = 0

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        saved(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            quick(linear(), made(), method="cross_entropy", folds=1, folder=tmp_path)
    assert same(whole, quick(linear(), made(), method="cross_entropy", folds=1, folder=tmp_path))


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1)
    with pytest.raises(ValueError, match="epochs=4; this run has epochs=5"):
        quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1, epochs=5)
    with pytest.raises(ValueError, match="seed=0; this run has seed=1"):
        quick(linear(), made(), method="cross_entropy", folder=tmp_path, folds=1, seed=1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: {"data": made(seed=7)}, "data"),
        (lambda: {"model": nn.Linear(5, 1, bias=True)}, "model"),
        (lambda: {"metric": mg.metric("fbeta", beta=5.0)}, "metric"),
        (lambda: {"balanced": True}, "balanced"),
        (lambda: {"batch": 32}, "batch"),
        (lambda: {"tune_threshold": False}, "tune_threshold"),
    ],
)
def test_a_checkpoint_of_other_data_model_or_metric_is_refused(
    change: Any, name: str, tmp_path: Path
) -> None:
    usual = {
        "metric": mg.metric("fbeta", beta=0.5),
        "method": "cross_entropy",
        "folds": 1,
        "folder": tmp_path,
    }
    quick(linear(), made(), **usual)
    options = {"model": linear(), "data": made(), **usual, **change()}
    hint = "create the model again" if name == "model" else ""
    with pytest.raises(ValueError, match=f"written by a training run with {name}=.*{hint}"):
        quick(options.pop("model"), options.pop("data"), **options)


def test_randomness_of_the_user_is_left_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    model = nn.Linear(5, 1)
    torch.manual_seed(4)
    quick(model, made(), folds=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_of_another_loss_of_its_kind_is_refused(tmp_path: Path) -> None:
    options = {"folds": 1, "folder": tmp_path}
    quick(linear(), made(), method=mg.UniLoss("f1", slope=0.5), **options)
    with pytest.raises(ValueError, match=r"slope.*0\.5.*; this run has .*slope.*30"):
        quick(linear(), made(), method=mg.UniLoss("f1", slope=30.0), **options)
