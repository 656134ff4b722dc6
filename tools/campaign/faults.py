"""Faults of machines and people: SIGKILL, a full disk, read-only folders, two processes at once.

After SIGKILL at random moments of `mg.fit`, `train`, `compare` and `learn`, up to five in a row,
the same call must end with the result of an uninterrupted run. A full disk or a folder that cannot
be written to must end in a sentence without a traceback, and the same call, once there is room,
with that result.
"""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tools.campaign.case import Case, Ended, Outcome, child, command, sentence
from tools.campaign.work import Work, differs, workshop

NAMES = ("fit", "train", "compare", "learn")
SHARES = (0.3, 0.3, 0.2, 0.2)  # of all kills
IN_A_ROW = 5
SIZES = (0, 300, 3_000, 30_000)  # bytes that a file may have on the full disk
NOBODY = 65534


def cases(size: int, seed: int) -> list[Case]:
    """`size` kills in total, then the other faults."""
    found = []
    for name, share in zip(NAMES, SHARES, strict=True):
        kills = max(1, round(size * share))
        found.append(Case(f"SIGKILL during {name}", partial(check_kills, name, kills, seed)))
    for name in NAMES:
        found.append(Case(f"full disk during {name}", partial(check_full_disk, name)))
        found.append(Case(f"read-only folder for {name}", partial(check_read_only, name)))
        found.append(Case(f"a file where {name} needs a folder", partial(check_file, name)))
        found.append(Case(f"two processes of {name}", partial(check_two, name)))
    found.append(Case("full disk during predict and report", check_full_outputs))
    return found


def check_kills(name: str, kills: int, seed: int) -> Outcome:
    """Kills a task at random moments, lets it finish, and compares its result."""
    rng = np.random.default_rng([seed, NAMES.index(name)])
    failures: list[str] = []
    done = 0
    with workshop() as make:
        expected, seconds = uninterrupted(make(name))
        while done < kills and len(failures) < 5:
            work = make(name)
            for _ in range(min(IN_A_ROW, kills - done)):
                ended = child(work.task(), kill_after=seconds * rng.uniform(0.02, 1.0))
                if not ended.killed:  # it was faster than the first, or its result is there
                    break
                done += 1
            if name == "learn" and work.out.exists():
                continue  # it was killed after its last line; it refuses to overwrite the loss
            wrong = differs(work, child(work.task()), expected)
            failures += [wrong] if wrong else []
    return Outcome(f"{done} kills", failures)


def uninterrupted(work: Work) -> tuple[Any, float]:
    """The result and the seconds of a task that nothing happens to."""
    ended = child(work.task())
    if ended.complaint(codes=(0,)):
        raise RuntimeError(f"{work.name} fails without a fault: {ended.text}")
    return work.found(), ended.seconds


def check_full_disk(name: str) -> Outcome:
    """Files cannot grow beyond a size; then there is room again."""
    failures: list[str] = []
    with workshop() as make:
        expected, _ = uninterrupted(make(name))
        for size in SIZES:
            work = make(name)
            ended = child(sentence(work.task()), before=partial(limit_files, size))
            wrong = ended.complaint()
            failures += [f"files of {size} bytes: {wrong}"] if wrong else []
            again = work.out.exists() and name == "learn"
            wrong = None if again else differs(work, child(work.task()), expected)
            failures += [f"after files of {size} bytes: {wrong}"] if wrong else []
    return Outcome(f"{len(SIZES)} sizes of files", failures)


def limit_files(size: int) -> None:
    """No file of this process may grow beyond a size; writing then fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def check_full_outputs() -> Outcome:
    """`predict --out` and `report` on a full disk; half a file must not stay behind."""
    failures: list[str] = []
    with workshop() as make:
        work = make("train")
        uninterrupted(work)
        out = work.place / "predictions.csv"
        tasks = {
            "predict": command("predict", work.out, work.place.parent / "data.csv", "--out", out),
            "report": command("report", work.out),
        }
        for name, task in tasks.items():
            wrong = child(task, before=partial(limit_files, 300)).complaint(codes=(2,))
            failures += [f"{name}: {wrong}"] if wrong else []
            half = name == "predict" and out.exists()
            failures += ["predict left half a file"] if half else []
            wrong = child(task).complaint(codes=(0,))
            failures += [f"{name} once there is room: {wrong}"] if wrong else []
    return Outcome("2 commands", failures)


def check_read_only(name: str) -> Outcome:
    """A folder that this user may not write to, before the start and in the middle of a run."""
    failures: list[str] = []
    with workshop() as make:
        expected, seconds = uninterrupted(make(name))
        work = make(name)
        if name != "learn":
            child(work.task(), kill_after=0.7 * seconds)
        folders = [work.place, *(each for each in work.place.rglob("*") if each.is_dir())]
        for each in folders:
            os.chmod(each, 0o555)
        wrong = child(sentence(work.task()), before=give_up_rights).complaint(codes=(2,))
        failures += [f"it is read-only: {wrong}"] if wrong else []
        for each in folders:
            os.chmod(each, 0o755)
        wrong = differs(work, child(work.task()), expected)
        failures += [f"it may be written to again: {wrong}"] if wrong else []
    return Outcome("a folder without the right to write", failures)


def give_up_rights() -> None:
    """Becomes nobody, because permissions do not hold root back."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def check_file(name: str) -> Outcome:
    """A file has the name of the folder, or of its parent."""
    failures: list[str] = []
    with workshop() as make:
        for parent in (False, True):
            work = make(name)
            if parent:
                work.place.rmdir()
                work.place.write_text("a file")
            else:
                work.out.write_text("a file")
            wrong = child(sentence(work.task())).complaint(codes=(2,))
            failures += [wrong] if wrong else []
    return Outcome("2 places", failures)


def check_two(name: str) -> Outcome:
    """The same call twice at the same time, in one folder: one result, and it is the right one."""
    failures: list[str] = []
    with workshop() as make:
        expected, _ = uninterrupted(make(name))
        for _ in range(3):
            work = make(name)
            with ThreadPoolExecutor(2) as pool:
                both: list[Ended] = list(pool.map(child, [sentence(work.task())] * 2))
            failures += [f"{name}: {wrong}" for each in both if (wrong := each.complaint())]
            if all(each.code for each in both):
                failures.append(f"neither finished: {both[0].text}")
            elif work.found() != expected:
                failures.append("the result is not that of one process alone")
    return Outcome("3 pairs", failures)
