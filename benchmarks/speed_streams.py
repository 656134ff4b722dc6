"""Tables that do not fit into memory: time to read and prepare them, and memory of the command.

python -m benchmarks.speed_streams 50000000 FOLDER    # once in full: seconds and memory
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyarrow import dataset, parquet

from benchmarks.timing import Row, best_of
from metricgrad.estimators import ParquetTable, survey

SEED = 0
ROWS = 5_000_000
COLUMNS = 30
GROUP = 100_000  # rows of a row group
FILE = 2_500_000  # rows of a file
LIMIT = 2048  # MiB
_TRAIN = """
import re, runpy, sys
sys.argv = ["metricgrad", "train", sys.argv[1], "--metric", "f1", "--out", sys.argv[2]]
try:
    runpy.run_module("metricgrad", run_name="__main__")
except SystemExit as end:
    assert not end.code
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def streaming() -> Iterator[Row]:
    """Five million rows of Parquet: one pass, preparing all rows, and memory of the command."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "table"
        write(place, ROWS)
        files = dataset.dataset(place)

        def scan() -> None:
            for _ in files.to_batches():
                pass

        found = survey(ParquetTable(files), "target", test_share=0.25)

        def prepare() -> None:
            for frame in found.table.frames(found.features):
                found.preparation.transform(frame)

        for name, ours in (
            ("reading and surveying", lambda: survey(ParquetTable(files), "target")),
            ("reading and preparing", prepare),
        ):
            spent, base = best_of(3, ours, scan)
            claim = f"{name} {ROWS:,} x {COLUMNS} of Parquet, against pyarrow's own scan"
            yield Row(claim, spent, base, "s", spent / base, "at most 3", spent / base <= 3)
        most = trained(place, Path(folder) / "run")
        claim = f"metricgrad train on it, memory, against {LIMIT} MiB"
        yield Row(claim, most, LIMIT, "MiB", most / LIMIT, "at most 1", most <= LIMIT)


def trained(table: Path, run: Path) -> float:
    """MiB of a process that is `metricgrad train`, at its peak, with all that it has imported."""
    command = [sys.executable, "-c", _TRAIN, str(table), str(run)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(re.split(r"\s+", printed.strip())[-1]) / 1024


def write(folder: Path, rows: int) -> None:
    """Writes a table group by group, so that making it takes little memory, too."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(SEED)
    names = [f"x{number + 1}" for number in range(COLUMNS)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("target", pa.int8())])
    for first in range(0, rows, FILE):
        path = folder / f"part-{first // FILE:03}.parquet"
        with parquet.ParquetWriter(path, schema) as writer:
            for start in range(first, min(rows, first + FILE), GROUP):
                size = min(GROUP, rows - start)
                x = generator.standard_normal((COLUMNS, size), dtype=np.float32)
                target = (x[0] + x[1] * x[2] > 2).astype(np.int8)
                writer.write_table(pa.table([*x, target], schema=schema))


def main() -> None:
    """Writes a table of any size, and prints how long everything takes and the memory."""
    rows, folder = int(sys.argv[1]), Path(sys.argv[2])
    if not (folder / "table").exists():
        write(folder / "table", rows)
    files = dataset.dataset(folder / "table")
    started = time.perf_counter()
    read = sum(len(batch) for batch in files.to_batches())
    scanned = time.perf_counter()
    survey(ParquetTable(files), "target", test_share=0.25)
    surveyed = time.perf_counter()
    most = trained(folder / "table", folder / "run")
    print(
        f"{read:,} rows: pyarrow's scan {scanned - started:.1f} s, our pass "
        f"{surveyed - scanned:.1f} s, metricgrad train {time.perf_counter() - surveyed:.1f} s with "
        f"{most:.0f} MiB"
    )


if __name__ == "__main__":
    main()
