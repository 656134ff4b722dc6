r"""Gamma, the threshold at which a metric decides while a surrogate learns it, by cross-validation.

For every candidate gamma and every fold, a model and its surrogate are trained on the other folds
and tested on this one. The metric decides s >= gamma both times:

    gamma* = argmax_gamma  mean over folds of  metric(model trained at gamma; the fold, gamma)

All these trainings run at once, stacked. Where the data say nothing about gamma, the model's bias
makes up for it; it matters where the scores of an untrained model all lie on one side of gamma, as
the metric is constant there and the surrogate has nothing to learn.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics.checks import whole
from metricgrad.metrics.one_score import item_target
from metricgrad.metrics.registry import metric as to_metric
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.training.joint import LossStart
from metricgrad.training.published import PUBLISHED, PUBLISHED_UNIVERSAL, decides_at_least
from metricgrad.training.stack import modes_kept
from metricgrad.training.stacked import StackedTraining

_GAMMAS = (-1.0, -0.5, 0.0, 0.5, 1.0)


class Gamma(NamedTuple):
    """The best gamma, and the mean of the metric over the folds for each candidate."""

    gamma: float
    means: dict[float, float]


def choose_gamma(
    network: Callable[[], nn.Module],
    metric: Any,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    gammas: Sequence[float] = _GAMMAS,
    folds: int = 5,
    start: LossStart = "scratch",
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Gamma:
    r"""Chooses the gamma of a metric of decisions, :math:`s \ge \gamma`, by cross-validation.

    .. math:: \gamma^* = argmax_\gamma \; \frac{1}{F} \sum_f
        m_\gamma\big(s_{\alpha(\gamma, f)}(x_f), y_f\big)

    Args:
        network: Makes a new model, for binary scores.
        metric: A name or a `Metric` that has a threshold.
        x: `[items, ...]`, features of the training data.
        y: `[items]`, targets of the training data, 0 and 1.
        iterations: Iterations of Algorithm 1 for each candidate and fold.
        gammas: The candidates; of equally good ones, the first is taken.
        folds: Number of folds, F.
        start: `"scratch"` or `"universal"`, as for `JointTraining`.
        generator: Source of randomness for folds, weights of the losses and batches.
        **settings: Options of `StackedTraining` instead of the paper's, such as `model_rate`.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
        >>> chosen = mg.training.choose_gamma(
        ...     lambda: torch.nn.Linear(4, 1), "f1", x, x[:, 0] > 1, iterations=5, folds=2
        ... )
        >>> sorted(chosen.means)
        [-1.0, -0.5, 0.0, 0.5, 1.0]

    Reference:
        Learning Surrogate Losses, Sec. 4.1.
    """
    whole("folds", folds, 2)
    asked = to_metric(metric)
    if not asked.has_threshold or not gammas:
        raise ValueError(
            f"gamma is chosen for a metric that decides at a threshold, such as 'f1', from one "
            f"candidate or more; got {asked.name} and {list(gammas)}"
        )
    target = item_target(y, asked)
    parts = _folds(target, folds, generator)
    metrics = [decides_at_least(asked, gamma) for gamma in gammas]
    fresh = [BilevelLoss(each, generator=generator) for each in metrics]
    options = {**PUBLISHED, **settings}
    universal = {**PUBLISHED_UNIVERSAL, **(options.pop("universal", None) or {})}
    if start == "universal":
        size = options.get("batch", 100)
        for loss in fresh:
            loss.learn_universal(**{"size": size, "generator": generator, **universal})
    models = []
    for _ in parts:
        model = network()
        models += [copy.deepcopy(model) for _ in gammas]
    losses = [copy.deepcopy(loss) for _ in parts for loss in fresh]
    training = StackedTraining(
        models, losses, x, y, start=start, generator=generator,
        parts=[rest for rest, _ in parts for _ in gammas], **options,
    )  # fmt: skip
    training.advance(iterations)
    values = torch.zeros(len(parts), len(gammas), dtype=torch.float64)
    held = [out for _, out in parts for _ in gammas]
    for number, (model, out) in enumerate(zip(models, held, strict=True)):
        chosen = metrics[number % len(gammas)]
        with torch.no_grad(), modes_kept(model):
            scores = model.eval()(x[out]).reshape(target[out].shape)
        values.view(-1)[number] = float(chosen(scores, target[out]))
    means = values.mean(0)
    best = int(means.argmax() if asked.higher_is_better else means.argmin())
    return Gamma(gammas[best], dict(zip(gammas, means.tolist(), strict=True)))


def _folds(
    target: Tensor, folds: int, generator: torch.Generator | None
) -> list[tuple[Tensor, Tensor]]:
    """Indices of the other folds and of the fold, each with the shares of the classes."""
    from sklearn.model_selection import StratifiedKFold  # slow to import

    seed = int(torch.randint(2**31, (), generator=generator))
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    splits = splitter.split(target.numpy(), target.numpy())
    return [(torch.from_numpy(rest), torch.from_numpy(out)) for rest, out in splits]
