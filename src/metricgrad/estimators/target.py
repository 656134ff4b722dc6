"""A target as scikit-learn has it, and as metrics take it.

Classes become numbers from 0; of two classes the positive one becomes 1. Labels stay `[items,
labels]` of 0 and 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.mistakes import warn_once
from metricgrad.metrics.registry import metric_options, with_options
from metricgrad.surrogates.base import TargetKind


@dataclass(frozen=True)
class Target:
    """What the targets of a classifier are.

    Attributes:
        kind: `"binary"`, `"classes"` or `"labels"`.
        classes: The classes in order; for labels, their numbers.
        order: Of two classes, the positions of the negative and the positive one in `classes`.
    """

    kind: TargetKind
    classes: np.ndarray
    order: tuple[int, int] = (0, 1)

    @classmethod
    def of(cls, y: Any, metric: Metric, positive: Any) -> "Target":
        """What `y` is; ValueError where the metric has no value for it, or nothing can be learned.

        `positive` is the positive one of two classes; None takes the second, or of names the rarer
        one if the metric tells the classes apart.
        """
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            return cls("labels", np.arange(np.asarray(y).shape[1]))
        classes = np.unique(column_or_1d(y, warn=True))
        if len(classes) < 2:
            raise ValueError(
                f"the target has one class only, {classes.tolist()[0]!r}; pass one with two or more"
            )
        if len(classes) == 2:
            if positive is not None and positive not in classes:
                raise ValueError(f"positive must be one of {classes.tolist()}; got {positive!r}")
            if positive is None:
                positive = default_positive(y, metric)
                _tell_positive(positive, classes)
            first = positive is not None and classes[0] == positive
            return cls("binary", classes, (1, 0) if first else (0, 1))
        if not metric.takes_classes:
            raise ValueError(
                f"{metric.name} is for two classes, and the target has {len(classes)}: "
                f"{', '.join(map(str, classes[:5]))}; pass a metric for many classes, such as "
                "'accuracy' or 'f1'"
            )
        return cls("classes", classes)

    @property
    def outputs(self) -> int:
        """How many scores an item has."""
        return 1 if self.kind == "binary" else len(self.classes)

    @property
    def ordered(self) -> np.ndarray:
        """The classes as `encode` numbers them; of two, the negative one is first."""
        return self.classes[list(self.order)] if self.kind == "binary" else self.classes

    def probabilities(self, decided: Tensor, steepness: float) -> np.ndarray:
        """Probabilities `[items, classes]` of scores that decide at 0.

        `steepness` is for two classes, as `estimators/networks.py` has it.
        """
        found = decided.double()
        if self.kind == "labels":
            return found.sigmoid().numpy()
        if self.kind == "classes":
            return found.softmax(-1).numpy()
        positive = (steepness * found).sigmoid()
        return torch.stack([1 - positive, positive], -1).numpy()[:, list(self.order)]

    def metric_for(self, metric: Metric) -> Metric:
        """The metric for such targets: for labels, the same metric with `multilabel=True`."""
        if self.kind != "labels" or metric.layout == "labels" or metric.set_dims is not None:
            return metric
        if metric.layout == "any":  # a function gets all labels of a set in one call
            return with_options(metric, set_dims=(2, 2))
        if "multilabel" not in metric_options(type(metric)):
            raise ValueError(
                f"{metric.name} has no value for labels; pass a metric such as 'f1' or "
                "'average_precision'"
            )
        return with_options(metric, multilabel=True)

    def encode(self, y: Any) -> Tensor:
        """The target as metrics take it: `[items]` class numbers, or `[items, labels]`."""
        if self.kind == "labels":
            return torch.from_numpy(np.asarray(y).astype(np.int64))
        y = np.ravel(np.asarray(plain(y)))
        unseen = sorted(set(np.unique(y).tolist()) - set(self.classes.tolist()), key=str)
        if unseen:
            known = ", ".join(map(repr, self.classes.tolist()))
            raise ValueError(
                f"the target has classes that training did not have: "
                f"{', '.join(map(repr, unseen))}; it had {known}"
            )
        found = np.searchsorted(self.classes, y)
        return torch.from_numpy(found if self.kind == "classes" else np.asarray(self.order)[found])


def fitting_folds(asked: int | None, target: Tensor) -> int | None:
    """As many folds as asked for, but no more than the rarest class has items."""
    if asked is not None or target.dim() != 1:
        return asked
    rarest = int(target.unique(return_counts=True)[1].min())
    return max(1, rarest) if rarest < 5 else None


def default_positive(y: Any, metric: Metric) -> Any:
    """The positive one of two names unless one is chosen: the rarer, or the second of equal ones.

    None for anything but two names: numbers and booleans say themselves which is positive. None
    also if the metric is the same for both classes, as accuracy and AUC are, which is found out by
    asking for a value with the classes exchanged.
    """
    classes, counts = np.unique(np.ravel(np.asarray(y)), return_counts=True)
    if len(classes) != 2 or not isinstance(classes.tolist()[1], str):
        return None
    if metric.portable:
        source = torch.Generator().manual_seed(0)
        scores = torch.randn(64, generator=source, dtype=torch.float64)
        truth = torch.arange(64) % 4 == 0
        if torch.isclose(metric(scores, truth), metric(-scores, ~truth)).all():
            return None
    return classes.tolist()[0 if counts[0] < counts[1] else 1]


def _tell_positive(positive: Any, classes: np.ndarray) -> None:
    """Warns, once, which of two names was taken as positive, and how to choose."""
    if positive is None:
        return
    (other,) = (each for each in classes.tolist() if each != positive)
    warn_once(
        f"{positive!r} is the positive class, as the rarer of {classes.tolist()}; pass "
        f"positive={positive!r} (--positive {positive}) to say so, or positive={other!r} for the "
        "other one",
        stacklevel=4,
    )


def plain(y: Any) -> Any:
    """The target without pandas' nullable types; ValueError where values are missing."""
    if hasattr(y, "isna"):
        missing = int(np.asarray(y.isna()).sum())
        y = y.to_numpy() if y.ndim == 1 else y
    else:
        known = np.asarray(y)
        objects = known.flat if known.ndim and known.dtype == object else []
        missing = sum(each is None or each != each for each in objects)
    if missing:
        raise ValueError(f"the target has {missing} missing values; leave their rows out")
    if not isinstance(y, np.ndarray) or y.dtype != object:
        return y
    if not all(isinstance(each, int | np.integer) for each in y.flat):
        return y
    return y.astype(bool if all(isinstance(each, bool) for each in y.flat) else np.int64)
