"""The project around the code: imports, words, the command, examples, documents, environment."""

import ast
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metricgrad as mg
from tests import commands
from tests.processes import run_script

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "metricgrad"
LAYERS = [
    *(
        "isotonic",
        "ops",
        "progress",
        "storage",
        "processes",
        "metrics",
        "surrogates",
        "distributed",
    ),
    *("boosting", "training", "estimators", "studies", "report", "cli", "__main__"),
]
MODULES = sorted(SOURCE.rglob("*.py"))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        check=False,
        env=surroundings,
    )


def imported_layers(path: Path) -> set[str]:
    """Layers that a module imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "metricgrad"
        ):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("metricgrad.")
            }
            assert not any(alias.name.startswith("benchmarks") for alias in node.names)
    return found & set(LAYERS)


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def relative_to_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_one_way(path: Path) -> None:
    layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if layer not in ("__init__", "api"):
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        assert imported_layers(path) <= set(allowed), f"{path.name} imports from a layer above it"


def test_nothing_above_the_metrics_asks_for_their_class_or_family() -> None:
    """What kind of metric it is, the metric states; only the list of metrics shows its families."""
    asking = []
    for path in MODULES:
        if path.is_relative_to(SOURCE / "metrics"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                named = re.findall(r"\w*Metric\b", ast.unparse(node.args[1]))
                asking += [f"{relative(path)}:{node.lineno} isinstance {name}" for name in named]
            shown = path.is_relative_to(SOURCE / "cli")
            if isinstance(node, ast.Attribute) and node.attr == "families" and not shown:
                asking.append(f"{relative(path)}:{node.lineno} .families")
    assert not asking


def test_one_module_drops_a_column_of_scores() -> None:
    """Metric and loss would read other sets if each decided for itself what `[..., 1]` means."""
    column = re.compile(r"shape\[-?1:?\] [!=]= \(?1\b|[^n]squeeze\(1\)|[^n]squeeze\(-1\) if")
    found = {relative(path) for path in MODULES if column.search(path.read_text())}
    assert found == {"metrics/one_score.py", "training/streams.py"}  # the latter refuses labels


def test_no_tensor_lives_as_long_as_the_process() -> None:
    """A tensor made in inference mode, on a lost device or in a trace would stay for all."""
    makers = re.compile(r"\btorch\.(tensor|zeros|ones|full|empty|eye|arange|linspace|rand\w*)\(")
    cache = re.compile(r"(functools\.)?(lru_)?cache\b")
    kept = []
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "Tensor" in ast.unparse(node):
                cached = any(cache.match(ast.unparse(each)) for each in node.decorator_list)
                kept += [f"{relative(path)}:{node.lineno} {node.name}"] * cached
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and makers.search(ast.unparse(node)):
                kept.append(f"{relative(path)}:{node.lineno}")
    assert not kept


def test_no_file_is_longer_than_350_lines() -> None:
    long = [relative(path) for path in MODULES if len(path.read_text().splitlines()) > 350]
    assert not long


def test_the_words_of_the_search_are_the_fields_own() -> None:
    old = re.compile(r"entrant|contender|tournament|\barena\b|\bheats?\b", re.IGNORECASE)
    stored = '"entrants"'  # a key of checkpoints, which unfinished runs have on disk
    texts = {relative(path): path.read_text().replace(stored, "") for path in MODULES}
    assert not [name for name, text in texts.items() if old.search(text)]


# Names that two modules may share, because they do stand for one thing.
SHARED_NAMES = {
    # A command of the command line is called what it does, and so is the function that does it.
    *("train", "compare", "predict", "learn"),
}


def test_no_name_is_used_for_two_things() -> None:
    """Classes, functions, type aliases and constants of modules; private ones have no readers."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            names: list[ast.expr] = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [ast.Name(node.name)]
            elif isinstance(node, ast.Assign):
                names = node.targets
            elif isinstance(node, ast.AnnAssign):
                names = [node.target]
            for name in names:
                if isinstance(name, ast.Name) and not name.id.startswith("_"):
                    homes.setdefault(name.id, []).append(relative(path))
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not {name: twice[name] for name in twice.keys() - SHARED_NAMES}


# Modules about the same subject, each for its own package.
SHARED_MODULES = {"__init__", "base", "decisions", "ranking", "text"}


def test_no_module_name_is_used_for_two_things() -> None:
    stems = [path.stem for path in MODULES]
    assert {stem for stem in stems if stems.count(stem) > 1} <= SHARED_MODULES


OUTSIDE = [
    path for name in ("benchmarks", "examples", "docs") for path in (ROOT / name).rglob("*.py")
]


@pytest.mark.parametrize("path", sorted(OUTSIDE), ids=lambda path: path.name)
def test_only_public_names_are_used_outside(path: Path) -> None:
    """Public is what the API reference lists: names of `mg`, and a few that packages export."""
    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    public = {"metricgrad"} | {f"metricgrad.{name}" for name in dir(mg)}
    public |= set(re.findall(r"^::: (metricgrad[\w.]+)$", reference, re.MULTILINE))
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            modules = r"mg\.(?:\w+|(?:baselines|boosting|nets|ops)\.\w+)"
            if re.fullmatch(modules, name := ast.unparse(node)):
                used.add(name.replace("mg.", "metricgrad."))
    used = {name for name in used if name.split(".")[0] == "metricgrad"}
    assert used <= public


