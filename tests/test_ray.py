"""Cells on a Ray cluster of two workers give what one process gives, also if a worker is killed."""

import importlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import table
from benchmarks.__main__ import main
from benchmarks.carried import carried
from metricgrad.studies import LocalProcesses, LostCellError
from metricgrad.studies.ray_cells import RayCluster
from tests.cells import GRID, KILLED, attempts, data, odd, trained
from tests.commands import QUICK, run
from tests.test_benchmarks import TINY

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of its own with two workers, whatever else runs on this machine."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="error",
    )
    yield RayCluster()
    ray.shutdown()


def test_a_grid_of_24_cells_survives_the_death_of_a_worker(
    cluster: RayCluster, tmp_path: Path
) -> None:
    assert len(GRID) == 24
    outcomes = cluster.run(trained, (tmp_path, *data()), GRID)
    found = {outcome.cell: outcome.get() for outcome in outcomes}
    assert attempts(tmp_path) == {cell: 2 if cell == KILLED else 1 for cell in GRID}
    alone = LocalProcesses().run(trained, (tmp_path, *data()), GRID)
    assert {outcome.cell: outcome.get() for outcome in alone} == found


def test_a_cell_that_kills_every_worker_is_given_up_and_the_others_go_on(
    cluster: RayCluster, tmp_path: Path
) -> None:
    cells = ["one", "die", "raise", "refuse"]
    found = {each.cell: each for each in cluster.run(odd, tmp_path, cells)}
    assert found["one"].get()[:2] == ("one", 1)
    with pytest.raises(LostCellError, match=r"worker was lost \(WorkerCrashedError\), 3 times"):
        found["die"].get()
    assert len(list(tmp_path.glob("die*"))) == 3
    with pytest.raises(RuntimeError, match="TwoPartsError: cannot go on"):
        found["raise"].get()
    with pytest.raises(ValueError, match="no such thing"):
        found["refuse"].get()


def test_code_that_a_node_does_not_have_is_told_in_a_sentence(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def work(shared, cell): return cell\n")
    monkeypatch.syspath_prepend(tmp_path)  # workers have the path that was there at the start
    work = importlib.import_module("only_here").work
    (outcome,) = cluster.run(work, None, ["one"])
    with pytest.raises(RuntimeError, match=r"all nodes need the same version.* 'only_here'"):
        outcome.get()


@pytest.mark.usefixtures("cluster")
def test_compare_on_ray_finds_what_it_finds_here(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a metric in a file, which is not there where the workers are."""
    source = "def hits(scores, target):\n    return ((scores > 0) == (target > 0)).mean()\n"
    (tmp_path / "own.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    found = []
    for on in ("local", "ray"):
        asked = ("--methods", "focal", "--splits", 2, "--metric", "own.py:hits", "--on", on)
        ended = run("compare", data, "--target", "label", *QUICK, *asked, "--out", on, "--json")
        assert ended.exit_code == 0, ended.output
        found.append(json.loads(ended.stdout))
        del found[-1]["command"]
    assert found[0] == found[1]


@pytest.mark.usefixtures("cluster")
def test_benchmarks_on_ray_write_the_reports_that_they_write_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a data set in files, which travel to the workers."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3))
    (tmp_path / "data" / "skin").mkdir(parents=True)
    np.savez(tmp_path / "data" / "skin" / "skin.npz", X=x, y=(x[:, 0] > 1).astype(np.int64))
    (tmp_path / "tiny.toml").write_text(TINY.replace('"digits"', '"skin"'))
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    words = ["run", "tiny", "--data", str(tmp_path / "data"), "--rows", "uniloss"]
    reports = []
    for place in (["--on", "local", "--jobs", "1"], ["--on", "ray"]):
        monkeypatch.setattr(table, "RESULTS", tmp_path / place[1])
        assert main([*words, *place]) == 0
        runs = table.table("tiny").runs("small", rows=["uniloss"])
        reports.append([json.loads(run.path.read_text()) for run in runs])
    for here, there in zip(*reports, strict=True):
        assert here.pop("seconds") > 0
        assert there.pop("seconds") > 0
        assert here == there
    unpacked = carried(tmp_path / "data", {"skin"}).unpacked()
    assert unpacked.parent == Path(tempfile.gettempdir())
    assert (unpacked / "skin" / "skin.npz").exists()
    shutil.rmtree(unpacked)
