"""Tensors of all processes of `torch.distributed`, joined along their first dimension.

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
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

Parts = Mapping[str, Tensor]

_DIMS = 8  # the most dimensions that a target may have
_ALIGNED = 8  # bytes: a tensor in the buffer begins at a multiple of its items' size
_ON_CPU = ("gloo", "mpi", "ucc")  # backends that exchange what is in main memory


def number_of_processes() -> int:
    """How many processes train together; 1 without a process group."""
    alone = not dist.is_available() or not dist.is_initialized()
    return 1 if alone else dist.get_world_size()


def join(make: Callable[[], Parts]) -> dict[str, Tensor]:
    """What all processes made, joined by rank; the part of this process keeps its gradient.

    Args:
        make: Gives `scores`, `target` and whatever else there is, `[N, ...]` each. If it raises,
            all processes raise. N may differ between processes. Other sizes of the target may
            differ if `where` has its shape, because `where` then marks the padding.
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
    sizes = () if failure else parts["target"].shape
    headers = _gather(_header(text, sizes, failure is not None)).tolist()
    if any(failed or digest != headers[0][1] for failed, digest, *_ in headers):
        raise ValueError(_disagreement(text, headers)) from failure
    free = _free_dims(parts)
    leads = [header[3 : 3 + free] for header in headers]
    longest = [max(sizes) for sizes in zip(*leads, strict=True)]
    every = _exchange(parts, leads)
    every[dist.get_rank()] = parts
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
    if parts["target"].dim() > _DIMS:
        raise ValueError(
            f"target may have {_DIMS} dimensions at most; got {list(parts['target'].shape)}"
        )


def _free_dims(parts: Parts) -> int:
    """How many leading sizes may differ: the first, or the target's if `where` marks padding."""
    target = parts["target"].shape
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
    texts = _gather(torch.frombuffer(bytearray(said), dtype=torch.uint8)).tolist()
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
        f"all processes must call across_ranks alike, with arguments of the same types; got {told}."
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
    buffers = _gather(F.pad(packed, (0, max(lengths) - len(packed))))
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


def _gather(own: Tensor) -> Tensor:
    """A tensor of the same shape from every process, `[processes, ...]`."""
    device = torch.device("cpu")
    if dist.get_backend() not in _ON_CPU and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    own = own.to(device)
    every = own.new_empty(number_of_processes(), *own.shape)
    try:
        dist.all_gather(list(every), own)
    except RuntimeError as error:
        raise RuntimeError(
            "across_ranks got no answer from all processes: one of them has ended, or has not "
            "called the loss. Every process must call it equally often, with an empty set where it "
            f"has no items. {error}"
        ) from error
    return every
