"""The report: one page that needs nothing else, in a browser too."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import metricgrad as mg
from metricgrad.report import plots
from metricgrad.studies.evidence import Evidence, cuts_of
from metricgrad.studies.results import RunResult
from metricgrad.training.data import Items
from tests.commands import QUICK, run, table, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    table().to_csv(folder / "data.csv", index=False)
    found = train(folder / "data.csv", "--out", folder / "run", drawn=True)
    assert found.exit_code == 0, found.output
    return folder / "run"


def test_a_report_needs_nothing_but_itself(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert (
        "://" not in page
    )  # no address: `:` is not among the letters that pictures are written in
    assert page.count("data:image/png;base64,") == 13
    result = json.loads((finished / "result.json").read_text())
    assert html.escape(result["verdict"]).split(":")[0] in page
    assert html.escape(RunResult.from_json(result).told()) in page
    assert "4 columns used" in page
    assert "<p>one, two, three, kind</p>" in page
    assert "Not used: label (--target)." in page
    assert "<th>suspicious</th>" not in page
    assert "cross_entropy" not in page
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles[:2] == ["On test data", "Is the loss aligned with the metric?"]
    assert "Where to cut" in titles
    assert titles[-4:] == ["Which columns matter", "What was tried", "Columns", "How to reproduce"]
    assert "How much F1 of 75 test rows falls when a column is shuffled" in page
    for each in result["finalists"].values():
        assert f"{each['test']:.4f}" in page
    assert len(list((finished / "figures").glob("*.png"))) == 13


def test_a_report_is_drawn_again(finished: Path) -> None:
    before = (finished / "report.html").read_bytes()
    (finished / "report.html").unlink()
    assert run("report", finished, drawn=True).exit_code == 0
    assert (finished / "report.html").read_bytes() == before
    nowhere = run("report", finished / "figures")
    assert (
        nowhere.exit_code,
        "has no config.json and result.json" in nowhere.output.replace("\n", " "),
    ) == (2, True)


@pytest.mark.parametrize("kind", ["classes", "order"])
def test_reports_of_other_tasks(kind: str, tmp_path: Path) -> None:
    frame = table()
    if kind == "classes":
        frame["label"] = np.digitize(frame["one"], [-0.5, 0.5])
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("--metric", "accuracy") if kind == "classes" else ("--metric", "average_precision")
    found = run(
        "train",
        tmp_path / "data.csv",
        "--target",
        "label",
        *QUICK,
        *options,
        "--out",
        tmp_path / "run",
        drawn=True,
    )
    assert found.exit_code == 0, found.output
    pictures = {path.stem.split("-")[0] for path in (tmp_path / "run" / "figures").iterdir()}
    common = {
        "comparison",
        "curves",
        "alignment",
        "importances",
    }  # a metric of order asks for no decision
    assert pictures == common | ({"confusion"} if kind == "classes" else {"roc_pr"})
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("threshold tuned" in page, "best threshold" in page) == (False, False)


def test_the_curve_of_thresholds_is_fine_for_rare_positives_and_has_the_chosen_one() -> None:
    generator = np.random.default_rng(0)
    target = np.arange(20_000) < 200
    scores = generator.normal(size=20_000) + 3 * target
    cut = 2.7182818
    cuts = cuts_of(scores, cut)
    assert cut in cuts
    shares = [(scores > each).mean() for each in cuts]
    assert sum(share < 0.02 for share in shares) > 100
    assert max(shares) > 0.99
    assert cuts_are_sorted(cuts)
    assert cuts_of(np.ones(5), 0.5).tolist() == [0.5]


def cuts_are_sorted(cuts: np.ndarray) -> bool:
    return bool((np.diff(cuts) > 0).all())


def test_the_dot_is_at_the_chosen_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, path, number: drawn.append(figure.axes[0]))
    scores = np.random.default_rng(0).normal(size=500)
    target = scores > 1

    def value(each: np.ndarray, truth: np.ndarray, cut: float) -> float:
        return float(((each > cut) == truth).mean())

    cuts = cuts_of(scores, 0.9)
    curve = np.stack([cuts, [value(scores, target, each) for each in cuts]])
    named = ({"focal loss": scores}, {"focal loss": curve}, {"focal loss": 0.9})
    plots.thresholds(*named, "accuracy", tmp_path)
    (axes,) = drawn
    curve, line, dot = axes.lines
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (0.9, value(scores, target, 0.9))
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) in set(
        zip(curve.get_xdata(), curve.get_ydata(), strict=True)
    )
    assert list(line.get_xdata()) == [0.9, 0.9]
    assert "cut at 0.9" in axes.get_title()


def test_losses_that_cannot_be_ranked_are_left_out_of_the_evidence() -> None:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1].square() > 1.5).long()
    found = mg.fit(
        torch.nn.Linear(2, 1),
        (x, y),
        metric="auc",
        method="cross_entropy",
        rate=0.1,
        epochs=2,
        folds=1,
    )
    assert Evidence.gather(replace(found, score_sets=found.score_sets * 4), Items(x, y)).alignments
    one_class = [
        sets._replace(target=torch.zeros_like(sets.target)) for sets in found.score_sets * 4
    ]
    assert not Evidence.gather(replace(found, score_sets=one_class), Items(x, y)).alignments


def test_a_damaged_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "result.json").write_text("{}")
    found = run("report", tmp_path)
    assert (found.exit_code, "is not a complete run" in found.output.replace("\n", " ")) == (
        2,
        True,
    )


def shown(path: Path) -> dict[str, Any]:
    """What a browser of a telephone's width makes of a page."""
    from playwright.sync_api import sync_playwright

    options = [
        "--no-sandbox",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        errors: list[str] = []
        asked: list[str] = []
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        found = {
            "errors": errors,
            "asked": asked,
            "widths": page.evaluate(
                "[...document.images].map(image => image.complete ? image.naturalWidth : 0)"
            ),
            "shown": page.evaluate("[...document.images].map(image => image.clientWidth)"),
            "overflow": page.evaluate("document.documentElement.scrollWidth - window.innerWidth"),
            "title": page.title(),
        }
        browser.close()
    return found


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Debian's chromium, which .ci/run installs"
)
@pytest.mark.parametrize(
    ("command", "pictures"),
    [
        ((), 13),
        (("train", "--metric", "average_precision"), 9),
        (("compare", "--splits", 2, "--methods", "focal"), 1),
    ],
    ids=["decisions", "order", "comparison"],
)
def test_a_browser_shows_the_report(
    command: tuple[Any, ...], pictures: int, finished: Path, data: Path, tmp_path: Path
) -> None:
    """No errors, no network, all pictures there, and nothing wider than a telephone."""
    place = tmp_path / "run" if command else finished
    if command:
        asked = (data, "--target", "label", *QUICK, *command[1:])
        found = run(command[0], *asked, "--out", place, drawn=True)
        assert found.exit_code == 0, found.output
    page = shown(place / "report.html")
    assert page["errors"] == []
    assert all(url.startswith(("file:", "data:")) for url in page["asked"])
    assert len(page["widths"]) == pictures
    # 150 pixels an inch, of which a page shows 93: 8 points are 10 pixels, on a telephone too.
    assert min(page["widths"]) > 300
    ratios = [shown / own for shown, own in zip(page["shown"], page["widths"], strict=True)]
    assert min(ratios) > 0.6
    assert page["overflow"] <= 0
    assert " on " in page["title"]
