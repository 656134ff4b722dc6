"""Where entrants are trained and judged: training data in batches, validation data, the metric on it.

With few items of the rarest class one cut misleads, so validation is by five folds then.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.training.data import Drawing, Fold, Items, Loader, cut
from metricgrad.training.validation import Validation, ValidationItems

_ENOUGH = 1000  # items of the rarest class, above which one cut will do
_FOLDS = 5
_LOOKED_AT = 50_000  # validation items, at most


@dataclass(frozen=True)
class ValidationData:
    """Validation data: items in memory with an index `[K, V]`, or a loader."""

    data: Items | Loader
    index: Tensor | None = None


@dataclass(frozen=True)
class Split:
    """Training data, validation data and the metric on it."""

    feed: Drawing | Loader
    view: ValidationData
    validation: Validation


@dataclass(frozen=True)
class SplitPlan:
    """How data are cut and drawn, and what decides.

    Attributes:
        metric: what decides.
        tune: whether a threshold is chosen.
        batch: items of a batch.
        balanced: gives every class an equal share of a batch.
        folds: of cross-validation; None decides by the number of items of the rarest class.
        share: of validation in one cut.
    """

    metric: Metric
    tune: bool
    batch: int
    balanced: bool
    folds: int | None
    share: float


def split_data(
    trained: Items | Loader, valid: Items | Loader | None, plan: SplitPlan, seed: int
) -> tuple[list[Fold], Split]:
    """The cuts between training and validation data, and both.

    Args:
        trained: training data.
        valid: validation data; None cuts it off the training data.
        plan: how.
        seed: of the cuts and the batches.

    Returns:
        The cuts, and the split.
    """
    if isinstance(trained, Loader) and valid is None:
        raise ValueError("a loader cannot be cut into training and validation; pass valid=")
    if valid is not None:
        if plan.folds is not None:
            raise ValueError(
                f"folds are of training data; there is validation data already. Got folds={plan.folds}"
            )
        whole = everything(trained)
        feed = (
            trained
            if isinstance(trained, Loader)
            else Drawing(trained, whole, plan.batch, plan.balanced, seed)
        )
        view, items = _viewed(valid, seed)
        return whole, Split(feed, view, Validation(plan.metric, items, plan.tune))
    assert isinstance(trained, Items)
    counts = trained.classes()
    if counts is not None and len(counts) < 2:
        raise ValueError(
            f"all {len(trained)} targets are {trained.y[0].item()}: there is nothing to tell apart"
        )
    number = plan.folds or (
        1 if (counts.min() if counts is not None else len(trained) // 5) >= _ENOUGH else _FOLDS
    )
    if counts is not None and counts.min() < max(2, number):
        rarest = f"class {trained.y.unique()[counts.argmin()].item()} has only {int(counts.min())} of {len(trained)} items"
        told = "leave it out, or collect more" if counts.min() < 2 else "pass folds=1"
        raise ValueError(
            f"{rarest}, too few to train on some and look at others ({number} folds); {told}"
        )
    cuts = cut(trained, number, plan.share, seed)
    longest = max(len(fold.valid) for fold in cuts)
    index = torch.stack(
        [torch.nn.functional.pad(fold.valid, (0, longest - len(fold.valid))) for fold in cuts]
    )
    live = torch.stack([torch.arange(longest) < len(fold.valid) for fold in cuts])
    taken = trained.take(index)
    validation = Validation(plan.metric, ValidationItems(taken.y, live, taken.where), plan.tune)
    return cuts, Split(
        Drawing(trained, cuts, plan.batch, plan.balanced, seed),
        ValidationData(trained, index),
        validation,
    )


def everything(trained: Items | Loader) -> list[Fold]:
    """One fold that trains on all items."""
    items = torch.arange(len(trained) if isinstance(trained, Items) else 0)
    return [Fold(items, torch.zeros(0, dtype=torch.int64))]


def _viewed(looked: Items | Loader, seed: int) -> tuple[ValidationData, ValidationItems]:
    """Validation data that the user passed; of very many items those that are drawn at random."""
    if isinstance(looked, Items):
        order = torch.randperm(len(looked), generator=torch.Generator().manual_seed(seed))
        index = order[:_LOOKED_AT].sort().values.unsqueeze(0)
        taken = looked.take(index)
        return ValidationData(looked, index), ValidationItems(
            taken.y, torch.ones_like(index, dtype=torch.bool), taken.where
        )
    with torch.random.fork_rng(devices=[]):
        target = torch.cat([batch.y for batch in looked.epoch(0, 0, 1)], 1)
    return ValidationData(looked), ValidationItems(
        target, torch.ones(target.shape[:2], dtype=torch.bool)
    )
