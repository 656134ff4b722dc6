"""Made-up tables and searches of boosted trees: what tests of them share."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer

import metricgrad as mg
from metricgrad.training.candidates import Candidate
from metricgrad.training.data import Items
from metricgrad.training.split import SplitPlan, split_data
from metricgrad.training.tree_trials import PlannedTrees, TreeData, TreeSearch

X, Y = (np.asarray(each) for each in load_breast_cancer(return_X_y=True))


def mixed(number: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    """A table with gaps and categories, and a target that needs both."""
    source = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "size": source.normal(size=number),
            "kind": np.array(["a", "b", "c", None])[source.integers(0, 4, number)],
            "when": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(source.integers(0, 99, number), "D"),
        }
    )
    worth = frame["size"].to_numpy() + 2 * (frame["kind"] == "b")
    frame.loc[::9, "size"] = np.nan
    return frame, np.asarray(worth > 1).astype(int)


def tree_data(metric: str = "f1", rows: Any = None) -> TreeData:
    items = Items(torch.from_numpy(X), torch.from_numpy(Y), rows=rows or {})
    return TreeData(items, "binary", 2, (), mg.metric(metric))


def search_of(data: TreeData, folds: int = 2, most: int = 40) -> TreeSearch:
    plan = SplitPlan(data.metric, True, 1, False, folds, 0.2)
    split = split_data(data.items, None, plan, 0)
    return TreeSearch(data, split, "lightgbm", 0, 1, most)


ORDINARY = PlannedTrees(Candidate("cross_entropy"), 7, 0.1)
