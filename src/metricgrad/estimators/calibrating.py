"""Probabilities from scores of any scale: a logistic curve through the threshold, p = sigmoid(steepness (s - cut)).

A loss for a metric has no reason to give scores that are log-odds; what decides is the threshold
alone. So 0.5 is put at the threshold, and the steepness is what fits the validation data best.
"""

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from metricgrad.training import Fit


def calibrated(fit: Fit, kind: str) -> tuple[float, Tensor]:
    """How steep probabilities are, and where they are one half.

    Args:
        fit: a training, with the scores that its winner gave validation data.
        kind: of the target: `"binary"`, `"classes"` or `"labels"`.

    Returns:
        Steepness and cut: the threshold, or, for metrics of order, where the fitted probability is
        one half.
    """
    if kind != "binary":
        return 1.0, torch.zeros(()) if fit.threshold is None else fit.threshold
    live = fit.validation.live
    scores, truth = (
        fit.decision.winner.scores[live].double().numpy(),
        fit.validation.target[live].numpy(),
    )
    line = LogisticRegression(C=1e4).fit(scores.reshape(-1, 1), truth)
    slope, shift = float(line.coef_[0, 0]), float(line.intercept_[0])
    if slope <= 0:  # the scores say nothing of the target
        slope, shift = 1.0, 0.0
    return slope, torch.tensor(-shift / slope) if fit.threshold is None else fit.threshold
