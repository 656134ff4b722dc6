"""The command: runs the cases of the themes, two at a time, and writes the table."""

import argparse
import importlib
import os
import re
import sys
import time
from pathlib import Path

from tools.campaign.case import Case
from tools.mutants.children import forked

THEMES = ["sets", "losses", "functions", "faults", "files", "tables", "budgets"]
# One at a time: another case beside them would change what they measure.
ALONE = ["budgets"]
# What the cases use, imported once, before they are forked.
PRELOADED = ["torch", "sklearn.metrics", "pandas", "pyarrow.parquet", "matplotlib.pyplot"]
PRELOADED += ["metricgrad.api", "metricgrad.cli", "metricgrad.studies", "metricgrad.report"]
# A case that has become nobody may not read Python's own folder, and zipfile and the optimizers of
# torch import these late.
PRELOADED += ["encodings.cp437", "torch._dynamo"]
LIMIT = 1800.0  # seconds after which a case is ended
HEAD = """# What the campaign tried, and what failed

`make campaign` runs seeded random input, hostile sets, faults and damaged files against the library
and writes this table; `tools/campaign` explains the themes. A case that fails names what it found,
and the command then exits with 1.
"""
COLUMNS = "| case | tried | result |\n|---|---|---|\n"


def main() -> None:
    """Reads the arguments, runs the themes, writes the table, and exits 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    parser.add_argument("--only", action="append", choices=THEMES, help="run just this theme")
    parser.add_argument("--seed", type=int, default=0, help="seed for everything random")
    parser.add_argument("--sets", type=int, default=1_000_000, help="number of fuzzed sets")
    parser.add_argument("--kills", type=int, default=50, help="number of moments for SIGKILL")
    parser.add_argument("--steps", type=int, default=10_000, help="steps that memory is held over")
    parser.add_argument("--jobs", type=int, default=2, help="number of cases run at a time")
    parser.add_argument("--out", type=Path, default=Path("tests/campaign.md"), help="the table")
    args = parser.parse_args()
    # One thread each; a second thread would also not survive the fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    sizes = {"sets": args.sets, "faults": args.kills, "losses": args.steps}
    failed = 0
    for theme in args.only or THEMES:
        started = time.monotonic()
        module = importlib.import_module(f"tools.campaign.{theme}")
        rows = run(theme, module.cases(sizes.get(theme, 0), args.seed), args.jobs)
        failed += sum(result != "ok" for _, _, result in rows)
        write(args.out, theme, args.seed, rows, time.monotonic() - started)
    print(f"{failed} failed" if failed else "nothing failed")
    sys.exit(1 if failed else 0)


def run(theme: str, cases: list[Case], jobs: int) -> list[tuple[str, str, str]]:
    """Name, what was tried, and the result of each case, in their order."""
    found: dict[str, dict[str, str]] = {}
    logs = Path("build", "campaign", theme)
    tasks = {case.name: case.run for case in cases}
    for name, outcome in forked(tasks, 1 if theme in ALONE else jobs, LIMIT, logs):
        crashed = {"tried": "", "result": f"failed: it crashed or took over {LIMIT:.0f} s"}
        found[name] = outcome or crashed
        tried = found[name]["tried"]
        print(
            f"{theme}: {name}: {tried + ': ' if tried else ''}{found[name]['result']}", flush=True
        )
    return [(name, found[name]["tried"], found[name]["result"]) for name in tasks]


def write(
    path: Path, theme: str, seed: int, rows: list[tuple[str, str, str]], seconds: float
) -> None:
    """Replaces one theme's section of the table."""
    text = path.read_text() if path.exists() else ""
    sections = {part.split(":")[0]: part for part in re.split(r"^## ", text, flags=re.M)[1:]}
    failed = sum(result != "ok" for _, _, result in rows)
    section = f"{theme}: {failed} of {len(rows)} cases failed "
    section += f"(seed {seed}, {max(1, round(seconds / 60))} min)\n\n{COLUMNS}"
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        section += f"| {' | '.join(cells)} |\n"
    sections[theme] = section
    parts = [sections[name].strip() for name in THEMES if name in sections]
    path.write_text("\n## ".join([HEAD, *(f"{part}\n" for part in parts)]))


if __name__ == "__main__":
    main()
