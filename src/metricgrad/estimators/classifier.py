"""A scikit-learn classifier that trains on the metric it is scored by.

Its model is linear, a network or boosted trees (`models.py`). It is stored in one file, and nothing
is pickled, so a file can be opened without trusting its author (`classifier_files.py`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from metricgrad.boosting.growing import own_booster
from metricgrad.estimators.attributes import feature_names_out, only_layer, threshold_of
from metricgrad.estimators.classifier_files import CLASSIFIER, stored_classifier, write_classifier
from metricgrad.estimators.columns import checked_table
from metricgrad.estimators.importances import KeepsRows
from metricgrad.estimators.item_data import item_data
from metricgrad.estimators.models import Work, fitted_model, hidden_of
from metricgrad.estimators.networks import calibrated, load_estimator
from metricgrad.estimators.parquet_tables import is_dataset
from metricgrad.estimators.sparse import prepared_features
from metricgrad.estimators.streamed import fitted_on, refuse_given, scores_of, surveyed_dataset
from metricgrad.estimators.surveys import Survey
from metricgrad.estimators.target import Target, fitting_folds, plain
from metricgrad.estimators.warm_start import start_of
from metricgrad.metrics import metric as to_metric
from metricgrad.surrogates import Surrogate
from metricgrad.training import Fit, Trained
from metricgrad.training.row_space import table_items


class MetricClassifier(KeepsRows, ClassifierMixin, BaseEstimator):
    """A linear model, a network or boosted trees, for a metric of two or many classes or of labels.

    pandas DataFrames may have categories, dates and missing values; `estimators/features.py` says
    how each is prepared. SciPy sparse matrices are made dense. If a table does not fit into memory,
    pass a `pyarrow.dataset.Dataset` of Parquet files to `fit`, `predict` and `score`.

    Args:
        metric: A name, a `Metric` or a callable `(scores, target) -> number`.
        method: `"auto"`, which tries several losses and keeps cross-entropy if none is better, the
            name of a loss, or a surrogate.
        model: `"network"`, `"linear"`, `"boosted"` for trees; several, such as `"boosted,linear"`,
            of which the first is taken unless another gains more than chance; `"auto"` is all.
        engine: The library that grows trees: `"lightgbm"`, `"xgboost"` or `"sklearn"`, which
            supports only the ordinary loss. None takes the first that is installed.
        hidden: Widths of the network's hidden layers; `()` is a linear model.
        epochs: Maximum number of epochs of a network's trial.
        batch: Number of items in a batch of a network.
        rate: The learning rate; None tries several, or is 0.1 for trees.
        decay: Decoupled weight decay of networks, as in AdamW.
        folds: Folds of cross-validation; None chooses by the size of the rarest class.
        balanced: Whether every class has an equal share of a network's batches.
        budget: Seconds for the whole search; None sets no limit.
        options: Options of the loss, if `method` is a name.
        positive: The positive one of two classes. None takes the second in sorted order; if the
            classes are names and the metric treats them differently, the rarer one, with a warning.
        class_weight: A dict from classes to the weights of their items in `fit`; `"balanced"` gives
            all classes the same weight in total.
        warm_start: Whether another `fit` continues the trained model, with its columns and
            classes: trees of LightGBM and XGBoost get more trees.
        random_state: A number or `RandomState` for splits, weights and batches; None differs in
            every call.
        progress: Whether to show a progress bar, on a terminal.

    Attributes:
        classes_: The classes in order; for labels their numbers.
        model_: The kind of model that was taken: `"network"`, `"linear"` or `"boosted"`.
        trained_: The model with its threshold, or the offsets of its classes.
        threshold_: The score above which a decision is positive, or one for each label.
        coef_: Weights of a linear model, `[scores, columns]`, for the prepared columns that
            `get_feature_names_out` names; `intercept_` includes the threshold.
        fit_: The `mg.Fit` with every trial; a loaded classifier has none.
        target_: Whether targets are two classes, many or labels, and which class is positive.
        preparation_: How each column is prepared, as `estimators/features.py` describes it.
        n_iter_: The epoch that was kept, or the number of trees that the last `fit` added.
        n_features_in_: Number of columns of the training data.
        feature_names_in_: Names of these columns, if they have names.
        feature_importances_: How much the metric falls when a column is shuffled, measured on
            first use (`estimators/importances.py`); a loaded classifier has none.

    Example:
        >>> import metricgrad as mg
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> quick = {"hidden": (), "epochs": 4, "rate": 0.03, "random_state": 0}
        >>> model = mg.MetricClassifier("f1", method="uniloss", **quick)
        >>> model.fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.95
        True
    """

    def __init__(
        self,
        metric: Any = "f1",
        method: str | Surrogate = "auto",
        *,
        model: str = "network",
        engine: str | None = None,
        hidden: Sequence[int] = (100, 30, 10),
        epochs: int = 20,
        batch: int = 256,
        rate: float | None = None,
        decay: float = 0.0,
        folds: int | None = None,
        balanced: bool = False,
        budget: float | None = None,
        options: Mapping[str, Any] | None = None,
        positive: Any = None,
        class_weight: Any = None,
        warm_start: bool = False,
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
        self.balanced = balanced
        self.budget = budget
        self.options = options
        self.positive = positive
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.progress = progress

    def fit(
        self,
        X: Any,  # noqa: N803 (scikit-learn's name)
        y: Any,
        sample_weight: Any = None,
        *,
        rows: np.ndarray | None = None,
        folder: Any = None,
        **data: Any,
    ) -> Self:
        """Trains the classifier.

        Args:
            X: `[items, columns]`, an array of numbers or a pandas DataFrame; or a pyarrow dataset,
                which is read in row groups, with at most 50,000 random rows for validation.
            y: `[items]` classes, or `[items, labels]` of 0 and 1; of a dataset, the name of the
                column with the classes.
            sample_weight: `[items]`, how much each item counts in training and validation.
            rows: Numbers of the items to train on, so that a large table need not be copied; None
                takes all.
            folder: Folder for checkpoints, from which an interrupted training continues.
            **data: Arguments of your own metric besides scores and target, by name, such as
                `amount=amount`: `[items]`.
        """
        if is_dataset(X):
            refuse_given(self, rows, sample_weight, data)
            return self.fit_surveyed(surveyed_dataset(self, X, y), folder=folder)
        y = None if y is None else plain(y)
        table, y = checked_table(self, X, reset=True, y=y, sparse=True)
        y = y if rows is None else np.asarray(y)[rows]
        start = start_of(self, table.shape[1])
        self.target_ = start.target_of(y, to_metric(self.metric), self.positive)
        self.classes_ = self.target_.classes
        target = self.target_.encode(y)
        own = item_data(table, y, sample_weight, self.class_weight, data, rows)
        metric = self.target_.metric_for(to_metric(self.metric))
        task = None if self.target_.kind == "labels" else self.target_.kind
        folds = fitting_folds(self.folds, target)
        work = Work(
            table, rows, lambda x: table_items(x, target, own, metric), metric, task,
            self.target_.outputs, folds, self.balanced, folder, start,
        )  # fmt: skip
        found = fitted_model(self, work)
        self.model_ = found.name
        self.preparation_ = found.preparation
        self.keep_rows(found.items)
        return self._finished(found.fit)

    def fit_surveyed(self, surveyed: Survey, *, folder: Any = None) -> Self:
        """Trains the classifier on a Parquet table that was read once, as `fit` does."""
        self.target_ = Target.of(surveyed.short_target, to_metric(self.metric), self.positive)
        self.classes_ = self.target_.classes
        self.n_features_in_ = len(surveyed.features)
        self.feature_names_in_ = np.asarray(surveyed.features, dtype=object)
        self.preparation_ = surveyed.preparation
        self.model_ = "network" if hidden_of(self) else "linear"
        return self._finished(fitted_on(self, surveyed, self.target_, folder))

    def _finished(self, found: Fit) -> Self:
        """The classifier with what training has found."""
        self.fit_: Fit = found
        self.trained_: Trained = found
        self.n_iter_ = self.fit_.decision.winner.epoch
        self._steepness, self._cut = calibrated(self.fit_, self.target_.kind)
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores minus the threshold: above 0 is a positive decision.

        For many classes, scores with their offsets: the highest is the decision.

        Returns:
            `[items]` for two classes; `[items, classes]`, or `[items, labels]`, otherwise.
        """
        return self._decisions(X).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Classes, decided at the threshold, or with the offsets, that were tuned with the model.

        A metric of order has no threshold; two classes are then decided where their probability is
        one half.

        Returns:
            `[items]`, or `[items, labels]` of 0 and 1.
        """
        found = self.decision_function(X)
        if self.target_.kind == "labels":
            return (found > 0).astype(int)
        if self.target_.kind == "binary":
            return self.target_.ordered[(found > 0).astype(int)]
        return self.classes_[found.argmax(-1)]

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Probabilities that agree with `predict`: 0.5 is at the threshold.

        For two classes their steepness is fitted on validation data. For many classes and for
        labels they are the softmax and the sigmoid of `decision_function`.

        Returns:
            `[items, classes]`, or `[items, labels]`.
        """
        decided = self._decisions(X)
        return self.target_.probabilities(decided, self._steepness)

    def score(self, X: Any, y: Any, sample_weight: Any = None, **data: Any) -> float:  # noqa: N803
        """The metric with the tuned decision, or minus the metric where lower is better.

        `sample_weight` and `data` are as in `fit`; None gives every item the same weight.
        """
        if sample_weight is not None:
            data["sample_weight"] = sample_weight
        if is_dataset(X):
            parts = zip(*scores_of(self, X, y), strict=True)
            value = self.trained_.measure_scores(*(torch.cat(each) for each in parts), **data)
        else:
            value = self.trained_.measure(self.prepared(X), self.encoded(y), **data)
        return value if self.trained_.metric.higher_is_better else -value

    def save(self, path: str | Path) -> None:
        """Writes the classifier to one safetensors file, without pickle.

        Boosted trees are stored in the text format of their library. An existing file is replaced
        only once the new one is complete.
        """
        check_is_fitted(self)
        write_classifier(self, path)

    @classmethod
    def load(cls, path: str | Path, *, metric: Any = None) -> "MetricClassifier":
        """Reads a classifier that `save` wrote.

        Args:
            path: File that `save` wrote, with any name.
            metric: Replaces the stored metric; needed if that is your own function.

        Returns:
            The classifier, ready to predict, without the history of its training.
        """
        return load_estimator(path, CLASSIFIER, metric, partial(stored_classifier, cls))

    def prepared(self, X: Any, rows: np.ndarray | None = None) -> Tensor:  # noqa: N803
        """Features as the model takes them, `[items, width]`; `rows` None takes all."""
        check_is_fitted(self)
        table, _ = checked_table(self, X, reset=False, sparse=True)
        return torch.from_numpy(prepared_features(self.preparation_, table, rows))

    @property
    def threshold_(self) -> float | np.ndarray:
        """The score above which a decision is positive: a number, or `[labels]` for labels."""
        check_is_fitted(self)
        return threshold_of(self.trained_, self.target_)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the prepared columns, `[1, columns]`, or `[classes or labels, columns]`."""
        check_is_fitted(self)
        return only_layer(self.trained_.model, "coef_").weight.detach().numpy().copy()

    @property
    def intercept_(self) -> np.ndarray:
        """What is added to the weighted columns, `[1]`, or `[classes or labels]`.

        The threshold, or the offsets of classes, are part of it.
        """
        check_is_fitted(self)
        layer = only_layer(self.trained_.model, "intercept_")
        return (layer.bias.detach() - self._cut).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the prepared columns, which `coef_` has the weights of.

        A category is `column=category`, the rare ones together are `column=(rare)`, and the column
        that marks gaps is `column=(missing)`.

        Args:
            input_features: Names of the columns; None takes those of the training data, or x0, x1
                and so on where it had none.
        """
        check_is_fitted(self)
        return feature_names_out(self, input_features)

    def __sklearn_tags__(self) -> Any:
        """States that missing values are filled in, and that labels and sparse tables are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = self.model != "boosted"
        tags.target_tags.single_output = True
        tags.non_deterministic = False
        return tags

    @property
    def booster_(self) -> Any:
        """The booster object of the trees' library, such as `lightgbm.Booster`, to save or plot."""
        check_is_fitted(self)
        return own_booster(self.trained_.model)

    def encoded(self, y: Any) -> Tensor:
        """A target as the metric takes it: class numbers, of two the positive one 1; or labels."""
        check_is_fitted(self)
        return self.target_.encode(y)

    def _decisions(self, X: Any) -> Tensor:  # noqa: N803
        """What `decision_function` gives; a dataset is read part after part."""
        if not is_dataset(X):
            return self._decided(self.prepared(X))
        check_is_fitted(self)
        return torch.cat([scores for scores, _ in scores_of(self, X)]) - self._cut

    def _decided(self, x: Tensor) -> Tensor:
        """Scores of prepared items, with the threshold or the offsets taken off."""
        return self.trained_.scores(x) - self._cut
