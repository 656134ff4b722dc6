"""What a model is fed: items in memory, cut into folds and batches, or a loader of the user's.

Items in memory can be drawn in any way, so several models, each with its own fold and batches,
train at once. The batches of an epoch depend on seed, fold and epoch alone, never on what was drawn
before: a training that is resumed goes on exactly as it would have.
"""

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from metricgrad.metrics import Metric, metric_options
from metricgrad.metrics.checks import shape
from metricgrad.metrics.counts import ClassificationMetric
from metricgrad.metrics.function import FunctionMetric
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.training.batches import Batches, has_classes, is_whole

_FEW = 30  # items of a class, below which one cut misleads
_PASSES = (25, 150)  # the fewest and the most batches of an epoch, of items in memory


class Batch(NamedTuple):
    """Features, target and what counts, each with a leading dimension of models."""

    x: Any
    y: Tensor
    where: Tensor | None


@dataclass(frozen=True)
class Items:
    """Items in memory.

    Attributes:
        x: `[items, ...]`, features.
        y: `[items, ...]`, targets.
        where: `[items, N]`, where every item is a set of its own, such as a query's documents: True
            for what counts.
    """

    x: Tensor
    y: Tensor
    where: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Batch:
        """The items of an index of any shape."""
        return Batch(
            self.x[index], self.y[index], None if self.where is None else self.where[index]
        )

    def classes(self) -> Tensor | None:
        """How many items each class has; None where items do not have one class each."""
        return (
            self.y.unique(return_counts=True)[1]
            if self.where is None and is_whole(self.y)
            else None
        )


@dataclass(frozen=True)
class Loader:
    """Batches `(x, y)` of the user's own loader.

    Attributes:
        batches: the loader.
        columns: whether targets `[B, 1]` are one class for each item.
    """

    batches: DataLoader[Any]
    columns: bool = False

    def first(self) -> Batch:
        """One batch, as one model sees it."""
        with torch.random.fork_rng(devices=[]):
            for batch in self.epoch(0, 0, 1):
                return Batch(batch.x[0], batch.y[0], None)
        raise ValueError("the loader gave no batch; pass one with items, or without drop_last")

    def epoch(self, epoch: int, seed: int, models: int) -> Iterator[Batch]:
        """The loader's batches, the same ones for every model; shuffled by seed and epoch."""
        torch.manual_seed(_mix(seed, 0, epoch))
        for batch in self.batches:
            if not (isinstance(batch, tuple | list) and len(batch) == 2):
                raise TypeError(f"the loader must give batches (x, y); got {type(batch).__name__}")
            x, y = features(batch[0]), tensor(batch[1])
            y = y.squeeze(1) if self.columns and y.dim() == 2 and y.shape[1] == 1 else y
            yield Batch(x.expand(models, *x.shape), y.expand(models, *y.shape), None)


def to_feed(name: str, data: Any, batch: int) -> Items | Loader:
    """Data as it can be trained on.

    Args:
        name: of the argument, for messages.
        data: `(x, y)` of arrays or tensors, `Items`, a `Dataset` or a `DataLoader`.
        batch: items of a batch, for a `Dataset`.

    Returns:
        Items in memory, or the loader.
    """
    if isinstance(data, Items | Loader):
        return data
    if isinstance(data, DataLoader):
        return Loader(data)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, IterableDataset):
        return Loader(DataLoader(data, batch))
    if isinstance(data, Dataset):
        count = len(data)  # pyright: ignore[reportArgumentType] (every other kind has a length)
        if not count:
            raise ValueError(f"{name} is a Dataset without items")
        even = math.ceil(count / math.ceil(count / batch))  # no small rest, and nothing left out
        return Loader(DataLoader(data, even, shuffle=name == "train"))
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise TypeError(
            f"{name} must be (x, y) of arrays or tensors, a Dataset or a DataLoader; got {type(data).__name__}"
        )
    x, y = features(data[0]), tensor(data[1])
    if len(x) != len(y) or not len(x):
        raise ValueError(
            f"{name} must be as many features as targets, and some; got x {shape(x)} and y {shape(y)}"
        )
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError(
            f"{name} has {int((~x.isfinite()).sum())} values that are missing or not finite; fill them in"
        )
    return Items(x, y)


