"""The data that a model is trained on: items in memory, or batches from the user's own loader.

Items in memory can be drawn in any order, so several models, each with its own fold and batches,
can be trained at once (`FoldBatches`). The batches of an epoch depend only on the seed, the fold
and the epoch, never on what was drawn before. A run that is resumed therefore continues exactly as
it would have done.
"""

import copy
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from metricgrad.metrics.checks import shape
from metricgrad.metrics.one_score import item_target
from metricgrad.metrics.rows import NO_NAMES, NO_ROWS, RowNames, Rows, at, check_rows
from metricgrad.training.drawing import Batches, has_classes, has_one_class_each

CHUNK = 16384  # items that a model scores at once
NO_BATCH = "the loader gave no batch; pass one that has items, or one without drop_last"
_PASSES = (25, 150)  # the fewest and the most batches of an epoch, for items in memory


class Batch(NamedTuple):
    """Features, target, `where` and rows, each with a leading dimension of models."""

    x: Any
    y: Tensor
    where: Tensor | None
    rows: Rows = NO_ROWS
    own: bool = False  # whether other processes have other items of it

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        where = None if self.where is None else self.where.to(device)
        rows = {name: value.to(device) for name, value in self.rows.items()}
        return Batch(self.x.to(device), self.y.to(device), where, rows, self.own)

    def part(self, items: slice) -> "Batch":
        """A few of its items."""
        where = None if self.where is None else self.where[:, items]
        rows = {name: value[:, items] for name, value in self.rows.items()}
        return Batch(self.x[:, items], self.y[:, items], where, rows)


@dataclass(frozen=True)
class Items:
    """Items in memory: features and targets, `[items, ...]` each."""

    x: Tensor
    y: Tensor
    # `[items, N]` where items are sets, such as the documents of a query: True for what counts.
    where: Tensor | None = None
    # What the metric takes of every item besides scores and target, `[items, ...]` each.
    rows: Rows = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Batch:
        """The items at an index of any shape."""
        where = None if self.where is None else self.where[index]
        return Batch(self.x[index], self.y[index], where, at(self.rows, index))

    def classes(self) -> Tensor | None:
        """The number of items of each class; None if items do not have one class each."""
        if self.where is not None or not has_one_class_each(self.y):
            return None
        return self.y.unique(return_counts=True)[1]


@dataclass(frozen=True)
class Loader:
    """Batches `(x, y)` from the user's own loader, shuffled by the seed."""

    batches: DataLoader[Any]
    columns: bool = False  # whether targets `[B, 1]` mean one class per item
    seed: int = 0
    names: RowNames = NO_NAMES  # of what follows x and y in a batch
    dtype: torch.dtype = torch.float32  # of features

    @property
    def steps(self) -> int:
        """The number of batches of an epoch."""
        return len(self.batches)

    @property
    def own(self) -> bool:
        """Whether every process has batches of its own: streams, and a `DistributedSampler`."""
        stream = isinstance(self.batches.dataset, IterableDataset)
        return stream or isinstance(self._sampler, DistributedSampler)

    @property
    def _sampler(self) -> Any:
        """What says which items come next."""
        by_batches = self.batches.batch_sampler
        return by_batches.sampler if isinstance(by_batches, BatchSampler) else self.batches.sampler

    def first(self) -> Batch:
        """The first batch, as one model gets it."""
        with torch.random.fork_rng(devices=[]):
            for batch in self.epoch(0, 1):
                return Batch(batch.x[0], batch.y[0], None, at(batch.rows, torch.tensor(0)))
        raise ValueError(NO_BATCH)

    def epoch(self, epoch: int, copies: int) -> Iterator[Batch]:
        """The batches of an epoch, the same for every model: `[copies, B, ...]`."""
        torch.manual_seed(stream_seed(self.seed, 0, epoch))
        for part in (self.batches.dataset, self._sampler):
            # As torch's DistributedSampler and streams that have an order for every epoch expect.
            tell: Any = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)
        for batch in self.batches:
            if not has_parts(batch):
                raise TypeError(f"the loader must give batches (x, y); got {type(batch).__name__}")
            x = features(batch[0], self.dtype)
            y = numbers(batch[1])
            y = item_target(y) if self.columns else y
            rows = self.names.named(batch[2:])
            rows = {name: row.expand(copies, *row.shape) for name, row in rows.items()}
            x = x.expand(copies, *x.shape)
            yield Batch(x, y.expand(copies, *y.shape), None, rows, self.own)


def is_pair(data: Any) -> bool:
    """Whether something can be features and targets."""
    return has_parts(data) and len(data) == 2


def has_parts(data: Any) -> bool:
    """Whether something can be features, targets and further data of the items."""
    return isinstance(data, tuple | list) and len(data) >= 2


