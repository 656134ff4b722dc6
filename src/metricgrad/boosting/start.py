"""Raw scores of a booster, from which another one continues."""

from typing import Any

import numpy as np


def start(booster: Any, x: Any) -> np.ndarray:
    """Raw scores of an ordinary booster, to start a booster on the metric from.

    A metric says little about rows that are not yet in order, and most about the last ones, so
    it pays to begin with an ordinary booster. Pass what this returns as `init_score` (LightGBM) or
    `base_margin` (XGBoost), and add it to the new booster's scores when predicting. If both
    boosters may be one file, pass `init_model=` or `xgb_model=` instead: the new trees are then
    added to the old ones, which needs no start.

    Args:
        booster: A model of LightGBM, XGBoost or CatBoost, or of scikit-learn with a
            `decision_function`.
        x: `[N, columns]`, in the form that the model predicts from.

    Returns:
        `[N]`, or `[N, C]` for classes: log-odds, not probabilities.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.ensemble import HistGradientBoostingClassifier
        >>> import metricgrad as mg
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> ordinary = HistGradientBoostingClassifier(max_iter=5).fit(x, y)
        >>> mg.boosting.start(ordinary, x).shape
        (569,)
    """
    package = type(booster).__module__.split(".")[0]
    match package:
        case "lightgbm":
            found = booster.predict(x, raw_score=True)
        case "xgboost":
            found = booster.predict(x, output_margin=True)
        case "catboost":
            found = booster.predict(x, prediction_type="RawFormulaVal")
        case "sklearn":
            found = booster.decision_function(x)
        case _:
            raise TypeError(
                "booster must be a model of LightGBM, XGBoost, CatBoost or scikit-learn; got "
                f"{type(booster).__module__}.{type(booster).__qualname__}"
            )
    return np.asarray(found)
