"""A scikit-learn ranker: it orders the documents of a query for a ranking metric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from metricgrad.estimators.features import Preparation, stored_names
from metricgrad.estimators.importances import KeepsRows
from metricgrad.estimators.networks import (
    load_estimator,
    plain_setting,
    stored_perceptron,
    trained_network,
    widths,
)
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.registry import metric_config
from metricgrad.storage import write_tensors
from metricgrad.surrogates import Surrogate
from metricgrad.training import Fit, Trained
from metricgrad.training.data import Items

RANKER = "metricgrad_ranker"  # by which its files are known
_STORED = ("method", "epochs", "batch", "rate", "decay", "folds", "budget")


def ranks_documents(metric: Metric) -> bool:
    """Whether a metric is one of the order of documents, not of items of a data set."""
    return metric.decided_by == "order" and not metric.takes_classes


def query_values(trained: Trained, items: Items) -> Tensor:
    """The metric of every query that has a relevant document."""
    assert items.where is not None
    values = trained.metric(query_scores(trained, items), items.y, where=items.where)
    return values[(items.where & (items.y > 0)).any(-1)]


def query_scores(trained: Trained, items: Items) -> Tensor:
    """Scores of documents, `[queries, documents]`."""
    return trained.scores(items.x.flatten(0, 1)).unflatten(0, items.y.shape)


class MetricRanker(KeepsRows, BaseEstimator):
    """A network, or a linear model, that orders the documents of queries.

    Args:
        metric: A ranking metric: a name such as `"ndcg"` or `"map"`, or `mg.metric("ndcg", k=10)`.
        method: `"auto"`, or the name of a loss: `uniloss`, `lambda_loss`, `list_net`,
            `approx_ndcg`, ...
        hidden: Widths of the hidden layers; `()` is a linear model.
        epochs: The most epochs that one trial trains for.
        batch: Queries in a batch.
        rate: The learning rate; None tries several.
        decay: Weight decay, as AdamW has it.
        folds: Folds of cross-validation, by queries; None takes five, or a single split from
            1,000 queries on.
        budget: Seconds for the whole search; None sets no limit.
        options: Options of the loss, for a method that is given by name.
        random_state: A number or `RandomState` for splits, weights and batches; None draws anew.
        progress: Shows a bar on a terminal.

    Attributes:
        fit_: What `mg.fit` returned, with every trial.
        preparation_: What becomes of each column, as `estimators/features.py` describes it.
        n_iter_: The epoch that was kept.
        trained_: The network; a loaded ranker has it, too.
        n_features_in_: Number of columns of the training data.
        feature_importances_: How much the metric falls when a column is shuffled, measured on
            first use (`estimators/importances.py`); a loaded ranker has none.

    Example:
        >>> import metricgrad as mg
        >>> generator = np.random.default_rng(0)
        >>> x = generator.normal(size=(600, 3))
        >>> queries = np.repeat(np.arange(60), 10)
        >>> grades = np.digitize(x[:, 0] + 0.3 * generator.normal(size=600), [0.5, 1.5])
        >>> quick = {"hidden": (), "epochs": 4, "rate": 0.03, "random_state": 0}
        >>> ranker = mg.MetricRanker(method="lambda_loss", **quick)
        >>> ranker.fit(x, grades, groups=queries).score(x, grades, groups=queries) > 0.9
        True
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        metric: Any = "ndcg",
        method: str | Surrogate = "auto",
        *,
        hidden: Sequence[int] = (100, 30, 10),
        epochs: int = 20,
        batch: int = 32,
        rate: float | None = None,
        decay: float = 0.0,
        folds: int | None = None,
        budget: float | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.metric = metric
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.decay = decay
        self.folds = folds
        self.budget = budget
        self.options = options
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, *, groups: Any, folder: Any = None) -> Self:  # noqa: N803
        """Trains the ranker.

        Args:
            X: `[documents, columns]`, an array of numbers or a pandas DataFrame.
            y: `[documents]`, grades; above 0 is relevant.
            groups: `[documents]`, the query that each document belongs to.
            folder: Where checkpoints go, from which an interrupted training continues.
        """
        metric = to_metric(self.metric)
        if not ranks_documents(metric):
            known = "pass 'ndcg', 'map', 'mrr', ..."
            raise ValueError(f"{metric.name} is not a metric of ranked documents; {known}")
        table = self._table(X, reset=True)
        self.preparation_ = Preparation().fit(table)
        items = self._queries(table, y, groups)
        if not (items.y > 0).any():
            told = "no grade is above 0, so no document is relevant; pass grades such as 0, 1, 2"
            raise ValueError(told)
        if len(items) < 2:
            raise ValueError(f"groups must have two or more queries; got {len(items)}")
        self.keep_rows(items)
        few = self.folds is None and len(items) < 1000
        folds = min(5, len(items)) if few else self.folds
        width = items.x.shape[-1]
        self.fit_: Fit = trained_network(
            self, width, 1, items, metric=metric, folds=folds, folder=folder
        )
        self.trained_: Trained = self.fit_
        self.n_iter_ = self.fit_.decision.winner.epoch
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores `[documents]`; a query's documents are shown in falling order of score."""
        check_is_fitted(self)
        table = self._table(X, reset=False)
        return self.trained_.scores(self.preparation_.transform(table)).numpy()

    def score(self, X: Any, y: Any, *, groups: Any) -> float:  # noqa: N803
        """The mean of the metric over the queries that have a relevant document."""
        return float(query_values(self.trained_, self.items(X, y, groups)).mean())

    def items(self, X: Any, y: Any, groups: Any) -> Items:  # noqa: N803
        """Queries as `mg.fit` takes them: features, grades, and which documents are real."""
        check_is_fitted(self)
        return self._queries(self._table(X, reset=False), y, groups)

    def save(self, path: str | Path) -> None:
        """Writes the ranker to one safetensors file, without pickle, whole or not at all."""
        check_is_fitted(self)
        header = {
            "metric": metric_config(self.trained_.metric),
            "hidden": widths(self.hidden),
            "settings": {name: plain_setting(getattr(self, name)) for name in _STORED},
            "features": self.n_features_in_,
            "names": list(vars(self).get("feature_names_in_", [])),
            "columns": self.preparation_.to_json(),
            "epoch": self.n_iter_,
        }
        write_tensors(path, self.trained_.model.state_dict(), RANKER, header)

    @classmethod
    def load(cls, path: str | Path, *, metric: Any = None) -> "MetricRanker":
        """Reads a ranker that `save` wrote, ready to predict, without the history of its training.

        `metric` replaces the stored one; it is needed where that is a function of your own.
        """
        return load_estimator(path, RANKER, metric, cls._stored)

    @classmethod
    def _stored(
        cls, tensors: dict[str, Tensor], header: dict[str, Any], metric: Metric
    ) -> "MetricRanker":
        """A ranker from what a file holds."""
        hidden = widths(header["hidden"])
        ranker = cls(metric, hidden=hidden, **header["settings"])
        ranker.n_iter_ = header["epoch"]
        ranker.preparation_ = Preparation.from_json(header["columns"])
        ranker.n_features_in_ = len(ranker.preparation_.columns)
        if header["names"]:
            ranker.feature_names_in_ = stored_names(header["names"], ranker.n_features_in_)
        inputs = sum(column.width for column in ranker.preparation_.columns)
        network = stored_perceptron(tensors, inputs, hidden, 1)
        ranker.trained_ = Trained(model=network, metric=metric, threshold=None)
        ranker.trained_.scores(torch.zeros(1, inputs))  # raises where parts misfit
        return ranker

    def _table(self, x: Any, *, reset: bool) -> Any:
        """Features after scikit-learn's checks; a DataFrame keeps its column types."""
        if hasattr(x, "iloc"):
            validate_data(self, x, reset=reset, skip_check_array=True)
            return x
        return validate_data(self, x, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")

    def _queries(self, table: Any, y: Any, groups: Any) -> Items:
        """Queries as items: their documents, padded to the longest."""
        grades = np.ravel(np.asarray(y, dtype=np.float64))
        queries = np.ravel(np.asarray(groups))
        if not len(table) == len(grades) == len(queries):
            raise ValueError(
                "X, y and groups must have the same number of rows; "
                f"got {len(table)}, {len(grades)} and {len(queries)}"
            )
        x = self.preparation_.transform(table)
        _, query, counts = np.unique(queries, return_inverse=True, return_counts=True)
        order = np.argsort(query, kind="stable")
        # Each document's position in its query: its position among all, minus its query's first.
        position = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = (query[order], position)
        shape = (len(counts), int(counts.max()))
        documents = np.zeros((*shape, x.shape[1]), dtype=np.float32)
        target = np.zeros(shape, dtype=np.float32)
        where = np.zeros(shape, dtype=bool)
        documents[places] = x[order]
        target[places] = grades[order]
        where[places] = True
        x, y, live = (torch.from_numpy(each) for each in (documents, target, where))
        return Items(x, y, live)
