"""A metric as the evaluation function of boosted trees, for early stopping and curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from metricgrad.boosting.calls import ABSENT, BoosterRows, rows_of
from metricgrad.metrics import Metric, best_threshold
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import to_tensor
from metricgrad.metrics.rows import to_rows


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
        rows: What a function of your own takes besides scores and target, by name: `[N]` each.

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
    """What `mg.boosting.evaluation` returns."""

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
