"""Files that are written completely or not at all: text, JSON, and tensors with a JSON header.

A new file is written under a temporary name beside the old one and replaces it only when it is
complete. A crash or a full disk therefore never leaves half a file. Tensors are stored as
safetensors, never as pickle, with a digest that tells damage to the file from other weights. What
is not stored need not wait for the import of safetensors.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
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


def read_json(path: str | Path) -> Any:
    """What `write_json` wrote; ValueError with the path if it is damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a whole JSON file: {error}") from None


def write_tensors(path: str | Path, tensors: dict[str, Tensor], kind: str, header: Any) -> None:
    """Writes tensors by name, and a JSON header under the key `kind`, by which readers know it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header)
    # One entry: safetensors would write several in any order, and files could not be equal.
    entry = {kind: f"{text}\n{_digest(tensors, text)}"}
    with complete_file(path) as partial:
        try:
            save_file(whole, partial, entry)
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
            metadata = file.metadata() or {}
        tensors = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if kind not in metadata:
        raise ValueError(f"{path} holds tensors but no {name}; save(path) of one writes it")
    header, newline, digest = metadata[kind].partition("\n")
    # Files that were written before there was a digest have none.
    if newline and digest != _digest(tensors, header):
        raise ValueError(f"{path} is damaged: it is not the {name} that was written; delete it")
    return tensors, json.loads(header)


def _digest(tensors: dict[str, Tensor], header: str) -> str:
    """SHA-256 of a header and of the tensors: names, types, shapes and bytes."""
    found = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(whole.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
