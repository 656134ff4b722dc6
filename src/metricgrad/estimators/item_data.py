"""What `fit` passes on for every item: weights, and data that a user's own metric takes.

`sample_weight` says how much an item counts, and `class_weight` how much the items of a class do;
an item has the product of both. The metric that a classifier trains on, tunes its decision for and
is chosen by is weighted in this way. `score` weighs by the weights that it is given, and by none
otherwise, as everywhere in scikit-learn.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from metricgrad.metrics.rows import SAMPLE_WEIGHT, at, to_rows


def item_data(
    x: Any,
    y: Any,
    sample_weight: Any,
    class_weight: Any,
    data: Mapping[str, Any],
    rows: np.ndarray | None,
) -> dict[str, Tensor]:
    """Data of the items to train on, by name.

    Args:
        x: The whole table, only to check that there is one weight for each of its rows.
        y: The target of the items to train on: `[items]`, or `[items, labels]`.
        sample_weight: A weight for each row of the table, one number for all, or None.
        class_weight: A weight for each class, `"balanced"`, or None.
        data: Other arguments of the metric, one value for each row of the table.
        rows: Numbers of the items to train on; None takes all.
    """
    given = dict(data)
    if sample_weight is not None:
        given[SAMPLE_WEIGHT] = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
    found = to_rows(given) if rows is None else at(to_rows(given), torch.as_tensor(rows))
    if class_weight is not None:
        by_class = torch.from_numpy(_by_class(class_weight, y))
        found[SAMPLE_WEIGHT] = by_class * found.get(SAMPLE_WEIGHT, 1.0)
    if SAMPLE_WEIGHT in found and not (found[SAMPLE_WEIGHT] > 0).any():
        raise ValueError("all weights of the items are 0; pass some above 0")
    return found


def _by_class(class_weight: Any, y: Any) -> np.ndarray:
    """The weight that every item has by its class."""
    if np.ndim(y) > 1 and np.shape(y)[1] > 1:
        raise ValueError(
            f"class_weight needs one class per item, and items have {np.shape(y)[1]} labels here; "
            f"pass sample_weight instead. Got class_weight={class_weight!r}"
        )
    classes = np.ravel(np.asarray(y))
    if isinstance(class_weight, Mapping):
        unknown = [each for each in class_weight if each not in classes]
        wrong = [each for each in class_weight.values() if not each >= 0]
        if unknown or wrong:
            known = ", ".join(map(repr, np.unique(classes).tolist()))
            raise ValueError(
                f"class_weight must have a weight of 0 or more for some of the classes {known}; "
                f"got {class_weight!r}"
            )
    elif class_weight != "balanced":
        raise ValueError(
            "class_weight must be None, 'balanced' or a dict from classes to weights; got "
            f"{class_weight!r}"
        )
    return compute_sample_weight(class_weight, classes)
