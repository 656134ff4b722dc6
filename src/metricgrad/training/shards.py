"""One training in several processes: every process scores a part of the items.

All processes hold the same models, draw the same batches and take the same steps. What takes the
time is divided among them:

    scores      each process scores its part of a batch, or of the validation data
    loss        the scores are joined, and every process computes the loss of the whole batch
    gradient    each process has that of its own scores; all are summed before a step (`stack.py`)

dL/dw is the sum over the parts, dL/ds_r ds_r/dw, so models, decisions and checkpoints are those of
one process, within rounding. Data in memory, and batches that all processes load alike, are cut
here. Where each process loads batches of its own (`Loader.own`), a batch is what all of them load.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metricgrad.processes import (
    Parts,
    agree,
    alone,
    copy_from_first,
    is_first,
    join,
    number_of_processes,
    own_rank,
    told_by_all,
)
from metricgrad.training.data import Batch, Items, Loader, fingerprint

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def shared_scores(score: Callable[[slice], Tensor], items: int, seed: int | None = None) -> Tensor:
    """Scores `[items, ...]` of which every process computes a part, `score(part)`.

    The part of this process keeps its gradient. A process without items scores one and drops it,
    because many models do not take an empty batch. If a seed is given, every process draws random
    numbers of its own while it scores, and all have the same ones afterwards.
    """
    if alone():
        return score(slice(0, items))
    start, end = (items * (own_rank() + each) // number_of_processes() for each in (0, 1))

    def own() -> Parts:
        with _own_random_numbers(seed):
            return {"scores": score(slice(start, max(end, start + 1)))[: end - start]}

    return join(own)["scores"]


def scores_of_all(
    score: Callable[[Batch], Tensor], batch: Batch, seed: int | None = None
) -> tuple[Tensor, Batch]:
    """Scores of a batch, `[R, B, ...]`, and the batch: with what other processes have of it."""
    if alone():
        return score(batch), batch
    if not batch.own:
        scores = shared_scores(
            lambda part: score(batch.part(part)).transpose(0, 1), batch.y.shape[1], seed
        )
        return scores.transpose(0, 1).contiguous(), batch

    def own() -> Parts:
        with _own_random_numbers(seed):
            return {"scores": score(batch).transpose(0, 1)} | _known(batch)

    found = _models_first(join(own))
    scores = found.pop("scores")
    return scores, Batch(None, found.pop("target"), None, found)


def targets_of_all(batch: Batch) -> Batch:
    """A batch without features, with what other processes have of it."""
    if alone() or not batch.own:
        return batch._replace(x=None)
    known = _known(batch)
    found = _models_first(join(lambda: {"scores": known["target"]} | known))
    found.pop("scores")
    return Batch(None, found.pop("target"), None, found)


def _known(batch: Batch) -> dict[str, Tensor]:
    """What the others need to know of a batch besides its scores, `[B, R, ...]` each."""
    parts = {"target": batch.y, **dict(sorted(batch.rows.items()))}
    return {name: part.transpose(0, 1) for name, part in parts.items()}


def _models_first(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: part.transpose(0, 1).contiguous() for name, part in parts.items()}


@contextmanager
def _own_random_numbers(seed: int | None) -> Iterator[None]:
    """Random numbers that no other process draws; those of before come back at the end."""
    if seed is None:
        yield
        return
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed((seed * number_of_processes() + own_rank()) % 2**62)
        yield


def stream_of_all(x: Tensor, y: Tensor, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    """The items of a stream that processes have read: of all, unless all have read the same."""
    if len(set(told_by_all(fingerprint({"x": x, "y": y, **rows})))) == 1:
        return x, y, rows
    found = join(lambda: {"scores": x, "target": y, **dict(sorted(rows.items()))})
    return found.pop("scores"), found.pop("target"), found


def begin_together(
    model: nn.Module, data: Mapping[str, Items | Loader | None], called: Mapping[str, Any]
) -> None:
    """Refuses what is not alike in all processes, and gives all models the weights of the first.

    Args:
        model: The model that was passed to `mg.fit`; its weights are overwritten on other ranks.
        data: The data arguments of `mg.fit`, by name.
        called: The other arguments of `mg.fit`, ready for JSON.
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "mg.fit divides the work among processes itself; pass the model without "
            "DistributedDataParallel: model.module"
        )
    if alone():
        return
    shapes = {name: list(each.shape) for name, each in model.state_dict().items()}
    agree({**called, "the model's state": shapes, **{name: _told(data[name]) for name in data}})
    for name, each in data.items():
        if isinstance(each, Loader) and each.own:
            _refuse_unsharded(name, each)
    copy_from_first([*model.parameters(), *model.buffers()])
    if is_first() and any(isinstance(each, _BATCH_NORMS) for each in model.modules()):
        warnings.warn(
            "with several processes, batch normalisation sees only the part of a batch that its "
            "process scores; take GroupNorm or LayerNorm for the results of one process",
            stacklevel=4,
        )


def _told(data: Items | Loader | None) -> str | None:
    """By what processes recognise that they have the same data."""
    if not isinstance(data, Loader):
        return None if data is None else f"data with the digest {fingerprint(data)}"
    steps = f"a loader of {data.steps} batches"
    return steps if data.own else f"{steps}, the first with targets of the digest {_first(data)}"


def _first(loader: Loader) -> str:
    """A digest of the targets of the first batch; of its features too if each has its own."""
    batch = loader.first()
    parts = (batch.y, batch.x) if loader.own else (batch.y,)
    digests = [fingerprint({"part": part}) for part in parts]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def _refuse_unsharded(name: str, loader: Loader) -> None:
    """Raises ValueError if processes that should have items of their own have the same."""
    if len(set(told_by_all(_first(loader)))) == 1:
        raise ValueError(
            f"{name} gives all processes the same first batch. An IterableDataset must give each "
            "process different items (see torch.distributed.get_rank), and a DistributedSampler "
            "must know the rank; or pass a Dataset, which mg.fit divides itself"
        )
