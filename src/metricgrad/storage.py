"""Files that are written completely or not at all: text, JSON, and tensors with a JSON header.

A new file is written under a temporary name beside the old one and replaces it only when it is
complete. A crash or a full disk therefore never leaves half a file. Tensors are stored as
safetensors, never as pickle; losses that are not stored need not wait for its import.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor


@contextmanager
def complete_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path to write to; it replaces `path` unless writing fails."""
    partial = Path(path).with_name(Path(path).name + ".partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(
            f"{path} could not be written: {error}. What was there before has not changed"
        ) from None


def write_text(path: str | Path, text: str) -> None:
    """Writes text, in UTF-8."""
    with complete_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, indent: int | None = None) -> None:
    """Writes what JSON can hold; ValueError for NaN and infinity, which it cannot."""
    write_text(path, json.dumps(content, indent=indent, allow_nan=False) + "\n")


def write_tensors(path: str | Path, tensors: dict[str, Tensor], kind: str, header: Any) -> None:
    """Writes tensors by name, and a JSON header under the key `kind`, by which readers know it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with complete_file(path) as partial:
        try:
            save_file(whole, partial, {kind: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(error) from None


def holds(path: str | Path, kind: str) -> bool:
    """Whether a file has a header under the key `kind`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return kind in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def read_tensors(path: str | Path, kind: str, name: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the header that `write_tensors` wrote; `name` says in errors what it is."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

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
