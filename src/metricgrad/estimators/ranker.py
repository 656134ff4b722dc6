"""A ranker for scikit-learn: documents of queries, in the order that a ranking metric wants."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from metricgrad.estimators.networks import perceptron, widths
from metricgrad.estimators.preparing import Preparation
from metricgrad.metrics import metric as to_metric
from metricgrad.surrogates import Surrogate
from metricgrad.training import Fit, fit
from metricgrad.training.data import Items


class MetricRanker(BaseEstimator):
    """A network, or a linear model, that orders the documents of queries.

    Args:
        metric: a ranking metric: a name such as `"ndcg"` or `"map"`, or `mg.metric("ndcg", k=10)`.
        method: `"auto"`, or the name of a loss: `uniloss`, `lambda_loss`, `list_net`,
            `approx_ndcg`, ...
        hidden: widths of the hidden layers; `()` is a linear model.
        epochs: see `mg.fit`; so are all that follow.
        batch: queries of a batch.
        rate: the learning rate; None tries several.
        decay: of the weights.
        folds: of cross-validation, by queries; None decides.
        budget: seconds.
        options: of the loss, for a method by name.
        random_state: of everything random.
        progress: shows a bar, on a terminal.

    Attributes:
        fit_: what `mg.fit` gave.
        n_iter_: the epoch that was best.
        n_features_in_: columns of the training data.

    Example:
        >>> import metricgrad as mg
        >>> generator = np.random.default_rng(0)
        >>> x, queries = generator.normal(size=(600, 3)), np.repeat(np.arange(60), 10)
        >>> grades = np.digitize(x[:, 0] + 0.3 * generator.normal(size=600), [0.5, 1.5])
        >>> ranker = mg.MetricRanker(method="lambda_loss", hidden=(), epochs=4, rate=0.03, random_state=0)
        >>> ranker.fit(x, grades, groups=queries).score(x, grades, groups=queries) > 0.9
        True
    """

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

    def fit(self, X: Any, y: Any, *, groups: Any) -> Self:  # noqa: N803 (scikit-learn's name)
        """Trains.

        Args:
            X: `[documents, columns]`, an array of numbers or a pandas table.
            y: `[documents]`, grades; above 0 is relevant.
            groups: `[documents]`, the query of each.

        Returns:
            Itself.
        """
        metric = to_metric(self.metric)
        if "ranking" not in metric.families:
            raise ValueError(
                f"{metric.name} does not judge the documents of queries; pass 'ndcg', 'map', 'mrr', ..."
            )
        table = self._table(X, reset=True)
        self._preparation = Preparation().fit(table)
        items = self._items(table, y, groups)
        if not (items.y > 0).any():
            raise ValueError(
                "no grade is above 0, so nothing is relevant; pass grades such as 0, 1, 2"
            )
        if len(items) < 2:
            raise ValueError(f"ranking needs two queries or more; groups has {len(items)}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fit_: Fit = fit(
            perceptron(items.x.shape[-1], widths(self.hidden), 1, seed),
            items,
            metric=metric,
            method=self.method,
            options=self.options,
            epochs=self.epochs,
            batch=self.batch,
            rate=self.rate,
            decay=self.decay,
            folds=min(5, len(items)) if self.folds is None and len(items) < 1000 else self.folds,
            budget=self.budget,
            seed=seed,
            progress=self.progress,
        )
        self.n_iter_ = self.fit_.decision.winner.epoch
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores: documents of a query are to be shown in falling order of them.

        Args:
            X: `[documents, columns]`.

        Returns:
            `[documents]`.
        """
        check_is_fitted(self)
        return self.fit_.scores(self._preparation.transform(self._table(X, reset=False))).numpy()

    def score(self, X: Any, y: Any, *, groups: Any) -> float:  # noqa: N803
        """The mean of the metric over the queries that have anything relevant.

        Args:
            X: `[documents, columns]`.
            y: `[documents]`, grades.
            groups: `[documents]`, the query of each.

        Returns:
            The metric.
        """
        check_is_fitted(self)
        items = self._items(self._table(X, reset=False), y, groups)
        assert items.where is not None
        scores = self.fit_.scores(items.x.flatten(0, 1)).unflatten(0, items.y.shape)
        values = self.fit_.metric(scores, items.y, where=items.where)
        return float(values[(items.where & (items.y > 0)).any(-1)].mean())

    def _table(self, x: Any, *, reset: bool) -> Any:
        if hasattr(x, "iloc"):
            validate_data(self, x, reset=reset, skip_check_array=True)
            return x
        return validate_data(self, x, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")

    def _items(self, table: Any, y: Any, groups: Any) -> Items:
        """Queries as items: their documents, padded to the longest."""
        grades, queries = np.ravel(np.asarray(y, dtype=np.float64)), np.ravel(np.asarray(groups))
        if not len(table) == len(grades) == len(queries):
            raise ValueError(
                f"X, y and groups must have the same number of rows; got {len(table)}, {len(grades)} and {len(queries)}"
            )
        x = self._preparation.transform(table)
        _, query, counts = np.unique(queries, return_inverse=True, return_counts=True)
        order = np.argsort(query, kind="stable")
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (len(counts), int(counts.max()))
        documents = np.zeros((*shape, x.shape[1]), dtype=np.float32)
        target, where = np.zeros(shape), np.zeros(shape, dtype=bool)
        documents[query[order], place], target[query[order], place] = x[order], grades[order]
        where[query[order], place] = True
        return Items(
            torch.from_numpy(documents), torch.from_numpy(target).float(), torch.from_numpy(where)
        )
