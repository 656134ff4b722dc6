"""A source tree and its tests: which tests execute which line, and the mutants to try on them.

What a test file executes is kept in `build/mutants` until the file, a helper it imports or a source
file it executes changes.
"""

import ast
import hashlib
import importlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import coverage

from tools.mutants.children import COLLECTING, Changed, Session, forked
from tools.mutants.sites import Site, pick, required_arguments, sites

BUDGET = 60.0  # recorded seconds of tests that one mutant has to pass
FIRST = 3  # cases of a test function that come before the fourth case of any other
RECORDING = 3600.0  # seconds after which recording a test file is given up


class Project:
    """The package below `source`, whose tests are in `root / "tests"` and in its docstrings."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        self.source = source
        self.kept = root / "build" / "mutants"
        self.trees: dict[str, ast.Module] = {}
        self.records: dict[str, Any] = {}

    def digest(self, names: Iterable[str]) -> dict[str, str]:
        """What identifies the present text of each file; empty if there is no such file."""
        paths = {name: self.root / name for name in sorted(set(names))}
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""
            for name, path in paths.items()
        }

    def modules(self, package: str) -> list[Path]:
        """The files of a package, or the one module of that name."""
        found = sorted((self.source / package).rglob("*.py"))
        return found or [self.source / f"{package}.py"]

    def mutants(self, package: str, count: int, seed: int) -> list[Site]:
        """The seeded mutants of a package."""
        required = required_arguments(self.source.rglob("*.py"))
        found: list[Site] = []
        for path in self.modules(package):
            name = self._relative(path)
            self.trees[name] = ast.parse(path.read_text())
            found += sites(self.trees[name], name, required)
        return pick(found, count, seed, self._compiles)

    def tests(self, package: str) -> list[str]:
        """Test files that name something of a package (all, if none does), and its doctests."""
        names = {path.name for path in (self.source / package).glob("*/")}
        for path in self.modules(package):
            names |= {getattr(node, "name", "") for node in ast.parse(path.read_text()).body}
        # Only what can be reached at the top, as `mg.fit` can, tells that a test is about it.
        listed = [self.source / name for name in ("__init__.py", "api.py")]
        text = " ".join(path.read_text() for path in listed if path.exists())
        names &= set(re.findall(r"\w+", text))
        names -= {path.stem for path in self.source.iterdir()}
        names.add(package)
        top = self.source.name
        found = []
        every = sorted((self.root / "tests").glob("test_*.py"))
        for path in every:
            used = [each for each in self._with_helpers(path) if each.stem != "conftest"]
            text = "\n".join(each.read_text() for each in used)
            known = "|".join({top, *re.findall(rf"import {top} as (\w+)", text)})
            if names & set(re.findall(rf"\b(?:{known})(?:\.| import )(\w+)", text)):
                found.append(path)
        doctests = [path for path in self.modules(package) if ">>>" in path.read_text()]
        return [self._relative(path) for path in [*(found or every), *doctests]]

    def record(self, files: Iterable[str], jobs: int) -> None:
        """Runs test files to learn what their tests execute, except where that is known."""
        self.kept.mkdir(parents=True, exist_ok=True)
        paths = {name: self.kept / f"{name.replace('/', '.')}.json" for name in sorted(set(files))}
        tasks = {}
        for name, path in paths.items():
            self.records[name] = json.loads(path.read_text()) if path.exists() else {"files": {}}
            stamps = self.records[name]["files"]
            if not stamps or stamps != self.digest(stamps):
                tasks[name] = partial(self._recorded, name)
        began = time.monotonic()
        logs = self.kept / "recording"
        for number, (name, found) in enumerate(forked(tasks, jobs, RECORDING, logs), 1):
            if found is None:
                sys.exit(f"Recording what {name} executes failed: see the last file of {logs}.")
            self.records[name] = found
            paths[name].write_text(json.dumps(found))
            tests = f"{len(found['seconds'])} tests, {sum(found['seconds'].values()):.0f} s"
            passed = f"{time.monotonic() - began:.0f} s passed"
            print(f"recorded {number}/{len(tasks)}: {name}, {tests}; {passed}", flush=True)
            for test in found["failed"]:
                print(f"  left out, because it fails here: {test}")

    def _recorded(self, name: str) -> dict[str, Any]:
        os.chdir(self.root)
        within = [f"{self.source}/*"]
        tracer = coverage.Coverage(data_file=None, include=within, config_file=False)
        session = Session(tracer=tracer)
        tracer.start()
        if session.run(name) > 1:
            raise RuntimeError(f"pytest could not run {name}")
        tracer.stop()
        without = {*session.failed, *session.skipped}
        seconds = {test: took for test, took in session.seconds.items() if test not in without}
        number = {test: i for i, test in enumerate(seconds)}
        data = tracer.get_data()
        executed: dict[str, list[Any]] = {}
        for file in data.measured_files():
            # Lines that the same tests execute share one list; most of a function's lines do.
            groups: dict[tuple[int, ...], list[int]] = {}
            for line, tests in data.contexts_by_lineno(file).items():
                numbers = tuple(sorted(number[test] for test in tests if test in number))
                groups.setdefault(numbers, []).append(line)
            groups.pop((), None)
            if groups:
                executed[self._relative(file)] = [[lines, key] for key, lines in groups.items()]
        used = [self._relative(path) for path in self._with_helpers(self.root / name)]
        return {
            "files": self.digest([*used, *executed]),
            "seconds": seconds,
            "executed": executed,
            "failed": session.failed,
        }

    def choose(self, mutant: Site, files: Iterable[str]) -> dict[str, dict[str, float]]:
        """Tests that execute a mutant's statement, by file: a minute in all, fastest first.

        A few cases of every test function come first, drawn by lot but always the same ones. The
        many cases of one function therefore do not use up the time of the others.
        """
        seconds: dict[str, float] = {}
        for name in files:
            tests = list(self.records[name]["seconds"].items())
            for lines, numbers in self.records[name]["executed"].get(mutant.file, []):
                if not set(mutant.lines).isdisjoint(lines):
                    seconds |= (tests[i] for i in numbers)
        drawn = sorted(seconds)
        random.Random(mutant.name).shuffle(drawn)
        cases: Counter[str] = Counter()
        ranked = []
        for test in drawn:
            function = test.split("[")[0]
            ranked.append((cases[function] >= FIRST, seconds[test], test))
            cases[function] += 1
        left = BUDGET
        by_file: dict[str, dict[str, float]] = {}
        for _, took, test in sorted(ranked):
            if took <= left or not by_file:
                by_file.setdefault(test.split("::")[0], {})[test] = took
                left -= took
        return dict(sorted(by_file.items(), key=lambda each: sum(each[1].values())))

    def run(self, mutant: Site, chosen: dict[str, dict[str, float]]) -> str:
        """The first test that notices a mutant, or nothing; call it in a child."""
        os.chdir(self.root)
        path = self.root / mutant.file
        parts = path.relative_to(self.source.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        sys.meta_path.insert(0, Changed(module, path, self._compiled(mutant)))
        signal.setitimer(signal.ITIMER_PROF, COLLECTING)
        try:
            importlib.import_module(module)  # now, because pytest puts an importer before ours
        except Exception:
            return "importing the package"
        for file, tests in chosen.items():
            session = Session(tests)
            code = session.run(file, "-x")
            # 1: a test failed. 2: an import failed. Where pytest itself fails, nothing was noticed.
            if code in (1, 2):
                return next(iter(session.failed), f"collecting {file}")
        return ""

    def _compiled(self, mutant: Site) -> Any:
        mutant.change_tree()
        tree = self.trees[mutant.file]
        return compile(ast.fix_missing_locations(tree), str(self.root / mutant.file), "exec")

    def _compiles(self, mutant: Site) -> bool:
        """Whether a mutant is valid Python; the tree is left as it was."""
        try:
            self._compiled(mutant)
        except (SyntaxError, ValueError):
            return False
        finally:
            mutant.restore_tree()
        return True

    def _relative(self, path: Path | str) -> str:
        return Path(path).relative_to(self.root).as_posix()

    def _with_helpers(self, path: Path) -> list[Path]:
        """A test file and the modules of tests/ that it imports, directly or through others."""
        found = [path]
        for each in found:
            lines = re.findall(r"^from tests\b[^(\n]*(?:\([^)]*\))?", each.read_text(), re.M)
            words = set(re.findall(r"\w+", " ".join(lines)))
            helpers = (self.root / "tests").glob("*.py")
            found += [helper for helper in helpers if helper.stem in words and helper not in found]
        return found + list(path.parent.glob("conftest.py"))
