"""How boosting libraries call functions of the user's own.

    lgb.train, xgb.train        function(scores, data)        data: labels, weights, group sizes
    LGBMClassifier, LGBMRanker  function(target, scores, weights, sizes)
    XGBClassifier               function(target, scores), and sample_weight=... if there are weights

LightGBM counts the parameters of a function to decide how many it passes, so a function for all of
these has four. Scores are `[N]`, or `[N, C]` for classes.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

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
    raise ValueError(f"weights must be one for each of the {rows} rows; got {len(weight)}")


def _numbers(given: Any) -> Tensor | None:
    """An array as a tensor; None if there is none, or if it is empty."""
    if given is None or not len(given):
        return None
    return torch.as_tensor(np.asarray(given))
