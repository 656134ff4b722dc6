r"""Tables with far more columns than rows, trained in the space of their rows.

The gradient of a first linear layer is a sum of training rows. With n rows of p columns and n far
below p, its weights move in the n dimensions that the rows span, and nowhere else:

.. math:: W = V Q, \quad W x = V (Q x), \quad Q \; [n, p] \text{ an orthonormal basis of the rows}

So a network of the n coordinates Q x is a network of the p columns, and a step of it costs p / n
times less. What it leaves out are the initial weights outside that space, which no training row
ever sees and which add noise to every other row.

Every fold has the basis of its own training rows, and the rows that it validates on are projected
like new ones. A basis that knew them would keep all of their length, where new rows keep a part, so
thresholds chosen on them would not hold for new rows.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics.rows import Rows, at, check_rows
from metricgrad.training.checkpoint import State
from metricgrad.training.data import Fold, FoldBatches, Items, Loader
from metricgrad.training.split import Split

WIDE = 2  # columns for each row, above which a table has far more columns than rows
_DEPENDENT = 1e-10  # of the largest variance: what a direction has that is no more than rounding


@dataclass(frozen=True)
class TableItems(Items):
    """Rows of a table `[items, columns]`, for a network whose start is not the user's own."""


def table_items(x: Tensor, target: Tensor, own: Rows, metric: Metric) -> TableItems:
    """Rows `[items, columns]`, their targets and what else the metric takes of them, by name."""
    rows = metric.row_names.named((own,) if own else ())
    check_rows(rows, target.shape[:1], None)
    return TableItems(x, target, rows=rows)


class Space(ABC):
    """Where a model is trained: on data as it is, or on coordinates of it."""

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model to train there."""

    @abstractmethod
    def split(self, split: Split) -> Split:
        """A split of the data, in this space."""

    @abstractmethod
    def outside(self, state: State, items: Items | Loader, train: Tensor) -> State:
        """The state that the user's model has, for what was trained on items at an index."""


@dataclass(frozen=True)
class AsGiven(Space):
    """The user's model on the user's data."""

    own: nn.Module

    @property
    def model(self) -> nn.Module:
        """The user's model itself."""
        return self.own

    def split(self, split: Split) -> Split:
        """The split itself."""
        return split

    def outside(self, state: State, items: Items | Loader, train: Tensor) -> State:
        """The state itself."""
        return state


@dataclass(frozen=True)
class RowSpace(Space):
    """The coordinates of wide rows, for a network that begins with a linear layer."""

    first: nn.Linear  # of the coordinates
    rest: nn.Sequential

    @property
    def model(self) -> nn.Sequential:
        """The network of the coordinates."""
        return nn.Sequential(self.first, *self.rest)

    def split(self, split: Split) -> Split:
        """The same split in coordinates.

        Items have other coordinates in every fold, so each fold gets a copy of them all. Item i of
        fold k is item k n + i.
        """
        batches = split.batches
        assert isinstance(batches, FoldBatches)
        items = batches.items
        own = split.data.data is items
        held = split.data.data
        assert isinstance(held, Items)
        bases = [self.basis(items.x[fold.train]) for fold in split.folds]
        copies = _side_by_side(items, bases)
        shifts = [number * len(items) for number in range(len(bases))]
        folds = [
            Fold(fold.train + shift, fold.valid + shift)
            for fold, shift in zip(split.folds, shifts, strict=True)
        ]
        data = replace(split.data, data=copies if own else _side_by_side(held, bases))
        if own and data.index is not None:
            data = replace(data, index=data.index + torch.tensor(shifts).unsqueeze(-1))
        return split._replace(folds=folds, batches=batches.of(copies, folds), data=data)

    def basis(self, rows: Tensor) -> Tensor:
        """Orthonormal columns `[p, n]` that span the rows `[t, p]`, then columns of 0."""
        rows = rows.double()
        squares, turned = torch.linalg.eigh(rows @ rows.T)  # the rows' principal components
        spanned = squares > _DEPENDENT * squares.max()
        found = rows.T @ (turned / squares.sqrt())[:, spanned]
        padded = self.first.weight.new_zeros(rows.shape[1], self.first.in_features)
        padded[:, : found.shape[1]] = found
        return padded

    def outside(self, state: State, items: Items | Loader, train: Tensor) -> State:
        """The state of the network of all columns: W = V Q."""
        assert isinstance(items, Items)
        return state | {"0.weight": state["0.weight"] @ self.basis(items.x[train]).T}


def space_for(model: nn.Module, train: Items | Loader, valid: Items | Loader | None) -> Space:
    """The space of the rows where a table has far more columns than rows."""
    if not isinstance(train, TableItems) or isinstance(valid, Loader):
        return AsGiven(model)
    if not isinstance(model, nn.Sequential):
        return AsGiven(model)
    first = model[0]
    number = len(train)
    if not isinstance(first, nn.Linear) or first.in_features <= WIDE * number:
        return AsGiven(model)
    layer = nn.Linear(number, first.out_features, device=first.weight.device)
    with torch.no_grad():
        layer.weight.copy_(first.weight[:, :number])  # they are drawn alike in every direction
        layer.bias.copy_(first.bias)
    return RowSpace(layer, nn.Sequential(*copy.deepcopy(list(model)[1:])))


def _side_by_side(items: Items, bases: list[Tensor]) -> Items:
    """Items once for every basis, in its coordinates."""
    again = torch.arange(len(items)).repeat(len(bases))
    x = torch.cat([items.x @ basis for basis in bases])
    return Items(x, items.y[again], None, at(items.rows, again))
