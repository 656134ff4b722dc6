"""Tables as TOML: what is compared, on what, with which settings, and what a paper printed.

A table has rows (usually methods) and columns. Every row and column together are one configuration,
trained once for each seed; a table without `[columns]` has one configuration per row, whose run
gives the `[values]` that are its columns. With both, every run gives `[values]`, and `[[parts]]`
say which are shown together. Settings are merged, the more special ones winning:

    [settings]  <  [scale.small] or [scale.paper]  <  [columns.NAME]  <  [rows.NAME]

`[paper.ROW]` holds the values that a paper printed, `[[claims]]` what the table must show,
`deviations` one sentence for everything that differs from the paper.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tables"
RESULTS = Path(__file__).parent / "results"
SCALES = ("small", "paper")
_LABEL_KEYS = ("label", "seeds")


@dataclass(frozen=True)
class Run:
    """One seed of one configuration.

    Attributes:
        table: name of the table.
        row: name of the row.
        column: name of the column, "all" where one run fills the row.
        seed: of everything random.
        configuration: the merged settings.
        path: where its report is kept.
        siblings: the same for all seeds of its row and column.
    """

    table: str
    row: str
    column: str
    seed: int
    configuration: dict[str, Any]
    path: Path
    siblings: tuple[Path, ...]


@dataclass(frozen=True)
class Table:
    """A TOML file, read."""

    name: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        """One line."""
        return self.content["title"]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Settings of each row, in reading order."""
        return self.content["rows"]

    @property
    def columns(self) -> dict[str, str]:
        """Labels of the columns, in reading order."""
        if "columns" in self.content:
            return {name: column["label"] for name, column in self.content["columns"].items()}
        return self.content["values"]

    def parts(self) -> "list[tuple[str, Table]]":
        """Tables to show one after the other, with a caption each: itself, or what `[[parts]]` cut it into.

        Where a run of each row and column gives several `[values]`, a part shows one of them for
        some columns and rows.
        """
        found = []
        for part in self.content.get("parts", []):
            columns = {
                f"{name}_{part['value']}": self.content["columns"][name] for name in part["columns"]
            }
            rows = {name: row for name, row in self.rows.items() if name in part["rows"]}
            found.append(
                (
                    part["caption"],
                    Table(self.name, {**self.content, "columns": columns, "rows": rows}),
                )
            )
        return found or [("", self)]

    def runs(
        self, scale: str, seeds: int | None = None, rows: list[str] | None = None
    ) -> list[Run]:
        """Everything to run, seed by seed, so that a grid that is cut short has whole tables first.

        Args:
            scale: "small" or "paper".
            seeds: how many; None takes the table's own number.
            rows: names of the rows; None takes all.

        Returns:
            The runs.
        """
        unknown = set(rows or ()) - set(self.rows)
        if unknown:
            raise ValueError(
                f"{self.name} has no row {', '.join(sorted(unknown))}; it has {', '.join(self.rows)}"
            )
        if scale not in self.content.get("scale", {}):
            raise ValueError(
                f"{self.name} has no scale {scale!r}; it has {', '.join(self.content.get('scale', {}))}"
            )
        number = seeds or self.content["settings"].get("seeds", 3)
        return [
            self._run(row, column, seed, scale, number)
            for seed in range(number)
            for column in self.content.get("columns", {"all": {}})
            for row in rows or self.rows
        ]

    def _run(self, row: str, column: str, seed: int, scale: str, seeds: int) -> Run:
        layers = (
            self.content["settings"],
            self.content["scale"][scale],
            self.content.get("columns", {}).get(column, {}),
            self.rows[row],
        )
        merged = {
            key: value for layer in layers for key, value in layer.items() if key not in _LABEL_KEYS
        }
        paths = tuple(
            RESULTS / self.name / scale / f"{row}--{column}--{each}.json" for each in range(seeds)
        )
        return Run(
            self.name,
            row,
            column,
            seed,
            {"task": self.content["task"], **merged},
            paths[seed],
            paths,
        )


def table(name: str) -> Table:
    """The table of that name; ValueError names those that exist."""
    if name not in table_names():
        raise ValueError(f"there is no table {name!r}; there are {', '.join(table_names())}")
    return Table(name, tomllib.loads((FOLDER / f"{name}.toml").read_text()))


def table_names() -> list[str]:
    """Names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
