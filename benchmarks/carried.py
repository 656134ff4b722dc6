"""Data sets that travel to other machines: their files in memory, written to disk once a node.

Tasks read files from a folder. The machines of a cluster may not have it, so the files of the data
sets that are needed are read here and unpacked there, into a folder for temporary files whose name
is a digest of their content. It stays there for the next run.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class CarriedFolder:
    """The bytes of files by their path in the folder; as arrays, which a node has once."""

    digest: str
    files: dict[str, np.ndarray]

    def unpacked(self) -> Path:
        """The folder on this machine."""
        parent = Path(tempfile.gettempdir())
        folder = parent / f"metricgrad-data-{self.digest}"
        if not folder.is_dir():
            partial = Path(tempfile.mkdtemp(prefix="metricgrad-data-", dir=parent))
            for name, content in self.files.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                content.tofile(partial / name)
            try:
                partial.rename(folder)
            except OSError:  # another process of this node was quicker
                shutil.rmtree(partial)
        return folder


def carried(folder: Path, datasets: Iterable[str]) -> CarriedFolder:
    """The files of some data sets, each of which has a folder with its name."""
    places = {"mnist" if name.startswith("mnist") else name for name in datasets}
    paths = sorted(path for each in places for path in (folder / each).rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): np.fromfile(path, np.uint8) for path in paths}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content.tobytes())
    return CarriedFolder(digest.hexdigest()[:16], files)
