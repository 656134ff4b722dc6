"""Data that is read before training: streams without a length become items in memory.

A search trains many models on the same data, several of them at once, and splits off what decides.
That needs items that can be drawn again, and a schedule needs the number of batches. An
`IterableDataset` without a length gives neither, so it is read once, unless it is too large.
"""

from dataclasses import replace

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.checks import shape
from metricgrad.metrics.one_score import item_target
from metricgrad.training.data import Batch, Items, Loader, to_data
from metricgrad.training.shards import stream_of_all

_MOST_BYTES = 2**30  # of a stream that is read into memory,
_MOST_ITEMS = 1_000_000


def read_data(
    name: str, data: object, batch: int, metric: Metric, dtype: torch.dtype
) -> Items | Loader:
    """What the user passed as `name`, as models of a dtype can be trained on it for a metric."""
    found = to_data(name, data, batch, metric.row_names, dtype)
    if isinstance(found, Loader) and not _has_length(found):
        found = to_data(name, _parts(name, found), batch, metric.row_names, dtype)
    return one_class_each(found, metric)


def one_class_each(data: Items | Loader, metric: Metric) -> Items | Loader:
    """Data whose targets `[items, 1]` are `[items]`, unless the metric itself takes columns."""
    if metric.layout == "any" and metric.set_dims is None and isinstance(data, Items):
        _refuse_labels(data, "mg.from_function(fn")
    if metric.layout == "labels" or (metric.layout == "any" and not metric.one_score_each):
        return data
    if isinstance(data, Loader):
        return replace(data, columns=True)
    if data.y.dim() != 2 or data.where is not None:
        return data
    if metric.takes_classes:
        _refuse_labels(data, f"mg.metric({metric.name!r}")
    return replace(data, y=item_target(data.y, metric))


def _refuse_labels(data: Items, maker: str) -> None:
    """Raises ValueError for items with labels and a metric that is not made for them."""
    if data.y.dim() == 2 and data.y.shape[1] != 1 and data.where is None:
        raise ValueError(
            f"targets {shape(data.y)} are labels; pass metric={maker}, multilabel=True), or one "
            "class for each item"
        )


def _has_length(loader: Loader) -> bool:
    try:
        return loader.steps >= 0
    except (TypeError, NotImplementedError):  # what len() raises for such a data set
        return False


def _parts(name: str, loader: Loader) -> tuple[object, ...]:
    """Features, targets and what else the metric takes, of all items of a stream.

    If every process has read a part of its own, these are the items of all.
    """
    batches = _read(name, loader)
    x, y = (_joined([getattr(each, part)[0] for each in batches]) for part in ("x", "y"))
    names = batches[0].rows
    rows = {name: _joined([each.rows[name][0] for each in batches]) for name in names}
    x, y, rows = stream_of_all(x, y, rows)
    return (x, y, rows) if rows else (x, y)


def _read(name: str, loader: Loader) -> list[Batch]:
    found: list[Batch] = []
    items = 0
    size = 0
    with torch.random.fork_rng(devices=[]):
        for batch in loader.epoch(0, 1):
            found.append(batch)
            items += batch.y.shape[1]
            size += batch.x.nbytes + batch.y.nbytes
            if items > _MOST_ITEMS or size > _MOST_BYTES:
                raise ValueError(
                    f"{name} is a stream without a length, which is read into memory, but it has "
                    f"more than {_MOST_ITEMS:,} items or {_MOST_BYTES / 2**30:.3g} GiB; pass a "
                    "Dataset, or give the stream a __len__"
                )
    if not found:
        raise ValueError(f"{name} is a stream without items")
    return found


def _joined(parts: list[Tensor]) -> Tensor:
    other = next((each for each in parts if each.shape[1:] != parts[0].shape[1:]), None)
    if other is not None:
        raise ValueError(
            f"a stream without a length has batches of different shapes, such as "
            f"{list(parts[0].shape)} and {list(other.shape)}; pad them to one length"
        )
    return torch.cat(parts)
