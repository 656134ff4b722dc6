"""Trees of LightGBM.

Its first tree holds the average of the target, so the scores of all trees are complete. The scores
of watched rows are summed up as trees are added, and no tree is asked twice.
"""

from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np

from metricgrad.boosting.growing import Booster, Forest, TreeRows, TreeSettings

_OBJECTIVES = {"binary": "binary", "classes": "multiclass", "grades": "lambdarank"}


@dataclass(frozen=True)
class LightGBMForest(Forest):
    """Trees of LightGBM that only predict."""

    booster: lgb.Booster

    engine = "lightgbm"

    @property
    def trees(self) -> int:
        """How many times trees were added."""
        return self.booster.current_iteration()

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Raw scores, `[N]`, or `[N, classes]`."""
        return np.asarray(self.booster.predict(x, raw_score=True))

    def to_text(self) -> str:
        """LightGBM's text format."""
        return self.booster.model_to_string()

    @classmethod
    def of_text(cls, text: str) -> "LightGBMForest":
        """Trees from LightGBM's text format; ValueError if the text is not in it."""
        try:
            return cls(lgb.Booster(model_str=text))
        except lgb.basic.LightGBMError as error:
            raise ValueError(f"not a LightGBM model: {error}") from None


class LightGBMBooster(Booster):
    """A booster of LightGBM."""

    def __init__(self, rows: TreeRows, settings: TreeSettings, watched: np.ndarray | None) -> None:
        params: dict[str, Any] = {
            "objective": _OBJECTIVES[settings.task],
            "num_leaves": settings.leaves,
            "learning_rate": settings.rate,
            "num_threads": settings.threads,
            "seed": settings.seed,
            "min_data_in_leaf": rows.least,
            "min_data_in_bin": min(3, rows.least),
            "max_bin": rows.bins,
            "feature_pre_filter": False,
            "verbose": -1,
            "metric": "none",
            # The same trees every time: no timing decides how histograms are built.
            "deterministic": True,
            "force_col_wise": True,
        }
        if settings.task == "classes":
            params["num_class"] = settings.classes
        data = lgb.Dataset(
            rows.x,
            rows.y,
            group=rows.sizes,
            weight=rows.weight,
            categorical_feature=list(settings.categories),
            params=params,
        )
        if not (rows.x != rows.x[:1]).any():  # LightGBM would end with a line of its own source
            raise ValueError(
                f"all columns of the {len(rows.y)} rows that trees grow on are constant, so rows "
                "cannot be distinguished; pass more rows or columns"
            )
        if settings.before is None:
            self._booster = lgb.Booster(params, data)
        else:  # LightGBM continues trees only while it grows one, which is taken off again
            given = settings.before.booster
            self._booster = lgb.train(params, data, 1, init_model=given, keep_training_booster=True)
            self._booster.rollback_one_iter()
        self._watched = watched
        several = settings.task == "classes"
        number = 0 if watched is None else len(watched)
        self._scores = np.zeros((number, settings.classes) if several else number)
        self._seen = 0

    def grow(self, trees: int, objective: Any = None) -> None:
        """Adds trees on an objective, or on the ordinary loss."""
        for _ in range(trees):
            self._booster.update(fobj=objective)

    def watched(self) -> np.ndarray:
        """Raw scores of the rows that the booster was given to watch."""
        assert self._watched is not None
        grown = self._booster.current_iteration()
        if grown > self._seen:
            added: Any = self._booster.predict(
                self._watched,
                raw_score=True,
                start_iteration=self._seen,
                num_iteration=grown - self._seen,
            )
            self._scores += added
            self._seen = grown
        return self._scores.copy()

    def forest(self) -> LightGBMForest:
        """The trees as they are now, without the rows that they grew on."""
        return LightGBMForest.of_text(self._booster.model_to_string())
