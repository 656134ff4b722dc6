"""The walks of docs/architecture.md name the files that the calls really cross, in that order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "metricgrad"
SERVING = re.findall(r"`([\w/.]+)`", PAGE.partition("are left\nout:")[2].partition(".\n\n")[0])
SECTIONS = {
    "batch": ["## A batch through"],
    "function": ["## A function of your own"],
    "trees": ["### From the file", "### Boosted trees", "### From the model"],
    "network": ["### From the file", "### A network", "### From the model"],
}


def stages(name: str) -> list[list[str]]:
    """Files and packages of a walk, stage after stage, as the tables of its sections name them."""
    found: list[list[str]] = []
    for heading in SECTIONS[name]:
        section = re.split(r"\n#+ ", PAGE[PAGE.index(heading) + len(heading) :])[0]
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
            folder = ""
            found.append([])
            for each in re.findall(r"`([^`]+)`", row):
                folder = each.rpartition("/")[0] if "/" in each else folder
                found[-1].append(each if "/" in each else f"{folder}/{each}")
    return found


@pytest.fixture(scope="module")
def crossed() -> dict[str, list[str]]:
    """The files that every walk crosses."""
    command = [sys.executable, str(ROOT / "tests" / "walks.py")]
    surroundings = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=surroundings
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def named(path: str, names: list[str]) -> bool:
    """Whether names have a file, or a package that it is in."""
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in names)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_walk_names_the_files_that_are_crossed_in_their_order(
    name: str, crossed: dict[str, list[str]]
) -> None:
    walk = stages(name)
    names = [each for stage in walk for each in stage]
    files = [each for each in names if not each.endswith("/")]
    assert len(set(files)) == len(files)  # no file is come back to
    assert len(SERVING) == 6
    serving = [*SERVING, "__init__.py"]  # that of the package loads public names
    found = [each for each in crossed[name] if not named(each, serving)]
    assert {each for each in found if not named(each, names)} == set()
    assert {each for each in files if each not in found} == set()
    assert {each for each in names if each.endswith("/") and not (SOURCE / each).is_dir()} == set()
    place = {each: number for number, stage in enumerate(walk) for each in stage}
    order = [place[each] for each in found if each in place]
    assert order == sorted(order), [each for each in found if each in place]
