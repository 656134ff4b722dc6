"""Probabilities from scores of any scale: p = sigmoid(steepness (s - cut)).

A loss for a metric has no reason to give scores that are log-odds; only the threshold matters to
it. So probability 0.5 is put at the threshold, and the steepness is fitted to the validation data
by logistic regression.
"""

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from metricgrad.surrogates.base import TargetKind
from metricgrad.training import Fit


def calibrated(fit: Fit, kind: TargetKind) -> tuple[float, Tensor]:
    """How steep probabilities are, and the score where they are one half.

    That score is the threshold. A metric of order has none; the regression's own is taken then.
    """
    if kind != "binary":
        return 1.0, torch.zeros(()) if fit.threshold is None else fit.threshold
    live = fit.validation.live
    scores = fit.decision.winner.scores[live].double().numpy()
    target = fit.validation.target[live].numpy()
    line = LogisticRegression(C=1e4).fit(scores.reshape(-1, 1), target)
    slope = float(line.coef_[0, 0])
    shift = float(line.intercept_[0])
    if slope <= 0:  # the scores say nothing about the target
        slope = 1.0
        shift = 0.0
    return slope, torch.tensor(-shift / slope) if fit.threshold is None else fit.threshold
