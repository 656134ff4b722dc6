"""Builds `benchmarks/README.md`, and with it the leaderboard, from the reports of all runs.

Each table shows our mean and spread, the paper's value and the difference, and how the setup
deviates from the paper. Nothing on the page is written by hand: text comes from the tables' TOML,
numbers come from the runs' JSON.
"""

import json
from pathlib import Path

from benchmarks import leaderboard
from benchmarks.claims import Cell, Cells, verdict
from benchmarks.runner import finished
from benchmarks.samples import shown
from benchmarks.standings import standings
from benchmarks.table import RESULTS, Run, Table, table, table_names

PAGE = Path(__file__).parent / "README.md"
INTRODUCTION = """# Benchmarks

This page has all numbers that metricgrad claims, each with the command that produces it. Nothing
here is installed with the library. `python -m benchmarks list` shows the tables, `run NAME --data
DIR` runs one, and `report` builds this page from the tables in `tables/` and the runs in
`results/`. Each run is a JSON file with its configuration, seed, versions, commit, hardware,
threads, time and curve.

Values are means over seeds ± their standard deviation, and the best value of a column is bold.
Model, stopping point, threshold, learning rate and slope are chosen on validation data; each table
says what was chosen differently. Claims that a table has to support are listed below it, with the
word "holds" or "does not hold".
"""

SPEED = """
## Speed

`{command} --out benchmarks/results/speed.json` (or `make speed`) compares our code with a
yardstick. Both are timed in turn within one run, best of several rounds, on one thread. The command
exits with 1 if a claim does not hold. Memory is what a call adds to a fresh process at its peak;
"ties" are scores rounded to quarters.
"""


def write(page: Path = PAGE) -> Path:
    """Builds the page and returns its path."""
    if page == PAGE:
        draw()  # first, because a section shows the pictures that it finds
    sections = [INTRODUCTION]
    for name in sorted(table_names(), key=lambda name: table(name).content.get("order", 99)):
        sections += [section(table(name), scale) for scale in table(name).content["scale"]]
    sections.append(speed(RESULTS / "speed.json"))
    if page == PAGE:
        leaderboard.write()
    page.write_text("\n".join(part for part in sections if part).rstrip() + "\n")
    return page


def draw() -> None:
    """The pictures of all tables that have one and are complete."""
    from benchmarks import figures, pictures  # matplotlib is slow to import, and only this needs it

    folder = PAGE.parent / "figures"
    for content in map(table, table_names()):
        runs = content.runs("small") if content.content.get("figure") else []
        if runs and all(map(finished, runs)):
            picture = getattr(figures, content.name)
            path = folder / f"{content.name}.png"
            picture(collect(content, runs), content.rows, content.content.get("paper"), path)
        pictures.draw(content, folder)
    figures.gains(_gains(), folder / "gains.png")


def _gains() -> list[tuple[str, Cell, Cell]]:
    """Cross-entropy and UniLoss on every task of the two tables on tabular data."""
    found = []
    for content in map(table, ("tabular", "own_metrics")):
        cells = collect(content, [run for run in content.runs("small") if finished(run)])
        found += [
            (label, cells["cross_entropy", column], cells["uniloss", column])
            for column, label in content.columns.items()
        ]
    return found


def section(content: Table, scale: str) -> str:
    """A table of one scale with its text, claims and deviations; empty if nothing of it has run."""
    runs = [run for run in content.runs(scale) if finished(run)]
    if not runs:
        return ""
    cells = collect(content, runs)
    digits = content.content.get("digits", 4)
    lines = [f"## {content.title}" + (" (full scale)" if scale == "paper" else ""), ""]
    lines += [content.content["about"].strip(), ""]
    for caption, part in content.parts():
        lines += (
            [f"**{caption}**", ""] * bool(caption)
            + grid(part, cells, digits)
            + [""] * bool(caption)
        )
    lines += standings(content, cells, digits)
    lines += ["", _footing(content, runs, scale)]
    if content.content.get("claims"):
        lines += [""] + [
            f"- {verdict(claim, cells, content, digits)}" for claim in content.content["claims"]
        ]
    if content.content.get("deviations"):
        lines += ["", "Deviations from the paper:", ""]
        lines += [f"- {sentence}" for sentence in content.content["deviations"]]
    lines += shown(content, runs)
    titles = {"": content.title}
    for kind in ("picture", "curves"):
        titles[f"_{kind}"] = content.content.get(kind, {}).get("title", "")
    for ending, title in titles.items():
        if (PAGE.parent / "figures" / f"{content.name}{ending}.png").exists():
            lines += ["", f"![{title}](figures/{content.name}{ending}.png)"]
    return "\n".join(lines) + "\n"


