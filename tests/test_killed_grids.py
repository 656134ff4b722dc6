"""A grid that is killed at random moments continues, and loses at most the cells in flight.

The grid runs in real processes, which are killed together. Its task writes down when each cell
begins, so that the test can say which of them were computed again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
JOBS = 2
CELLS = 20
KILLS = 2
TABLE = f"""
title = "Counted"
task = "counted"
[settings]
seeds = {CELLS}
[scale.small]
[values]
value = "value"
[rows.only]
"""
TASK = """
import os
import time

def run(settings, seed, folder, known):
    with open(os.environ["CELL_LOG"], "a") as file:
        file.write(f"{seed} {time.time()}\\n")
    time.sleep(0.15)
    return {"values": {"value": seed / 2}}
"""
GRID = f"""
import sys
from pathlib import Path
from rich.console import Console
from benchmarks import table
from benchmarks.runner import run_all
from metricgrad.studies import LocalProcesses

if __name__ == "__main__":
    table.FOLDER = Path(sys.argv[1])
    table.RESULTS = table.FOLDER / "results"
    runs = table.table("counted").runs("small")
    sys.exit("; ".join(run_all(runs, None, LocalProcesses({JOBS}), Console(quiet=True))) or 0)
"""


class Event(NamedTuple):
    """A cell began."""

    seed: int
    when: float


def events(log: Path) -> list[Event]:
    lines = log.read_text().splitlines() if log.exists() else []
    found = [line.split() for line in lines if len(line.split()) == 2]
    return [Event(int(seed), float(when)) for seed, when in found]


def test_a_grid_killed_at_random_moments_loses_at_most_what_is_in_flight(tmp_path: Path) -> None:
    # Python imports this module at its start, so workers find the task, too.
    (tmp_path / "sitecustomize.py").write_text(
        f"import benchmarks\nbenchmarks.__path__.append({str(tmp_path)!r})\n"
    )
    (tmp_path / "counted.py").write_text(TASK)
    (tmp_path / "counted.toml").write_text(TABLE)
    (tmp_path / "grid.py").write_text(GRID)
    log = tmp_path / "log"
    paths = [str(tmp_path), str(ROOT), str(ROOT / "src")]
    surroundings = {**os.environ, "CELL_LOG": str(log), "PYTHONPATH": os.pathsep.join(paths)}

    def started() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(tmp_path / "grid.py"), str(tmp_path)]
        return subprocess.Popen(command, env=surroundings, start_new_session=True)

    moments = random.Random(0)
    folder = tmp_path / "results" / "counted" / "small"
    killed: list[tuple[float, set[int]]] = []
    for _ in range(KILLS):
        before = len(events(log))
        grid = started()
        while len(events(log)) == before and grid.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.4))
        os.killpg(grid.pid, signal.SIGKILL)
        grid.wait()
        stored = {int(path.stem.split("--")[2]) for path in folder.glob("*.json")}
        killed.append((time.time(), stored))
    assert started().wait() == 0

    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    values = sorted(report["result"]["values"]["value"] for report in reports)
    assert values == [seed / 2 for seed in range(CELLS)]
    begun = events(log)
    for moment, stored in killed:
        earlier = {each.seed for each in begun if each.when < moment}
        later = {each.seed for each in begun if each.when > moment}
        assert not later & stored
        # A worker has one cell, and the result of another may be on its way to its file.
        assert len(earlier - stored) <= 2 * JOBS
    again = len(begun) - CELLS
    assert 0 < again <= KILLS * 2 * JOBS  # with 0, nothing was in flight, and nothing was tested
