"""Tensors of all processes, joined along their first dimension.

Every process gives named tensors with the same first dimension and gets those of all processes, in
the order of their ranks. That takes two all-gathers, whatever the tensors are:

    header    11 numbers: whether this process failed, a digest of what it was called with, and its
              sizes, which may differ and may be 0
    buffer    the bytes of all tensors, one after another; as long as that of the longest process

The header comes first, so that nobody waits for a buffer which another process does not send. If
one process cannot join in, or was called differently from the others, all raise the same sentence.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad.processes.group import gather, own_rank

Parts = Mapping[str, Tensor]

_DIMS = 8  # the most dimensions that a target may have
_ALIGNED = 8  # bytes: a tensor in the buffer begins at a multiple of its items' size


def join(make: Callable[[], Parts]) -> dict[str, Tensor]:
    """What all processes made, joined by rank; the part of this process keeps its gradient.

    Args:
        make: Gives `scores` and whatever else there is, such as the `target`, `[N, ...]` each. If
            it raises, all processes raise. N may differ between processes. Other sizes of the
            target may differ if `where` has its shape, because `where` then marks the padding.
    """
    parts: Parts = {}
    failure = None
    try:
        parts = make()
        _check(parts)
        text = _signature(parts)
    except Exception as error:  # whatever it was, the others are waiting
        failure = error
        text = f"{type(error).__name__}: {error}"
    sizes = () if failure else _sized(parts).shape
    headers = gather(_header(text, sizes, failure is not None)).tolist()
    if failure is not None and all(header[:3] == headers[0][:3] for header in headers):
        raise failure
    if any(failed or digest != headers[0][1] for failed, digest, *_ in headers):
        raise ValueError(_disagreement(text, headers)) from failure
    free = _free_dims(parts)
    leads = [header[3 : 3 + free] for header in headers]
    longest = [max(sizes) for sizes in zip(*leads, strict=True)]
    every = _exchange(parts, leads)
    every[own_rank()] = parts
    return {name: torch.cat([_padded(each[name], longest) for each in every]) for name in parts}


def _check(parts: Parts) -> None:
    """Raises ValueError unless every tensor has a row for each row of the scores."""
    scores = parts["scores"]
    for name, part in parts.items():
        if not part.dim() or not scores.dim() or len(part) != len(scores):
            raise ValueError(
                f"{name} must have as many rows as the scores; got {name} {list(part.shape)} for "
                f"scores {list(scores.shape)}"
            )
    if _sized(parts).dim() > _DIMS:
        raise ValueError(
            f"target may have {_DIMS} dimensions at most; got {list(_sized(parts).shape)}"
        )


def _sized(parts: Parts) -> Tensor:
    """The tensor whose leading sizes the others are told: the target, if it is sent."""
    return parts.get("target", parts["scores"])


def _free_dims(parts: Parts) -> int:
    """How many leading sizes may differ: the first, or the target's if `where` marks padding."""
    target = _sized(parts).shape
    same = all(part.shape[: len(target)] == target for part in parts.values())
    masked = "where" in parts and parts["where"].shape == target
    return len(target) if same and masked else 1


def _signature(parts: Parts) -> str:
    """Names, types and sizes on which all processes must agree; N and * are free."""
    free = _free_dims(parts)
    told = []
    for name, part in parts.items():
        sizes = ["N", *["*"] * (free - 1), *map(str, part.shape[free:])]
        told.append(f"{name} {str(part.dtype).removeprefix('torch.')} [{', '.join(sizes)}]")
    return ", ".join(told)


def _header(text: str, sizes: Sequence[int], failed: bool) -> Tensor:
    """What a process tells the others first; text is its signature, or what failed."""
    said = text.encode()
    digest = int.from_bytes(hashlib.sha256(said).digest()[:8], signed=True)
    filled = [*sizes, *[0] * (_DIMS - len(sizes))]
    return torch.tensor([failed, digest, len(said), *filled])


def _disagreement(text: str, headers: list[list[int]]) -> str:
    """What was wrong, in the same words on every process."""
    lengths = [header[2] for header in headers]
    said = text.encode().ljust(max(lengths))
    texts = gather(torch.frombuffer(bytearray(said), dtype=torch.uint8)).tolist()
    failed = any(header[0] for header in headers)
    ranks: dict[str, list[int]] = {}
    for rank, (row, header) in enumerate(zip(texts, headers, strict=True)):
        if header[0] or not failed:
            ranks.setdefault(bytes(row[: header[2]]).decode(), []).append(rank)
    told = "; ".join(
        f"on rank{'s' * (len(which) > 1)} {', '.join(map(str, which))}: {each}"
        for each, which in ranks.items()
    )
    if failed:
        return f"all processes stop, because one of them could not join its set. {told}"
    return (
        f"all processes must make the same calls, with arguments of the same types; got {told}."
        " Only N may differ, and sizes marked * where every item has a flag in where"
    )


def _exchange(parts: Parts, leads: list[list[int]]) -> list[Parts]:
    """The tensors of every process, by rank; `leads` are the leading sizes of each."""
    free = len(leads[0])
    shapes = [{name: [*lead, *part.shape[free:]] for name, part in parts.items()} for lead in leads]
    lengths = [
        sum(_spent(math.prod(shape[name]) * part.element_size()) for name, part in parts.items())
        for shape in shapes
    ]
    if not max(lengths):
        return [parts] * len(leads)
    own = [part.detach().contiguous().flatten().view(torch.uint8) for part in parts.values()]
    packed = torch.cat([F.pad(each, (0, _spent(len(each)) - len(each))) for each in own])
    buffers = gather(F.pad(packed, (0, max(lengths) - len(packed))))
    return [_unpacked(parts, *each) for each in zip(shapes, buffers, strict=True)]


def _unpacked(parts: Parts, shapes: dict[str, list[int]], buffer: Tensor) -> dict[str, Tensor]:
    """Tensors of the types that the parts have, and of these shapes, from their bytes."""
    start = 0
    found = {}
    for name, part in parts.items():
        size = math.prod(shapes[name]) * part.element_size()
        values = buffer[start : start + size].view(part.dtype)
        found[name] = values.reshape(shapes[name]).to(part.device)
        start += _spent(size)
    return found


def _spent(size: int) -> int:
    """Bytes of the buffer that so many bytes take."""
    return -(-size // _ALIGNED) * _ALIGNED


def _padded(part: Tensor, longest: Sequence[int]) -> Tensor:
    """A tensor whose rows end in zeros, so that they are as large as the longest."""
    missing = [0] * part.dim()
    for dim in range(1, len(longest)):
        missing[dim] = longest[dim] - part.shape[dim]
    if not any(missing):
        return part
    return F.pad(part, [end for size in reversed(missing) for end in (0, size)])
