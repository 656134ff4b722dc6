"""One deterministic profile for all property tests, so that CI fails where home does; a file."""

from pathlib import Path

import hypothesis
import pytest

from tests.commands import table

hypothesis.settings.register_profile("metricgrad", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.load_profile("metricgrad")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    table().to_csv(path, index=False)
    return path
