"""Which columns matter: how much the metric falls when one of them is shuffled.

A shuffled column keeps its values and loses what they say about their rows. What the metric loses
by that, at the same threshold, is the column's permutation importance (Breiman, 2001): 0 for one
that the model does not use. Columns are those of the table that the user passed, so the prepared
numbers that a column became, such as one for each category, are shuffled together.

The work is bounded: five shuffles of 2,000 rows, the same for all columns. From 200 columns on
there are fewer shuffles, and from 500 on fewer rows, down to two shuffles of 200 rows; with a
hundred trees, from 50 and from 125 columns on. In a sample, classes keep their shares, but a rare
one has up to 50 rows, so that the metric says something about it. Of queries, only those with a
relevant document are drawn.

scikit-learn's `permutation_importance` is not called. It prepares the whole table again for each
shuffle, and it cannot hand queries or amounts to `score`. Here one column is moved at a time: its
part in the first layer is exchanged, and only the layers after it are computed again.

Reference:
    L. Breiman, Random forests, Machine Learning 45, 2001.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from metricgrad.boosting.growing import BoostedTrees
from metricgrad.estimators.features import Preparation
from metricgrad.training import Trained
from metricgrad.training.data import Items

_ROWS = (200, 2_000)  # the fewest and the most rows that are shuffled,
_SHUFFLES = (2, 5)  # and how often
_WORK = 2_000_000  # rows that are scored, over all columns and shuffles,
_TREE_WORK = 50_000_000  # or rows times trees
_KEPT = 2**24  # numbers of a sample
_AT_ONCE = 2**22  # numbers that are computed together
_RARE = 50  # rows of a rare class


@dataclass(frozen=True)
class Importances:
    """By how much the metric is worse with each column shuffled.

    Attributes:
        means: Over all shuffles, `[columns]`; positive where the model uses the column.
        spreads: Standard deviations over the shuffles, `[columns]`.
        rows: Rows that were shuffled; of queries, documents.
        shuffles: How often each column was shuffled.
    """

    means: np.ndarray
    spreads: np.ndarray
    rows: int
    shuffles: int


class KeepsRows:
    """An estimator that keeps some rows of `fit`, to tell which columns matter to it."""

    preparation_: Preparation
    trained_: Trained
    _kept_rows: Items | None = None
    _importances: Importances | None = None

    def keep_rows(self, items: Items) -> None:
        """Keeps a sample of prepared rows, and forgets what was measured on others."""
        self._kept_rows = sampled(items, len(self.preparation_.columns))
        self._importances = None

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much the metric falls when a column is shuffled, `[columns]`.

        Measured on first use, on at most 2,000 rows of the training data, which the model may have
        overfitted; with a dataset, on validation rows. For other rows, use
        `sklearn.inspection.permutation_importance`.
        """
        check_is_fitted(self)
        if self._kept_rows is None:
            raise AttributeError(
                "feature_importances_ are measured on rows that fit has seen, and a loaded model "
                "has none; pass rows to sklearn.inspection.permutation_importance(model, X, y)"
            )
        if self._importances is None:
            self._importances = column_importances(
                self.trained_, self.preparation_, self._kept_rows
            )
        return self._importances.means


