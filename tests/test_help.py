"""What `--help` and `--version` print, and that neither waits for torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metricgrad as mg
from tests.commands import run, train

COMMANDS = ("train", "compare", "predict", "learn", "report", "metrics")

HEAVY = """
import sys
from metricgrad.__main__ import main
sys.argv = ["metricgrad", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
found = [name for name in ("torch", "sklearn", "pandas", "numpy") if name in sys.modules]
print("imported:", *found)
"""


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), *((name, "--help") for name in COMMANDS)],
    ids=" ".join,
)
def test_help_does_not_wait_for_torch(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", HEAVY, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "imported:"


def test_every_command_and_option_is_explained() -> None:
    page = run("--help").output
    for name in COMMANDS:
        assert f"  {name}  " in page
        shown = run(name, "--help").output
        assert f"Examples:\n    metricgrad {name}" in shown
        options = re.findall(r"^  (--\S+)(.*)$", shown, re.MULTILINE)
        assert len(options) > 1
        assert all(len(text.split()) > 3 for _, text in options), options
    assert "..." not in page.partition("Commands:")[2]  # nothing is cut off
    assert run("--version").output == f"metricgrad {mg.__version__}\n"


@pytest.mark.parametrize(
    "command", [("metrics",), ("metrics", "--json"), ("metrics", "f1"), ("--version",)]
)
def test_a_closed_pipe_is_no_error(command: tuple[str, ...]) -> None:
    assert quiet(*command) == ""


def test_predictions_that_nobody_reads_are_no_error(data: Path, tmp_path: Path) -> None:
    assert train(data, "--method", "cross_entropy", "--out", tmp_path / "run").exit_code == 0
    assert quiet("predict", str(tmp_path / "run"), str(data)) == ""


def quiet(*command: str) -> str:
    """What a command writes to standard error when nobody reads its output any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "metricgrad", *command],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        ).stderr
    finally:
        os.close(writer)
