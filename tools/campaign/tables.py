"""Tables that no one would write on purpose: each is read rightly, or refused with a sentence.

Every table is given to `metricgrad train` in a process that may use 4 GB. A case names what must
come out: a result, a refusal, or either of them; never a traceback.
"""

import datetime
import decimal
import gzip
import json
import resource
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from metricgrad import studies
from metricgrad.studies import RunSettings
from tools.campaign.case import Case, Ended, Outcome, child, command, sentence

ROWS = 80
MEMORY = 4 << 30
DONE = (0,)
REFUSED = (2,)
EITHER = (0, 2)
SCRIPT = "<script>alert(1)</script>"
Check = Callable[[Path, Ended], str | None]


def cases(size: int, seed: int) -> list[Case]:
    """One case for every table."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=ROWS)
    y = (x + 0.3 * rng.normal(size=ROWS) > 0).astype(int)
    found = [
        Case(name, partial(check_text, content, codes))
        for name, (content, codes) in texts(x.round(4).tolist(), y.tolist()).items()
    ]
    hostile = partial(check_frame, hostile_names(x, y), DONE, escaped)
    found.append(Case("column names with HTML, quotes and newlines", hostile))
    found.append(Case("100,000 columns", partial(check_wide, seed)))
    for name, (ending, make) in BOMBS.items():
        found.append(Case(name, partial(check_bomb, ending, make)))
    for name, values in odd_types(x).items():
        frame = partial(check_parquet, values, y, seed)
        found.append(Case(f"Parquet: {name}", frame))
    return found


def texts(x: list[float], y: list[int]) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """CSV files, and the exit codes that they may end with."""
    rows = list(zip(x, y, strict=True))
    plain = "".join(f"{a},{b}\n" for a, b in rows)
    quoted = "".join(f'"{a}","some, ""quoted""\ntext","{b}"\n' for a, b in rows)
    mixed = "".join(f"{'n/a?' if at % 9 == 0 else a},{b}\n" for at, (a, b) in enumerate(rows))
    words = "".join(f"{'abc'[at % 3] if at % 2 else a},{b}\n" for at, (a, b) in enumerate(rows))
    comma = "".join(f"{str(a).replace('.', ',')};{b}\n" for a, b in rows)
    gaps = "".join(f"{'' if at % 5 == 0 else a},{b}\n" for at, (a, b) in enumerate(rows))
    huge = "".join(f"{a}e300,{b}\n" for a, b in rows)
    ragged = plain.replace("\n", ",1\n", 3)
    head = "x,target\n"
    return {
        "a byte order mark": (("\ufeff" + head + plain).encode(), DONE),
        "a byte order mark before the target": (
            ("\ufefftarget,x\n" + "".join(f"{b},{a}\n" for a, b in rows)).encode(),
            DONE,
        ),
        "quotes, commas and newlines in text": (('x,"a, ""b""",target\n' + quoted).encode(), DONE),
        "Windows line ends": ((head + plain).replace("\n", "\r\n").encode(), DONE),
        "numbers with some text among them": ((head + mixed).encode(), REFUSED),
        "half numbers, half words": ((head + words).encode(), EITHER),
        "semicolons and decimal commas": (("x;target\n" + comma).encode(), EITHER),
        "missing values": ((head + gaps).encode(), DONE),
        "infinity": ((head + "inf,1\n-inf,0\n" + plain).encode(), EITHER),
        "numbers of 1e300": ((head + huge).encode(), EITHER),
        "rows with too many cells": ((head + plain + ragged).encode(), EITHER),
        "the same column name twice": (
            ("x,x,target\n" + plain.replace(",", ",1,")).encode(),
            REFUSED,
        ),
        "the target twice": (("target,x,target\n" + plain.replace(",", ",1,")).encode(), EITHER),
        "a column without a name": ((",target\n" + plain).encode(), DONE),
        "a single column": (("target\n" + "".join(f"{b}\n" for b in y)).encode(), EITHER),
        "a header alone": (head.encode(), REFUSED),
        "an empty file": (b"", REFUSED),
        "null bytes": ((head + plain).encode().replace(b"1\n", b"\x00\n", 4), EITHER),
        "UTF-16": ((head + plain).encode("utf-16"), REFUSED),
        "Latin-1": (("größe,target\n" + plain).encode("latin-1"), EITHER),
        "a picture called .csv": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, REFUSED),
    }


def check_text(content: bytes, codes: tuple[int, ...]) -> Outcome:
    """`train` on the bytes of a CSV file."""
    return trained("table.csv", lambda path: path.write_bytes(content), codes)


def check_frame(frame: pd.DataFrame, codes: tuple[int, ...], check: Check) -> Outcome:
    """`train` on a frame as CSV, and a look at what it left."""
    return trained("table.csv", lambda path: frame.to_csv(path, index=False), codes, check)


