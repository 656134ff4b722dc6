"""Run folders: what a run leaves behind, and what may happen to a folder that is there already.

config.json          what was asked for, with versions: a second start must ask for the same
checkpoints/         after every epoch, until the run is finished
model.safetensors    the classifier
result.json          values, what was tried, what was decided; there once the run is finished
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LOCK = ".lock"
_PACKAGES = ("metricgrad", "torch", "numpy", "scikit-learn", "pandas")


class RunFolder:
    """The folder of a run.

    Args:
        path: of the folder; made where it is not there.
        config: what was asked for, ready for JSON.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; name a folder")
        before = _asked(path / "config.json")
        if before is None and path.exists() and any(each.name != _LOCK for each in path.iterdir()):
            raise ValueError(
                f"{path} has files in it that are no run of metricgrad; choose another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        if self.result is None or self.result.get("stopped"):
            _lock(path)
        if before is not None and self.begun:
            here = json.loads(json.dumps(config))
            for name in sorted(before.keys() | here.keys()):
                if before.get(name) == here.get(name):
                    continue
                if name == "sha256":
                    raise ValueError(
                        f"{path} has a run on other data: a file has changed since; choose another --out"
                    )
                raise ValueError(
                    f"{path} has a run with {name} = {before.get(name)!r}, and this one has {here.get(name)!r}; "
                    "choose another --out"
                )
            return
        self.write("config.json", {"asked": config, "versions": versions()})

    @property
    def begun(self) -> bool:
        """Whether there is anything to lose: a run that was refused leaves nothing but its configuration."""
        return any((self.path / name).exists() for name in ("result.json", "values.json")) or (
            self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        )

    @property
    def checkpoints(self) -> Path:
        """Where trainings keep what they need to go on."""
        return self.path / "checkpoints"

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of a run that is finished; None before."""
        stored = self.path / "result.json"
        return json.loads(stored.read_text()) if stored.exists() else None

    def write(self, name: str, content: Any) -> None:
        """Writes a JSON file, whole or not at all."""
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
        partial.replace(self.path / name)

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result and removes the checkpoints, unless it was stopped and can go on."""
        self.write("result.json", result)
        if not result.get("stopped"):
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            (self.path / _LOCK).unlink(missing_ok=True)


def _asked(config: Path) -> dict[str, Any] | None:
    """What a run was asked for; None where no run has written the file: many programs have a config.json."""
    try:
        stored = json.loads(config.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return (
        stored["asked"]
        if isinstance(stored, dict) and {"asked", "versions"} <= stored.keys()
        else None
    )


def _lock(path: Path) -> None:
    """Keeps other processes out of a folder until this one ends, however it ends; ValueError where one is in it."""
    if sys.platform == "win32":
        return  # two starts at once are the user's own care there
    import fcntl

    number = os.open(path / _LOCK, os.O_WRONLY | os.O_CREAT)  # open for as long as the process is
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(number)
        raise ValueError(
            f"another process is at work in {path}; wait for it, or choose another --out"
        ) from None


def digests(*paths: Path | None) -> list[str | None]:
    """What tells the contents of files apart; None for no file, or one that is not there."""
    found: list[str | None] = []
    for path in paths:
        if path is None or not path.is_file():
            found.append(None)
            continue
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def versions() -> dict[str, str]:
    """Of Python and of what numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
