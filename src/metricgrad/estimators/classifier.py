"""A classifier for scikit-learn that trains on the metric it is judged by."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from metricgrad.estimators.calibrating import calibrated
from metricgrad.estimators.networks import perceptron, widths
from metricgrad.estimators.preparing import Preparation
from metricgrad.estimators.saving import load_classifier, save_classifier
from metricgrad.estimators.target import Target, plain
from metricgrad.metrics import metric as to_metric
from metricgrad.surrogates import Surrogate
from metricgrad.training import Fit, Trained, fit


class MetricClassifier(ClassifierMixin, BaseEstimator):
    """A network, or a linear model, trained for a metric: binary, many classes, or labels.

    Tables of pandas may have categories and missing values; `estimators/preparing.py` says what
    becomes of them.

    Args:
        metric: a name, a `Metric` or a callable `(scores, target) -> number`.
        method: `"auto"` tries several losses and keeps cross-entropy where none is better; or a
            name, or a surrogate.
        hidden: widths of the hidden layers; `()` is a linear model.
        epochs: see `mg.fit`; so are all that follow.
        batch: items of a batch.
        rate: the learning rate; None tries several.
        decay: of the weights.
        folds: of cross-validation; None decides.
        balanced: whether every class has an equal share of a batch.
        budget: seconds.
        options: of the loss, for a method by name.
        positive: which of two classes counts as positive; None takes the second in order.
        random_state: of everything random: a number, a `RandomState`, or None.
        progress: shows a bar, on a terminal.

    Attributes:
        classes_: the classes in order; for labels their numbers.
        trained_: the network and its threshold.
        fit_: what `mg.fit` gave: the same, with what was tried; a classifier that was loaded has
            none.
        target_: what the targets are: two classes, more, or labels.
        n_iter_: the epoch that was best.
        n_features_in_: columns of the training data.
        feature_names_in_: their names, where they have some.

    Example:
        >>> import metricgrad as mg
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> model = mg.MetricClassifier("f1", method="uniloss", hidden=(), epochs=4, rate=0.03, random_state=0)
        >>> model.fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.95
        True
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        metric: Any = "f1",
        method: str | Surrogate = "auto",
        *,
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
        self.balanced = balanced
        self.budget = budget
        self.options = options
        self.positive = positive
        self.random_state = random_state
        self.progress = progress

    def fit(
        self,
        X: Any,  # noqa: N803 (scikit-learn's name)
        y: Any,
        *,
        rows: np.ndarray | None = None,
        folder: Any = None,
    ) -> Self:
        """Trains.

        Args:
            X: `[items, columns]`, an array of numbers or a pandas table.
            y: `[items]` classes, or `[items, labels]` of 0 and 1.
            rows: numbers of the items to train on, which spares a large table from being copied;
                None takes all.
            folder: for checkpoints; see `mg.fit`.

        Returns:
            Itself.
        """
        table, y = self._table(X, reset=True, y=None if y is None else plain(y))
        y = y if rows is None else np.asarray(y)[rows]
        self.target_ = Target.of(y, to_metric(self.metric), self.positive)
        self.classes_, target = self.target_.classes, self.target_.encode(y)
        self._preparation = Preparation().fit(table, rows)
        x = torch.from_numpy(self._preparation.transform(table, rows))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fit_: Fit = fit(
            perceptron(x.shape[1], widths(self.hidden), self.target_.outputs, seed),
            (x, target),
            metric=self.target_.meant(to_metric(self.metric)),
            method=self.method,
            options=self.options,
            epochs=self.epochs,
            batch=self.batch,
            rate=self.rate,
            decay=self.decay,
            folds=self._folds(target),
            balanced=self.balanced,
            budget=self.budget,
            seed=seed,
            folder=folder,
            progress=self.progress,
        )
        self.trained_: Trained = self.fit_
        self.n_iter_ = self.fit_.decision.winner.epoch
        self._steepness, self._cut = calibrated(self.fit_, self.target_.kind)
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores, measured from the threshold: above 0 is a positive decision.

        Args:
            X: `[items, columns]`.

        Returns:
            `[items]` for two classes; `[items, classes]`, or `[items, labels]`, otherwise.
        """
        x = self.prepared(X)
        scores = self.trained_.scores(x)
        return (scores - self._cut).numpy() if self.target_.kind != "classes" else scores.numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Classes, decided at the threshold that was tuned with the model.

        For a metric of order, which has none, two classes are told apart where their probability is
        one half.

        Args:
            X: `[items, columns]`.

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
        """Probabilities as the decisions see them: 0.5 is at the threshold.

        Of two classes the steepness is fitted on validation data; of more, and of labels, it is
        that of the scores.

        Args:
            X: `[items, columns]`.

        Returns:
            `[items, classes]`, or `[items, labels]`.
        """
        found = torch.from_numpy(self.decision_function(X)).double()
        if self.target_.kind == "labels":
            return found.sigmoid().numpy()
        if self.target_.kind == "classes":
            return found.softmax(-1).numpy()
        chance = (self._steepness * found).sigmoid()
        both = torch.stack([1 - chance, chance], -1).numpy()
        return both[:, list(self.target_.order)]

    def score(self, X: Any, y: Any, sample_weight: None = None) -> float:  # noqa: N803
        """The metric, greater is better: negative where a lower value is better.

        Args:
            X: `[items, columns]`.
            y: the truth.
            sample_weight: must be None; metrics count every item alike.

        Returns:
            The metric at the tuned threshold.
        """
        if sample_weight is not None:
            raise ValueError("metrics count every item alike; pass no sample_weight")
        value = self.trained_.measure(self.prepared(X), self.encoded(y))
        return value if self.trained_.metric.higher_is_better else -value

    def save(self, path: str | Path) -> None:
        """Writes the classifier to one safetensors file: the network's tensors, and everything else as JSON.

        Args:
            path: where to; an existing file is replaced only once the new one is complete.
        """
        check_is_fitted(self)
        save_classifier(self, path)

    @classmethod
    def load(cls, path: str | Path, *, metric: Any = None) -> "MetricClassifier":
        """A classifier that `save` wrote, ready to predict.

        Args:
            path: the file.
            metric: in place of the stored one; needed where that is a function of the user's own.

        Returns:
            The classifier, without the history of its training.
        """
        return load_classifier(cls, path, metric)

    def _table(self, x: Any, *, reset: bool, y: Any = None) -> tuple[Any, Any]:
        """The features as they can be prepared; names and number of columns are checked."""
        if y is not None and hasattr(x, "iloc"):
            validate_data(self, x, reset=reset, skip_check_array=True)
            if len(x) != len(y):
                raise ValueError(
                    f"X and y must have the same number of rows; got {len(x)} and {len(y)}"
                )
            return x, y
        if hasattr(x, "iloc"):
            validate_data(self, x, reset=reset, skip_check_array=True)
            return x, None
        checked: dict[str, Any] = {"ensure_all_finite": "allow-nan", "dtype": "numeric"}
        if y is None and not reset:
            return validate_data(self, x, reset=False, **checked), None
        checked["y"] = y
        table, y = validate_data(self, x, reset=True, multi_output=True, **checked)
        return table, y

    def prepared(self, X: Any, rows: np.ndarray | None = None) -> Tensor:  # noqa: N803
        """Features as the network takes them.

        Args:
            X: `[items, columns]`.
            rows: numbers of the items to prepare; None takes all.

        Returns:
            `[items, width]`, float32.
        """
        check_is_fitted(self)
        table, _ = self._table(X, reset=False)
        return torch.from_numpy(self._preparation.transform(table, rows))

    def encoded(self, y: Any) -> Tensor:
        """A target as the network's metric takes it.

        Args:
            y: `[items]` classes, or `[items, labels]`.

        Returns:
            Class numbers (of two classes 1 is the positive one), or labels.
        """
        check_is_fitted(self)
        return self.target_.encode(y)

    def _folds(self, target: Tensor) -> int | None:
        """As many folds as asked for, or as the rarest class allows."""
        if self.folds is not None or target.dim() != 1:
            return self.folds
        rarest = int(target.unique(return_counts=True)[1].min())
        return max(1, rarest) if rarest < 5 else None

    def __sklearn_tags__(self) -> Any:
        """Missing values are filled in, and labels are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.single_output = True
        tags.non_deterministic = False
        return tags
