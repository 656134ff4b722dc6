"""How data is split into training and validation: stratified, without scikit-learn.

Its StratifiedKFold and StratifiedShuffleSplit are not called, for three reasons. They put other
items into the folds, so every published number would change. They would have to be imported by
`mg.fit`, which does without scikit-learn. And they refuse what is split here like anything else:
queries, label maps and targets that are no classes, and a class whose share of a fold rounds to
nothing, of which one item is put on each side.

The rarest class decides how often: with few items of it a single split is misleading, so they are
cross-validated by five folds instead. Items are dealt to the folds in one pass that depends on
nothing but the seed.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from metricgrad.metrics import Metric
from metricgrad.metrics.one_score import item_target
from metricgrad.training.data import (
    CHUNK,
    Batch,
    Fold,
    FoldBatches,
    Items,
    Loader,
    has_parts,
    length,
    numbers,
    stream_seed,
)
from metricgrad.training.shards import targets_of_all
from metricgrad.training.validation import Validation, ValidationItems

_ENOUGH = 1000  # items of the rarest class: with as many, one split will do
_FOLDS = 5
_FEW = 30  # validation items of the rarest class: with fewer, choices are partly chance
_SCREENED = 2  # folds that the first rounds of a search have, if these hold enough items
_MOST_VALIDATED = 50_000  # items of validation data that the user passed


@dataclass(frozen=True)
class SplitPlan:
    """How data is split, drawn and validated; `mg.fit` describes it."""

    metric: Metric
    tune: bool
    batch: int
    balanced: bool
    folds: int | None
    share: float


@dataclass(frozen=True)
class ValidationData:
    """What the models score: items in memory at an index `[K, V]`, or a loader."""

    data: Items | Loader
    index: Tensor | None = None
    live: Tensor | None = None  # `[K, V]`, False for padding; None if all count

    def items(self) -> ValidationItems:
        """Its targets, and what counts."""
        with torch.random.fork_rng(devices=[]):
            batches = [targets_of_all(batch) for batch in self.batches(1)]
        target = torch.cat([batch.y for batch in batches], 1)
        names = batches[0].rows if batches else ()
        rows = {name: torch.cat([batch.rows[name] for batch in batches], 1) for name in names}
        sets = self.data.where if isinstance(self.data, Items) else None
        where = None if sets is None else sets[self.index]
        live = torch.ones(target.shape[:2], dtype=torch.bool) if self.live is None else self.live
        return ValidationItems(target, live, where, rows)

    def batches(self, copies: int) -> Iterator[Batch]:
        """All of it in order, `copies` times for every fold: `[copies * K, B, ...]`."""
        if isinstance(self.data, Loader):
            yield from self.data.epoch(0, copies)
            return
        assert self.index is not None
        for part in self.index.split(CHUNK, -1):
            yield self.data.take(part.repeat(copies, 1))


class Split(NamedTuple):
    """Data that has been split: its folds, what models train on, and what they are validated on."""

    folds: list[Fold]  # a loader has one, without items
    batches: FoldBatches | Loader
    data: ValidationData
    validation: Validation

    def screening(self) -> "Split":
        """Two of many folds, for choices that need not be exact; all of them if items are few."""
        if len(self.folds) <= _SCREENED or isinstance(self.batches, Loader):
            return self
        kept = self.batches.items.y[self.folds[0].train]  # the other folds' validation items
        if _fewest(Items(kept, kept)) * _SCREENED < _FEW * (len(self.folds) - 1):
            return self
        assert self.data.index is not None
        assert self.data.live is not None
        index, live = (each[:_SCREENED] for each in (self.data.index, self.data.live))
        data = replace(self.data, index=index, live=live)
        validation = replace(self.validation, items=data.items())
        return Split(self.folds[:_SCREENED], self.batches.first(_SCREENED), data, validation)

    def only(self, number: int) -> "Split":
        """One fold alone, to train on and to score."""
        assert isinstance(self.batches, FoldBatches)
        assert self.data.index is not None
        rows = slice(number, number + 1)
        live = None if self.data.live is None else self.data.live[rows]
        data = replace(self.data, index=self.data.index[rows], live=live)
        validation = replace(self.validation, items=data.items())
        return Split(self.folds[rows], self.batches.only(number), data, validation)


def split_data(
    trained: Items | Loader, valid: Items | Loader | None, plan: SplitPlan, seed: int
) -> Split:
    """Training data and validation data; the latter is split off where none was passed."""
    if valid is None:
        if isinstance(trained, Loader):
            raise ValueError("a loader cannot be split into training and validation; pass valid=")
        folds = split_items(trained, _number_of_folds(trained, plan.folds), plan.share, seed)
        index = pad_sequence([fold.valid for fold in folds], batch_first=True)
        lengths = torch.tensor([len(fold.valid) for fold in folds])
        live = torch.arange(index.shape[1]) < lengths.unsqueeze(-1)
        return _split(trained, folds, ValidationData(trained, index, live), plan, seed)
    if plan.folds is not None:
        raise ValueError(
            "folds split training data, but there is validation data already; "
            f"leave out folds or valid. Got folds={plan.folds}"
        )
    index = None
    if isinstance(valid, Items):
        order = torch.randperm(len(valid), generator=torch.Generator().manual_seed(seed))
        index = order[:_MOST_VALIDATED].sort().values.unsqueeze(0)
    return _split(trained, everything(trained), ValidationData(valid, index), plan, seed)


def everything(trained: Items | Loader) -> list[Fold]:
    """One fold that trains on all items and validates on none."""
    items = torch.arange(len(trained) if isinstance(trained, Items) else 0)
    return [Fold(items, torch.zeros(0, dtype=torch.int64))]


def unsplit(items: Items, plan: SplitPlan, seed: int) -> Split:
    """All items, both to train and to validate on."""
    folds = everything(items)
    return _split(items, folds, ValidationData(items, folds[0].train.unsqueeze(0)), plan, seed)


def _split(
    trained: Items | Loader, folds: list[Fold], data: ValidationData, plan: SplitPlan, seed: int
) -> Split:
    if isinstance(trained, Loader):
        batches = replace(trained, seed=seed)
    else:
        batches = FoldBatches(trained, folds, plan.batch, plan.balanced, seed)
    return Split(folds, batches, data, Validation(plan.metric, data.items(), plan.tune))


def _class_counts(items: Items) -> Tensor | None:
    """The number of items of each class, if they have classes; ValueError if there is only one."""
    counts = items.classes()
    if counts is not None and len(counts) < 2:
        raise ValueError(
            f"all {len(items)} targets are {items.y[0].item()}, so there is nothing to learn"
        )
    return counts


def _fewest(items: Items) -> int:
    """The number of items of the rarest class; a fifth of all where there are no classes."""
    counts = _class_counts(items)
    return len(items) // 5 if counts is None else int(counts.min())


def _number_of_folds(trained: Items, asked: int | None) -> int:
    """How many folds there are: as many as asked for, or by the rarest class; both need items."""
    counts = _class_counts(trained)
    fewest = _fewest(trained)
    number = asked or (1 if fewest >= _ENOUGH else _FOLDS)
    if counts is not None and fewest < max(2, number):
        rarest = trained.y.unique()[counts.argmin()].item()
        advice = "leave it out, or collect more" if fewest < 2 else "pass folds=1"
        raise ValueError(
            f"class {rarest} has only {fewest} of {len(trained)} items, too few to train on some "
            f"and validate on others ({number} folds); {advice}"
        )
    return number


def split_items(items: Items, folds: int, share: float, seed: int) -> list[Fold]:
    """Folds in which classes keep their shares; one fold validates on a `share` of the items."""
    generator = torch.Generator().manual_seed(stream_seed(seed, 1, 0))
    order = torch.randperm(len(items), generator=generator)
    if items.classes() is not None:  # sorted by class, so that each is dealt out evenly
        order = order[torch.argsort(items.y[order], stable=True)]
    place = torch.arange(len(items))
    if folds > 1:
        parts = [place % folds == fold for fold in range(folds)]
    else:
        every = round(1 / share)
        if every > 1 and math.isclose(every * share, 1):  # a half, a third, a quarter, ...
            part = place % every == every // 2
        else:
            part = ((place + 1) * share).floor() > (place * share).floor()
        parts = [part if items.classes() is None else _all_classes(part, items.y[order])]
    return [Fold(order[~part].sort().values, order[part].sort().values) for part in parts]


def _all_classes(part: Tensor, target: Tensor) -> Tensor:
    """A part `[items]` changed so that classes of two or more items are on both sides of it."""
    _, number, counts = target.unique(return_inverse=True, return_counts=True)
    taken = torch.bincount(number[part], minlength=len(counts))
    part = part.clone()
    for each in ((counts > 1) & ((taken == 0) | (taken == counts))).nonzero():
        own = (number == each).nonzero().squeeze(-1)
        part[own[len(own) // 2]] ^= True
    return part


def split_dataset(data: Any, share: float, seed: int) -> tuple[Any, Any]:
    """A `Dataset` in two stratified parts, the second with the `share`; other data is left whole.

    The items are read once for their targets.
    """
    if not isinstance(data, Dataset) or isinstance(data, TensorDataset | IterableDataset):
        return data, None
    count = length("train", data)
    if not has_parts(data[0]):
        raise TypeError(f"a Dataset must give items (x, y); got {type(data[0]).__name__}")
    target = item_target(torch.stack([numbers(data[number][1]) for number in range(count)]))
    items = Items(target, target)
    classes = _class_counts(items)
    (fold,) = split_items(items, 1, share, seed)
    if classes is not None:
        fewest = int(target[fold.valid].unique(return_counts=True)[1].min())
        if fewest < _FEW:
            warnings.warn(
                f"validation data has {fewest} items of its rarest class, so choices made on it "
                "are partly chance; pass train=(x, y) in memory, which is cross-validated, or "
                "valid=",
                stacklevel=3,
            )
    return Subset(data, fold.train.tolist()), Subset(data, fold.valid.tolist())