def collect(content: Table, runs: list[Run]) -> Cells:
    """Values of all seeds, by row and column."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        result = json.loads(run.path.read_text())["result"]
        values = result["values"] if "values" in content.content else {"": result["value"]}
        for name, value in values.items():
            column = "_".join(part for part in (run.column, name) if part and part != "all")
            values_of_seeds = value if isinstance(value, list) else [value]
            found.setdefault((run.row, column), []).extend(values_of_seeds)
    return {key: Cell(values) for key, values in found.items()}


def grid(content: Table, cells: Cells, digits: int) -> list[str]:
    """The Markdown table; under each row that a paper has too, its values and the difference."""
    columns = content.columns
    lines = [
        f"| {content.content.get('corner', 'method')} | " + " | ".join(columns.values()) + " |"
    ]
    lines.append("| --- |" + " ---: |" * len(columns))
    best = {column: _best(content, cells, column) for column in columns}
    gains = content.content.get("gains", [])
    for row, settings in content.rows.items():
        shown = []
        for column in columns:
            cell = cells.get((row, column))
            text = "" if cell is None else _text(cell, digits, "+" if column in gains else "")
            shown.append(f"**{text}**" if text and cell == best[column] else text)
        lines.append(f"| {settings['label']} | " + " | ".join(shown) + " |")
        lines += _paper_lines(content, cells, row, digits)
    return lines


def _text(cell: Cell, digits: int, sign: str) -> str:
    """Mean and spread; gains have a sign."""
    spread = f" ±{cell.spread:.{digits}f}" if round(cell.spread, digits) else ""
    return f"{cell.mean:{sign}.{digits}f}{spread}"


def speed(path: Path) -> str:
    """The section on speed, from the report of `python -m benchmarks.speed`."""
    if not path.exists():
        return ""
    report = json.loads(path.read_text())
    lines = [SPEED.format(command=report["command"])]
    lines += [
        "| claim | ours | yardstick | ratio | must be |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for row in report["rows"]:
        factor = 1000 if row["unit"] == "ms" else 1
        values = [f"{row[key] * factor:.1f} {row['unit']}" for key in ("ours", "yardstick")]
        holds = "" if row["holds"] else " (does not hold)"
        shown = [row["claim"], *values, f"{row['ratio']:.2f}", row["limit"] + holds]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _footing(content: Table, runs: list[Run], scale: str) -> str:
    seeds = {run.seed for run in runs}
    stacked = content.content["settings"].get("stacked", 1)
    missing = len(content.runs(scale)) - len(runs)
    seconds = sum(json.loads(run.path.read_text())["seconds"] for run in runs)
    words = [
        f"`python -m benchmarks run {content.name}`"
        if scale == "small"
        else f"`python -m benchmarks run {content.name} --scale paper`"
    ]
    seeds_in_all = len(seeds) * stacked
    number = "1 seed" if seeds_in_all == 1 else f"{seeds_in_all} seeds"
    words.append(f"{number}, {_duration(seconds)} on one core in total")
    words += [f"{missing} runs still missing"] if missing else []
    return ", ".join(words) + f"; runs in [results/{content.name}](results/{content.name})."


def _paper_lines(content: Table, cells: Cells, row: str, digits: int) -> list[str]:
    printed = content.content.get("paper", {}).get(row, {})
    if not printed.keys() & content.columns.keys():
        return []
    values = []
    differences = []
    for column in content.columns:
        values.append(f"{printed[column]:.{digits}f}" if column in printed else "")
        both = column in printed and (row, column) in cells
        differences.append(
            f"{cells[row, column].mean - printed[column]:+.{digits}f}" if both else ""
        )
    source = content.content.get("source", "the paper")
    return [
        f"| *{source}* | " + " | ".join(values) + " |",
        "| *difference* | " + " | ".join(differences) + " |",
    ]


def _best(content: Table, cells: Cells, column: str) -> Cell | None:
    kind = content.content.get("best", "high")
    if kind == "none":
        return None
    low = kind == "low" or column in content.content.get("lower", [])
    found = (cells[row, column] for row in content.rows if (row, column) in cells)
    return max(found, key=lambda cell: -cell.mean if low else cell.mean, default=None)


def _duration(seconds: float) -> str:
    if seconds > 3600:
        return f"{seconds / 3600:.1f} hours"
    minutes = max(1, round(seconds / 60))
    return "1 minute" if minutes == 1 else f"{minutes} minutes"
