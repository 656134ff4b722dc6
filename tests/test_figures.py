"""The scripts that draw the pictures of the documentation run, and show what the pages say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loss_surfaces_are_best_at_the_ideal_corner(tmp_path: Path) -> None:
    loss_surfaces = script("loss_surfaces")
    figure, surfaces = loss_surfaces.draw(cells=16, draws=4)
    figure.savefig(tmp_path / "surfaces.png", dpi=30)
    assert (tmp_path / "surfaces.png").stat().st_size > 0
    assert set(surfaces) == {"auc", "average_precision", "error_rate", "eer", "f1"}
    for name, (true, multilinear, idw) in surfaces.items():
        for surface in (true, multilinear, idw):
            assert surface.isfinite().all()
            # The positive is high and the negative low at the first of these corners.
            assert surface[-1, 0] < surface.mean() < surface[0, -1]
        assert true[-1, 0] == true.min()
        assert true[0, -1] == true.max()
        if name != "eer":  # whose gains are 0 except near the cut: patches, not a slope
            assert multilinear[-1, 0] == pytest.approx(multilinear.min().item(), abs=1e-6)


def test_a_model_of_one_parameter_goes_where_its_loss_is_lowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_parameter = script("one_parameter")
    monkeypatch.setattr(one_parameter, "MOMENTS", (10, 60))
    rows = {start: one_parameter.moments(start) for start in ("scratch", "universal")}
    one_parameter.draw(rows).savefig(tmp_path / "parameter.png", dpi=30)
    assert (tmp_path / "parameter.png").stat().st_size > 0
    last = rows["universal"][-1]
    assert 0.4 < last.a < 0.7  # the valley of the error rate
    assert last.true[last.a > one_parameter.REACH][-1] < 0.15


def test_a_loss_that_ranks_better_moves_fewer_wrong_items(tmp_path: Path) -> None:
    who_is_moved = script("who_is_moved")
    slopes = {
        label: who_is_moved.slopes(loss) for label, loss in who_is_moved.losses(steps=20).items()
    }
    who_is_moved.draw(slopes).savefig(tmp_path / "moved.png", dpi=30)
    assert (tmp_path / "moved.png").stat().st_size > 0
    wrong = {label: each[40].item() for label, each in slopes.items()}  # at a lead of -4
    assert wrong["cross-entropy"] > 0.9
    assert 0.01 < wrong["ReLoss"] < 0.1
    assert wrong["no penalty, of margins"] < wrong["ReLoss"]


@pytest.mark.parametrize("name", ["loss_surfaces", "one_parameter", "who_is_moved"])
def test_the_pictures_in_the_docs_are_small(name: str) -> None:
    assert 30_000 < (FIGURES / f"{name}.png").stat().st_size < 400_000
