"""The command line of the benchmarks: `python -m benchmarks list | run NAME | report`."""

import argparse
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from benchmarks import report
from benchmarks.data import BUNDLED, data_folder
from benchmarks.runner import finished, run_all
from benchmarks.table import SCALES, table, table_names

EXAMPLES = """examples:
  python -m benchmarks list
  python -m benchmarks run tabular --data ~/data            # three seeds of every row and column; resumes if stopped
  python -m benchmarks run tabular --rows uniloss --seeds 1 # one row, one seed
  python -m benchmarks run mnist_ap --scale paper           # the paper's budget
  python -m benchmarks report                               # builds benchmarks/README.md from the results

Data comes from --data DIR or the environment variable METRICGRAD_DATA.
"""


def show_list(console: Console) -> None:
    """All tables, with how much of each is there."""
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
    """Runs a table, or all of them."""
    names = table_names() if arguments.name == "all" else [arguments.name]
    rows = arguments.rows.split(",") if arguments.rows else None
    runs = [
        run for name in names for run in table(name).runs(arguments.scale, arguments.seeds, rows)
    ]
    needs_data = any(run.configuration.get("dataset", BUNDLED[0]) not in BUNDLED for run in runs)
    errors = run_all(
        runs, data_folder(arguments.data) if needs_data else None, arguments.jobs, console
    )
    for error in errors:
        console.print(f"[red]failed[/red] {error}", highlight=False)
    return 1 if errors else 0


def main(words: list[str] | None = None) -> int:
    """Reads the arguments and does what they say; 0 if it could."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Benchmarks of metricgrad: tables as TOML, runs as JSON, one report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | run | report")
    commands.add_parser("list", help="all tables, with how much of each is there")
    running = commands.add_parser("run", help="run a table; runs that have a report are skipped")
    running.add_argument("name", help="of the table, or all")
    running.add_argument(
        "--data", type=Path, help="folder of the data sets (default: METRICGRAD_DATA)"
    )
    running.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="small fits two cores; paper is the full budget",
    )
    running.add_argument("--seeds", type=int, help="how many (default: the table's own number)")
    running.add_argument("--rows", help="names of rows, separated by commas (default: all)")
    running.add_argument(
        "--jobs", type=int, default=2, help="processes at once, one thread each (default: 2)"
    )
    commands.add_parser("report", help="build benchmarks/README.md from the results")
    arguments = parser.parse_args(words)
    console = Console()
    try:
        if arguments.command == "run":
            return run(arguments, console)
        if arguments.command == "list":
            show_list(console)
        else:
            console.print(f"wrote {report.write()}")
    except ValueError as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
