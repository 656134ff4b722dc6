"""`make mutants` on a package of a few lines: which mistakes are made, noticed, and remembered."""

import ast
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tools.mutants.children import Session, cpu_seconds, forked
from tools.mutants.project import Project
from tools.mutants.sites import pick, required_arguments, sites

ROOT = Path(__file__).parents[1]
CODE = '''"""A made-up module."""


def ordered(values: list[int], down: bool = False) -> list[int]:
    values.sort()
    return values


def first(values: list[int]) -> int:
    """The first of them.

    >>> first([3, 4])
    3
    """
    return values[0]


def unused(values: list[int]) -> None:
    values.clear()
'''
TEST = """import pytest
import toy.lists


@pytest.mark.parametrize("size", range(9))
def test_ordered(size: int) -> None:
    assert len(toy.lists.ordered(list(range(size)))) == size
"""


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    (tmp_path / "src" / "toy").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "toy" / "__init__.py").touch()
    (tmp_path / "src" / "toy" / "lists.py").write_text(CODE)
    (tmp_path / "tests" / "test_lists.py").write_text(TEST)
    (tmp_path / "tests" / "test_else.py").write_text("def test_nothing() -> None: ...\n")
    options = "[pytest]\naddopts = --doctest-modules\n"
    (tmp_path / "pytest.ini").write_text(options)
    return Project(tmp_path, tmp_path / "src" / "toy")


def mutate(toy: Project, *options: str, package: str = "lists") -> str:
    """The command's output; it does not import torch for a package that needs none."""
    command = [sys.executable, "-m", "tools.mutants", package, "--source", "src/toy"]
    command += ["--root", str(toy.root), "--preload", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def changes(code: str) -> list[str]:
    return [site.change for site in sites(ast.parse(code), "toy.py", set())]


def changes_of(statement: str) -> list[str]:
    """Changes of one statement in a function that returns something."""
    return changes(f"def f(self, x, y) -> int:\n    {statement}\n")


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("y = x > 0", "y = x > 0 -> y = x >= 0"),
        ("y = x is None", "y = x is None -> y = x is not None"),
        ("y = x in y", "y = x in y -> y = x not in y"),
        ("y = x + y", "y = x + y -> y = x - y"),
        ("y = x // 2", "y = x // 2 -> y = x % 2"),
        ("y = x & y", "y = x & y -> y = x | y"),
        ("y = -x", "y = -x -> y = x"),
        ("y = not x", "y = not x -> y = x"),
        ("y = x and y", "y = x and y -> y = x or y"),
        ("y = 0.5", "y = 0.5 -> y = 1.5"),
        ("y = True", "y = True -> y = False"),
        ("y = f(x, low=y)", "y = f(x, low=y) -> y = f(x)"),
        ("y = x.sum(dim=-1)", "x.sum(dim=-1) -> x.sum(dim=1)"),
        ("y = min(x)", "y = min(x) -> y = max(x)"),
        ("y = x.any()", "y = x.any() -> y = x.all()"),
        ("y = x[:y]", "x[:y] -> x[:y + 1]"),
        ("y = x[1:]", "x[1:] -> x[2:]"),
        ("y = x if x else y", "y = x if x else y -> y = y if x else x"),
        ("y = [a for a in x if a]", "[a for a in x if a] -> [a for a in x]"),
        ("return x", "return x -> return None"),
        ("y += x", "y += x -> pass"),
        ("y += x", "y += x -> y -= x"),
        ("x.clear()", "x.clear() -> pass"),
        ("self.x = y", "self.x = y -> pass"),
        ("if x: y = 0", "if x: -> if True:"),
        ("while x: y = 0", "while x: -> while False:"),
    ],
)
def test_every_kind_of_change_is_made(statement: str, change: str) -> None:
    assert change in changes_of(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "raise ValueError(x + 1)",
        "y = f'{x + 1}'",
        "y = 'left' + x",
        "y: Literal[1] = x",
        "assert x > 0",
        "import os",
        "print(x + 1)",
        "return None",
        "y = f(x, device=y)",
        "def __repr__(self): return x + 1",
    ],
)
def test_words_and_types_stay_as_they_are(statement: str) -> None:
    assert changes_of(statement) == []


def test_code_outside_function_bodies_stays_as_it_is() -> None:
    assert changes("x = 1\n@f(1)\ndef g(x: int = 1) -> int:\n    '''1'''\n    pass\n") == []
    assert changes("if TYPE_CHECKING:\n    def f(): return 1\n") == []
    assert changes("@overload\ndef f() -> int: return 1\n") == []


def test_equal_changes_are_numbered_and_long_ones_cut() -> None:
    assert changes_of("f(0); f(0)") == [
        "f(0) -> pass", "f(0) -> f(1)", "f(0) -> pass #2", "f(0) -> f(1) #2",
    ]  # fmt: skip
    long = f"y = f({'a' * 99}, 1, {'b' * 99})"
    assert changes_of(long) == [f"…{'a' * 28}, 1, {'b' * 28}… -> …{'a' * 28}, 2, {'b' * 28}…"]


