"""What a run tells about the columns of its table: left out, suspicious, important.

These records are parts of results (`results.py`), and are stored under the names of their fields.
"""

from dataclasses import dataclass
from typing import Any, Literal

from metricgrad.studies.typed import checked

Suspicion = Literal["id", "leak", "constant"]
_SUSPECTED = {"leak": "gives the target away", "id": "looks like an id", "constant": "constant"}


@dataclass(frozen=True)
class DroppedColumn:
    """A column of the file that is not a feature; the reason is the option that says so."""

    name: str
    reason: str


@dataclass(frozen=True)
class SuspiciousColumn:
    """A feature that may do harm, with the reason as a sentence without its full stop."""

    name: str
    kind: Suspicion
    reason: str

    @property
    def label(self) -> str:
        """What it is suspected of, as tables and sentences have it."""
        return _SUSPECTED[self.kind]


@dataclass(frozen=True)
class ImportantColumns:
    """The columns that matter most: how much the metric falls when each of them is shuffled.

    Attributes:
        means: Mean fall of the metric over the shuffles of a column, the largest first.
        spreads: Standard deviation of that fall over the shuffles, in the same order.
        rows: Test rows that were shuffled; of queries, documents.
        shuffles: How often each column was shuffled.
    """

    names: list[str]
    means: list[float]
    spreads: list[float]
    rows: int
    shuffles: int


def column_facts(stored: dict[str, Any]) -> dict[str, Any]:
    """The records of a file by field, as far as it has any: older files do not.

    Raises ValueError or TypeError where the file is damaged.
    """
    found: dict[str, Any] = {}
    for name, kind in (("dropped", DroppedColumn), ("suspicious", SuspiciousColumn)):
        found[name] = [checked(kind(**each)) for each in stored.get(name, [])]
    if stored.get("importances") is not None:
        important = checked(ImportantColumns(**stored["importances"]))
        if not len(important.names) == len(important.means) == len(important.spreads):
            raise ValueError(f"importances of {important.names!r:.40} have another length")
        found["importances"] = important
    return found
