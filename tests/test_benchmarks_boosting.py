"""Tables of boosted trees: one run for all metrics, and differences from another row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.claims import Cell, verdict
from benchmarks.table import Table

lgb = pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

from benchmarks import boosting  # noqa: E402

SETTINGS: dict[str, Any] = {
    "dataset": "skin",
    "trees": [4, 8],
    "grid": {"learning_rate": [0.1, 0.3], "leaves": [7]},
    "metrics": {
        "ap": {"metric": "average_precision"},
        "precise": {"metric": "precision_at_recall", "metric_options": {"min_recall": 0.8}},
        "f1": {"metric": "f1"},
    },
}
ORDINARY = {"lightgbm": "binary", "xgboost": "binary:logistic"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(900, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * generator.normal(size=900) > 1.2).astype(np.uint8)
    (tmp_path / "skin").mkdir()
    np.savez(tmp_path / "skin" / "skin.npz", X=x, y=y)
    return tmp_path


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_trees_on_the_metric_continue_those_on_log_loss(engine: str, folder: Path) -> None:
    ours = {**SETTINGS, "engine": engine, "objective": "metric", "start": 0.5}
    found = boosting.run(ours, 0, folder, [])
    ordinary = boosting.run({**ours, "objective": ORDINARY[engine]}, 0, folder, [])
    assert set(found["values"]) == set(SETTINGS["metrics"])
    assert all(0.6 < value <= 1 for value in found["values"].values())
    assert len(found["trials"]) == len(ordinary["trials"]) == 6
    for trial, log_loss in zip(found["trials"], ordinary["trials"], strict=True):
        assert trial["metric"] == log_loss["metric"]
        assert trial["start"] == log_loss["trees"] // 2
        assert trial["start"] < trial["start"] + trial["trees"] <= log_loss["trees"]
        assert (trial["threshold"] != 0) == (trial["metric"] == "f1")


def test_trees_of_log_loss_alone_continue_as_if_nothing_had_happened(folder: Path) -> None:
    """All of the gradient from log loss, without noise: the forest of log loss."""
    log_loss = {**SETTINGS, "engine": "lightgbm", "objective": "binary", "trees": [8]}
    options = {"ordinary": 1.0, "noise": 0.0}
    ours = {**log_loss, "objective": "metric", "start": 0.5, "objective_options": options}
    found, expected = (boosting.run(each, 0, folder, []) for each in (ours, log_loss))
    assert found["values"]["ap"] == pytest.approx(expected["values"]["ap"], abs=0.02)


def test_one_metric_has_one_value(folder: Path) -> None:
    one = {name: each for name, each in SETTINGS.items() if name != "metrics"}
    for objective in ("lambdarank", "metric"):
        settings = {**one, "engine": "lightgbm", "objective": objective, "metric": "auc"}
        found = boosting.run(settings, 0, folder, [])
        assert 0.8 < found["value"] < 1
        assert found["valid"] == max(trial["valid"] for trial in found["trials"])


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"mean_above": 0.0}, "AP, less that of B: the mean over all 1 cells is above 0: +0.2000"),
        ({"never_worse": True}, "none worse, 1 better (A on first), holds"),
    ],
)
def test_a_claim_may_be_about_the_difference_from_a_row(claim: dict[str, Any], words: str) -> None:
    content = Table(
        "made",
        {
            "rows": {"a": {"label": "A"}, "b": {"label": "B"}},
            "columns": {"first": {"label": "first"}},
            "values": {"ap": "AP"},
        },
    )
    cells = {
        ("a", "first_ap"): Cell([0.7, 0.91, 0.3, 0.79]),
        ("b", "first_ap"): Cell([0.5, 0.7, 0.1, 0.6, 0.0]),
    }
    told = verdict({"value": "ap", "rows": "a", "against": "b", **claim}, cells, content, 4)
    assert words in told, told
