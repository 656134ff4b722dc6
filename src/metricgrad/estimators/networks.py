"""The networks of the estimators: how they are made and trained, and what their scores mean.

A loss for a metric has no reason to give scores that are log-odds; only the threshold matters to
it. So probabilities are p = sigmoid(steepness (s - cut)): 0.5 is put at the threshold, and the
steepness is fitted to the validation data by logistic regression.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.registry import metric_from_config
from metricgrad.metrics.rows import SAMPLE_WEIGHT
from metricgrad.processes import from_first
from metricgrad.storage import damage_told, read_tensors
from metricgrad.surrogates.base import TargetKind
from metricgrad.training import Fit, fit

Estimator = TypeVar("Estimator")
_TAKEN = inspect.signature(fit).parameters.keys() - {"model"}  # what estimators call their kind


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of hidden layers as the user passed them: several, or one number."""
    several = (hidden,) if isinstance(hidden, int | np.integer) else hidden
    if not isinstance(several, Iterable) or not all(
        isinstance(width, int | np.integer) and width > 0 for width in several
    ):
        raise ValueError(
            "hidden must be widths of layers, such as (100, 30), or () for a linear model; "
            f"got {hidden!r}"
        )
    return tuple(int(width) for width in several)


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int) -> nn.Sequential:
    """Linear layers with ReLU between them, started as scikit-learn starts its networks.

    torch's own start has smaller weights. In a narrow last layer most units then begin next to 0,
    and a few steps towards the majority class can switch all of them off for good. A linear model
    keeps torch's start.

    Args:
        inputs: Features of an item, after preparation.
        hidden: Widths of the hidden layers; none gives a linear model.
        outputs: Scores of an item: 1 for two classes.
        seed: Seed for the initial weights; torch's global random numbers are left alone.

    Example:
        >>> [tuple(each.shape) for each in perceptron(4, (8,), 1, 0).parameters()]
        [(8, 4), (8,), (1, 8), (1,)]
    """
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for before, after in itertools.pairwise((inputs, *hidden, outputs)):
            layer = nn.Linear(before, after)
            if hidden:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load_estimator(
    path: str | Path,
    kind: str,
    metric: Any,
    build: Callable[[dict[str, Tensor], dict[str, Any], Metric], Estimator],
) -> Estimator:
    """What `build` makes of the tensors, header and metric of a model file.

    `kind` is the key of the header, and `metric` replaces the stored one unless it is None. A file
    that nothing can be made of raises ValueError.
    """
    tensors, header = read_tensors(path, kind, "model")
    given = None if metric is None else to_metric(metric)
    with damage_told(path, "model"):
        stored = metric_from_config(header["metric"]) if given is None else given
        return build(tensors, header, stored)


def stored_perceptron(
    tensors: dict[str, Tensor], inputs: int, hidden: tuple[int, ...], outputs: int
) -> nn.Sequential:
    """The network of a model file; ValueError, before it takes memory, if its weights do not fit.

    `inputs`, `hidden` and `outputs` are as in `perceptron`.
    """
    needed: dict[str, list[int]] = {}
    for number, (before, after) in enumerate(itertools.pairwise((inputs, *hidden, outputs))):
        needed[f"{2 * number}.weight"] = [after, before]
        needed[f"{2 * number}.bias"] = [after]
    found = {name: list(each.shape) for name, each in tensors.items()}
    if found != needed:
        raise ValueError(
            f"its weights are not those of {inputs} inputs, hidden layers {list(hidden)!r:.60} and "
            f"{outputs} outputs"
        )
    network = perceptron(inputs, hidden, outputs, 0)
    network.load_state_dict(tensors)
    return network.eval()


def drawn_seed(estimator: Any) -> int:
    """A seed by the `random_state` of an estimator, the same in all processes."""
    drawn = check_random_state(estimator.random_state)
    return from_first(lambda: int(drawn.randint(2**31 - 1)))


def trained_network(
    estimator: Any,
    network: nn.Module,
    data: Any,
    *,
    valid: Any = None,
    metric: Metric,
    folds: int | None,
    balanced: bool,
    budget: float | None,
    seed: int,
    folder: str | Path | None,
) -> Fit:
    """A network for an estimator, trained by `mg.fit`.

    Settings of the estimator that `mg.fit` has by the same name are passed on as they are, but for
    those that are given here.
    """
    given = {"metric": metric, "folds": folds, "balanced": balanced, "budget": budget}
    settings = estimator.get_params(deep=False)
    passed_on: dict[str, Any] = {name: settings[name] for name in settings if name in _TAKEN}
    return fit(network, data, valid=valid, **passed_on | given, seed=seed, folder=folder)


def calibrated(found: Fit, kind: TargetKind) -> tuple[float, Tensor]:
    """How steep probabilities are, and the score where they are one half.

    That score is the threshold. A metric of order has none; the regression's own is taken then.
    """
    if kind != "binary":
        return 1.0, torch.zeros(()) if found.threshold is None else found.threshold
    live = found.validation.live
    scores = found.decision.winner.scores[live].double().numpy()
    target = found.validation.target[live].numpy()
    weights = found.validation.rows.get(SAMPLE_WEIGHT)
    mass = None if weights is None else weights[live].numpy()
    line = LogisticRegression(C=1e4).fit(scores.reshape(-1, 1), target, mass)
    slope = float(line.coef_[0, 0])
    shift = float(line.intercept_[0])
    if slope <= 0:  # the scores say nothing about the target
        slope = 1.0
        shift = 0.0
    return slope, torch.tensor(-shift / slope) if found.threshold is None else found.threshold


def plain_setting(value: Any) -> Any:
    """A setting as JSON has it; of a surrogate only the name is kept."""
    if isinstance(value, np.generic):
        return value.item()
    known = value is None or isinstance(value, str | int | float | bool)
    return value if known else type(value).__name__.lower()