def test_a_star_imports_the_public_names() -> None:
    found = run("-c", "from metricgrad import *; print(sorted(set(dir()) & {'fit', 'UniLoss'}))")
    assert found.stdout.strip() == "['UniLoss', 'fit']", found.stderr
    assert mg.__all__ == dir(mg)


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    listed = re.findall(r" as (\w+)$", (SOURCE / "api.py").read_text(), re.MULTILINE)
    assert dir(mg) == sorted(listed)
    assert all(getattr(mg, name) is not None for name in dir(mg))
    with pytest.raises(AttributeError, match="metricgrad has no 'nothing'"):
        _ = mg.nothing


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import metricgrad; dir(metricgrad)", "torch sklearn pandas"),
        (
            "import metricgrad as mg; mg.UniLoss('f1')",
            "metricgrad.training metricgrad.metrics.watching safetensors torch._dynamo sklearn",
        ),
        (
            "import metricgrad as mg; mg.UniLoss('f1'); mg.fit",
            "metricgrad.metrics.watching torch._dynamo sklearn pandas scipy",
        ),
        (
            "import metricgrad as mg; mg.boosting.objective('f1')",
            "lightgbm xgboost catboost metricgrad.training sklearn pandas",
        ),
        ("import metricgrad.cli", "torch sklearn pandas"),
    ],
)
def test_imports_are_light(code: str, absent: str) -> None:
    ask = f"{code}\nimport sys; print([each for each in {absent.split()} if each in sys.modules])"
    result = run("-c", ask)
    assert result.stdout.strip() == "[]", result.stderr


def test_public_names_fit_one_screen() -> None:
    assert len((SOURCE / "api.py").read_text().splitlines()) < 50


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_code_in_documents_runs(path: Path) -> None:
    """Blocks with prompts are doctests; the others run one after another in one namespace."""
    namespace: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, namespace, path.name, str(path), 0)
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            result = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
            assert not result.failed
            namespace |= test.globs
        else:
            exec(compile(code, str(path), "exec"), namespace)


@pytest.mark.parametrize(
    "path", [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))], ids=relative_to_root
)
def test_files_that_documents_name_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:[\w.]+/)+[a-z_]+\.(?:py|md|toml))`", path.read_text()))
    roots = (ROOT, SOURCE)
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def test_tables_of_the_paper_index_exist() -> None:
    page = (ROOT / "docs" / "papers.md").read_text()
    assert named_tables(page) <= {
        path.stem for path in (ROOT / "benchmarks" / "tables").glob("*.toml")
    }


def test_the_evidence_of_how_to_choose_exists() -> None:
    found = named_tables((ROOT / "docs" / "index.md").read_text())
    assert len(found) > 5
    assert found <= {path.stem for path in (ROOT / "benchmarks" / "tables").glob("*.toml")}


def named_tables(page: str) -> set[str]:
    """Names in the last column of a page's tables."""
    cells = [row.split("|")[-2] for row in page.splitlines() if row.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_metric_table_in_the_docs_is_current() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for name in mg.metric_names():
        metric = mg.metric(name)
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert f"| {', '.join(metric.families)} |" in row, (
            f"docs/metrics.md has no current row for {name}"
        )
        assert f"| {metric.ties} |" in row
        assert f"| {metric.undefined} |" in row
        assert ("↑" in row) == metric.higher_is_better


@pytest.mark.parametrize(
    "path",
    # tests/test_across_ranks.py runs ddp.py, in one process and in two.
    sorted({*(ROOT / "examples").glob("*.py")} - {ROOT / "examples" / "ddp.py"}),
    ids=lambda path: path.name,
)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    assert run_script(path, output) == 0, output.read_text()
    assert output.read_text().strip()


def test_the_command_lists_all_metrics_in_eighty_columns() -> None:
    result = run("-m", "metricgrad", "metrics")
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name in mg.metric_names():
        assert ("↑" in lines[name]) == mg.metric(name).higher_is_better


def test_the_command_describes_one_metric() -> None:
    result = commands.run("metrics", "ndcg")
    assert "mg.metric('ndcg', k=None, gain='linear')" in result.stdout
    assert "sklearn.metrics.ndcg_score" in result.stdout


def test_the_command_speaks_json() -> None:
    listed = json.loads(commands.run("metrics", "--json").stdout)
    assert [each["name"] for each in listed] == mg.metric_names()
    assert next(each for each in listed if each["name"] == "edit_distance")["worst"] is None


def test_a_wrong_name_is_an_error_without_a_traceback() -> None:
    result = run("-m", "metricgrad", "metrics", "ndgc")
    assert result.returncode == 2
    assert "did you mean ndcg" in result.stderr
    assert "Traceback" not in result.stderr
    assert "there is no metric named '[/red]'" in commands.run("metrics", "[/red]").stderr


def test_a_terminal_without_unicode_will_do() -> None:
    result = run("-m", "metricgrad", "metrics", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert "0..1 +" in result.stdout


def test_the_command_says_what_to_install() -> None:
    hide = "import sys; sys.modules['typer'] = None; from metricgrad.__main__ import main; main()"
    result = run("-c", hide)
    assert result.returncode == 1
    assert (
        result.stderr.strip()
        == "The metricgrad command needs typer. Install it with: pip install 'metricgrad[app]'"
    )


def test_no_cuda_package_is_installed() -> None:
    result = run(".ci/no_cuda.py")
    assert result.returncode == 0, result.stderr


def test_versions_agree() -> None:
    assert f'version = "{mg.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {mg.__version__}" in (ROOT / "CHANGELOG.md").read_text()