def tensor(data: Any) -> Tensor:
    """Whatever can be an array of numbers, as a tensor."""
    if isinstance(data, Tensor):
        return data
    found = np.asarray(data)
    if found.dtype.kind not in "biuf":
        example = repr(found.flat[0]) if found.size else "nothing"
        raise ValueError(
            f"x and y must be numbers; got {found.dtype}, such as {example}. Number the classes, or pass tables with "
            "text to mg.MetricClassifier"
        )
    return torch.as_tensor(found)


def features(data: Any) -> Tensor:
    """Features as a model takes them: numbers, truth values and pixels as float32, other whole numbers as they are."""
    x = tensor(data)
    return x.float() if x.is_floating_point() or x.dtype in (torch.bool, torch.uint8) else x


def one_class_each(data: Items | Loader, metric: Metric) -> Items | Loader:
    """Targets `[items, 1]` of a metric that is not of labels as `[items]`; several columns are refused."""
    if is_multilabel(metric) or isinstance(metric, FunctionMetric):
        return data
    if isinstance(data, Loader):
        return replace(data, columns=True)
    if data.y.dim() != 2 or data.where is not None:
        return data
    if data.y.shape[1] == 1:
        return replace(data, y=data.y.squeeze(1))
    if isinstance(metric, ClassificationMetric) and "multilabel" in metric_options(type(metric)):
        raise ValueError(
            f"targets {shape(data.y)} are labels; pass metric=mg.metric({metric.name!r}, multilabel=True), or one "
            "class for each item"
        )
    return data


def fingerprint(*parts: Any) -> str:
    """What tells data or a model apart from others: a digest of all tensors; of a loader, its length alone."""
    digest = hashlib.sha256()
    for part in parts:
        tensors: Iterable[Any] = ()
        if isinstance(part, Items):
            tensors = (part.x, part.y, part.where)
        elif isinstance(part, Mapping):
            tensors = part.values()
        elif part is not None:
            digest.update(
                str(len(part.batches)).encode() if hasattr(part.batches, "__len__") else b""
            )
        for tensor in tensors:
            if tensor is not None:
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(
                    tensor.detach().cpu().contiguous().view(torch.uint8).flatten().numpy().data
                )
    return digest.hexdigest()[:16]


def cut_dataset(data: Any, share: float, seed: int) -> tuple[Any, Any]:
    """A `Dataset` in two, the second with the share, and with that of every class; it is read once for its targets.

    Args:
        data: the `Dataset`; anything else stays whole, and there is no second.
        share: of the second.
        seed: of the cut.

    Returns:
        Both.
    """
    if not isinstance(data, Dataset) or isinstance(data, TensorDataset | IterableDataset):
        return data, None
    count = len(data)  # pyright: ignore[reportArgumentType] (every other kind has a length)
    if not count:
        raise ValueError("train is a Dataset without items")
    first = data[0]
    if not (isinstance(first, tuple | list) and len(first) == 2):
        raise TypeError(f"a Dataset must give items (x, y); got {type(first).__name__}")
    target = torch.stack([tensor(data[number][1]) for number in range(count)])
    target = target.squeeze(1) if target.shape[1:] == (1,) else target
    items = Items(target, target)
    if items.classes() is not None and len(target.unique()) < 2:
        raise ValueError(
            f"all {count} targets are {target[0].item()}: there is nothing to tell apart"
        )
    (fold,) = cut(items, 1, share, seed)
    found = (
        target[fold.valid].unique(return_counts=True)[1] if items.classes() is not None else None
    )
    if found is not None and found.min() < _FEW:
        warnings.warn(
            f"validation data has {int(found.min())} items of its rarest class, on which choices are half luck; pass "
            "train=(x, y) in memory, which is cross-validated, or valid=",
            stacklevel=3,
        )
    return Subset(data, fold.train.tolist()), Subset(data, fold.valid.tolist())


