"""The pictures of the documentation: the scripts that draw them run, and show what the pages say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@pytest.fixture(scope="module")
def loss_surfaces() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loss_surfaces", FIGURES / "loss_surfaces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loss_surfaces_are_best_at_the_ideal_corner(loss_surfaces: ModuleType, tmp_path: Path) -> None:
    figure, surfaces = loss_surfaces.draw(cells=16, draws=4)
    figure.savefig(tmp_path / "surfaces.png", dpi=30)
    assert (tmp_path / "surfaces.png").stat().st_size > 0
    assert set(surfaces) == {"auc", "average_precision", "error_rate", "eer", "f1"}
    for name, (true, multilinear, idw) in surfaces.items():
        for surface in (true, multilinear, idw):
            assert surface.isfinite().all()
            assert surface[-1, 0] < surface.mean() < surface[0, -1]  # the positive high and the negative low
        assert true[-1, 0] == true.min()
        assert true[0, -1] == true.max()
        if name != "eer":  # whose gains are 0 but near the cut: patches, not a slope
            assert multilinear[-1, 0] == pytest.approx(multilinear.min().item(), abs=1e-6)


def test_the_picture_in_the_docs_is_small() -> None:
    assert 50_000 < (FIGURES / "loss_surfaces.png").stat().st_size < 400_000
