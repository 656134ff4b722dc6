"""Attributes of a fitted classifier that scikit-learn users expect: threshold, weights, columns.

`decision_function(X)` of a linear model is `features @ coef_.T + intercept_`. Its features are the
prepared columns (`features.py`), named by `get_feature_names_out`: a number is scaled to mean 0 and
spread 1, so the sizes of its weights can be compared. Divided by the spread of the column, a weight
is in the column's own units.
"""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from metricgrad.estimators.features import Number, Preparation
from metricgrad.estimators.target import Target
from metricgrad.training import Trained


class FittedAttributes:
    """Attributes of a fitted classifier that follow from its network and its threshold."""

    model: str
    n_features_in_: int
    feature_names_in_: np.ndarray
    trained_: Trained
    target_: Target
    preparation_: Preparation
    _cut: Any

    @property
    def threshold_(self) -> float | np.ndarray:
        """The score above which a decision is positive: a number, or `[labels]` for labels."""
        check_is_fitted(self)
        threshold = self.trained_.threshold
        if threshold is None or self.target_.kind == "classes":
            name = self.trained_.metric.name
            raise AttributeError(
                f"{name} does not use a threshold here, so there is no threshold_; "
                "trained_.offsets has the offsets of classes, if they were tuned"
            )
        return threshold.numpy() if threshold.dim() else float(threshold)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the prepared columns, `[1, columns]`, or `[classes or labels, columns]`."""
        return self._linear("coef_").weight.detach().numpy().copy()

    @property
    def intercept_(self) -> np.ndarray:
        """What is added to the weighted columns, `[1]`, or `[classes or labels]`.

        The threshold, or the offsets of classes, are part of it.
        """
        return (self._linear("intercept_").bias.detach() - self._cut).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the prepared columns, in the order of the weights in `coef_`.

        A category is `column=category`, the rare ones together are `column=(rare)`, and the column
        that marks gaps is `column=(missing)`.

        Args:
            input_features: Names of the columns; None takes those of the training data, or x0, x1
                and so on if it had none.
        """
        check_is_fitted(self)
        columns = self.preparation_.columns
        known = vars(self).get("feature_names_in_")
        if input_features is None:
            names = [f"x{number}" for number in range(len(columns))] if known is None else known
        else:
            names = list(input_features)
            if len(names) != len(columns) or (known is not None and list(known) != names):
                raise ValueError(
                    f"input_features must name the {len(columns)} columns of the training data"
                    f"{'' if known is None else f', {list(known)}'}; got {names}"
                )
        if self.preparation_.raw:
            return np.asarray([str(name) for name in names], dtype=object)
        found: list[str] = []
        for name, column in zip(names, columns, strict=True):
            if isinstance(column, Number):
                found += [str(name), f"{name}=(missing)"][: column.width]
            else:
                found += [f"{name}={each}" for each in column.frequent]
                found += [f"{name}=(rare)"] * column.rare
        return np.asarray(found, dtype=object)

    def _linear(self, name: str) -> nn.Linear:
        """The only layer; AttributeError where there are hidden ones."""
        check_is_fitted(self)
        layers = [each for each in self.trained_.model.modules() if isinstance(each, nn.Linear)]
        if len(layers) != 1:
            raise AttributeError(f"{name} belongs to linear models; pass model='linear' for one")
        return layers[0]

    def __sklearn_tags__(self) -> Any:
        """States that missing values are filled in, and that labels and sparse tables are taken."""
        tags = super().__sklearn_tags__()  # pyright: ignore[reportAttributeAccessIssue]
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = self.model != "boosted"
        tags.target_tags.single_output = True
        tags.non_deterministic = False
        return tags