@dataclass(frozen=True)
class Fold:
    """Which items are trained on and which are looked at: `[T]` and `[V]`."""

    train: Tensor
    valid: Tensor


def cut(items: Items, folds: int, share: float, seed: int) -> list[Fold]:
    """One cut into training and validation, or as many folds as asked for; classes keep their shares.

    Args:
        items: what to cut.
        folds: 1 for one cut; 2 or more for cross-validation.
        share: of validation in one cut.
        seed: of the cut.

    Returns:
        The folds.
    """
    generator = torch.Generator().manual_seed(_mix(seed, 1, 0))
    order = torch.randperm(len(items), generator=generator)
    if items.classes() is not None:  # deal each class out on its own
        order = order[torch.argsort(items.y[order], stable=True)]
    place = torch.arange(len(items))
    if folds > 1:
        parts = [place % folds == fold for fold in range(folds)]
    else:
        every = round(1 / share)
        even = every > 1 and math.isclose(every * share, 1)
        part = (
            place % every == every // 2
            if even
            else ((place + 1) * share).floor() > (place * share).floor()
        )
        parts = [part if items.classes() is None else _all_classes(part, items.y[order])]
    return [Fold(order[~part].sort().values, order[part].sort().values) for part in parts]


def _all_classes(part: Tensor, target: Tensor) -> Tensor:
    """A cut, `[items]`, with at least one item of each class, of two or more, on either side."""
    _, kind, counts = target.unique(return_inverse=True, return_counts=True)
    taken, part = torch.bincount(kind[part], minlength=len(counts)), part.clone()
    for each in ((counts > 1) & ((taken == 0) | (taken == counts))).nonzero():
        own = (kind == each).nonzero().squeeze(-1)
        part[own[len(own) // 2]] ^= True
    return part


class Drawing:
    """Draws batches of folds.

    Args:
        items: what is drawn from.
        folds: the folds, one for each model.
        batch: items of a batch.
        balanced: gives every class an equal share of a batch, instead of its own.
        seed: of the batches.
    """

    def __init__(
        self, items: Items, folds: list[Fold], batch: int, balanced: bool, seed: int
    ) -> None:
        self.items, self.folds, self.balanced, self._seed = items, folds, balanced, seed
        smallest = min(len(fold.train) for fold in folds)
        self.size = min(batch, smallest)
        self.steps = min(max(smallest // self.size, _PASSES[0]), _PASSES[1])
        stratified = items.where is None and has_classes(items.y, self.size)
        if balanced and not stratified:
            raise ValueError(
                f"balanced batches need one class for each item, and room for every class among {self.size} items; "
                "pass balanced=False, or a larger batch"
            )
        self._batches = [
            Batches(items.y[fold.train], self.size, stratified, balanced) for fold in folds
        ]

    def epoch(self, epoch: int, copies: int) -> Iterator[Batch]:
        """The batches of an epoch, those of every fold for so many models: leading dimension copies * folds."""
        drawn = []
        for number, (fold, batches) in enumerate(zip(self.folds, self._batches, strict=True)):
            generator = torch.Generator().manual_seed(_mix(self._seed, 2 + number, epoch))
            drawn.append(fold.train[batches.draw(self.steps, generator)])
        for index in torch.stack(drawn, 1):  # [folds, B]
            yield self.items.take(index.repeat(copies, 1) if copies > 1 else index)


def _mix(seed: int, stream: int, epoch: int) -> int:
    """A seed of its own for every use."""
    return (seed * 1_000_003 + stream * 10_007 + epoch) % 2**62
