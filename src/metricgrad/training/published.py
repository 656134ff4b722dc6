r"""The settings of Learning Surrogate Losses that decide how its losses see a metric (Sec. 4.1).

Half of every batch is positive. Both learning rates are 1e-5, and gradients are clipped at a norm
of 1e-5. A metric of decisions takes an item as positive if

    s >= gamma,

where gamma was optimised for each data set and loss by cross-validation. The same gamma decides
while the surrogate learns the metric and when the model is tested. The paper names no candidates
and no number of folds; those here are our choice.
"""

import torch
from torch import Tensor

from metricgrad.metrics.base import Metric

PUBLISHED = {"model_rate": 1e-5, "loss_rate": 1e-5, "clip": 1e-5, "balanced": True}
PUBLISHED_UNIVERSAL = {"source": "paper"}


def decides_at_least(metric: Metric, gamma: float | None = None) -> Metric:
    r"""The metric with decisions :math:`s \ge \gamma` instead of :math:`s > \gamma`.

    .. math:: s \ge \gamma \iff s > \max \{t: t < \gamma\}

    among the numbers t that float32 has.

    Args:
        metric: Any; it is left as it is if it has no threshold, or one for every label.
        gamma: The threshold, the metric's own unless given.

    Example:
        >>> import metricgrad as mg
        >>> scores = torch.tensor([0.5, 1.0])
        >>> metric = mg.metric("accuracy", threshold=0.5)
        >>> at_least = mg.training.decides_at_least(metric)
        >>> [float(each(scores, torch.tensor([1, 1]))) for each in (metric, at_least)]
        [0.5, 1.0]

    Reference:
        Learning Surrogate Losses, Sec. 4.1.
    """
    own = getattr(metric, "threshold", None)
    if not metric.has_threshold or not isinstance(own, float | int):
        return metric
    cut = torch.tensor(own if gamma is None else gamma, dtype=torch.float32)
    below = torch.nextafter(cut, torch.tensor(-torch.inf))
    return metric.at_threshold(below, Tensor())[0]
