"""The leaderboard: results counted as it says, tables by their declaration, a page that sorts."""

import json
import shutil
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from benchmarks import leaderboard, table
from benchmarks.board import contests, difference

SCRIPT = Path(__file__).parents[1] / "docs" / "assets" / "leaderboard.js"
ROWS = """
title = "Made up"
task = "made_up"
best = "BEST"
[leaderboard]
ordinary = {usual = "cross-entropy"}
ours = {new = "UniLoss"}
others = {old = "soft F1"}
[settings]
seeds = 3
metric = "f1"
dataset = "digits"
[scale.small]
[columns.one]
label = "digits, linear"
hidden = []
[columns.two]
label = "digits, MLP"
hidden = [8]
[rows.usual]
[rows.new]
[rows.old]
[rows.unnamed]
"""
VALUES = """
title = "Made up too"
task = "made_up"
[leaderboard]
methods = "values"
gains = true
tuned = false
ordinary = {usual = "ordinary loss"}
ours = {new = "MetricLoss"}
metrics = {maps = "mean IoU"}
structured_rows = ["maps"]
[settings]
seeds = 2
[scale.small]
[values]
usual = "ordinary loss"
new = "MetricLoss"
[rows.maps]
label = "maps"
[rows.curves]
label = "curves"
metric = "average_precision"
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables with their reports, one of losses and one whose values are methods."""
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(leaderboard, "RESULTS", tmp_path / "results")
    (tmp_path / "rows.toml").write_text(ROWS.replace("BEST", "high"))
    (tmp_path / "values.toml").write_text(VALUES)
    found = {"usual": (0.5, 0.6, 0.7), "new": (0.6, 0.71, 0.79), "old": (0.5, 0.601, 0.7)}
    for run in table.table("rows").runs("small"):
        if run.row in found and (run.row, run.column) != ("old", "two"):
            store(run, {"value": found[run.row][run.seed]})
    for run in table.table("values").runs("small"):
        store(run, {"values": {"usual": 0.5, "new": (0.01, 0.03)[run.seed]}})


def store(run: table.Run, result: dict[str, object]) -> None:
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.path.write_text(json.dumps({"configuration": run.configuration, "result": result}))


@pytest.mark.parametrize(
    ("ours", "result", "clear"),
    [
        ((0.501, 0.599, 0.7), "tie", False),
        ((0.51, 0.61, 0.71), "win", True),
        ((0.502, 0.602, 0.702), "win", True),  # small, but the same for every seed
        ((0.6, 0.5, 0.72), "win", False),  # not clear, but not small either
        ((0.4, 0.6, 0.7), "loss", False),
        ((0.498, 0.598, 0.698), "loss", True),
        ((0.5, 0.6, 0.7), "tie", False),
    ],
)
def test_wins_ties_and_losses(ours: tuple[float, ...], result: str, clear: bool) -> None:
    found = difference(dict(enumerate(ours)), {0: 0.5, 1: 0.6, 2: 0.7, 3: 9.0})
    assert (found.result, found.clear) == (result, clear)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    found = difference({0: 0.5, 1: 0.9, 2: 0.4}, {2: 0.3, 0: 0.2, 1: 0.85})
    reference = ttest_1samp([0.3, 0.05, 0.1], 0).confidence_interval(0.95)
    assert found.mean == pytest.approx(0.15)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


@pytest.mark.usefixtures("made_up")
def test_a_table_takes_part_by_its_declaration() -> None:
    linear, network = contests(table.table("rows"))
    assert (linear.label, linear.metric, linear.dataset) == ("digits, linear", "F1", "digits")
    assert (linear.linear, network.linear, linear.tuned) == (True, False, True)
    assert list(linear.values) == ["cross-entropy", "UniLoss", "soft F1"]
    assert list(network.values) == ["cross-entropy", "UniLoss"]  # the other is not measured
    assert [linear.rank(name) for name in linear.values] == [3, 1, 2]
    assert linear.best_rival() == "soft F1"
    maps, curves = contests(table.table("values"))
    assert (maps.metric, curves.metric, maps.structured, maps.tuned) == (
        "mean IoU",
        "AP",
        True,
        False,
    )
    assert maps.values["MetricLoss"] == pytest.approx({0: 0.51, 1: 0.53})


@pytest.mark.usefixtures("made_up")
def test_lower_is_better_where_a_table_says_so() -> None:
    (table.FOLDER / "rows.toml").write_text(ROWS.replace("BEST", "low"))
    linear, _ = contests(table.table("rows"))
    assert linear.against_ordinary("UniLoss").result == "loss"
    assert [linear.rank(name) for name in linear.values] == [1, 3, 2]


@pytest.mark.usefixtures("made_up")
def test_the_page_counts_and_links(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(
        'title = "Other"\ntask = "x"\n[leaderboard]\nleft_out = "It has no losses."\n'
        "[settings]\n[scale.small]\n[values]\n[rows.a]\n"
    )
    page = leaderboard.write(tmp_path / "page.md").read_text()
    assert "| **UniLoss** | 2 | 1.00 | 2.50 | 2 (2) | 0 | 0 (0) | +0.1000 |" in page
    assert "| soft F1 | 1 | 2.00 | 3.00 | 0 (0) | 1 | 0 (0) | +0.0003 |" in page
    assert "| **UniLoss** | 2 | 2 (2) | 0 | 0 (0) | 100% | 1 | 100% |" in page
    assert "| cross-entropy | 2 / 0 / 0 |" in page
    assert "(../benchmarks/results/rows/small/new--one--0.json)" in page
    assert "- `other`, Other: It has no losses." in page


def test_the_committed_page_is_current(tmp_path: Path) -> None:
    found = leaderboard.write(tmp_path / "leaderboard.md").read_text()
    assert found == leaderboard.PAGE.read_text(), "run: python -m benchmarks report"


def test_every_link_of_the_page_has_its_report() -> None:
    targets = [part.split(")")[0] for part in leaderboard.PAGE.read_text().split("](")[1:]]
    assert len(targets) > 500
    assert all((leaderboard.PAGE.parent / target).is_file() for target in set(targets))


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Debian's chromium, which .ci/run installs"
)
def test_a_browser_sorts_and_filters(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    lines = [("a", "+0.02"), ("b", ""), ("c", "-0.3"), ("d", "+0.1")]
    body = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in lines)
    page = tmp_path / "page.html"
    page.write_text(
        '<div class="sortable filterable"><table><thead><tr><th>name</th><th>value</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div><script>{SCRIPT.read_text()}</script>"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        shown = browser.new_page()
        shown.goto(page.as_uri())

        def names() -> str:
            return "".join(shown.locator("tbody tr:visible td:first-child").all_inner_texts())

        assert names() == "abcd"
        shown.click("th:nth-child(2)")
        assert names() == "cadb"  # by number, the empty cell last
        shown.press("th:nth-child(2)", "Enter")
        assert names() == "dacb"
        shown.fill("input", "0.1")
        assert names() == "d"
        browser.close()
