"""Saving and loading surrogates: exact, and never half done."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import metricgrad as mg
from tests.cases import Case
from tests.commands import full_disk, limits_files
from tests.test_contracts import generator
from tests.test_reexpression import ALL_PAIRS, DECIDED, separated
from tests.test_uniloss import every_kind


def test_every_form_of_a_metric_is_written_and_read(tmp_path: Path) -> None:
    for case in DECIDED + ALL_PAIRS:
        mg.UniLoss(case.metric).save(tmp_path / "loss.safetensors")
        loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
        assert loaded.metric == mg.UniLoss(case.metric).metric, case


@every_kind
def test_a_loaded_loss_is_the_saved_one(case: Case, tmp_path: Path) -> None:
    loss = mg.UniLoss(case.metric, slope=3.0, relaxation=0.5)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert isinstance(loaded, mg.UniLoss)
    assert loaded.metric == loss.metric
    scores, target = separated(
        case, generator(case), 4 if case.family not in ("segmentation", "pose") else 1
    )
    torch.testing.assert_close(
        loaded.relaxed(scores, target), loss.relaxed(scores, target), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "options",
    [
        {"interpolation": "idw", "anchors": 3, "near": "wrong", "gradient": "released"},
        {"samples": 4, "portion": 0.5},
        {"squash": True, "pairs": "all"},
    ],
    ids=str,
)
def test_all_settings_are_kept(options: dict[str, Any], tmp_path: Path) -> None:
    loss = mg.UniLoss("accuracy", **options)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert isinstance(loaded, mg.UniLoss)
    assert loaded.config() == loss.config()
    assert loaded.metric == loss.metric


def test_a_memory_is_kept_with_its_items(tmp_path: Path) -> None:
    loss = mg.with_memory(mg.UniLoss("auc"), size=7)
    loss(torch.randn(5), torch.tensor([0, 1, 0, 1, 0]))
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    batch = torch.randn(4), torch.tensor([0, 1, 0, 0])
    assert loaded(*batch) == loss(*batch)


def test_another_metric_may_take_the_place(tmp_path: Path) -> None:
    mg.UniLoss("f1").save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric="mcc")
    assert isinstance(loaded, mg.UniLoss)
    assert loaded.metric == mg.metric("mcc")


def test_what_is_no_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no surrogate .*nowhere"):
        mg.load_surrogate(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        mg.load_surrogate(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "tensors")
    with pytest.raises(ValueError, match="has tensors but is not a surrogate"):
        mg.load_surrogate(tmp_path / "tensors")
    with pytest.raises(ValueError, match="a sampling function of its own cannot be saved"):
        mg.UniLoss(
            "f1", interpolation="idw", anchors=lambda plan, bits, live, generator: bits[None]
        ).save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


@limits_files
def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "loss.safetensors"
    mg.UniLoss("f1").save(path)
    with (
        full_disk(20),
        pytest.raises(OSError, match=r"could not be written: .*File too large"),
    ):
        mg.UniLoss("mcc").save(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    loaded = mg.load_surrogate(path)
    assert isinstance(loaded, mg.UniLoss)
    assert loaded.metric == mg.metric("f1")
