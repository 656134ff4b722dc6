"""Files that are written completely or not at all, checkpoints, and progress bars."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from metricgrad import storage
from metricgrad.progress import progress
from metricgrad.training.checkpoint import read_checkpoint, write_checkpoint


def _fill_the_disk(path: Path) -> None:
    with storage.complete_file(path) as partial:
        partial.write_text("half of it")
        assert partial.parent == path.parent
        raise OSError(28, "No space left on device")


def test_files_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    storage.write_json(path, {"a": [1, 2]})
    assert path.read_text() == '{"a": [1, 2]}\n'
    storage.write_json(path, {"a": 1}, indent=2)
    assert path.read_text() == '{\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        storage.write_json(path, math.nan)
    with pytest.raises(OSError, match=r"some\.json could not be written: .*28.*has not changed"):
        _fill_the_disk(path)
    assert json.loads(path.read_text()) == {"a": 1}
    storage.write_text(tmp_path / "text", "é\n")
    assert (tmp_path / "text").read_bytes() == "é\n".encode()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["some.json", "text"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
def test_temporary_files_are_removed_whatever_happens(
    error: type[BaseException], tmp_path: Path
) -> None:
    def write() -> None:
        with storage.complete_file(tmp_path / "a") as partial:
            partial.write_text("half of it")
            raise error

    with pytest.raises(error):
        write()
    assert not list(tmp_path.iterdir())


def test_a_file_that_fails_inside_another_is_told_once(tmp_path: Path) -> None:
    def write() -> None:
        with storage.complete_file(tmp_path / "card") as partial:
            partial.write_text("a card")
            _fill_the_disk(tmp_path / "loss")

    with pytest.raises(OSError, match=r"^[^:]*/loss could not be written: .* has not changed$"):
        write()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    storage.partial_path(tmp_path / "a").write_text("a longer text than the other one")
    storage.write_text(tmp_path / "a", "short")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "short")]


def test_a_checkpoint_is_read_only_by_the_run_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    state = {"w": torch.arange(3.0), "loss.memory": torch.zeros(5)}
    write_checkpoint(path, state, {"seed": 1, "rates": (0.1, 0.2)})
    like = {"w": torch.zeros(3), "loss.memory": torch.zeros(2)}
    found = read_checkpoint(path, like, {"seed": 1, "rates": (0.1, 0.2)}, varying="loss.")
    assert torch.equal(found["w"], state["w"])
    with pytest.raises(ValueError, match=r"training run with seed=1; this run has seed=2$"):
        read_checkpoint(path, like, {"seed": 2}, varying="loss.")
    with pytest.raises(ValueError, match=r"model=None; this run has model='a'\. Resume with"):
        read_checkpoint(path, like, {"model": "a"}, varying="loss.")
    with pytest.raises(ValueError, match=r"loss\.memory has shape \[2\] here, \[5\] there"):
        read_checkpoint(path, like, {})
    with pytest.raises(ValueError, match=r"w has shape \[4\] here, \[3\] there"):
        read_checkpoint(path, {**like, "w": torch.zeros(4)}, {}, varying="loss.")
    with pytest.raises(ValueError, match=r"w has shape none here, \[3\] there"):
        read_checkpoint(path, {}, {}, varying="loss.")
    with pytest.raises(ValueError, match=r"b has shape \[1\] here, none there"):
        read_checkpoint(path, {**like, "b": torch.zeros(1)}, {}, varying="loss.")
    with pytest.raises(FileNotFoundError, match="there is no training checkpoint"):
        read_checkpoint(tmp_path / "none", like, {})


def test_a_bar_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("working", 3) as tell:
        tell(1, "a note")
        tell()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress("working", 3, shown=False) as tell:
        tell(1, "a note")
    assert capsys.readouterr().err == ""
    with progress("working", 3) as tell:
        tell(2, "a note")
    assert "working" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_damaged_tensors_are_refused(tmp_path: Path, place: float) -> None:
    path = tmp_path / "some.safetensors"
    tensors = {"w": torch.arange(40.0), "flag": torch.tensor(True), "half": torch.ones(3).half()}
    storage.write_tensors(path, tensors, "some", {"a": [1, 2], "name": "a header to damage"})
    content = path.read_bytes()
    assert storage.read_tensors(path, "some", "model")[1]["a"] == [1, 2]
    storage.write_tensors(path, tensors, "some", {"a": [1, 2], "name": "a header to damage"})
    assert path.read_bytes() == content  # the same tensors make the same file
    at = int(place * len(content))
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(ValueError, match=r"some\.safetensors (is damaged|is not a whole)"):
        storage.read_tensors(path, "some", "model")


def test_tensors_of_files_without_a_digest_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_file({"w": torch.ones(2)}, path, {"some": '{"a": 1}'})
    assert storage.read_tensors(path, "some", "model")[1] == {"a": 1}


def test_damaged_json_is_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    for content in (b"", b'{"a": 1', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"some\.json is not a whole JSON file: "):
            storage.read_json(path)
