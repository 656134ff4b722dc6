"""Train a skorch net on F1: the loss is its criterion.

skorch calls `criterion(scores, target)` as it does torch's own losses, so a loss of metricgrad fits
without a change. `NeuralNet` leaves the scores as they are; `NeuralNetClassifier` would pass them
through a softmax, and these losses take logits. Options of the loss can be searched by
scikit-learn: `criterion__slope`.
"""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import scale
from skorch import NeuralNet

import metricgrad as mg


def f1(net: NeuralNet, x: Any, y: Any) -> float:
    """The F1 of decisions at 0, for scikit-learn's search."""
    return float(f1_score(y, net.predict(x)[:, 0] > 0))


def main() -> None:
    """Searches the slope, and prints the F1 of test data."""
    x, y = load_breast_cancer(return_X_y=True)
    x = scale(x).astype(np.float32)
    y = 1 - y  # malignant tumours are the positives
    train_x, test_x, train_y, test_y = train_test_split(x, y, stratify=y, random_state=0)
    torch.manual_seed(0)
    net = NeuralNet(
        torch.nn.Linear,
        module__in_features=x.shape[1],
        module__out_features=1,
        criterion=mg.MetricLoss,
        criterion__metric="f1",
        optimizer__momentum=0.9,
        lr=0.05,
        batch_size=128,
        max_epochs=10,
        verbose=0,
    )
    search = GridSearchCV(net, {"criterion__slope": [2.0, 5.0]}, scoring=f1, cv=3)
    search.fit(train_x, train_y)
    print(f"slope {search.best_params_['criterion__slope']:g}")
    print(f"F1 of test data {f1(search.best_estimator_, test_x, test_y):.4f}")


if __name__ == "__main__":
    main()