def column_importances(trained: Trained, preparation: Preparation, items: Items) -> Importances:
    """How much the metric of some items falls when one column is shuffled.

    Args:
        trained: The model, with its metric and threshold.
        preparation: Says which prepared numbers come from which column.
        items: Prepared rows `[items, width]`, or queries `[queries, documents, width]`; a sample
            of these is measured.
    """
    widths = preparation.widths
    work = _work(trained)
    items = sampled(items, len(widths), work)
    x = items.x if items.where is None else items.x[items.where]
    low, high = _SHUFFLES
    shuffles = min(high, max(low, work // (len(x) * len(widths))))
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(len(x), generator=generator) for _ in range(shuffles)])
    scorer = _scorer(trained, x, orders)
    base = _values(trained, items, trained.scores(x).unsqueeze(0))
    falls = []
    for blocks in _portions(widths, max(1, _AT_ONCE // (len(orders) * len(x) * scorer.width))):
        found = _values(trained, items, scorer.scores(blocks))
        falls.append((base - found).unflatten(0, (len(blocks), shuffles)))
    fall = torch.cat(falls).double().numpy() * (1 if trained.metric.higher_is_better else -1)
    return Importances(fall.mean(1), fall.std(1), len(x), shuffles)


def _work(trained: Trained) -> int:
    """How many rows may be scored: fewer by trees, through each of which a row has to go."""
    model = trained.model
    if not isinstance(model, BoostedTrees):
        return _WORK
    return min(_WORK, _TREE_WORK // max(1, model.forest.trees))


def sampled(items: Items, columns: int, work: int = _WORK) -> Items:
    """At most 2,000 rows, fewer of wide tables; all of a query's documents, or none of them."""
    fewest, most = _ROWS
    most = min(most, work // (_SHUFFLES[0] * columns), _KEPT // items.x.shape[-1])
    most = max(fewest, most)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(items), generator=generator)
    if items.where is not None:
        relevant = (items.where & (items.y > 0)).any(-1)
        order = order[relevant[order]]
        documents = items.where.sum(-1)[order].cumsum(0)
        chosen = order[: max(1, int((documents <= most).sum()))]
    else:
        chosen = order if len(items) <= most else _stratified(items, order, most)
    kept = items.take(chosen.sort().values)
    return Items(kept.x, kept.y, kept.where, kept.rows)


def _stratified(items: Items, order: Tensor, most: int) -> Tensor:
    """Numbers of some items, the first of each class in a random order; rare classes have more."""
    counts = items.classes()
    if counts is None:
        return order[:most]
    shares = (counts * (most / len(items))).round().long()
    shares = shares.maximum(counts.clamp(max=min(_RARE, most // len(counts))))
    number = items.y.unique(return_inverse=True)[1].flatten()
    by_class = order[number[order].argsort(stable=True)]
    first = counts.cumsum(0) - counts
    place = torch.arange(len(items)) - first.repeat_interleave(counts)
    return by_class[place < shares.repeat_interleave(counts)]


def _portions(widths: Sequence[int], columns: int) -> list[list[slice]]:
    """Where the numbers of each column are, in lists of so many columns."""
    ends = list(accumulate(widths))
    blocks = [slice(end - width, end) for width, end in zip(widths, ends, strict=True)]
    return [blocks[start : start + columns] for start in range(0, len(blocks), columns)]


@torch.no_grad()
def _values(trained: Trained, items: Items, scores: Tensor) -> Tensor:
    """The metric of each of several scorings of the same items, `[B]`; scores are `[B, n, ...]`."""
    number = len(scores)
    metric, scores = trained.metric.at_threshold(trained.threshold, scores)
    target = items.y.expand(number, *items.y.shape)
    if items.where is None:
        rows = {name: each.expand(number, *each.shape) for name, each in items.rows.items()}
        return metric.of_sets(scores, target, **rows)
    padded = scores.new_zeros(target.shape)
    padded[:, items.where] = scores
    return metric.of_sets(padded, target, items.where.expand(target.shape)).mean(-1)


@dataclass(frozen=True)
class _AnyModel:
    """Scores rows with a column shuffled, by any model: each time with all of their columns."""

    trained: Trained
    x: Tensor  # [n, width]
    orders: Tensor  # [shuffles, n]

    @property
    def width(self) -> int:
        """Numbers of a row that are held at once."""
        return self.x.shape[-1]

    def scores(self, blocks: Sequence[slice]) -> Tensor:
        """`[columns * shuffles, n, ...]`."""
        moved = self.x.repeat(len(blocks), len(self.orders), 1, 1)
        for each, block in zip(moved, blocks, strict=True):
            each[:, :, block] = self.x[:, block][self.orders]
        return self.trained.scores(moved.flatten(0, 2)).unflatten(0, (-1, len(self.x)))


@dataclass(frozen=True)
class _Perceptron:
    """The same for a network that begins with a linear layer, where a column is a sum apart."""

    weight: Tensor  # of the first layer, [units, width]
    units: Tensor  # what it gives, [n, units]
    after: Trained  # the layers after it
    x: Tensor
    orders: Tensor

    @property
    def width(self) -> int:
        """Numbers of a row that are held at once."""
        return self.units.shape[-1]

    def scores(self, blocks: Sequence[slice]) -> Tensor:
        """`[columns * shuffles, n, ...]`."""
        parts = [self.x[:, block] @ self.weight[:, block].T for block in blocks]
        # The difference first: it is exactly 0 where shuffling changes nothing.
        moved = torch.stack([self.units + (part[self.orders] - part) for part in parts])
        return self.after.scores(moved.flatten(0, 2)).unflatten(0, (-1, len(self.x)))


@torch.no_grad()
def _scorer(trained: Trained, x: Tensor, orders: Tensor) -> _AnyModel | _Perceptron:
    """How rows with shuffled columns are scored."""
    layers = list(trained.model) if isinstance(trained.model, nn.Sequential) else [trained.model]
    first = layers[0]
    if not isinstance(first, nn.Linear):
        return _AnyModel(trained, x, orders)
    rest = nn.Sequential(*layers[1:])
    after = Trained(model=rest, metric=trained.metric, threshold=trained.threshold)
    return _Perceptron(first.weight.detach(), first(x), after, x, orders)
