"""Child processes that run pytest: with a tracer to learn what tests execute, or with a mutant.

Children are forked, so that all share one import of torch. Whatever happens in one, an endless loop
or a crash, ends that child only.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

# The warning says that the parent imported a plugin first, which is what it is for.
KNOWN = "ignore::pytest.PytestAssertRewriteWarning"
FLAGS = ["-p", "no:cacheprovider", "-q", "--tb=line", "--no-header", "-W", KNOWN]
SLACK = 20.0  # seconds of CPU time a test may take beyond four times what was recorded
COLLECTING = 60.0  # seconds of CPU time for importing and collecting one file


class Session:
    """The pytest plugin of a child: runs chosen tests in their order, or all of them traced.

    Args:
        chosen: Recorded seconds of the tests to run. None runs all tests, without a time limit.
        tracer: A `coverage.Coverage` that is told which test runs.
    """

    def __init__(self, chosen: dict[str, float] | None = None, tracer: Any = None) -> None:
        self.chosen = chosen
        self.tracer = tracer
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def run(self, path: str, *flags: str) -> int:
        """Runs the tests of one file; the exit code of pytest."""
        if self.chosen is not None:
            signal.setitimer(signal.ITIMER_PROF, COLLECTING)
        return int(pytest.main([path, *FLAGS, *flags], plugins=[self]))

    def pytest_sessionstart(self) -> None:
        """Spares property tests the search for a smaller example, and complaints about time."""
        if "hypothesis" in sys.modules:
            from hypothesis import HealthCheck, Phase, settings

            slow = [HealthCheck.too_slow]
            phases = [Phase.explicit, Phase.generate]
            settings.register_profile(
                "mutants", settings(), phases=phases, suppress_health_check=slow
            )
            settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the chosen tests."""
        if self.chosen is not None:
            order = {name: i for i, name in enumerate(self.chosen)}
            kept = [item for item in items if item.nodeid in order]
            items[:] = sorted(kept, key=lambda item: order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tells the tracer which test begins, or sets the alarm that ends an endless loop."""
        self.seconds[nodeid] = -cpu_seconds()
        if self.tracer:
            self.tracer.switch_context(nodeid)
        if self.chosen is not None:
            signal.setitimer(signal.ITIMER_PROF, SLACK + 4 * self.chosen[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what did not pass."""
        if not report.passed:
            (self.failed if report.failed else self.skipped).append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Notes the CPU time of the test, which other processes on the machine do not change."""
        # Processes that the test has ended, and that are no children of ours, no longer count.
        self.seconds[nodeid] = max(0.0, self.seconds[nodeid] + cpu_seconds())
        if self.tracer:
            self.tracer.switch_context("")


def cpu_seconds() -> float:
    """CPU time of this process and of all that it has started, those that still run too."""
    ticks = sum(_ticks(pid) for pid in _started(os.getpid()))
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def _started(pid: int) -> Iterator[int]:
    """Running processes below one; none where the system does not list them, as Linux does."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _started(int(child))


def _ticks(pid: int) -> int:
    """What a process has taken, and those below it that have ended; 0 if it just ended itself."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))  # utime, stime, cutime and cstime
    return 0


class Changed(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports one module from code made in memory, and leaves all others to the usual finders."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        super().__init__(name, str(path))
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The changed module, if it is the one asked for."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """The mutant, never the byte code that is cached on disk."""
        return self.code


def forked(
    tasks: dict[str, Callable[[], Any]], jobs: int, limit: float, logs: Path
) -> Iterator[tuple[str, Any]]:
    """Runs tasks in children, `jobs` at a time; a child that is killed or fails gives None."""
    logs.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    waiting = list(tasks.items())
    running: dict[Any, tuple[Any, str, Path, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, task = waiting.pop(0)
                path = Path(folder, str(len(waiting)))
                log = logs / f"{len(tasks) - len(waiting)}.txt"
                child = context.Process(target=_work, args=(task, path, log))
                child.start()
                running[child.sentinel] = (child, name, path, time.monotonic() + limit)
            done = wait(list(running), timeout=1)
            for sentinel, (child, name, path, end) in list(running.items()):
                if sentinel in done or time.monotonic() > end:
                    child.kill()
                    child.join()
                    del running[sentinel]
                    yield name, json.loads(path.read_text()) if path.exists() else None


def _work(task: Callable[[], Any], path: Path, log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    result = json.dumps(task())
    path.with_suffix(".part").write_text(result)
    path.with_suffix(".part").rename(path)  # a child killed while it writes leaves no result
