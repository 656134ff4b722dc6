"""The benchmark of the command on a small made-up table, and claims about all cells of a table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import default_model, front_door
from benchmarks.claims import Cell, verdict
from benchmarks.data import whole_table
from benchmarks.table import Table

SETTINGS = {"dataset": "skin", "metric": "f1", "hidden": [], "epochs": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(900, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * generator.normal(size=900) > 1.2).astype(np.uint8)
    (tmp_path / "skin").mkdir()
    np.savez(tmp_path / "skin" / "skin.npz", X=x, y=y)
    return tmp_path


@pytest.mark.parametrize("more", [{}, {"rows": 200, "positives": 30}], ids=["file", "small table"])
def test_both_methods_are_measured_on_the_same_rows(folder: Path, more: dict[str, int]) -> None:
    values = front_door.run({**SETTINGS, **more}, 1, folder, [])["values"]
    assert 0.5 < values["cross_entropy"] < 1
    assert values["gain"] == values["auto"] - values["cross_entropy"]


def test_the_command_and_scikit_learn_get_the_same_rows(folder: Path) -> None:
    settings = {"dataset": "skin", "rows": 600}
    found = default_model.run(settings, 1, folder, [])
    assert found["model"] == "a linear model"  # what the table was made by
    values = found["values"]
    assert all(0.5 < values[name] < 1 for name in ("train", "trees", "logistic"))
    assert values["gain"] == values["train"] - max(values["trees"], values["logistic"])
    assert values["times"] > 0
    same = default_model.run({**settings, "model": "boosted,linear"}, 1, folder, [])
    assert same["values"]["f1"] == values["train"]
    other = default_model.run({**settings, "model": "boosted"}, 1, folder, [])
    assert other["model"] == "boosted trees (LightGBM)"
    assert other["values"]["seconds"] > 0


def test_a_file_has_all_rows(folder: Path) -> None:
    _, y = whole_table("skin", folder)
    lines = front_door.exported("skin", folder).read_text().splitlines()
    assert len(lines) == 1 + len(y)
    assert lines[0] == "x1,x2,x3,x4,target"
    assert lines[1].split(",")[-1] == str(y[0])


GOOD = [0.1, 0.11, 0.12, 0.1, 0.11]
BAD = [-0.1, -0.11, -0.12, -0.1, -0.11]
EVEN = [0.0, 0.02, -0.02, 0.01, -0.01]
SHARE = {"rows": "", "at_least": 0.8}


@pytest.mark.parametrize(
    ("claim", "cells", "words"),
    [
        ({"never_worse": True}, (GOOD, EVEN), ["none worse, 1 better (A on first), holds"]),
        ({"never_worse": True}, (GOOD, BAD), ["A on second worse, 1 better", "**does not hold**"]),
        ({"never_worse": True}, ([0.1], [0.1]), ["not measured yet"]),
        ({"mean_above": 0.0}, (GOOD, EVEN), ["+0.0540, holds"]),
        ({"mean_above": 0.0}, (BAD, EVEN), ["-0.0540, **does not hold**"]),
        ({"no_mean_below": -0.01}, (GOOD, EVEN), ["+0.0000 (A on second) is the lowest, holds"]),
        ({"no_mean_above": 0.2}, (GOOD, EVEN), ["(A on first) is the highest, holds"]),
        ({"no_mean_above": 0.0}, (GOOD, EVEN), ["(A on first) is the highest, **does not hold**"]),
        ({"within_errors": 1}, (GOOD, EVEN), ["one standard error below 0: none, holds"]),
        ({"within_errors": 1}, (GOOD, BAD), ["A on second -", "**does not hold**"]),
        (
            {"no_mean_below": -0.01},
            (GOOD, BAD),
            ["-0.1080 (A on second) is the lowest, **does not hold**"],
        ),
        ({**SHARE, "share_of": "half"}, (GOOD, EVEN), ["in 2 cells: 200%, holds"]),
        ({**SHARE, "share_of": "double"}, (GOOD, EVEN), ["in 2 cells: 50%, **does not hold**"]),
        ({**SHARE, "share_of": "half"}, (BAD, EVEN), ["sums are -0.1080 and -0.0540"]),
    ],
)
def test_claims_about_all_cells(
    claim: dict[str, Any], cells: tuple[list[float], ...], words: list[str]
) -> None:
    content = Table(
        "made",
        {
            "rows": {"a": {"label": "A"}},
            "columns": {name: {"label": name} for name in ("first", "second")},
        },
    )
    found = {
        ("a", f"{name}_{value}"): Cell([times * each for each in values])
        for name, values in zip(("first", "second"), cells, strict=True)
        for value, times in (("gain", 1.0), ("half", 0.5), ("double", 2.0))
    }
    told = verdict(
        {"value": "gain", **claim}, {**found, ("a", "first_auto"): Cell([9.0])}, content, 4
    )
    assert all(word in told for word in words), told
