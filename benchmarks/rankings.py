"""MQ2008 in its five official folds: queries with up to 121 graded documents, padded."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import data_folder


class Queries(NamedTuple):
    """Documents `[Q, N, 46]`, grades `[Q, N]`, and which documents there are `[Q, N]`."""

    x: Tensor
    grades: Tensor
    where: Tensor


class Fold(NamedTuple):
    """The parts of a fold."""

    train: Queries
    valid: Queries
    test: Queries


def mq2008(folder: Path | None, fold: int) -> Fold:
    """Fold k trains on three of the five parts, counted from k, and tests on the last."""
    with np.load(data_folder(folder) / "mq2008" / "mq2008.npz") as file:
        content = {name: file[name] for name in file.files}
    parts = [(fold + place) % 5 + 1 for place in range(5)]
    return Fold(*(_queries(content, chosen) for chosen in (parts[:3], parts[3:4], parts[4:])))


def _queries(content: dict[str, np.ndarray], parts: list[int]) -> Queries:
    kept = np.isin(content["part"], parts)
    ids = content["qid"][kept]
    _, query = np.unique(ids, return_inverse=True)
    place = np.zeros(len(ids), dtype=int)
    for number in range(query.max() + 1):
        members = np.flatnonzero(query == number)
        place[members] = np.arange(len(members))
    shape = (query.max() + 1, place.max() + 1)
    x = np.zeros((*shape, content["X"].shape[1]), dtype=np.float32)
    grades = np.zeros(shape, dtype=np.float32)
    where = np.zeros(shape, dtype=bool)
    x[query, place] = content["X"][kept]
    grades[query, place] = content["y"][kept]
    where[query, place] = True
    return Queries(torch.from_numpy(x), torch.from_numpy(grades), torch.from_numpy(where))
