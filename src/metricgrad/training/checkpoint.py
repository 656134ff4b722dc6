"""Checkpoints: the tensors of a training run, and the settings that a resumed run must share."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from metricgrad.processes import from_first
from metricgrad.storage import read_json, read_tensors, write_tensors

State = dict[str, Tensor]
_HEADER = "metricgrad_training"


def write_checkpoint(path: str | Path, state: State, settings: dict[str, Any]) -> None:
    """Writes the tensors of a training run by name, and settings that JSON can hold."""
    write_tensors(path, state, _HEADER, settings)


def read_checkpoint(
    path: str | Path, like: State, settings: dict[str, Any], varying: str | tuple[str, ...] = "-"
) -> State:
    """What a run with a state `like` this one, and the same settings, wrote; ValueError otherwise.

    Tensors whose names begin with `varying` may have any shape, as a memory that fills has.
    """
    state, stored = read_tensors(path, _HEADER, "training checkpoint")
    for name, value in json.loads(json.dumps(settings)).items():
        if stored.get(name) != value:
            hint = (
                ". Resume with the weights that the model had at the start; create the model again"
                if name == "model"
                else ""
            )
            raise ValueError(
                f"{path} was written by a training run with {name}={stored.get(name)!r}; "
                f"this run has {name}={value!r}{hint}"
            )
    for name in sorted(like.keys() | state.keys()):
        ours = list(like[name].shape) if name in like else "none"
        theirs = list(state[name].shape) if name in state else "none"
        if ours != theirs and not name.startswith(varying):
            raise ValueError(
                f"{path} belongs to another model: {name} has shape {ours} here, {theirs} there"
            )
    return state


def found_checkpoint(
    path: Path, like: Callable[[], State], settings: dict[str, Any], varying: tuple[str, ...]
) -> State | None:
    """What `read_checkpoint` gives; None if there is no checkpoint. One process reads for all."""

    def found() -> State | None:
        return read_checkpoint(path, like(), settings, varying) if path.exists() else None

    return from_first(found)


def planned_number(path: Path, most: int, what: str) -> int | None:
    """How many epochs or steps an earlier start of a run has planned; None if there was none."""
    if not path.exists():
        return None
    known = read_json(path)
    if not isinstance(known, int) or not 1 <= known <= most:
        raise ValueError(f"{path} must hold 1 to {most} {what}; it holds {known!r:.40}")
    return known


def named(prefix: str, part: Mapping[str, Tensor]) -> State:
    """A part of a state, under names that begin with a prefix."""
    return {f"{prefix}{name}": value for name, value in part.items()}


def part_of(state: State, prefix: str) -> State:
    """The tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
