"""The site: every public name is in the reference, and every page is in the navigation."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import metricgrad as mg

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {"CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"}  # pages from elsewhere


def public_names() -> list[str]:
    """Names that users reach as `mg.X`, and those inside modules such as `mg.ops` as `ops.X`."""
    names = dir(mg) if "__dir__" in vars(mg) else exported(Path(mg.__file__))
    found: list[str] = []
    for name in sorted(name for name in names if not name.startswith("_")):
        value = getattr(mg, name)
        if isinstance(value, ModuleType):
            found += [f"{name}.{member}" for member in members(value)]
        else:
            found.append(name)
    return found


def exported(path: Path) -> set[str]:
    """Names that a module imports as themselves, `from a import X as X`."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def members(module: ModuleType) -> list[str]:
    """Public classes and functions that a module defines, itself or in its parts, or exports."""
    taken = exported(Path(str(module.__file__)))
    return [
        name
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and (value.__module__.startswith(module.__name__) or name in taken)
    ]


def pages(entry: Any) -> list[str]:
    """Paths in a navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in pages(child)]


def documented() -> list[str]:
    """Names in the reference, but for those that benchmarks and extensions import from packages."""
    pages = [path for path in sorted((DOCS / "api").glob("*.md")) if path.stem != "studies"]
    return listed("\n".join(path.read_text() for path in pages))


def listed(text: str) -> list[str]:
    return re.findall(r"^::: metricgrad\.([\w.]+)$", text, re.MULTILINE)


def test_the_helper_finds_names_of_each_kind() -> None:
    some = {"UniLoss", "fit", "MetricClassifier", "baselines.Focal", "nets.Spans", "ops.kendall"}
    some |= {"boosting.objective", "boosting.Evaluation"}
    assert some <= set(public_names())
    assert not {"Any", "TYPE_CHECKING", "ops.Tensor", "ops", "metrics"} & set(public_names())


def test_every_public_name_is_in_the_reference_once() -> None:
    assert sorted(documented()) == sorted(public_names())


def test_names_for_extensions_are_exported_by_their_package_and_not_public_twice() -> None:
    names = listed((DOCS / "api" / "studies.md").read_text())
    assert names
    assert len(names) == len(set(names))
    assert not set(names) & set(public_names())
    for name in names:
        package, _, member = name.rpartition(".")
        assert member in exported(ROOT / "src" / "metricgrad" / package / "__init__.py") or (
            getattr(import_module(f"metricgrad.{package}"), member).__module__
            == f"metricgrad.{package}"
        )


def test_every_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    examples = {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages(configuration["nav"])) == sorted(written | examples | OUTSIDE)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_names_in_the_documents_exist(path: Path) -> None:
    used = set(re.findall(r"\bmg\.(\w+)", path.read_text()))
    assert not [name for name in used if not hasattr(mg, name)]
