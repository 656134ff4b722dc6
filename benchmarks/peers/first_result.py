"""What a first result takes: lines of code, seconds, and the size of what has to be installed.

Every program in `programs/` trains a linear model on made-up data, as the library's own
introduction does, and prints its metric. The size is that of the distributions that the program
loads, and beside it that of the library alone; torch, which all of them need, is not counted.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.classification import Settings

_COUNTED = """
import json, runpy, sys
from importlib.metadata import distribution, packages_distributions
runpy.run_path(sys.argv[1])
owners = packages_distributions()
tops = {name.partition(".")[0] for name in list(sys.modules)}
found = {owner for top in tops for owner in owners.get(top, [])}
def size(owner):
    files = distribution(owner).files or []
    paths = (file.locate() for file in files)
    return sum(path.stat().st_size for path in paths if path.is_file())
sizes = {owner: size(owner) for owner in found}
print(json.dumps(sizes))
"""
_COMMON = ("torch",)


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Lines, seconds and MB of one program."""
    path = Path(__file__).parent / "programs" / f"{settings['program']}.py"
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COUNTED, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - begin
    sizes = {
        name.lower().replace("_", "-"): size / 1e6
        for name, size in json.loads(done.stdout.splitlines()[-1]).items()
    }
    own = Path(__file__).parents[2] / "src" / "metricgrad"
    sizes["metricgrad"] = sum(file.stat().st_size for file in own.rglob("*.py")) / 1e6
    loaded = {name: size for name, size in sizes.items() if name not in _COMMON}
    if settings["package"] != "metricgrad":
        loaded.pop("metricgrad")
    return {
        "values": {
            "lines": float(lines(path)),
            "seconds": seconds,
            "own": sizes[settings["package"]],
            "loaded": sum(loaded.values()),
        }
    }


def lines(path: Path) -> int:
    """Lines of a program that have code."""
    return sum(bool(line.strip()) for line in path.read_text().splitlines())
