"""Checkpoints: one safetensors file each, tensors and a JSON header of settings, never pickle."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

_HEADER = "metricgrad_training"


def write_checkpoint(path: str | Path, state: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Writes a training's state.

    Args:
        path: where to; an existing file is replaced only once the new one is complete.
        state: tensors by name.
        settings: what a training that reads it must agree in.
    """
    partial = Path(path).with_name(Path(path).name + ".partial")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, partial, {_HEADER: json.dumps(settings)})
    partial.replace(path)


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
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}; save(path) writes one")
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
        state = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if header is None:
        raise ValueError(f"{path} holds tensors but no training; save(path) of a training writes one")
    stored = json.loads(header)
    here = json.loads(json.dumps(settings))
    for name, value in here.items():
        if stored.get(name) != value:
            raise ValueError(f"{path} is of a training with {name}={stored.get(name)!r}; this one has {name}={value!r}")
    for name in sorted(like.keys() | state.keys()):
        ours, theirs = (list(each[name].shape) if name in each else "none" for each in (like, state))
        if ours != theirs and not name.startswith(varying):
            raise ValueError(f"{path} is of another model: {name} has shape {ours} here, {theirs} there")
    return state
