"""Run folders: what a second start does after an end, a kill, a full disk, or elsewhere."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.commands import QUICK, limits_files, run, table, train


def test_a_second_start_shows_the_result_and_another_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(data, "--out", out, "--method", "cross_entropy")
    before = {path.name: path.read_bytes() for path in out.rglob("*.*")}
    second = train(data, "--out", out, "--method", "cross_entropy")
    assert second.exit_code == 0
    assert "This run is finished already" in second.output
    other = train(data, "--out", out, "--method", "cross_entropy", "--metric", "mcc")
    assert other.exit_code == 2
    assert "has a run with metric = 'f1', and this one has 'mcc'" in other.output
    changed = data.read_bytes()
    data.write_bytes(changed + changed.splitlines(keepends=True)[-1])
    another = train(data, "--out", out, "--method", "cross_entropy")
    assert another.exit_code == 2
    assert "a file has changed since" in another.output
    assert {path.name: path.read_bytes() for path in out.rglob("*.*")} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    foreign = train(data, "--out", tmp_path / "mine")
    assert foreign.exit_code == 2
    assert "files that are not a metricgrad run" in foreign.output


def test_a_configuration_of_another_program_is_left_alone(data: Path, tmp_path: Path) -> None:
    """Folders of models have a config.json too."""
    own = {"config.json": '{"architectures": ["BertModel"]}', "model.safetensors": "weights"}
    for name, content in own.items():
        (tmp_path / name).write_text(content)
    data.unlink()
    table().to_csv(tmp_path.parent / "data.csv", index=False)
    found = train(tmp_path.parent / "data.csv", "--out", tmp_path, "--method", "cross_entropy")
    assert found.exit_code == 2
    assert "files that are not a metricgrad run" in found.output
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == own


HOLDER = """
import sys, time
from pathlib import Path
from metricgrad.studies import RunFolder, RunSettings
folder = RunFolder(Path(sys.argv[1]), RunSettings())
print("begun", flush=True)
time.sleep(60)
"""


def test_two_starts_at_once_do_not_share_a_folder(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        found = train(data, "--out", tmp_path / "run", "--method", "cross_entropy")
        other.kill()
    assert found.exit_code == 2
    assert "another process is working in" in found.output.replace("\n", " ")
    assert (
        train(data, "--out", tmp_path / "run", "--method", "cross_entropy").exit_code == 0
    )  # its lock went with it


def test_a_report_that_a_kill_has_cost_is_written_by_the_next_start(
    data: Path, tmp_path: Path
) -> None:
    train(data, "--out", tmp_path / "run", "--method", "cross_entropy")
    report = tmp_path / "run" / "report.html"
    before = report.read_bytes()
    report.unlink()
    assert train(data, "--out", tmp_path / "run", "--method", "cross_entropy").exit_code == 0
    assert report.read_bytes() == before


def test_a_run_that_was_killed_goes_on_and_ends_the_same(data: Path, tmp_path: Path) -> None:
    """The run is killed in a process of its own, and goes on in this one."""

    def command(out: str) -> list[Any]:
        asked = ("--target", "label", "--out", tmp_path / out, "--method", "uniloss")
        return ["train", data, *asked, *QUICK]

    assert run(*command("whole")).exit_code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "metricgrad", *map(str, command("killed"))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    for _ in range(1200):
        if checkpoints.is_dir() and len(list(checkpoints.glob("challengers*.safetensors"))) >= 1:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    assert run(*command("killed")).exit_code == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]


def test_a_refused_command_does_not_block_its_folder(data: Path, tmp_path: Path) -> None:
    options = ("train", data, "--target", "label", *QUICK, "--out", tmp_path / "run")
    refused = run(*options, "--method", "nope")
    assert (refused.exit_code, "no method 'nope'" in refused.output.replace("\n", " ")) == (2, True)
    assert run(*options, "--method", "cross_entropy").exit_code == 0
    (tmp_path / "file").write_text("")
    taken = run("train", data, "--target", "label", "--out", tmp_path / "file")
    assert (taken.exit_code, "is a file; pass a folder" in taken.output.replace("\n", " ")) == (
        2,
        True,
    )


def test_a_start_that_was_killed_does_not_block_its_folder(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    (place / ".lock").write_text("")
    (place / "config.json.partial").write_text('{"asked": ')
    found = train(data, "--method", "cross_entropy", "--out", place)
    assert found.exit_code == 0, found.output
    assert not list(place.glob("*.partial"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.partial").write_text("")
    found = train(data, "--method", "cross_entropy", "--out", tmp_path / "other")
    assert (found.exit_code, "that are not a metricgrad run" in found.output) == (2, True)


FULL_DISK = """
import resource, sys
# A longer file fails as it would on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
from metricgrad.cli import app
app(sys.argv[1:])
"""


@limits_files
def test_a_full_disk_is_told_in_a_sentence_and_the_run_goes_on_later(
    data: Path, tmp_path: Path
) -> None:
    asked = ("--target", "label", *QUICK, "--method", "cross_entropy", "--out", tmp_path / "run")
    words = ("train", data, *asked)
    command = [sys.executable, "-c", FULL_DISK, *map(str, words)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "could not be written" in found.stderr
    assert "Traceback" not in found.stderr
    assert run(*words).exit_code == 0
    assert (tmp_path / "run" / "report.html").exists()
