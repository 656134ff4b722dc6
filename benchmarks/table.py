"""Tables as TOML files: what is compared, on what data, and with which settings.

A table has rows (usually methods) and columns. A row and a column together are one configuration,
which runs once per seed. In a table without `[columns]`, every row is a configuration, and its runs
give the `[values]`, which are shown as columns. In a table with both, every run gives all
`[values]`, and `[[parts]]` say which are shown together. Settings are merged; the later ones win:

    [settings]  <  [scale.small] or [scale.paper]  <  [columns.NAME]  <  [rows.NAME]

A row with `only = ["f1"]` runs only in columns whose names end so.

`[product]` writes many similar rows at once. It has settings that they share and `factors`, each a
table of named settings; there is one row for every choice of one entry from each factor. The names
of the chosen entries, joined by underscores, are the row's name, and their labels are its label:

    factors = [{a9a = {label = "a9a"}}, {f1 = {label = "F1"}, mcc = {label = "MCC"}}]
    rows    = a9a_f1 ("a9a, F1"), a9a_mcc ("a9a, MCC")

`[paper.ROW]` has the values that a paper printed, `[[claims]]` says what the table must show,
`[[standings]]` asks for mean ranks and wins (`standings.py`), and `deviations` has one sentence for
each difference from the paper. `[picture]` and `[curves]` name rows whose predictions and trainings
are drawn (`pictures.py`). With `stacked = 3` in the settings, one run has three seeds, and its
values are lists. A table without `[scale.paper]` says why in `no_paper`.
"""

import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tables"
RESULTS = Path(__file__).parent / "results"
SCALES = ("small", "paper")
_LABEL_KEYS = ("label", "seeds", "only")


@dataclass(frozen=True)
class Run:
    """One seed of one configuration."""

    table: str
    row: str
    column: str  # "all" if one run fills the row
    seed: int
    configuration: dict[str, Any]  # the merged settings
    path: Path  # of its report
    siblings: tuple[Path, ...]  # the reports of all seeds of the same row and column


@dataclass(frozen=True)
class Table:
    """The content of a TOML file."""

    name: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        """The title, one line."""
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
        """Captions and tables to show: the table itself, or its `[[parts]]`.

        A part shows one of the `[values]` of every run, for some columns and rows.
        """
        found = []
        for part in self.content.get("parts", []):
            columns = {
                f"{name}_{part['value']}": self.content["columns"][name] for name in part["columns"]
            }
            rows = {name: row for name, row in self.rows.items() if name in part["rows"]}
            shown = Table(self.name, {**self.content, "columns": columns, "rows": rows})
            found.append((part["caption"], shown))
        return found or [("", self)]

    def runs(
        self, scale: str, seeds: int | None = None, rows: list[str] | None = None
    ) -> list[Run]:
        """All runs, seed by seed, so that a table that is stopped early has whole seeds.

        `seeds` is a number (None: the table's own), `rows` are names (None: all).
        """
        unknown = set(rows or ()) - set(self.rows)
        if unknown:
            raise ValueError(
                f"table {self.name} has no row {', '.join(sorted(unknown))}; "
                f"its rows are {', '.join(self.rows)}"
            )
        scales = self.content.get("scale", {})
        if scale not in scales:
            raise ValueError(
                f"table {self.name} has no scale {scale!r}; its scales are {', '.join(scales)}"
            )
        number = seeds or self.content["settings"].get("seeds", 3)
        return [
            self._run(row, column, seed, scale, number)
            for seed in range(number)
            for column in self.content.get("columns", {"all": {}})
            for row in rows or self.rows
            if column.endswith(tuple(self.rows[row].get("only", [""])))
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
        configuration = {"task": self.content["task"], **merged}
        return Run(self.name, row, column, seed, configuration, paths[seed], paths)


def table(name: str) -> Table:
    """The table with this name; a ValueError lists the names that exist."""
    if name not in table_names():
        raise ValueError(f"there is no table {name!r}; the tables are {', '.join(table_names())}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    products = _rows_of(content.pop("product")) if "product" in content else {}
    return Table(name, {**content, "rows": {**products, **content.get("rows", {})}})


def _rows_of(product: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a `[product]`; the last factor changes fastest."""
    shared = {key: value for key, value in product.items() if key != "factors"}
    found = {}
    for chosen in itertools.product(*(factor.items() for factor in product["factors"])):
        settings = {key: value for _, entry in chosen for key, value in entry.items()}
        label = ", ".join(entry["label"] for _, entry in chosen)
        found["_".join(name for name, _ in chosen)] = {**shared, **settings, "label": label}
    return found


def table_names() -> list[str]:
    """Names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