def trained(
    name: str, write: Callable[[Path], Any], codes: tuple[int, ...], check: Check | None = None
) -> Outcome:
    """Writes a table, trains on it for an epoch, and says what was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        write(folder / name)
        task = partial(train, folder / name, folder / "run", page=check is not None)
        ended = child(task, before=limit_memory, limit=600)
        wrong = ended.complaint(codes)
        if wrong is None and check is not None:
            wrong = check(folder / "run", ended)
        told = " ".join(ended.text.replace(str(folder), "").split())[:120]
        result = "a result" if not ended.code else f"refused: {told}"
        return Outcome(result, [wrong] if wrong else [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def train(data: Path, out: Path, page: bool) -> None:
    """What `metricgrad train` does; drawing the page takes longer than all the rest."""
    if page:
        options = ("--hidden", "none", "--epochs", 1, "--method", "cross_entropy", "--out", out)
        command("train", data, *options)()
    settings = RunSettings(data=str(data), method="cross_entropy", hidden=(), epochs=1)
    sentence(lambda: studies.train(settings, out, command="", progress=False))()


def limit_memory() -> None:
    """This process may not use more than MEMORY beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def hostile_names(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """Columns and classes whose names are markup."""
    names = [SCRIPT, "'; DROP TABLE x; --", '"><img src=x onerror=alert(1)>', "a\nb", "[/red]", ""]
    frame = pd.DataFrame({name: np.roll(x, at) for at, name in enumerate(names)})
    return frame.assign(target=np.where(y == 1, SCRIPT, "[bold]no[/bold]"))


def escaped(run: Path, ended: Ended) -> str | None:
    """Whether the page shows markup as text."""
    page = (run / "report.html").read_text()
    loose = [each for each in (SCRIPT, "<img src=x") if each in page]
    return f"report.html has {loose[0]}, not escaped" if loose else None


def check_wide(seed: int) -> Outcome:
    """A table with 100,000 columns and few rows."""

    def write(path: Path) -> None:
        rng = np.random.default_rng(seed)
        values = rng.integers(0, 9, (40, 100_000))
        target = values[:, 0] > 4
        names = ",".join(f"c{at}" for at in range(100_000))
        lines = [
            f"{','.join(map(str, row))},{int(y)}" for row, y in zip(values, target, strict=True)
        ]
        path.write_text(f"{names},target\n" + "\n".join(lines) + "\n")

    return trained("table.csv", write, EITHER)


def gzip_bomb(path: Path) -> None:
    """8 GB of zeros, in 8 MB."""
    block = gzip.compress(b"0,1\n" * (1 << 24))  # members of a gzip file may follow one another
    path.write_bytes(gzip.compress(b"x,target\n") + block * 128)


def gzip_line(path: Path) -> None:
    """A first line of 8 GB."""
    path.write_bytes(gzip.compress(b"x" * (1 << 26)) * 128)


def parquet_bomb(path: Path) -> None:
    """130 million equal rows, which Parquet stores in almost nothing."""
    rows = 1 << 25
    column = pa.array(np.zeros(rows), pa.float64())
    part = pa.table({"x": column, "target": column})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(4):
            writer.write_table(part)


def svmlight_bomb(path: Path) -> None:
    """A few bytes that name column 2,000,000,000."""
    path.write_text("1 1:0.5 2000000000:1\n0 1:0.2\n" * 40)


def check_bomb(ending: str, make: Callable[[Path], None]) -> Outcome:
    """A file that is small until it is read: refused before memory is gone."""
    return trained(f"table.{ending}", make, REFUSED)


BOMBS = {
    "a gzip bomb": ("csv.gz", gzip_bomb),
    "a gzip bomb without a newline": ("csv.gz", gzip_line),
    "a Parquet bomb": ("parquet", parquet_bomb),
    "an svmlight bomb": ("svm", svmlight_bomb),
}


def odd_types(x: np.ndarray) -> dict[str, Any]:
    """Columns of types that CSV does not have."""
    day = datetime.date(2024, 1, 1)
    days = [day + datetime.timedelta(days=int(at)) for at in range(ROWS)]
    numbers = x.round(3).tolist()
    some = [None if at % 4 == 0 else value for at, value in enumerate(numbers)]
    return {
        "decimals": pa.array([decimal.Decimal(str(each)) for each in numbers]),
        "dates": pa.array(days),
        "times of day": pa.array([datetime.time(at % 24) for at in range(ROWS)]),
        "durations": pa.array([datetime.timedelta(hours=at) for at in range(ROWS)]),
        "time zones": pa.array(pd.date_range("2024", periods=ROWS, tz="Asia/Tokyo")),
        "lists": pa.array([[1.0, each] for each in numbers]),
        "structs": pa.array([{"a": each} for each in numbers]),
        "bytes": pa.array([str(each).encode() for each in numbers]),
        "dictionaries": pa.array(["ab"[at % 2] for at in range(ROWS)]).dictionary_encode(),
        "float16": pa.array(x.astype(np.float16)),
        "unsigned 64 bits": pa.array([2**64 - 1 - at for at in range(ROWS)], pa.uint64()),
        "booleans with gaps": pa.array([[True, None, False][at % 3] for at in range(ROWS)]),
        "numbers with gaps": pa.array(some),
        "nothing at all": pa.nulls(ROWS),
        "JSON in text": pa.array([json.dumps({"a": each}) for each in numbers]),
    }


def check_parquet(values: Any, y: np.ndarray, seed: int) -> Outcome:
    """`train` on one odd column beside a plain one."""
    plain = np.random.default_rng(seed).normal(size=ROWS)
    made = pa.table({"odd": values, "plain": plain, "target": y})
    return trained("table.parquet", lambda path: pq.write_table(made, path), EITHER)
