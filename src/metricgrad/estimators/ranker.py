"""A scikit-learn ranker: it orders the documents of a query for a ranking metric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from metricgrad.boosting.growing import own_booster
from metricgrad.estimators.classifier_files import (
    model_header,
    model_tensors,
    stored_model,
    stored_settings,
    take_columns,
)
from metricgrad.estimators.importances import KeepsRows
from metricgrad.estimators.models import Work, fitted_model
from metricgrad.estimators.networks import load_estimator, widths
from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.registry import metric_config
from metricgrad.storage import write_tensors
from metricgrad.surrogates import Surrogate
from metricgrad.training import Fit, Trained
from metricgrad.training.data import Items

RANKER = "metricgrad_ranker"  # by which its files are known


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
    """A linear model, a network or boosted trees that order the documents of queries.

    Args:
        metric: A ranking metric: a name such as `"ndcg"` or `"map"`, or `mg.metric("ndcg", k=10)`.
        method: `"auto"`, or the name of a loss: `uniloss`, `lambda_loss`, `list_net`,
            `approx_ndcg`, ... Boosted trees have `lambdarank` and `uniloss`.
        model: `"network"`, `"linear"`, `"boosted"` for trees; several, such as `"boosted,linear"`,
            of which the first is taken unless another gains more than chance; `"auto"` is all.
        engine: The library that grows trees, as in `MetricClassifier`.
        hidden: Widths of the network's hidden layers; `()` is a linear model.
        epochs: Maximum number of epochs of a network's trial.
        batch: Number of queries in a batch of a network.
        rate: The learning rate; None tries several, or is 0.1 for trees.
        decay: Decoupled weight decay of networks, as in AdamW.
        folds: Folds of cross-validation, by queries; None takes five, or a single split if there
            are 1,000 queries or more.
        budget: Seconds for the whole search; None sets no limit.
        options: Options of the loss, if `method` is a name.
        random_state: A number or `RandomState` for splits, weights and batches; None differs in
            every call.
        progress: Whether to show a progress bar, on a terminal.

    Attributes:
        fit_: The `mg.Fit` with every trial.
        preparation_: How each column is prepared, as `estimators/features.py` describes it.
        n_iter_: The epoch that was kept, or the number of trees.
        model_: The kind of model that was taken: `"network"`, `"linear"` or `"boosted"`.
        trained_: The model; a loaded ranker has it, too.
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
        model: str = "network",
        engine: str | None = None,
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
        self.model = model
        self.engine = engine
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
            folder: Folder for checkpoints, from which an interrupted training continues.
        """
        metric = to_metric(self.metric)
        if not ranks_documents(metric):
            known = "pass 'ndcg', 'map', 'mrr', ..."
            raise ValueError(f"{metric.name} is not a metric of ranked documents; {known}")
        table = self._table(X, reset=True)
        grades, queries = _documents(table, y, groups)
        if not (grades > 0).any():
            told = "no grade is above 0, so no document is relevant; pass grades such as 0, 1, 2"
            raise ValueError(told)
        number = len(np.unique(queries))
        if number < 2:
            raise ValueError(f"groups must have two or more queries; got {number}")
        found = fitted_model(
            self,
            Work(
                table,
                None,
                lambda x: _queries(x, grades, queries),
                metric,
                "grades",
                1,
                min(5, number) if self.folds is None and number < 1000 else self.folds,
                False,
                folder,
            ),
        )
        self.fit_: Fit = found.fit
        self.trained_: Trained = found.fit
        self.model_ = found.name
        self.preparation_ = found.preparation
        self.keep_rows(found.items)
        self.n_iter_ = found.fit.decision.winner.epoch
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores `[documents]`; a query's documents are ranked by falling score."""
        x = self._prepared(X)
        return self.trained_.scores(x).numpy()

    def score(self, X: Any, y: Any, *, groups: Any) -> float:  # noqa: N803
        """The mean of the metric over the queries that have a relevant document."""
        items = self.items(X, y, groups)
        return float(query_values(self.trained_, items).mean())

    def items(self, X: Any, y: Any, groups: Any) -> Items:  # noqa: N803
        """Queries as `mg.fit` takes them: features, grades, and which documents are real."""
        x = self._prepared(X)
        return _queries(x, *_documents(x, y, groups))

    @property
    def booster_(self) -> Any:
        """The booster object of the trees' library, such as `lightgbm.Booster`, to save or plot."""
        check_is_fitted(self)
        return own_booster(self.trained_.model)

    def save(self, path: str | Path) -> None:
        """Writes the ranker to one safetensors file, completely or not at all, without pickle."""
        check_is_fitted(self)
        header = {
            "metric": metric_config(self.trained_.metric),
            "settings": stored_settings(self),
            **model_header(self),
        }
        write_tensors(path, model_tensors(self.trained_.model), RANKER, header)

    @classmethod
    def load(cls, path: str | Path, *, metric: Any = None) -> "MetricRanker":
        """Reads a ranker that `save` wrote, ready to predict, without the history of its training.

        `metric` replaces the stored one; it is needed if that is your own function.
        """
        return load_estimator(path, RANKER, metric, cls._stored)

    @classmethod
    def _stored(
        cls, tensors: dict[str, Tensor], header: dict[str, Any], metric: Metric
    ) -> "MetricRanker":
        """A ranker from what a file holds."""
        kind = header.get("model", "network")
        ranker = cls(metric, model=kind, hidden=widths(header["hidden"]), **header["settings"])
        take_columns(ranker, header)
        ranker.model_, model, inputs = stored_model(tensors, header, ranker.preparation_, 1)
        ranker.trained_ = Trained(model=model, metric=metric, threshold=None)
        ranker.trained_.scores(torch.zeros(1, inputs))  # raises where parts misfit
        return ranker

    def _prepared(self, x: Any) -> Tensor:
        """Features as the model takes them, `[documents, width]`."""
        check_is_fitted(self)
        return torch.from_numpy(self.preparation_.transform(self._table(x, reset=False)))

    def _table(self, x: Any, *, reset: bool) -> Any:
        """Features after scikit-learn's checks; a DataFrame keeps its column types."""
        if hasattr(x, "iloc"):
            validate_data(self, x, reset=reset, skip_check_array=True)
            return x
        return validate_data(self, x, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")


def _documents(table: Any, y: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """Grades and queries of documents, `[documents]`; ValueError unless all have both."""
    grades = np.ravel(np.asarray(y, dtype=np.float64))
    queries = np.ravel(np.asarray(groups))
    if not len(table) == len(grades) == len(queries):
        raise ValueError(
            "X, y and groups must have the same number of rows; "
            f"got {len(table)}, {len(grades)} and {len(queries)}"
        )
    return grades, queries


def _queries(x: Tensor, grades: np.ndarray, queries: np.ndarray) -> Items:
    """Queries as items: their documents, padded to the longest."""
    _, query, counts = np.unique(queries, return_inverse=True, return_counts=True)
    order = np.argsort(query, kind="stable")
    # Each document's position in its query: its position among all, minus its query's first.
    position = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = (torch.from_numpy(query[order]), torch.from_numpy(position))
    shape = (len(counts), int(counts.max()))
    documents = x.new_zeros(*shape, x.shape[1])
    target = torch.zeros(shape)
    where = torch.zeros(shape, dtype=torch.bool)
    documents[places] = x[torch.from_numpy(order)]
    target[places] = torch.from_numpy(grades[order]).float()
    where[places] = True
    return Items(documents, target, where)
