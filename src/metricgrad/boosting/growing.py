"""Trees that are grown one by one, by whichever library is installed.

A `Booster` grows trees on the rows of a table: first on the ordinary loss of its library, then, if
asked, on an objective of ours. After every few trees it tells the scores of other rows, so that
validation data can say when to stop. What is left in the end is a `Forest`: trees that only
predict, and that are stored as the text which their library writes. `BoostedTrees` makes a torch
module of it, so that what scores items need not know what a model is made of.

    lightgbm    LightGBM's own text format
    xgboost     XGBoost's JSON format
    sklearn     scikit-learn has no format of its own; the nodes of its trees as JSON
"""

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

Engine = Literal["lightgbm", "xgboost", "sklearn"]
TreeTask = Literal["binary", "classes", "grades"]  # what a row has: 0 or 1, a class, a grade


_LEAST = 20  # rows of a leaf; fewer where the table is small
_BINS = (100, 255)  # of a column, at least and at most,
_PER_BIN = 64  # and rows in one of them on average


class TreeRows(NamedTuple):
    """Rows of a table, as trees take them."""

    x: np.ndarray  # `[N, columns]`, float64; NaN is missing, categories are numbered from 0
    y: np.ndarray  # `[N]`
    sizes: np.ndarray | None = None  # `[Q]`, rows of each query, which are in order
    weight: np.ndarray | None = None  # `[N]`

    @property
    def least(self) -> int:
        """The fewest rows of a leaf: 20, as libraries have it, or a twentieth of a small table."""
        return max(1, min(_LEAST, len(self.y) // _LEAST))

    @property
    def bins(self) -> int:
        """How many bins a column has: 255, as libraries have it, or fewer in a small table.

        A tree takes as long as it has bins, once they are as many as the rows, and bins of a few
        rows are chance.
        """
        low, high = _BINS
        return max(low, min(high, len(self.y) // _PER_BIN))


@dataclass(frozen=True)
class TreeSettings:
    """What all trees of a booster share."""

    task: TreeTask
    classes: int = 2
    categories: tuple[int, ...] = ()  # columns that hold numbered categories
    leaves: int = 31
    rate: float = 0.1
    threads: int = 1
    seed: int = 0
    before: "Forest | None" = None  # trees of the same library, to which more are added


class Forest(ABC):
    """Trees that are not grown any further.

    Attributes:
        engine: Name of the library that grew the trees and has to read them again.
        booster: The booster object of that library; None for scikit-learn, whose nodes we keep.
    """

    engine: Engine
    booster: Any

    @property
    @abstractmethod
    def trees(self) -> int:
        """How many times trees were added, one for each score of a row."""

    @abstractmethod
    def scores(self, x: np.ndarray) -> np.ndarray:
        """Raw scores, `[N]`, or `[N, classes]`."""

    @abstractmethod
    def to_text(self) -> str:
        """The trees as text, from which `read_forest` makes them again."""


class BoostedTrees(nn.Module):
    """Trees that have been grown, as a model: columns in, raw scores out.

    It has no gradient. Its one parameter is empty: it says that columns are float64, where large
    whole numbers stay what they are.

    Attributes:
        forest: The trees, of whichever library grew them.
    """

    def __init__(self, forest: Forest) -> None:
        super().__init__()
        self.forest = forest
        self.empty = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[N]`, or `[N, classes]`, of columns `[N, columns]`."""
        return torch.from_numpy(self.forest.scores(x.cpu().numpy()).astype(np.float32))

    def extra_repr(self) -> str:
        """The library that grew the trees."""
        return self.forest.engine


class Booster(ABC):
    """Trees that grow on the rows of a table."""

    @abstractmethod
    def grow(self, trees: int, objective: Any = None) -> None:
        """Adds trees on an objective, or on the ordinary loss; there is no way back to the latter.

        `objective` is what `mg.boosting.objective` returns.
        """

    @abstractmethod
    def watched(self) -> np.ndarray:
        """Raw scores of the rows that the booster was given to watch."""

    @abstractmethod
    def forest(self) -> Forest:
        """The trees as they are now."""


def installed_engine(asked: str | None) -> Engine:
    """The library to grow trees with: the one asked for, or the first that is installed.

    scikit-learn always is, but its trees know no objective but log loss.
    """
    if asked is None:
        found: list[Engine] = ["lightgbm", "xgboost", "sklearn"]
        return next(name for name in found if importlib.util.find_spec(name))
    for name in get_args(Engine):
        if name == asked:
            if importlib.util.find_spec(name) is None:
                raise ImportError(
                    f"{name} is not installed; pip install {name}, or leave out engine={name!r}"
                )
            return name
    raise ValueError(f"engine must be one of {', '.join(get_args(Engine))}; got {asked!r}")


def new_booster(
    engine: Engine, rows: TreeRows, settings: TreeSettings, watched: np.ndarray | None
) -> Booster:
    """A booster without trees, and the columns `[M, columns]` of other rows whose scores it tells.

    Example:
        >>> x = np.arange(100.0).reshape(-1, 1)
        >>> rows = TreeRows(x, (x[:, 0] > 70).astype(int))
        >>> booster = new_booster("sklearn", rows, TreeSettings("binary"), x)
        >>> booster.grow(20)
        >>> (booster.watched() > 0).sum()
        np.int64(29)
    """
    match engine:
        case "lightgbm":
            from metricgrad.boosting.lightgbm_trees import LightGBMBooster

            return LightGBMBooster(rows, settings, watched)
        case "xgboost":
            from metricgrad.boosting.xgboost_trees import XGBoostBooster

            return XGBoostBooster(rows, settings, watched)
        case "sklearn":
            from metricgrad.boosting.sklearn_trees import SklearnBooster

            return SklearnBooster(rows, settings, watched)


def read_forest(engine: str, text: str) -> Forest:
    """Trees that `Forest.to_text` wrote; ImportError where their library is not installed."""
    match installed_engine(engine):
        case "lightgbm":
            from metricgrad.boosting.lightgbm_trees import LightGBMForest

            return LightGBMForest.of_text(text)
        case "xgboost":
            from metricgrad.boosting.xgboost_trees import XGBoostForest

            return XGBoostForest.of_text(text)
        case "sklearn":
            from metricgrad.boosting.sklearn_trees import NodeForest

            return NodeForest.of_text(text)


def own_booster(model: nn.Module) -> Any:
    """The booster of a model, as its library has it; AttributeError where there is none."""
    if isinstance(model, BoostedTrees) and model.forest.booster is not None:
        return model.forest.booster
    raise AttributeError("booster_ exists only for models grown by LightGBM or XGBoost")
