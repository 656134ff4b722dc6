"""Cells in processes of this machine: kills, errors, threads, Ctrl-C, and what `--on` takes."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from metricgrad.studies import LocalProcesses, LostCellError, cells, executor_for
from tests.cells import odd


def test_a_killed_process_loses_only_its_cell_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "RETRIES", 1)  # every process that is lost takes seconds
    grid = ["one", "two", "die once", "die", "raise", "refuse"]  # first one for each process
    found = {each.cell: each for each in LocalProcesses(2).run(odd, tmp_path, grid)}
    assert found.keys() == set(grid)
    for cell in ("one", "die once", "two"):
        assert found[cell].get() == (cell, 1, False)  # one thread, deaf to Ctrl-C
    with pytest.raises(LostCellError, match="its process was killed, 2 times"):
        found["die"].get()
    with pytest.raises(RuntimeError, match="TwoPartsError: cannot go on"):
        found["raise"].get()
    with pytest.raises(ValueError, match="no such thing") as caught:
        found["refuse"].get()
    assert "in odd" in caught.value.__notes__[0]  # the traceback in the other process
    tries = [path.name.rpartition(" ")[0] for path in tmp_path.iterdir()]
    assert [tries.count(cell) for cell in grid] == [1, 1, 2, 2, 1, 1]


def test_a_single_job_needs_no_process_and_leaves_the_threads_as_they_were(
    tmp_path: Path,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = [each.get() for each in LocalProcesses().run(odd, tmp_path, ["one", "two"])]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found == [("one", 1, True), ("two", 1, True)]


@pytest.mark.parametrize(
    ("on", "jobs", "message"),
    [
        ("rey", None, "--on must be local, ray, ray=ADDRESS or ray://HOST:PORT; got 'rey'"),
        ("ray=", None, "got 'ray='"),
        ("local", 0, "the number of jobs must be 1 or more; got 0"),
        ("ray", 4, "--jobs 4 is for --on local; a Ray cluster computes a cell on each of its CPUs"),
    ],
)
def test_a_wrong_value_is_answered_in_a_sentence(on: str, jobs: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        executor_for(on, jobs)


@pytest.mark.parametrize(("on", "package"), [("ray", "ray"), ("ray://head:10001", "grpc")])
def test_a_missing_package_is_named(on: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find("torch")
    )
    with pytest.raises(ValueError, match=rf"--on {on} needs the package {package}: pip install"):
        executor_for(on)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("ray=127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("ray=nowhere", "the Ray cluster nowhere cannot be joined: Invalid address format"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_a_sentence(on: str, message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConnectionError, match=message):
        list(executor_for(on).run(odd, Path(), ["one"]))
    assert list(executor_for(on).run(odd, Path(), [])) == []  # nothing to do, nobody to ask


HEARS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a group of processes")
@pytest.mark.parametrize(
    "place", [("--jobs", "2"), ("--on", "ray=local")], ids=lambda each: each[1]
)
def test_ctrl_c_ends_all_processes_and_loses_no_value(
    place: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    quick = ("--hidden", "none", "--epochs", "2", "--methods", "focal", "--splits", "2000")
    command = (sys.executable, "-m", "metricgrad", "compare", *quick, "--out", str(out), *place)
    process = subprocess.Popen(
        # A shell that runs the tests in the background lets them, and this command, ignore Ctrl-C.
        (sys.executable, "-c", HEARS_CTRL_C, *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (out / "values.json").exists() and process.poll() is None:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert said == "Stopped; the same command continues from here.\n"
        assert process.returncode == 2
        assert not alive(process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def alive(group: int) -> list[str]:
    """Processes of a group, except those that are dead and not yet buried."""
    listed = subprocess.run(
        ("ps", "-A", "-o", "pgid=,stat=,args="), capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [row[2] for row in rows if row[0] == str(group) and not row[1].startswith("Z")]
