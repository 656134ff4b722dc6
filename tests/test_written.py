"""Every number in README and docs has a source, and equals what the runs measured."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import written
from benchmarks.claims import Cell
from benchmarks.written import ROOT, mistakes, text_of

DECLARED = written.declared()


@pytest.mark.parametrize("page", written.pages())
def test_numbers_of_a_page_are_those_of_the_runs(page: str) -> None:
    found = list(mistakes(page, text_of(ROOT / page), DECLARED.get(page, {})))
    assert not found, "\n".join(mistake.text for mistake in found)


def test_every_section_is_a_page() -> None:
    assert set(DECLARED) <= set(written.pages())


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two rows and two columns, whose means are .1, .2, .3 and .4."""
    values = {("a", "x"): 0.1, ("a", "y"): 0.2, ("b", "x"): 0.3, ("b", "y"): 0.4}
    found = {key: Cell([value - 0.01, value + 0.01]) for key, value in values.items()}

    class Made:
        rows = ("a", "b")
        content = {"paper": {"a": {"x": 0.9}}}  # noqa: RUF012

    monkeypatch.setattr(written, "_collected", lambda name: found)
    monkeypatch.setattr(written, "table", lambda name: Made)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("t/a/y", [0.2]),
        ("t/*/x", [0.1, 0.3]),
        ("mean t/*/*", [0.25]),
        ("max t/b/*", [0.4]),
        ("min t/*/y", [0.2]),
        ("sd t/a/x", [0.0141421]),
        ("t/b/* - t/a/*", [0.2, 0.2]),
        ("1 - t/*/x", [0.9, 0.7]),
        ("max t/b/* - t/a/* * -10", [-2.0]),
        ("t/a/* / t/b/* * 100", [42.857142]),
        ("paper:t/a/x", [0.9]),
    ],
)
def test_sources(source: str, numbers: list[float]) -> None:
    assert written.measured(source) == pytest.approx(numbers, rel=1e-5)


@pytest.mark.usefixtures("cells")
def test_a_source_without_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="no run of 't/c/x' is measured"):
        written.measured("t/c/x")


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("text", "declared", "told"),
    [
        ("It gains .30 here.", {"results": [["gains {} here", "t/b/x"]]}, None),
        ("It gains .31 here.", {"results": [["gains {} here", "t/b/x"]]}, "says .31, but .3000"),
        ("It gains 0.3 here.", {}, "nothing says where 0.3 comes from"),
        ("It gains 3 % here.", {}, "nothing says where 3 comes from"),
        ("It gains 1,300.5 here.", {}, "nothing says where 1,300.5 comes from"),
        ("It gains 0.3 here.", {"other": ["gains 0.3"]}, None),
        ("It gains 0.3 here.", {"other": ["gains 0.3", "0.4"]}, "no place has the piece '0.4'"),
        ("0.3 and 0.3", {"results": [["{}", "t/b/x"]]}, "2 places have the piece"),
        ("0.3 and 0.1", {"results": [["{} and {}", "t/b/x"]]}, "has 2 numbers"),
        ("Sec. 4.2, `slope=0.5`, torch 2.13.0, $w = 0.5$, [a](b/0.5)", {}, None),
    ],
)
def test_what_is_wrong_with_a_page(text: str, declared: dict[str, Any], told: str | None) -> None:
    found = [mistake.text.replace("0.3000", ".3000") for mistake in mistakes("p", text, declared)]
    assert (found == []) if told is None else (told in " ".join(found)), found


def test_generated_lines_and_code_need_no_source(tmp_path: Path) -> None:
    line = next(
        line for line in written.PAGE.read_text().splitlines() if "±" in line and "|" in line
    )
    page = tmp_path / "page.md"
    page.write_text(f"{line}\n{line.replace('0', '1')}\n```python\nx = 0.5\n```\nA **0.7** end.\n")
    found = text_of(page)
    assert line.replace("**", "") not in found
    assert line.replace("0", "1").replace("**", "") in found
    assert "0.5" not in found
    assert found.endswith("A 0.7 end.")
