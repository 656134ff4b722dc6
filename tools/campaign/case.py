"""A case of the campaign, what becomes of it, and commands that run in a forked child."""

import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """What a case tried, such as "9,000 sets", and what was wrong; nothing if it is right."""

    tried: str
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The outcome in one line."""
        if not self.failures:
            return "ok"
        more = len(self.failures) - 1
        first = " ".join(self.failures[0].split())[:300]
        return f"failed: {first}" + (f" (and {more} more)" if more else "")


@dataclass(frozen=True)
class Case:
    """One line of the table; an exception that `check` raises is a failure, too."""

    name: str
    check: Callable[[], Outcome]

    def run(self) -> dict[str, str]:
        """Tried and result, ready for JSON."""
        try:
            found = self.check()
        except Exception as error:
            traceback.print_exc()
            found = Outcome("", [f"{type(error).__name__}: {error}"])
        for each in found.failures[:20]:
            print(each, flush=True)
        return {"tried": found.tried, "result": found.text()}


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (negative for a signal), what it printed, its seconds."""

    code: int
    text: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether the parent ended it before it was done."""
        return self.code == -signal.SIGKILL

    def complaint(self, codes: tuple[int, ...] = (0, 2)) -> str | None:
        """What is wrong with how it ended: a traceback, another exit code, an error unexplained."""
        if "Traceback" in self.text or self.code not in codes:
            last = next((line for line in reversed(self.text.splitlines()) if line.strip()), "")
            return f"exit code {self.code}: {last or 'nothing was printed'}"
        if self.code and not self.text.strip():
            return f"exit code {self.code} without a sentence"
        return None


def child(
    task: Callable[[], Any],
    *,
    kill_after: float | None = None,
    limit: float = 180.0,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Runs a task in a fork of this process, which has imported everything already.

    Args:
        task: Its output is kept; SystemExit sets the exit code, any other exception is code 1.
        kill_after: Seconds after which the child is sent SIGKILL.
        limit: Seconds after which a child that should have ended is killed.
        before: What the child does first, such as giving up rights.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    started = time.monotonic()
    number = os.fork()
    if not number:
        os.close(reading)
        _in_child(task, writing, before)
    os.close(writing)
    text = _read(reading, number, started + (limit if kill_after is None else kill_after))
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    return Ended(code, text, time.monotonic() - started)


def command(*arguments: object) -> Callable[[], None]:
    """`metricgrad ARGUMENTS` as a task."""
    words = [str(each) for each in arguments]

    def task() -> None:
        from metricgrad.cli import app

        sys.argv = ["metricgrad", *words]
        app(words)

    return task


def sentence(task: Callable[[], Any]) -> Callable[[], None]:
    """A library call as a command would run it: what it refuses is a sentence."""

    def told() -> None:
        try:
            task()
        except (OSError, ValueError, RuntimeError) as error:
            print(error)
            raise SystemExit(2) from None

    return told


def _in_child(task: Callable[[], Any], writing: int, before: Callable[[], None] | None) -> None:
    """Runs the task and ends the process, without the clean-up that belongs to the parent."""
    code = 0
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding="utf-8", write_through=True)
        if before is not None:
            before()
        task()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def _read(pipe: int, number: int, deadline: float) -> str:
    """What a child prints until it ends or the deadline comes, when it is killed."""
    parts: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            os.kill(number, signal.SIGKILL)
            break
        part = os.read(pipe, 1 << 16)
        if not part:
            break
        parts.append(part)
    os.close(pipe)
    return b"".join(parts).decode("utf-8", "replace")
