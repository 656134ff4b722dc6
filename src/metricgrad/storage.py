"""Files of tensors: safetensors with a JSON header, written whole or not at all, never pickle."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor


def write_tensors(path: str | Path, tensors: dict[str, Tensor], kind: str, header: Any) -> None:
    """Writes tensors and a header; OSError where that fails, as on a full disk, and what was there before stays.

    Args:
        path: where to; an existing file is replaced only once the new one is complete.
        tensors: by name.
        kind: what the file is, by which a reader knows it.
        header: ready for JSON.
    """
    partial = Path(path).with_name(Path(path).name + ".partial")
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            partial,
            {kind: json.dumps(header)},
        )
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise OSError(
            f"{path} could not be written: {error}. What was there before is as it was"
        ) from None


def read_tensors(path: str | Path, kind: str, name: str) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote; ValueError says what is wrong with a file.

    Args:
        path: the file.
        kind: what it must be.
        name: of that, for messages.

    Returns:
        The tensors and the header.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {name} {path}")
    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get(kind)
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if header is None:
        raise ValueError(f"{path} holds tensors but no {name}; save(path) of one writes it")
    return tensors, json.loads(header)
