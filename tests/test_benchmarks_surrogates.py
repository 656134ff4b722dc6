"""The benchmarks of Learning Surrogate Losses: stacked seeds, standings, and runs that resume."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import rankdata

import metricgrad as mg
from benchmarks import figures, joint, protocol, report, surrogate, table
from benchmarks.claims import Cell
from benchmarks.classification import Evaluation
from benchmarks.runner import finished, run_all
from benchmarks.standings import counted, critical_difference, ranks_of
from benchmarks.table import Table
from metricgrad.studies import LocalProcesses

GRID: dict[str, Any] = {
    "dataset": "digits",
    "hidden": [],
    "metrics": ["auc", "error_rate", "mcc"],
    "copies": {"again": "error_rate"},
    "batch": 32,
    "model_steps": 3,
    "loss_steps": 2,
    "loss_rate": 0.01,
    "evaluations": 2,
    "valid_items": 300,
    "iterations": 20,
    "grid": {"learning_rate": [0.01, 0.1]},
}
FULL: dict[str, Any] = {
    "dataset": "digits",
    "metrics": ["auc", "f1"],
    "batch": 16,
    "model_steps": 1,
    "loss_steps": 2,
    "rate": 1e-3,
    "clip": 1e-3,
    "normed": True,
    "iterations": 9,
    "every": 3,
    "universal": {"steps": 3, "pool": 64},
    "gamma": {"iterations": 2, "folds": 2, "gammas": [0.0, 0.5]},
}


@pytest.mark.parametrize("method", ["cross_entropy", "metric_loss", "constant"])
def test_a_stacked_seed_is_a_run_of_its_own(method: str) -> None:
    settings = {**GRID, "method": method, "balanced": method == "cross_entropy", "iterations": 8}
    stacked = surrogate.run({**settings, "stacked": 2}, 0, None, [])
    assert stacked["values"]["again"] == stacked["values"]["error_rate"]
    for seed in range(2):
        alone = surrogate.run(settings, seed, None, [])
        for name, value in alone["values"].items():
            assert stacked["values"][name][seed] == pytest.approx(value, abs=4e-3)
        if method != "constant":
            assert len(alone["trials"]) == (2 if method == "cross_entropy" else 6)
    assert len(stacked["values"]["auc"]) == 2
    if method != "constant":
        assert {trial["seed"] for trial in stacked["trials"]} == {0, 1}


def test_learned_losses_are_stacked_over_seeds_and_metrics() -> None:
    settings = {**GRID, "method": "sl_s", "balanced": True, "normed": True, "head_start": 4}
    found = surrogate.run({**settings, "stacked": 2}, 0, None, [])
    assert len(found["trials"]) == 2 * 3 * 2
    for name in ("auc", "error_rate", "mcc"):
        assert len(found["values"][name]) == 2
        assert all(0 <= value <= 1 for value in found["values"][name])
        assert found["chosen"][0][name]["step"] in (30, 60)


def test_losses_run_from_zero_to_one() -> None:
    """As the paper has them: (1 - MCC) / 2, and an error rate is a loss already."""
    for name, value, loss in (("mcc", -1.0, 1.0), ("mcc", 0.5, 0.25), ("auc", 0.9, 0.1)):
        assert surrogate.as_loss(Evaluation({"metric": name}), value) == pytest.approx(loss)
    assert surrogate.as_loss(Evaluation({"metric": "error_rate"}), 0.2) == pytest.approx(0.2)


def test_lower_is_better_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial with the lowest error in validation is tested, not the one with the highest."""
    settings = {**GRID, "method": "cross_entropy", "grid": {"learning_rate": [1e-6, 0.1]}}
    found = surrogate.run(settings, 0, None, [])
    errors = [trial["error_rate"] for trial in found["trials"]]
    assert errors[0] > errors[1]
    assert found["chosen"]["error_rate"]["learning_rate"] == 0.1
    assert found["chosen"]["error_rate"]["valid"] == errors[1]


def test_a_setting_is_looked_at_when_the_model_begins_to_move() -> None:
    settings = {
        **GRID, "metrics": ["auc", "f1"], "method": "sl_s", "model_rate": 0.01, "clip": 1.0,
        "balanced": True, "normed": True, "head_start": 12, "iterations": 14,
    }  # fmt: skip
    values = joint.run(settings, 0, None, [])["values"]
    kinds = ("test", "first", "last", "misfit", "spread")
    assert set(values) == {f"{name}_{kind}" for name in ("auc", "f1") for kind in kinds}
    gradient = torch.tensor([[-1.0, 1.0, -1.0, 1.0, 1.0, 0.0]])
    target = torch.tensor([[1, 0, 0, 0, 0, 1]])
    assert joint._share_right(gradient, target) == (1 / 2 + 3 / 4) / 2


