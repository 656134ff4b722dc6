"""Things that many runs share and that take long to make: made once, and kept in files.

Frozen features, a teacher's translations and networks before their fine-tuning are the same for
every row of a table. They are stored under `runs/benchmarks`, which is not part of the repository;
the name of a file holds a digest of everything that they depend on. Of two processes that need the
same thing at once, one makes it and the other waits. The digest does not know the code: remove the
folder after a change of what makes these things.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn

FOLDER = Path(__file__).parent.parent / "runs" / "benchmarks"


def stored(name: str, of: Any, make: Callable[[Path], Any]) -> Any:
    """What `make` returns, from its file if there is one.

    `of` is what it depends on, ready for JSON. `make` is given a path beside the file, at which it
    may keep what it has so far.
    """
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
    path = FOLDER / f"{name}-{digest}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            begun = path.with_suffix(".begun")
            _write(make(begun), path)
            begun.unlink(missing_ok=True)
    return torch.load(path, mmap=True)


def trained(
    begun: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train_epoch: Callable[[int], None],
    kept: Sequence[int],
) -> list[dict[str, Any]]:
    """The states of a model after some of its epochs, the last of which ends the training.

    What was interrupted continues at its epoch.
    """
    states: list[dict[str, Any]] = []
    done = 0
    if begun.exists():
        known = torch.load(begun)
        done = known["epochs"]
        states = known["states"]
        model.load_state_dict(known["model"])
        optimizer.load_state_dict(known["optimizer"])
    for epoch in range(done, kept[-1]):
        train_epoch(epoch)
        if epoch + 1 in kept:
            states.append(copy.deepcopy(model.state_dict()))
        now = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        _write({"epochs": epoch + 1, "states": states, **now}, begun)
    return states


def moments(epochs: int, number: int) -> list[int]:
    """So many numbers of epochs, evenly spread from the first to the last."""
    places = (epochs - 1) / max(1, number - 1)
    return sorted({epochs - round(each * places) for each in range(number)})


def _write(content: Any, path: Path) -> None:
    """Writes a file at once, so that a run which is stopped leaves no half of it."""
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)
