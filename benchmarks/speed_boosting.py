"""Speed of a boosted tree on a metric, against a tree on log loss: LightGBM on one thread."""

from collections.abc import Callable, Iterator
from typing import Any

import lightgbm as lgb
import numpy as np
import torch

import metricgrad as mg
from benchmarks.timing import Row, within

ROWS = 100_000
COLUMNS = 30
SEED = 0
_TREES = 5


def boosting() -> Iterator[Row]:
    """Trees on average precision, a tenth of the rows positive."""
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    level = x[:, :5].sum(1) + rng.normal(size=ROWS)
    y = (level > np.quantile(level, 0.9)).astype(np.float32)
    for size, told, limit in ((1024, "sets of 1,024", 3), (None, "one set", 10)):
        generator = torch.Generator().manual_seed(SEED)
        objective = mg.boosting.objective("average_precision", set_size=size, generator=generator)
        claim = (
            f"LightGBM, {_TREES} trees on average precision, {ROWS:,} x {COLUMNS}, {told}, "
            "against log loss"
        )
        yield within(claim, _trees(x, y, objective), _trees(x, y, "binary"), limit, rounds=5)


def _trees(x: np.ndarray, y: np.ndarray, objective: Any) -> Callable[[], None]:
    """A function that adds some trees to a booster."""
    params = {"objective": objective, "num_threads": 1, "force_col_wise": True, "verbose": -1}
    own = callable(objective)
    data = lgb.Dataset(x, y, params={"verbose": -1})
    booster = lgb.Booster({**params, "objective": "none"} if own else params, data)

    def grow() -> None:
        for _ in range(_TREES):
            booster.update(fobj=objective if own else None)

    return grow
