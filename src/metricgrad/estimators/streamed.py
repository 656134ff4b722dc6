"""Training and predicting with Parquet tables that do not fit into memory.

`MetricClassifier` comes here if it is passed a `pyarrow.dataset.Dataset`. The table is surveyed in
one pass (`surveys.py`), then trained on in pools of rows (`pools.py`): `mg.fit` gets a loader.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor
from torch.utils.data import DataLoader

from metricgrad.estimators.kinds import model_kinds
from metricgrad.estimators.models import hidden_of
from metricgrad.estimators.networks import drawn_seed, perceptron, trained_network
from metricgrad.estimators.parquet_tables import ParquetTable
from metricgrad.estimators.pools import PooledBatches
from metricgrad.estimators.surveys import Survey, survey
from metricgrad.estimators.target import Target
from metricgrad.metrics import metric as to_metric
from metricgrad.training import Fit
from metricgrad.training.data import Items

if TYPE_CHECKING:
    from metricgrad.estimators.classifier import MetricClassifier

_FEW = 30  # validation rows of the rarest class: with fewer, choices are partly chance


def surveyed_dataset(model: "MetricClassifier", data: Any, target: Any) -> Survey:
    """Reads a dataset once, for a classifier; ValueError where `target` is not one of its columns.

    Rows without a target are left out, with a warning.
    """
    if not isinstance(target, str):
        raise ValueError(
            "with a pyarrow dataset, y is the name of the target column; got "
            f"{type(target).__name__}"
        )
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))
    found = survey(ParquetTable(data), target, seed=seed, progress=model.progress)
    if found.without_target:
        warnings.warn(
            f"column {target!r} has no value in {found.without_target:,} rows; they are left out",
            stacklevel=3,
        )
    return found


def refuse_given(model: "MetricClassifier", rows: Any, sample_weight: Any, data: Any) -> None:
    """Raises ValueError for what a dataset is not trained with."""
    given = {"rows": rows, "sample_weight": sample_weight, **data}
    given |= {"class_weight": model.class_weight, "warm_start": model.warm_start or None}
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ValueError(
            f"a pyarrow dataset is trained on as it is, from the start; leave out "
            f"{', '.join(wrong)}, or pass a table in memory"
        )


def fitted_on(model: "MetricClassifier", surveyed: Survey, target: Target, folder: Any) -> Fit:
    """Trains a network with the settings of a classifier; checkpoints go to the `folder`.

    Trees need all rows at once, so `model="auto"` means a network here.
    """
    kinds = model_kinds(model.model)
    if model.model != "auto" and kinds not in (("network",), ("linear",)):
        raise ValueError(
            "a table that is streamed has one network or linear model, because boosted trees need "
            "the whole table in memory; pass model='network' or 'linear', or a pandas DataFrame. "
            f"Got model={model.model!r}"
        )
    if model.folds not in (None, 1):
        raise ValueError(
            "a streamed table has one part for validation, which is drawn at random; leave out "
            f"folds. Got folds={model.folds}"
        )
    metric = to_metric(model.metric)
    if metric.row_names.required:
        raise ValueError(
            f"{metric.name} takes {', '.join(metric.row_names.required)} of every row, which a "
            "streamed table does not give; pass a table in memory"
        )
    y = target.encode(surveyed.valid.y)
    _refuse_few(surveyed, y)
    x = torch.from_numpy(surveyed.preparation.transform(surveyed.valid.x))
    model.keep_rows(Items(x, y))
    batches = PooledBatches(surveyed, target, model.batch, model.balanced)
    seed = drawn_seed(model)
    return trained_network(
        model,
        perceptron(x.shape[1], hidden_of(model), target.outputs, seed),
        DataLoader(batches, batch_size=None),
        valid=(x, y),
        metric=target.metric_for(metric),
        folds=None,
        balanced=False,  # the batches that come are balanced already, if they are to be
        budget=model.budget,
        seed=seed,
        folder=folder,
    )


def scores_of(
    model: "MetricClassifier", data: Any, target: str | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Scores of a dataset and its target, part after part; rows without a target are left out.

    Without a `target`, all rows have scores, and None takes its place.
    """
    table = ParquetTable(data)
    for name in model.feature_names_in_:
        table.check_column(name)
    columns = list(model.feature_names_in_)
    for frame in table.frames(columns if target is None else [*columns, target]):
        if target is None:
            yield model.trained_.scores(model.prepared(frame)), None
            continue
        known = frame[frame[target].notna()]
        if len(known):
            x = model.prepared(known[columns])
            yield model.trained_.scores(x), model.encoded(known[target].to_numpy())


def _refuse_few(surveyed: Survey, y: Tensor) -> None:
    """Raises ValueError if the validation rows have one class only; warns if one is rare there."""
    found, counts = y.unique(return_counts=True)
    if len(found) < 2:
        raise ValueError(
            f"the {len(y):,} rows that were drawn for validation all have the same class; pass the "
            "table in memory (--memory on the command line), where a fifth of all rows validates"
        )
    fewest = 0 if len(found) < len(surveyed.classes) else int(counts.min())
    if fewest < _FEW:
        warnings.warn(
            f"the {len(y):,} rows that were drawn for validation have {fewest} of the rarest "
            "class, so choices made on them are partly chance; in memory (--memory), a fifth of "
            "all rows would be for validation",
            stacklevel=4,
        )
