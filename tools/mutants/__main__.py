"""The command: runs the mutants that are not known yet and writes the table of survivors."""

import argparse
import importlib
import json
import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tools.mutants.children import forked
from tools.mutants.project import Project
from tools.mutants.sites import Site

PACKAGES = ["metrics", "surrogates", "training", "estimators"]
# What the package and its tests import, or the children would spend seconds on it each.
PRELOADED = ["torch", "torch._dynamo", "torchmetrics", "sklearn.metrics", "pandas", "hypothesis"]
PRELOADED += ["sklearn.utils.estimator_checks", "typer.testing", "sacrebleu", "matplotlib.pyplot"]
PRELOADED += ["rouge_score.rouge_scorer", "rapidfuzz", "safetensors.torch"]
LIMIT = 900.0  # seconds after which a child is ended, even if it only waits
HEAD = """# Mutants that the tests do not notice

`make mutants` makes small mistakes in a package, one at a time, and runs the tests that execute the
changed line. These mistakes were not noticed. Write a test that does, or say in the last column why
none should; what is written there is kept as long as the mutant survives.
"""
COLUMNS = "| line | function | change | tests run | why it survives |\n|---|---|---|---|---|\n"


def main() -> None:
    """Reads the arguments, runs, writes the table and prints the summary."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="packages or modules")
    parser.add_argument("--mutants", type=int, default=60, help="number of mutants of a package")
    parser.add_argument("--seed", type=int, default=0, help="seed that the mutants are drawn by")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants run at a time")
    parser.add_argument(
        "--survivors", action="store_true", help="keep what was caught; rerun the rest"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="folder with src/ and tests/")
    parser.add_argument("--source", default="src/metricgrad", help="folder of the import package")
    parser.add_argument(
        "--preload", nargs="*", default=PRELOADED, help="modules imported just once"
    )
    args = parser.parse_args()
    # One thread each, as `make test` has it; a second thread would also not survive the fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # saves each child a second
    os.environ["COVERAGE_CORE"] = "ctrace"  # the only core that can tell tests apart
    root = args.root.resolve()
    project = Project(root, root / args.source)
    sys.path.insert(0, str(project.source.parent))
    for package in args.packages:
        if not all(path.exists() for path in project.modules(package)):
            parser.error(f"{args.source} has no package or module named {package!r}")
    for name in args.preload:
        importlib.import_module(name)

    tests = {package: project.tests(package) for package in args.packages}
    project.record([file for files in tests.values() for file in files], args.jobs)
    for package in args.packages:
        mutants = project.mutants(package, args.mutants, args.seed)
        results = run(project, mutants, tests[package], args.jobs, args.survivors)
        write(root / "tests" / "mutants.md", package, args.seed, mutants, results)


def run(
    project: Project, mutants: list[Site], files: list[str], jobs: int, survivors: bool
) -> dict[str, Any]:
    """What became of each mutant; results whose source and test files are as before are kept."""
    store = project.kept.with_suffix(".json")
    known = json.loads(store.read_text()) if store.exists() else {}
    tasks = {}
    for mutant in mutants:
        chosen = project.choose(mutant, files)
        fresh = {
            "source": project.digest([mutant.file]),
            "tests": project.digest(chosen),
            "ran": sum(map(len, chosen.values())),
            "caught": "",
        }
        old = known.get(mutant.name, {"source": {}})
        same = old["source"] == fresh["source"]
        if survivors:
            same = same and bool(old["caught"])
        else:
            same = same and old["tests"] == fresh["tests"]
        if not same:
            known[mutant.name] = fresh
            if chosen:
                known.pop(mutant.name)
                tasks[mutant.name] = (fresh, partial(project.run, mutant, chosen))
    began = time.monotonic()
    logs = project.kept / "running"
    work = {name: task for name, (_, task) in tasks.items()}
    for number, (name, caught) in enumerate(forked(work, jobs, LIMIT, logs), 1):
        # A child without a result crashed, or was ended because a test took far too long.
        by = "a crash or a time limit" if caught is None else caught
        known[name] = tasks[name][0] | {"caught": by}
        store.write_text(json.dumps(known, indent=1))
        verdict = f"caught by {by}" if by else "SURVIVED"
        print(
            f"{number}/{len(tasks)} {time.monotonic() - began:.0f} s: {name}: {verdict}", flush=True
        )
    store.write_text(json.dumps(known, indent=1))
    return known


def write(
    path: Path, package: str, seed: int, mutants: list[Site], results: dict[str, Any]
) -> None:
    """Replaces one package's section of the table, keeps explanations, and prints the section."""
    text = path.read_text() if path.exists() else ""
    sections = {part.split(":")[0]: part for part in re.split(r"^## ", text, flags=re.M)[1:]}
    explanations = {}
    for row in sections.get(package, "").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        if len(cells) == 7:
            explanations[re.sub(r":\d+`", "`", cells[1]), cells[2], cells[3]] = cells[5]
    survivors = [mutant for mutant in mutants if not results[mutant.name]["caught"]]
    caught = len(mutants) - len(survivors)
    share = f"{caught / max(1, len(mutants)):.0%}".replace("%", " %")
    section = f"{package}: {caught} of {len(mutants)} caught ({share}, seed {seed})\n\n"
    if survivors:
        section += COLUMNS
    for mutant in survivors:
        file = mutant.file.split("/", 2)[-1]
        function = f"`{mutant.function}`"
        change = f"`{mutant.change}`".replace("|", "\\|")
        ran = results[mutant.name]["ran"] or "no test runs this line"
        why = explanations.get((f"`{file}`", function, change), "")
        section += f"| `{file}:{mutant.line}` | {function} | {change} | {ran} | {why} |\n"
    sections[package] = section
    order = [*PACKAGES, *sorted(sections.keys() - set(PACKAGES))]
    parts = [sections[name].strip() for name in order if name in sections]
    path.write_text("\n## ".join([HEAD, *(f"{part}\n" for part in parts)]))
    print(section)


if __name__ == "__main__":
    main()