def test_arguments_without_a_default_are_never_left_out(toy: Project) -> None:
    required = required_arguments([toy.source / "lists.py"])
    assert required == {("ordered", "values"), ("first", "values"), ("unused", "values")}
    found = sites(ast.parse("def f(): x = ordered(values=y, down=z)"), "toy.py", required)
    assert [site.change for site in found] == [
        "x = ordered(values=y, down=z) -> x = ordered(values=y)"
    ]


def test_mutants_are_spread_over_files_lines_and_functions() -> None:
    short = "def f(x):\n" + "    x += 1; x -= 1\n" * 10
    long = "".join(f"def f{i}(x):\n    x += 1\n    x -= 1\n" for i in range(30))
    found = sites(ast.parse(short), "short.py", set()) + sites(ast.parse(long), "long.py", set())
    chosen = pick(found, 20, 0, lambda site: True)
    assert len(chosen) == len({(site.file, site.line) for site in chosen}) == 20
    assert sum(site.file == "short.py" for site in chosen) == 4
    assert chosen == pick(found[::-1], 20, 0, lambda site: True)
    assert chosen != pick(found, 20, 1, lambda site: True)
    assert not pick(found, 20, 0, lambda site: False)


def test_tests_are_found_by_what_they_name(toy: Project) -> None:
    assert toy.tests("lists") == ["tests/test_lists.py", "src/toy/lists.py"]


def test_a_few_cases_of_every_test_come_first(toy: Project) -> None:
    site = toy.mutants("lists", 9, 0)[0]
    seconds = {f"a.py::many[{i}]": 1.0 for i in range(90)} | {"b.py::one": 50.0, "b.py::two": 55.0}
    executed = {site.file: [[[site.line], list(range(92))]]}
    toy.records["a.py"] = {"seconds": seconds, "executed": executed}
    chosen = toy.choose(site, ["a.py"])
    assert list(chosen) == ["a.py", "b.py"]
    assert len(chosen["a.py"]) == 10
    assert list(chosen["b.py"]) == ["b.py::one"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of processes")
def test_the_time_of_processes_that_still_run_counts() -> None:
    began = cpu_seconds()
    code = "import time; sum(range(5 * 10**7)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = cpu_seconds() - began
        process.kill()
    assert running > 0.1
    assert cpu_seconds() - began >= running - 0.05


def test_processes_that_a_test_has_ended_leave_no_negative_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session()
    session.pytest_runtest_logstart("a test")
    monkeypatch.setattr("tools.mutants.children.cpu_seconds", lambda: 0.0)
    session.pytest_runtest_logfinish("a test")
    assert session.seconds["a test"] == 0.0


@pytest.mark.parametrize(("code", "noticed"), [(0, ""), (1, "x"), (2, "x"), (3, ""), (5, "")])
def test_a_failure_of_pytest_itself_notices_nothing(
    toy: Project, monkeypatch: pytest.MonkeyPatch, code: int, noticed: str
) -> None:
    monkeypatch.setattr(Session, "run", lambda *_: code)
    monkeypatch.syspath_prepend(str(toy.source.parent))
    mutant = toy.mutants("lists", 1, 0)[0]
    task = partial(toy.run, mutant, {"x": {}})
    found = dict(forked({"mutant": task}, 1, 60.0, toy.root / "logs"))
    assert found == {"mutant": noticed and f"collecting {noticed}"}


def test_survivors_are_listed_explained_and_run_again(toy: Project) -> None:
    """A weak test misses a mutant; its explanation moves with the line; a better test ends it."""
    shown = mutate(toy)
    table = toy.root / "tests" / "mutants.md"
    text = table.read_text()
    row = "| `lists.py:5` | `ordered` | `values.sort() -> pass` | 9 |  |"
    assert "## lists: 2 of 4 caught (50 %, seed 0)" in text
    assert row in text
    assert (
        "| `lists.py:19` | `unused` | `values.clear() -> pass` | no test runs this line |" in text
    )
    assert "caught by src/toy/lists.py::toy.lists.first" in shown

    table.write_text(text.replace(row, row.replace("|  |", "| Of no account. |")))
    code = toy.source / "lists.py"
    code.write_text(CODE.replace("module.", "module,\nof us."))
    assert "3/3" in mutate(toy)
    row = "| `lists.py:6` | `ordered` | `values.sort() -> pass` | 9 | Of no account. |"
    assert row in table.read_text()
    assert "caught by" not in mutate(toy)

    better = "\n\ndef test_order() -> None:\n    assert toy.lists.ordered([2, 1]) == [1, 2]\n"
    (toy.root / "tests" / "test_lists.py").write_text(TEST + better)
    shown = mutate(toy, "--survivors")
    assert "1/1" in shown
    assert "values.sort() -> pass: caught by tests/test_lists.py::test_order" in shown
    assert "## lists: 3 of 4 caught" in table.read_text()


def test_a_package_that_does_not_exist_is_refused(toy: Project) -> None:
    with pytest.raises(AssertionError, match="no package or module named 'nothing'"):
        mutate(toy, package="nothing")
