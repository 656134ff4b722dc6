"""A target as scikit-learn has it, and as metrics take it: classes as numbers from 0, of two the positive one as 1."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from metricgrad.metrics import Metric, metric_options
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.function import FunctionMetric

Kind = Literal["binary", "classes", "labels"]


@dataclass(frozen=True)
class Target:
    """What the targets of a classifier are.

    Attributes:
        kind: two classes, more, or labels.
        classes: in order; for labels their numbers.
        order: of two classes, the negative one and the positive one, by their places in `classes`.
    """

    kind: Kind
    classes: np.ndarray
    order: tuple[int, int] = (0, 1)

    @classmethod
    def of(cls, y: Any, metric: Metric, positive: Any) -> "Target":
        """The kind and classes of a training's target.

        Args:
            y: `[items]` classes, or `[items, labels]` of 0 and 1.
            metric: that must have a value for them.
            positive: which of two classes is positive; None takes the second.

        Returns:
            What they are; ValueError where nothing can be learned from them.
        """
        check_classification_targets(y)
        if type_of_target(y, input_name="y") == "multilabel-indicator":
            return cls("labels", np.arange(np.asarray(y).shape[1]))
        classes = np.unique(column_or_1d(y, warn=True))
        if len(classes) < 2:
            raise ValueError(
                f"the target has one class only, {classes[0]!r}; there is nothing to tell apart"
            )
        if len(classes) == 2:
            if positive is not None and positive not in classes:
                raise ValueError(f"positive must be one of {classes.tolist()}; got {positive!r}")
            return cls(
                "binary",
                classes,
                (1, 0) if positive is not None and classes[0] == positive else (0, 1),
            )
        if not isinstance(metric, FunctionMetric) and "multi-class" not in metric.families:
            raise ValueError(
                f"{metric.name} is for two classes, and the target has {len(classes)}: "
                f"{', '.join(map(str, classes[:5]))}; pass a metric of classes, such as 'accuracy' or 'f1'"
            )
        return cls("classes", classes)

    @property
    def outputs(self) -> int:
        """Scores of an item."""
        return 1 if self.kind == "binary" else len(self.classes)

    @property
    def ordered(self) -> np.ndarray:
        """The classes as `encode` numbers them: of two, the negative one first."""
        return self.classes[list(self.order)] if self.kind == "binary" else self.classes

    def meant(self, metric: Metric) -> Metric:
        """The metric as it is meant for such targets: for labels, the one that takes labels.

        Args:
            metric: as the user named it.

        Returns:
            The metric that a training is judged by.
        """
        if (
            self.kind != "labels"
            or isinstance(metric, FunctionMetric)
            or getattr(metric, "multilabel", False)
        ):
            return metric
        options = {name: getattr(metric, name) for name in metric_options(type(metric))}
        if "multilabel" not in options:
            raise ValueError(
                f"{metric.name} has no value for labels; pass a metric such as 'f1' or 'average_precision'"
            )
        return to_metric(metric.name, **{**options, "multilabel": True})

    def encode(self, y: Any) -> Tensor:
        """A target as metrics take it.

        Args:
            y: `[items]` classes, or `[items, labels]`.

        Returns:
            Class numbers (of two classes 1 is the positive one), or labels.
        """
        if self.kind == "labels":
            return torch.from_numpy(np.asarray(y).astype(np.int64))
        y = np.ravel(np.asarray(plain(y)))
        unseen = sorted(set(np.unique(y).tolist()) - set(self.classes.tolist()), key=str)
        if unseen:
            known = ", ".join(map(repr, self.classes.tolist()))
            raise ValueError(
                f"the target has classes that training did not: {', '.join(map(repr, unseen))}; it had {known}"
            )
        found = np.searchsorted(self.classes, y)
        return torch.from_numpy(found if self.kind == "classes" else np.asarray(self.order)[found])


def plain(y: Any) -> Any:
    """A target without the types of pandas that may hold gaps.

    Args:
        y: `[items]`, or `[items, labels]`.

    Returns:
        The same; ValueError where values are missing.
    """
    if hasattr(y, "isna"):
        missing = int(np.asarray(y.isna()).sum())
        y = y.to_numpy() if getattr(y, "ndim", 1) == 1 else y
    else:
        known = np.asarray(y)
        missing = (
            sum(each is None or each != each for each in known.flat)
            if known.ndim and known.dtype == object
            else 0
        )
    if missing:
        raise ValueError(f"the target has {missing} missing values; leave their rows out")
    if (
        isinstance(y, np.ndarray)
        and y.dtype == object
        and all(isinstance(each, int | np.integer) for each in y.flat)
    ):
        return y.astype(
            bool if all(isinstance(each, bool | np.bool_) for each in y.flat) else np.int64
        )
    return y
