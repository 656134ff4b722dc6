"""Checkpoints of trainings: their tensors, and the settings that a training which goes on must agree in."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from metricgrad.storage import read_tensors, write_tensors

_HEADER = "metricgrad_training"


def write_checkpoint(path: str | Path, state: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Writes a training's state.

    Args:
        path: where to; an existing file is replaced only once the new one is complete.
        state: tensors by name.
        settings: what a training that reads it must agree in.
    """
    write_tensors(path, state, _HEADER, settings)


def read_checkpoint(
    path: str | Path, like: dict[str, Tensor], settings: dict[str, Any], varying: str = "-"
) -> dict[str, Tensor]:
    """The state that `write_checkpoint` wrote; ValueError where it is that of another training.

    Args:
        path: the file.
        like: a state of the training that is to go on, for the shapes of its parameters.
        settings: of that training.
        varying: how the names of tensors begin that may have any shape, such as those of a memory.

    Returns:
        The tensors by name.
    """
    state, stored = read_tensors(path, _HEADER, "checkpoint of a training")
    here = json.loads(json.dumps(settings))
    for name, value in here.items():
        if stored.get(name) != value:
            hint = (
                ". A training goes on from the weights it began with; make the model anew"
                if name == "model"
                else ""
            )
            told = f"{path} is of a training with {name}={stored.get(name)!r}; this one has {name}={value!r}"
            raise ValueError(told + hint)
    for name in sorted(like.keys() | state.keys()):
        ours, theirs = (
            list(each[name].shape) if name in each else "none" for each in (like, state)
        )
        if ours != theirs and not name.startswith(varying):
            raise ValueError(
                f"{path} is of another model: {name} has shape {ours} here, {theirs} there"
            )
    return state