def to_data(
    name: str,
    data: Any,
    batch: int,
    names: RowNames = NO_NAMES,
    dtype: torch.dtype = torch.float32,
) -> Items | Loader:
    """Data as it can be trained on; `name` is the user's argument, for error messages."""
    if isinstance(data, Items | Loader):
        return data
    if isinstance(data, DataLoader):
        return Loader(data, names=names, dtype=dtype)
    if isinstance(data, TensorDataset) and has_parts(data.tensors):
        data = data.tensors
    if isinstance(data, IterableDataset):
        return Loader(DataLoader(data, batch), names=names, dtype=dtype)
    if isinstance(data, Dataset):
        count = length(name, data)
        # Batches of nearly equal size: no small one is left over, and no item is left out.
        even = math.ceil(count / math.ceil(count / batch))
        shuffled = DataLoader(data, even, shuffle=name == "train")
        return Loader(shuffled, names=names, dtype=dtype)
    if not has_parts(data):
        raise TypeError(
            f"{name} must be (x, y) of arrays or tensors, a Dataset or a DataLoader; "
            f"got {type(data).__name__}"
        )
    rows = names.named(data[2:])
    x = features(data[0], dtype)
    y = numbers(data[1])
    if len(x) != len(y) or not len(x):
        raise ValueError(
            f"{name} must have as many features as targets, and at least one; "
            f"got x {shape(x)} and y {shape(y)}"
        )
    if x.is_floating_point() and not x.isfinite().all():
        missing = int((~x.isfinite()).sum())
        raise ValueError(f"{name} has {missing} values that are missing or infinite; fill them in")
    check_rows(rows, y.shape[:1], None)
    return Items(x, y, rows=rows)


def length(name: str, data: Dataset[Any]) -> int:
    """The number of items of a data set; ValueError if there are none."""
    count = len(data)  # pyright: ignore[reportArgumentType] (only an IterableDataset may have none)
    if not count:
        raise ValueError(f"{name} is a Dataset without items")
    return count


def numbers(data: Any) -> Tensor:
    """Anything that can be an array of numbers, as a tensor."""
    if isinstance(data, Tensor):
        return data
    found = np.asarray(data)
    if found.dtype.kind not in "biuf":
        example = repr(found.flat[0]) if found.size else "nothing"
        raise ValueError(
            f"x and y must be numbers; got {found.dtype}, such as {example}. Number the classes, "
            "or pass tables with text to mg.MetricClassifier"
        )
    return torch.as_tensor(found)


def features(data: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Features for a model of a dtype, integers unchanged but for booleans and pixels."""
    x = numbers(data)
    return x.to(dtype) if x.is_floating_point() or x.dtype in (torch.bool, torch.uint8) else x


def fingerprint(*parts: Items | Loader | Mapping[str, Tensor] | None) -> str:
    """A digest of all tensors, which tells data or models apart; for a loader, of its length."""
    digest = hashlib.sha256()
    for part in parts:
        tensors: Iterable[Tensor | None] = ()
        if isinstance(part, Items):
            tensors = (part.x, part.y, part.where, *part.rows.values())
        elif isinstance(part, Mapping):
            tensors = part.values()
        elif part is not None:
            digest.update(str(part.steps).encode())
        for each in tensors:
            if each is not None:
                digest.update(str(tuple(each.shape)).encode())
                raw = each.detach().cpu().flatten().view(torch.uint8)
                digest.update(raw.numpy().data)
    return digest.hexdigest()[:16]


class Fold(NamedTuple):
    """The indices of the items to train on, `[T]`, and to validate on, `[V]`."""

    train: Tensor
    valid: Tensor


class FoldBatches:
    """Draws the batches of several folds at once; balanced ones hold all classes equally often."""

    def __init__(
        self, items: Items, folds: list[Fold], batch: int, balanced: bool, seed: int
    ) -> None:
        self.items = items
        self.folds = folds
        self.balanced = balanced
        self._seed = seed
        self._stream = 2  # of the first fold
        smallest = min(len(fold.train) for fold in folds)
        self.size = min(batch, smallest)
        self.steps = min(max(smallest // self.size, _PASSES[0]), _PASSES[1])
        stratified = items.where is None and has_classes(items.y, self.size)
        if balanced and not stratified:
            raise ValueError(
                "balanced batches need one class for each item, and room for every class among "
                f"{self.size} items; pass balanced=False, or a larger batch"
            )
        self._batches = [
            Batches(items.y[fold.train], self.size, stratified, balanced) for fold in folds
        ]

    def first(self, number: int) -> "FoldBatches":
        """The batches of the first few folds alone, as they are drawn beside the others."""
        return FoldBatches(self.items, self.folds[:number], self.size, self.balanced, self._seed)

    def of(self, items: Items, folds: list[Fold]) -> "FoldBatches":
        """The same batches of items that are numbered otherwise."""
        found = copy.copy(self)
        found.items = items
        found.folds = folds
        return found

    def only(self, number: int) -> "FoldBatches":
        """The batches of one fold alone, as they are drawn beside the others."""
        found = copy.copy(self)
        found.folds = self.folds[number : number + 1]
        found._batches = self._batches[number : number + 1]
        found._stream = self._stream + number
        return found

    def epoch(self, epoch: int, copies: int) -> Iterator[Batch]:
        """The batches of an epoch; every fold's come `copies` times: `[copies * folds, B, ...]`."""
        drawn = []
        for number, (fold, batches) in enumerate(zip(self.folds, self._batches, strict=True)):
            seed = stream_seed(self._seed, self._stream + number, epoch)
            generator = torch.Generator().manual_seed(seed)
            drawn.append(fold.train[batches.draw(self.steps, generator)])
        for index in torch.stack(drawn, 1):  # [folds, B]
            yield self.items.take(index.repeat(copies, 1))


def stream_seed(seed: int, stream: int, epoch: int) -> int:
    """A seed for every use: stream 0 shuffles loaders, 1 splits, 2 and up draw a fold's batches."""
    return (seed * 1_000_003 + stream * 10_007 + epoch) % 2**62
