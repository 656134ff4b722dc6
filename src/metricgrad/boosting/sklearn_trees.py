"""Trees of scikit-learn's histogram gradient boosting, which grow on the ordinary loss only.

scikit-learn can store its models by pickle alone, which we never read. So the nodes of all trees
are taken out of the fitted model: a node sends a row to the left if its value is at most a
threshold, or if its category is in a set; a row ends in a leaf, and the values of its leaves add up
to its score. All rows take a step down at a time.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from metricgrad.boosting.growing import Booster, Forest, TreeRows, TreeSettings

_KEPT = (  # of what scikit-learn knows of a node
    *("value", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right"),
    *("is_leaf", "is_categorical", "bitset_idx"),
)
_BITS = 32  # categories in a word of a set


@dataclass(frozen=True)
class NodeForest(Forest):
    """Trees as arrays of nodes; `rounds` are lists of trees, one for each class.

    `baseline` has a score for each class, `known` has the categories of some columns, by the number
    of the column. scikit-learn puts these columns first, and numbers the categories that its
    training rows had.
    """

    baseline: np.ndarray  # `[columns of scores]`
    rounds: list[list[dict[str, np.ndarray]]]
    known: dict[int, np.ndarray]

    engine = "sklearn"
    booster = None

    @property
    def trees(self) -> int:
        """How many times trees were added."""
        return len(self.rounds)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Raw scores, `[N]`, or `[N, classes]`."""
        x = self._ordered(x)
        found = np.tile(self.baseline, (len(x), 1))
        for one_round in self.rounds:
            for column, nodes in enumerate(one_round):
                found[:, column] += nodes["value"][_leaves(nodes, x)]
        return found[:, 0] if len(self.baseline) == 1 else found

    def to_text(self) -> str:
        """All nodes as JSON."""
        rounds = [
            [{name: each.tolist() for name, each in nodes.items()} for nodes in one_round]
            for one_round in self.rounds
        ]
        known = {str(column): each.tolist() for column, each in self.known.items()}
        return json.dumps({"baseline": self.baseline.tolist(), "known": known, "trees": rounds})

    def _ordered(self, x: np.ndarray) -> np.ndarray:
        """Columns of categories first, numbered; unknown categories are missing."""
        if not self.known:
            return x
        columns = []
        for number, categories in self.known.items():
            place = np.searchsorted(categories, x[:, number]).clip(max=len(categories) - 1)
            columns.append(np.where(categories[place] == x[:, number], place, np.nan))
        rest = [number for number in range(x.shape[1]) if number not in self.known]
        return np.column_stack([*columns, x[:, rest]])

    @classmethod
    def of_text(cls, text: str) -> "NodeForest":
        """Trees from what `to_text` wrote; ValueError where nodes lead out of their tree."""
        stored = json.loads(text)
        types = {"value": float, "num_threshold": float}
        rounds = [
            [
                {name: np.asarray(each, dtype=types.get(name, int)) for name, each in nodes.items()}
                for nodes in one_round
            ]
            for one_round in stored["trees"]
        ]
        for nodes in (nodes for one_round in rounds for nodes in one_round):
            size = len(nodes["value"])
            own = np.arange(size)
            inner = nodes["is_leaf"] == 0
            for side in (
                "left",
                "right",
            ):  # children come after their parent, so no path is endless
                if not ((nodes[side] > own) & (nodes[side] < size))[inner].all():
                    raise ValueError("a node of a tree does not lead to a node below it")
        known = {int(column): np.asarray(each) for column, each in stored["known"].items()}
        return cls(np.asarray(stored["baseline"], dtype=np.float64), rounds, known)


class SklearnBooster(Booster):
    """A booster of scikit-learn."""

    def __init__(self, rows: TreeRows, settings: TreeSettings, watched: np.ndarray | None) -> None:
        options: dict[str, Any] = {
            "learning_rate": settings.rate,
            "max_leaf_nodes": settings.leaves,
            "min_samples_leaf": rows.least,
            "max_bins": rows.bins,
            "categorical_features": list(settings.categories) or None,
            "early_stopping": False,
            "warm_start": True,
            "max_iter": 0,
            "random_state": settings.seed,
        }
        grades = settings.task == "grades"
        kind = HistGradientBoostingRegressor if grades else HistGradientBoostingClassifier
        self._model: Any = kind(**options)
        self._rows = rows
        self._watched = watched
        self._categories = settings.categories

    def grow(self, trees: int, objective: Any = None) -> None:
        """Adds trees on the ordinary loss; ValueError for any other."""
        if objective is not None:
            raise ValueError(
                "scikit-learn's trees grow on the ordinary loss only; pip install lightgbm, or "
                "xgboost, to grow them on a metric"
            )
        self._model.set_params(max_iter=self._model.max_iter + trees)
        self._model.fit(self._rows.x, self._rows.y, sample_weight=self._rows.weight)

    def watched(self) -> np.ndarray:
        """Raw scores of the rows that the booster was given to watch."""
        assert self._watched is not None
        ask = getattr(self._model, "decision_function", self._model.predict)
        return ask(self._watched)

    def forest(self) -> NodeForest:
        """The nodes of all trees."""
        return NodeForest(
            np.ravel(self._model._baseline_prediction).astype(np.float64),
            [[_nodes(tree) for tree in one_round] for one_round in self._model._predictors],
            {number: _distinct(self._rows.x[:, number]) for number in self._categories},
        )


def _distinct(values: np.ndarray) -> np.ndarray:
    """All values but missing ones, in order."""
    return np.unique(values[~np.isnan(values)])


def _nodes(tree: Any) -> dict[str, np.ndarray]:
    """The nodes of one fitted tree, and its sets of categories as words of 32 bits."""
    found = {name: np.asarray(tree.nodes[name]) for name in _KEPT}
    return found | {"sets": np.asarray(tree.raw_left_cat_bitsets, dtype=np.int64).reshape(-1)}


def _leaves(nodes: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The leaf in which each row ends."""
    place = np.zeros(len(x), dtype=np.int64)
    below = np.flatnonzero(nodes["is_leaf"][place] == 0)
    words = 8  # of a set: 256 categories
    while len(below):
        here = place[below]
        values = x[below, nodes["feature_idx"][here]]
        missing = np.isnan(values)
        left = values <= nodes["num_threshold"][here]
        by_set = nodes["is_categorical"][here] == 1
        if by_set.any():
            code = np.where(missing, 0, values).astype(np.int64)
            start = words * nodes["bitset_idx"][here[by_set]]
            word = nodes["sets"][start + code[by_set] // _BITS]
            left[by_set] = (word >> (code[by_set] % _BITS)) & 1
        left = np.where(missing, nodes["missing_go_to_left"][here] == 1, left)
        place[below] = np.where(left, nodes["left"][here], nodes["right"][here])
        below = below[nodes["is_leaf"][place[below]] == 0]
    return place
