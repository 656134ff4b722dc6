"""Run folders: what a run leaves behind, and what may happen to a folder that exists already.

config.json          the settings and versions; a second start must have the same settings
checkpoints/         written after every epoch, removed when the run is finished
values.json          test values of a comparison so far, null where a split is not measured yet
model.safetensors    the classifier
evidence.npz         scores that the figures are drawn from
result.json          what was found; its presence says that the run is finished
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from metricgrad.storage import partial_path, read_json, write_json
from metricgrad.studies.results import ComparisonResult, RunResult
from metricgrad.studies.settings import ComparisonSettings, RunConfig, RunSettings, versions

_LOCK = ".lock"


class RunFolder:
    """The folder of a run, created where it does not exist, and locked until the process ends.

    Raises ValueError where the folder holds something else, a run with other settings or data
    files, or a run that another process is working on.
    """

    def __init__(
        self,
        path: Path,
        settings: RunSettings | ComparisonSettings,
        sha256: list[str | None] | None = None,
    ) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; pass a folder")
        config_path = path / "config.json"
        before = _asked(config_path)
        ours = (_LOCK, partial_path(config_path).name)  # what a start leaves that is killed at once
        found = path.iterdir() if path.exists() else ()
        if before is None and any(each.name not in ours for each in found):
            raise ValueError(
                f"{path} contains files that are not a metricgrad run; choose another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        result = self.read("result.json")
        if result is None or result.get("stopped"):
            _lock(path)
        config = RunConfig(settings, sha256, versions())
        if before is not None and self._begun():
            _refuse_changes(path, before, json.loads(json.dumps(config.asked())))
        else:
            self.write("config.json", config.to_json())

    def _begun(self) -> bool:
        """Whether there is work to lose; a refused command leaves only its configuration."""
        found = [self.path / "result.json", self.path / "values.json", *self.checkpoints.glob("*")]
        return any(path.exists() for path in found)

    def read(self, name: str) -> Any:
        """The content of a JSON file; None where there is no such file, ValueError if damaged."""
        path = self.path / name
        if not path.exists():
            return None
        stored = read_json(path)
        if not stored or not isinstance(stored, dict):
            raise ValueError(
                f"{path} is damaged: it holds {stored!r:.40}; delete it to start again"
            )
        return stored

    def write(self, name: str, content: Any) -> None:
        """Writes a JSON file, whole or not at all."""
        write_json(self.path / name, content, indent=2)

    def finish(self, result: RunResult | ComparisonResult) -> None:
        """Writes the result, and removes the checkpoints unless the run can continue."""
        self.write("result.json", result.to_json())
        if not result.stopped:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            (self.path / _LOCK).unlink(missing_ok=True)


def _asked(config: Path) -> dict[str, Any] | None:
    """What a run was asked for; None where another program wrote the file."""
    try:
        stored = read_json(config)
    except (FileNotFoundError, ValueError):
        return None
    ours = isinstance(stored, dict) and {"asked", "versions"} <= stored.keys()
    return stored["asked"] if ours and isinstance(stored["asked"], dict) else None


def _refuse_changes(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError unless a run was asked for the same as before."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) == now.get(name):
            continue
        if name == "sha256":
            raise ValueError(
                f"{path} has a run on other data: a file has changed since; choose another --out"
            )
        raise ValueError(
            f"{path} has a run with {name} = {before.get(name)!r}, and this one has "
            f"{now.get(name)!r}; choose another --out"
        )


def _lock(path: Path) -> None:
    """Keeps other processes out of a folder until this one ends, however it ends."""
    if sys.platform == "win32":
        return  # there is no fcntl on Windows; two starts at once are not detected there
    import fcntl

    number = os.open(path / _LOCK, os.O_WRONLY | os.O_CREAT)  # stays open until the process ends
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(number)
        raise ValueError(
            f"another process is working in {path}; wait for it, or choose another --out"
        ) from None
