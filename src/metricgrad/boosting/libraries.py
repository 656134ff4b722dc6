"""What LightGBM, XGBoost and CatBoost have in common, and what they are told.

The libraries call functions of the user's own in different ways:

    lgb.train, xgb.train        function(scores, data)        data: labels, weights, group sizes
    LGBMClassifier, LGBMRanker  function(target, scores, weights, sizes)
    XGBClassifier               function(target, scores), and sample_weight=... if there are weights

LightGBM counts the parameters of a function to decide how many it passes, so a function for all of
these has four. Scores are `[N]`, or `[N, C]` for classes. `rows_of` makes one form of all of them,
which the objective (`objective.py`) and the evaluation take; `start` gets raw scores out of a
booster of any of the libraries.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metricgrad.metrics import Metric, best_threshold
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import to_tensor
from metricgrad.metrics.rows import to_rows

ABSENT: Any = object()  # a parameter that was not passed, as LightGBM passes None


class BoosterRows(NamedTuple):
    """What a booster knows of its rows."""

    scores: Tensor  # `[N]` or `[N, C]`, raw
    target: Tensor  # `[N]`
    weight: Tensor | None  # `[N]`
    sizes: Tensor | None  # `[Q]`, rows of each query, in order


def rows_of(first: Any, second: Any, weight: Any, sizes: Any) -> BoosterRows:
    """The rows of a call, whichever library made it."""
    target = first
    scores = second
    if callable(getattr(second, "get_label", None)):  # lgb.Dataset or xgb.DMatrix
        target = second.get_label()
        scores = first
        weight = second.get_weight()
        sizes = second.get_group()
    weight = None if weight is ABSENT else weight
    sizes = None if sizes is ABSENT else sizes
    found = torch.as_tensor(np.asarray(scores, dtype=np.float32))
    truth = torch.as_tensor(np.asarray(target))
    if len(found) != len(truth) or truth.dim() != 1 or found.dim() not in (1, 2):
        raise ValueError(
            "a booster passes scores [rows] or [rows, classes] and a target [rows]; got "
            f"{list(found.shape)} and {list(truth.shape)}"
        )
    unknown = int(truth.isnan().sum())
    if unknown:
        raise ValueError(f"{unknown} of {len(truth)} targets are NaN; leave these rows out")
    known = BoosterRows(found, truth, _numbers(weight), _numbers(sizes))
    return known._replace(weight=_of_rows(known))


def _of_rows(known: BoosterRows) -> Tensor | None:
    """A weight for each row; XGBoost has one for each query."""
    weight = known.weight
    rows = len(known.target)
    if weight is None or len(weight) == rows:
        return weight
    if known.sizes is not None and len(weight) == len(known.sizes) and known.sizes.sum() == rows:
        return weight.repeat_interleave(known.sizes.long())
    raise ValueError(f"there must be one weight for each of the {rows} rows; got {len(weight)}")


def _numbers(given: Any) -> Tensor | None:
    """An array as a tensor; None if there is none, or if it is empty."""
    if given is None or not len(given):
        return None
    return torch.as_tensor(np.asarray(given))


def evaluation(
    metric: Any,
    *,
    groups: Any = None,
    tune: bool = False,
    rows: Mapping[str, Any] | None = None,
) -> "Evaluation":
    """A metric as the evaluation function of LightGBM, XGBoost or CatBoost.

    Args:
        metric: A name, a `Metric`, or a function `f(scores, target)`.
        groups: `[N]`, ids of the queries that the evaluated rows belong to; None takes what the
            library passes.
        tune: Whether a metric of decisions is taken at its best threshold on the evaluated rows.
            With an objective of their own, such as log loss, the libraries pass probabilities,
            which are not decided at 0.
        rows: Arguments of your own function besides scores and target, by name: `[N]` each.

    Returns:
        A function for `feval=` (`lgb.train`), `eval_metric=` (`LGBMClassifier`, `XGBClassifier`,
        CatBoost) or `custom_metric=` (`xgb.train`, with `maximize=True` in its early stopping if
        higher is better). XGBoost's wrapper minimises what it is given, and gets the metric as a
        loss.

    Example:
        >>> import lightgbm as lgb, metricgrad as mg
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> train, valid = lgb.Dataset(x[:400], y[:400]), lgb.Dataset(x[400:], y[400:])
        >>> booster = lgb.train(
        ...     {"verbose": -1, "objective": mg.boosting.objective("f1"), "metric": "none"},
        ...     train, valid_sets=[valid], feval=mg.boosting.evaluation("f1"),
        ...     callbacks=[lgb.early_stopping(5, verbose=False)],
        ... )
        >>> booster.best_score["valid_0"]["f1"] > 0.9
        True
    """
    return Evaluation(to_metric(metric), groups, tune, to_rows(rows or {}))


class Evaluation:
    """The function that `mg.boosting.evaluation` returns.

    Example:
        >>> import metricgrad as mg
        >>> evaluate = mg.boosting.evaluation("auc")
        >>> target, scores = np.array([1, 0, 1, 0]), np.array([0.5, -0.5, 0.0, 1.0])
        >>> evaluate(target, scores, None)  # called as LightGBM's classifier does
        ('auc', 0.5, True)
    """

    def __init__(self, metric: Metric, groups: Any, tune: bool, rows: dict[str, Any]) -> None:
        self.metric = metric
        self.groups = None if groups is None else to_tensor("groups", groups)
        self.tune = tune
        self.rows = rows
        self.__name__ = metric.name  # XGBoost's wrapper asks a function for its name

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = ABSENT, group: Any = ABSENT
    ) -> Any:
        """The metric of all rows, in the form that the calling library takes."""
        value = self.value(rows_of(y_true, y_pred, sample_weight, group))
        if hasattr(y_pred, "get_label"):
            lightgbm = hasattr(y_pred, "get_field")
            name = self.metric.name
            return (name, value, self.metric.higher_is_better) if lightgbm else (name, value)
        if sample_weight is ABSENT:  # XGBoost's wrapper
            return -value if self.metric.higher_is_better else value
        return self.metric.name, value, self.metric.higher_is_better

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> tuple[float, float]:
        """What CatBoost calls, with the scores of all rows."""
        scores = torch.as_tensor(np.array(approxes, dtype=np.float64))
        scores = scores[0] if len(scores) == 1 else scores.mT
        return self.value(BoosterRows(scores, torch.as_tensor(np.array(target)), None, None)), 1.0

    def is_max_optimal(self) -> bool:
        """What CatBoost asks: whether higher is better."""
        return self.metric.higher_is_better

    def get_final_error(self, error: float, weight: float) -> float:
        """What CatBoost asks: the value that `evaluate` found."""
        return error

    def value(self, known: BoosterRows) -> float:
        """The metric of all rows, or its mean over queries."""
        scores, target, _, sizes = known
        groups = self.groups
        if groups is None and sizes is not None:
            groups = torch.arange(len(sizes)).repeat_interleave(sizes.long())
        if groups is not None:
            values = self.metric(scores, target, groups=groups)
            return float(values.mean())
        metric = self.metric
        if self.tune and metric.has_threshold and scores.dim() == 1:
            scores = scores - best_threshold(scores, target, metric, **self.rows)
        metric = metric.with_rows(self.rows) if self.rows else metric
        # A call would notice that a booster's first scores look like probabilities.
        return float(metric.evaluate(*metric.check(scores, target, None)))


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
