"""Damaged files: a flipped bit is noticed, and no content of a file ends in a raw exception."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import metricgrad as mg
from metricgrad import storage
from metricgrad.studies.evidence import Evidence
from metricgrad.training.checkpoint import read_checkpoint, write_checkpoint
from metricgrad.training.recipes import read_scores
from tests.commands import run, table, train

LIKE = {"w": torch.zeros(4, 3)}
FLIPS = 40


def save_model(path: Path) -> None:
    model = mg.MetricClassifier(
        "f1", "focal", hidden=(4,), epochs=1, rate=0.1, positive="yes", random_state=0, folds=2
    )
    model.fit(table().drop(columns="label"), table()["label"]).save(path)


def save_ranker(path: Path) -> None:
    ranker = mg.MetricRanker("ndcg", "list_net", hidden=(4,), epochs=1, rate=0.1, folds=2)
    x = table(60).drop(columns="label")
    ranker.fit(x, np.arange(60) % 3, groups=np.arange(60) // 5).save(path)


def save_checkpoint(path: Path) -> None:
    write_checkpoint(path, {"w": torch.arange(12.0).reshape(4, 3)}, {"seed": 1})


def save_memory(path: Path) -> None:
    loss = mg.with_memory(mg.BilevelLoss("f1"), size=7)
    loss(torch.randn(5), torch.tensor([0, 1, 0, 1, 0]))
    loss.save(path)


Save = Callable[[Path], None]
Load = Callable[[Path], Any]
FILES: dict[str, tuple[Save, Load]] = {
    "classifier": (save_model, mg.MetricClassifier.load),
    "ranker": (save_ranker, mg.MetricRanker.load),
    "learned loss": (lambda path: mg.ReLoss.pretrained("f1").save(path), mg.load_surrogate),
    "loss with a memory": (save_memory, mg.load_surrogate),
    "checkpoint": (save_checkpoint, lambda path: read_checkpoint(path, LIKE, {"seed": 1})),
}


@pytest.fixture(params=FILES)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Load]:
    """A file, and what reads it."""
    save, load = FILES[request.param]
    path = tmp_path / "stored.safetensors"
    save(path)
    return path, load


def test_every_flipped_bit_is_noticed(stored: tuple[Path, Load]) -> None:
    path, load = stored
    content = path.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    rng = np.random.default_rng(0)
    for first, last in ((0, header), (header, len(content))):
        for at in rng.integers(first, last, FLIPS).tolist():
            flipped = bytes([content[at] ^ 1 << int(rng.integers(8))])
            path.write_bytes(content[:at] + flipped + content[at + 1 :])
            with pytest.raises(ValueError, match=r"stored\.safetensors"):
                load(path)
    path.write_bytes(content)
    load(path)


@pytest.mark.parametrize("name", ["accuracy", "auc", "average_precision", "f1", "mcc"])
def test_losses_that_ship_notice_damage(name: str, tmp_path: Path) -> None:
    content = (Path(mg.__file__).parent / "pretrained" / f"{name}.safetensors").read_bytes()
    path = tmp_path / "loss.safetensors"
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    with pytest.raises(ValueError, match=r"loss\.safetensors is damaged"):
        mg.load_surrogate(path)


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON value can be replaced: itself, and every value in it."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:3]) if isinstance(value, list) else inner
    return [before, *(each for key, part in inner for each in places(part, (*before, key)))]


def changed(content: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A JSON value with another in one place."""
    if not place:
        return new
    content = deepcopy(content)
    part = content
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = new
    return content


def complaint(load: Load, path: Path) -> str | None:
    """What is wrong with a file, as a sentence."""
    try:
        load(path)
    except ValueError as error:
        return str(error)
    return None


def test_no_header_ends_in_a_raw_exception(stored: tuple[Path, Load]) -> None:
    """Headers that someone wrote, with a digest that is right: read, or refused with the path."""
    path, load = stored
    with safe_open(path, "pt") as file:
        ((kind, text),) = file.metadata().items()
    tensors = load_file(path)
    header = json.loads(text.partition("\n")[0])
    refused = 0
    for place in places(header):
        for new in (None, -1, "x", [], {"a": 1}, [200_000, 200_000], 10**12):
            storage.write_tensors(path, tensors, kind, changed(header, place, new))
            told = complaint(load, path)
            assert "stored.safetensors" in (told or "stored.safetensors"), (place, new)
            refused += told is not None
    assert refused > 5


@pytest.mark.parametrize("name", ["classifier", "learned loss"])
def test_sizes_are_compared_with_the_tensors_before_memory_is_taken(
    name: str, tmp_path: Path
) -> None:
    save, load = FILES[name]
    path = tmp_path / "stored.safetensors"
    save(path)
    with safe_open(path, "pt") as file:
        ((kind, text),) = file.metadata().items()
    tensors = load_file(path)
    header = json.loads(text.partition("\n")[0])
    if name == "classifier":
        header["hidden"] = [200_000, 200_000]
        message = r"not those of 5 inputs, hidden layers \[200000, 200000\] and 1 outputs"
    else:
        numbers = sum(each.numel() for each in tensors.values())
        header["config"]["net"]["options"] |= {"width": numbers}  # 4 layers of it would be 50 GB
        message = "its description does not fit its tensors: net.* by the one and"
    storage.write_tensors(path, tensors, kind, header)
    with pytest.raises(ValueError, match=rf"stored\.safetensors: .*{message}"):
        load(path)


def bomb(path: Path) -> None:
    """A .npz file of a few bytes whose array claims to have 8 TB."""
    header = io.BytesIO()
    claimed = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(path, "w") as file:
        for name in ("scores", "target", "test_target"):
            file.writestr(f"{name}.npy", header.getvalue() + bytes(80))


def test_arrays_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.npz"
    bomb(path)
    for read in (read_scores, Evidence.load):
        with pytest.raises(ValueError, match=r"some\.npz (does not fit|is a damaged)"):
            read(path)
    np.savez(path, scores=np.zeros((2, 3)), target=np.zeros((2, 3), dtype=int))
    assert read_scores(path).scores.shape == (2, 3)
    monkeypatch.setattr("metricgrad.storage._MEMORY", 0.0)
    with pytest.raises(ValueError, match=r"some\.npz does not fit into memory"):
        read_scores(path)


def test_a_result_that_is_none_is_told_in_a_sentence(data: Path, tmp_path: Path) -> None:
    options = (data, "--method", "cross_entropy", "--out", tmp_path / "run")
    assert train(*options).exit_code == 0
    result = tmp_path / "run" / "result.json"
    for content in ("{}", "[]", "null", "3", '{"stopped": false}', "[" * 9999):
        result.write_text(content)
        for found in (train(*options), run("report", tmp_path / "run")):
            assert found.exit_code == 2, found.output
            assert "result.json is" in found.output.replace("\n", "")
        assert result.read_text() == content