def test_ranks_and_wins_are_counted_as_the_paper_does() -> None:
    content = table.table("surrogate_losses").content
    printed = {
        (row, column): value
        for row, values in content["paper"].items()
        for column, value in values.items()
    }
    ranks, *wins = [each for each in content["standings"] if "paper" in each]
    for each in wins:  # the wins of its Table 3 follow from its losses
        found = counted(each, printed, 4)
        for row, values in each["paper"].items():
            assert found[row] == pytest.approx(values)
    found = counted(ranks, printed, 4)
    for value in ranks["values"]:
        columns = [f"{column}_{value}" for column in ranks["columns"]]
        expected = [
            rankdata([printed[row, column] for row in ranks["rows"]], "min") for column in columns
        ]
        means = np.mean(expected, axis=0).tolist()
        assert [found[row][value] for row in ranks["rows"]] == pytest.approx(means)
    assert len(ranks_of(["sl_u", "sl_r"], ["nowhere"], "auc", printed, 4)) == 0


def test_the_critical_difference_is_that_of_the_textbook() -> None:
    """Demsar (2006), Table 5a: q is 1.960, 2.343, 2.569 and 2.728 for 2 to 5 methods."""
    for methods, quantile in ((2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728)):
        expected = quantile * (methods * (methods + 1) / (6 * 14)) ** 0.5
        assert critical_difference(methods, 14) == pytest.approx(expected, abs=1e-3)


def test_the_papers_tables_are_whole() -> None:
    """Table 2 has 9 x 7 x 3 losses, Table 3 another 45; SL-R has the same in both."""
    paper = table.table("surrogate_losses").content["paper"]
    assert {row: len(values) for row, values in paper.items()} == {
        "sl_u": 63, "sl_r": 63, "sl_s": 63, "cross_entropy": 9, "pairwise_ranking": 9,
        "global_objective": 9, "lovasz": 9, "cost_sensitive": 9,
    }  # fmt: skip
    beside = table.table("paper_protocol").content["paper"]["normed"]
    for name, value in beside.items():
        row, metric = name.rsplit("_", 1)
        assert paper[row][f"ijcnn1_mlp_{metric}"] == value


class Killed(BaseException):
    """What a kill looks like from inside."""


def test_the_protocol_resumes_after_a_kill_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in each of its phases, right after a checkpoint and in between."""
    whole = protocol.run(FULL, 0, None, [])
    kept = tmp_path / "some" / "run"
    advance = mg.StackedTraining.advance
    calls = [0]

    def dying(self: mg.StackedTraining, *given: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] in (1, 3, 6, 10):  # of gamma, then between checkpoints of both stacks
            raise Killed
        return advance(self, *given, **options)

    monkeypatch.setattr(mg.StackedTraining, "advance", dying)
    deaths = 0
    while True:
        try:
            found = protocol.run(FULL, 0, None, [], kept)
            break
        except Killed:
            deaths += 1
    assert deaths == 4
    assert calls[0] == 7 + deaths  # so no interval was trained twice, and gamma only once
    assert found == whole
    assert [row["iteration"] for row in found["curve"]["refined"]] == [3, 6, 9]
    assert found["values"].keys() >= {"sl_u_auc", "sl_s_f1", "sl_r_f1_tuned"}
    other = protocol.run({**FULL, "iterations": 3}, 0, None, [], kept)  # starts anew
    assert [row["iteration"] for row in other["curve"]["refined"]] == [3]


def test_a_finished_protocol_leaves_only_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its values and lists of values reach the page."""
    folder = tmp_path / "tables"
    folder.mkdir()
    monkeypatch.setattr(table, "FOLDER", folder)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    content = {
        "title": "Tiny", "task": "protocol", "about": "", "settings": {**FULL, "seeds": 1},
        "scale": {"paper": {}}, "values": {"sl_r_auc": "SL-R"}, "rows": {"one": {"label": "one"}},
    }  # fmt: skip
    tiny = Table("tiny", content)
    assert run_all(tiny.runs("paper"), None, LocalProcesses(), Console(quiet=True)) == []
    assert all(map(finished, tiny.runs("paper")))
    (run,) = tiny.runs("paper")
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]
    stored = json.loads(run.path.read_text())
    assert stored["result"]["values"].keys() >= {"sl_r_auc"}
    stored["result"]["values"]["sl_r_auc"] = [0.25, 0.75]
    run.path.write_text(json.dumps(stored))
    assert report.collect(tiny, [run])["one", "sl_r_auc"].values == [0.25, 0.75]


def test_critical_differences_are_drawn(tmp_path: Path) -> None:
    """Methods with all metrics have a place; groups are joined only if they are within reach."""
    content = table.table("surrogate_losses")
    cells = {}
    for column in content.content["columns"]:
        for number, (row, settings) in enumerate(content.rows.items()):
            for value in settings.get("metrics", content.content["settings"]["metrics"]):
                cells[row, f"{column}_{value}"] = Cell([number / 100])
    figures.surrogate_losses(cells, content.rows, None, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    figure, axis = figures.plt.subplots()
    figures._differences(axis, list("abcd"), np.array([1.0, 1.5, 3.5, 4.0]), 1.0)
    bars = [np.asarray(line.get_xdata()) for line in axis.lines if line.get_linewidth() == 3.5]
    assert [bar.tolist() for bar in bars] == [[1.0, 1.5], [3.5, 4.0]]
    figures.plt.close(figure)
