"""Files that are written completely or not at all: text, JSON, and tensors with a JSON header.

A new file is written under a temporary name beside the old one and replaces it only when it is
complete. A crash or a full disk therefore never leaves half a file. Tensors are stored as
safetensors, never as pickle, with a digest that tells damage to the file from other weights. What
is not stored need not wait for the import of safetensors.

What is damaged, or larger than memory, is refused with the path of its file.
"""

import hashlib
import json
import math
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MEMORY = 0.4  # share of the free memory that the content of a file may take; readers copy it


class _UnwrittenError(OSError):
    """A file could not be written; the message says why."""


@contextmanager
def complete_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path to write to; it replaces `path` unless writing fails.

    Whatever goes wrong, the temporary file is removed. One that a killed process has left behind is
    written over.
    """
    partial = partial_path(Path(path))
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, _UnwrittenError) or not isinstance(error, OSError):
            raise
        raise _UnwrittenError(
            f"{path} could not be written: {error}. What was there before has not changed"
        ) from None


def partial_path(path: Path) -> Path:
    """Where a file is written until it is complete."""
    return path.with_name(path.name + ".partial")


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
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a whole JSON file: {error}") from None


def check_memory(size: int) -> None:
    """Raises MemoryError unless that many bytes are a part of the memory that is free."""
    free = math.inf
    if sys.platform == "linux":
        import resource

        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0])
            free = min(free, limit - used * os.sysconf("SC_PAGE_SIZE"))
    if size > _MEMORY * free:
        raise MemoryError


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


def read_tensors(
    path: str | Path, kind: str, name: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
        raise ValueError(f"{path} has tensors but is not a {name}; write one with its save(path)")
    header, newline, digest = metadata[kind].partition("\n")
    # Files that were written before there was a digest have none.
    if newline and digest != _digest(tensors, header):
        raise ValueError(f"{path} is damaged and is not the {name} that was written; delete it")
    with damage_told(path, name):
        description = json.loads(header)
        if not isinstance(description, dict):
            raise ValueError(f"its header is not a JSON object but {description!r:.40}")
        return tensors, description


@contextmanager
def damage_told(path: str | Path, name: str) -> Iterator[None]:
    """Turns errors while a file's content is read into a ValueError that names the file.

    A digest notices damage, but files that have none, or that people wrote, may hold anything.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"{path} is not a {name} that can be read: {type(error).__name__}: {error}. It is "
            "damaged, or another version wrote it"
        ) from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory") from None


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file; ValueError with the path if it is damaged, or none."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is {'not a .npz file' if Path(path).exists() else 'not there'}")
    try:
        with zipfile.ZipFile(path) as parts:
            check_memory(sum(part.file_size for part in parts.infolist()))
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is a damaged .npz file: {error}") from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory") from None


def _digest(tensors: dict[str, Tensor], header: str) -> str:
    """SHA-256 of a header and of the tensors: names, types, shapes and bytes."""
    found = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(whole.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
