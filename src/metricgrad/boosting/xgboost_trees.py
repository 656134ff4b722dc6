"""Trees of XGBoost.

It keeps the scores of matrices that it has seen, so asking for those of watched rows costs only the
trees that were added since.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb

from metricgrad.boosting.growing import Booster, Forest, TreeRows, TreeSettings

_OBJECTIVES = {"binary": "binary:logistic", "classes": "multi:softprob", "grades": "rank:ndcg"}


@dataclass(frozen=True)
class XGBoostForest(Forest):
    """Trees of XGBoost that only predict."""

    booster: xgb.Booster

    engine = "xgboost"

    @property
    def trees(self) -> int:
        """How many times trees were added."""
        return self.booster.num_boosted_rounds()

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Raw scores, `[N]`, or `[N, classes]`."""
        return self.booster.predict(_matrix(x, self.booster.feature_types), output_margin=True)

    def to_text(self) -> str:
        """XGBoost's JSON format."""
        return self.booster.save_raw("json").decode()

    @classmethod
    def of_text(cls, text: str) -> "XGBoostForest":
        """Trees from XGBoost's JSON format; ValueError if the text is not in it."""
        json.loads(text)  # XGBoost ends the process for some texts that are not JSON
        booster = xgb.Booster()
        try:
            booster.load_model(bytearray(text.encode()))
        except xgb.core.XGBoostError as error:
            raise ValueError(f"not an XGBoost model: {str(error)[:200]}") from None
        return cls(booster)


class XGBoostBooster(Booster):
    """A booster of XGBoost."""

    def __init__(self, rows: TreeRows, settings: TreeSettings, watched: np.ndarray | None) -> None:
        kinds = ["c" if each in settings.categories else "q" for each in range(rows.x.shape[1])]
        params: dict[str, Any] = {
            "objective": _OBJECTIVES[settings.task],
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_bin": rows.bins,
            "max_leaves": settings.leaves,
            "max_depth": 0,
            "learning_rate": settings.rate,
            "nthread": settings.threads,
            "seed": settings.seed,
            "verbosity": 0,
        }
        if settings.task == "classes":
            params["num_class"] = settings.classes
        self._train = _matrix(rows.x, kinds, rows)
        self._watched = None if watched is None else _matrix(watched, kinds)
        cache = [self._train] if self._watched is None else [self._train, self._watched]
        before = None if settings.before is None else settings.before.booster
        self._booster = xgb.Booster(params, cache, before)

    def grow(self, trees: int, objective: Any = None) -> None:
        """Adds trees on an objective, or on the ordinary loss."""
        first = self._booster.num_boosted_rounds()
        for number in range(first, first + trees):
            self._booster.update(self._train, number, fobj=objective)

    def watched(self) -> np.ndarray:
        """Raw scores of the rows that the booster was given to watch."""
        assert self._watched is not None
        return self._booster.predict(self._watched, output_margin=True)

    def forest(self) -> XGBoostForest:
        """The trees as they are now, without the rows that they grew on."""
        return XGBoostForest.of_text(self._booster.save_raw("json").decode())


def _matrix(x: np.ndarray, kinds: Any, rows: TreeRows | None = None) -> xgb.DMatrix:
    """Rows as XGBoost takes them; with their target where they are trained on."""
    if rows is None:
        return xgb.DMatrix(x, feature_types=kinds, enable_categorical=True)
    matrix = xgb.DMatrix(x, rows.y, feature_types=kinds, enable_categorical=True)
    if rows.sizes is not None:
        matrix.set_info(group=rows.sizes)
    if rows.weight is not None:
        matrix.set_info(weight=rows.weight)
    return matrix
