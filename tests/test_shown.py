"""Pictures of what networks predict: what a report keeps, and what is drawn from reports alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import metricgrad as mg
from benchmarks import figures, pictures, poses, report, segmentation, shown
from benchmarks.runner import provenance
from benchmarks.table import Run, Table, table
from benchmarks.task import Examples, run_task
from tests import test_benchmarks_tasks as tasks


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "camvid", tasks.scenes)
    monkeypatch.setattr(poses, "poses_of", tasks.people)


def test_label_maps_and_photographs_survive_as_text() -> None:
    classes = torch.randint(0, 12, (9, 7), generator=torch.Generator().manual_seed(0))
    assert np.array_equal(shown.pixels(shown.png(classes)), classes.numpy())
    image = torch.linspace(-2, 2, 16 * 16).reshape(1, 16, 16).expand(3, 16, 16)
    found = shown.pixels(shown.jpeg(image)).astype(float)
    assert found.shape == (16, 16, 3)
    assert found[0, 0].mean() < 10
    assert found[-1, -1].mean() > 245
    assert shown.pixels(shown.jpeg(torch.ones(3, 8, 8))).shape == (8, 8, 3)


def test_a_report_keeps_maps_and_the_ordinary_one_photographs() -> None:
    scores = torch.randn(9, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    where = torch.ones(9, 4, 5, dtype=torch.bool)
    where[8, 0, 0] = False
    part = Examples(torch.randn(9, 3, 4, 5), torch.full((9, 4, 5), 2), where)
    found = shown.label_maps({"method": "cross_entropy"})(scores, part)
    assert [len(each) for each in found.values()] == [4, 4, 4]
    assert np.array_equal(shown.pixels(found["predicted"][1]), scores[3].argmax(0).numpy())
    truth = shown.pixels(found["target"][3])
    assert truth[0, 0] == shown.VOID
    assert (truth.ravel()[1:] == 2).all()
    assert "images" not in shown.label_maps({"method": "dice"})(scores, part)


def test_a_report_keeps_joints_in_pixels_of_the_maps() -> None:
    places = torch.tensor([[[1.0, 2.0], [3.26, 0.0]]]).repeat(5, 1, 1)
    maps = mg.baselines.HeatmapMSE.target_maps(places.round(), (4, 6), sigma=0.5)
    where = torch.tensor([[True, False]]).repeat(5, 1)
    part = Examples(torch.zeros(5, 3, 8, 12), places, where)
    found = shown.joints({"method": "metric_loss"}, lambda part: part)(maps, part)
    assert found["predicted"] == [[[1, 2], [3, 0]]] * 4
    assert found["target"] == [[[1.0, 2.0], None]] * 4
    assert found["side"] == 6
    assert "images" not in found


def stored(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table whose pictured rows were run on made-up data, with reports in a folder."""
    content = table(name)
    monkeypatch.setattr("benchmarks.table.RESULTS", folder)
    for row in content.content["picture"]["rows"]:
        module: Any = tasks.MODULES.get(name, poses)
        settings = {**tasks.settings_of(name, row), "epochs": 1, "rates": [0.01]}
        result = module.run(settings, 0, None, [], lambda trials: None)
        assert all("shown" not in trial for trial in result["trials"])
        run = content.runs("small", 1, [row])[0]
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.path.write_text(json.dumps({**provenance(run), "seconds": 1.0, "result": result}))
        assert run.path.stat().st_size < 40_000
    return content


@pytest.mark.parametrize("name", ["segmentation", "poses_joints", "poses_head"])
def test_pictures_are_drawn_from_reports_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = stored(name, tmp_path / "results", monkeypatch)
    monkeypatch.setattr(report, "PAGE", tmp_path / "README.md")
    monkeypatch.setattr(report, "table_names", lambda: [name])
    monkeypatch.setattr(figures, "gains", lambda lines, path: None)
    monkeypatch.setattr(report, "_gains", lambda: [])
    report.draw()
    picture = tmp_path / "figures" / f"{name}_picture.png"
    with Image.open(picture) as drawn:
        assert min(drawn.size) > 200
        assert len(drawn.convert("RGB").getcolors(1 << 20) or []) > 100
    assert f"(figures/{name}_picture.png)" in report.section(content, "small")


def test_nothing_is_drawn_without_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = stored("segmentation", tmp_path, monkeypatch)
    picture = tmp_path / "segmentation_picture.png"
    run: Run = content.runs("small", 1, ["metric_loss"])[0]
    whole = run.path.read_text()
    written = json.loads(whole)
    del written["result"]["shown"]  # as in a report from before pictures were kept
    run.path.write_text(json.dumps(written))
    pictures.draw(content, tmp_path)
    assert not picture.exists()
    run.path.unlink()
    pictures.draw(content, tmp_path)
    pictures.draw(table("digits"), tmp_path)
    assert not picture.exists()
    run.path.write_text(whole)
    pictures.draw(content, tmp_path)
    assert picture.exists()


def test_only_the_first_seed_keeps_what_can_be_seen() -> None:
    def kept(scores: torch.Tensor, part: Examples) -> dict[str, Any]:
        return {"scores": scores.tolist()}

    task = tasks.made_task(shown=kept)
    settings = {**tasks.PLAIN, "epochs": 1, "rates": [0.1, 0.2]}
    trials: list[dict[str, Any]] = []
    result = run_task(task, settings, 0, [], trials.extend)
    best = next(t for t in trials if t["learning_rate"] == result["chosen"]["learning_rate"])
    assert result["shown"] == best["shown"]
    assert "shown" not in run_task(task, settings, 1, [], lambda _: None)
    old = [{key: value for key, value in trial.items() if key != "shown"} for trial in trials[:1]]
    assert "shown" not in run_task(task, {**settings, "rates": [0.1]}, 0, old, lambda _: None)
