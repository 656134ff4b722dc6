"""Metrics by name: one name, one class, whatever the family of the scores."""

import difflib
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from metricgrad.metrics.agreement import Accuracy, BalancedAccuracy, ErrorRate, GMean, Hamming, Mcc
from metricgrad.metrics.base import Metric
from metricgrad.metrics.confusion import F1, FBeta, Jaccard, Precision, Recall
from metricgrad.metrics.curves import Auc, AveragePrecision, Eer, PartialAuc, RecallAtPrecision
from metricgrad.metrics.function import FunctionMetric, from_function
from metricgrad.metrics.kappa import Kappa
from metricgrad.metrics.maps import Dice, MeanIou, Pck
from metricgrad.metrics.ndcg import Ndcg
from metricgrad.metrics.ranking import Map, Mrr, PrecisionAtK, RecallAtK
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.metrics.text import Bleu, EditDistance, ExactMatch, RougeL, SpanF1, WordErrorRate
from metricgrad.metrics.watching.metric import on_sight

_CLASSES: tuple[type[Metric], ...] = (
    *(
        Accuracy,
        ErrorRate,
        BalancedAccuracy,
        Precision,
        Recall,
        FBeta,
        F1,
        Jaccard,
        Mcc,
        Kappa,
        GMean,
        Hamming,
    ),
    *(Auc, PartialAuc, AveragePrecision, Eer, RecallAtPrecision),
    *(PrecisionAtK, RecallAtK, Ndcg, Map, Mrr),
    *(MeanIou, Dice, Pck),
    *(SpanF1, ExactMatch, Bleu, RougeL, EditDistance, WordErrorRate),
)
_BY_NAME = {cls.name: cls for cls in _CLASSES}


def metric_names() -> list[str]:
    """All names that `metric` takes, by family.

    Example:
        >>> metric_names()[:3]
        ['accuracy', 'error_rate', 'balanced_accuracy']
    """
    return list(_BY_NAME)


def metric(spec: Any, **options: Any) -> Metric:
    """A metric from its name; a `Metric` passes through, and any other callable goes to `from_function`.

    Args:
        spec: one of `metric_names()`, a `Metric`, or a callable `(scores, target) -> number`.
        **options: the metric's own, such as `k=10` for `"ndcg"`; `metricgrad metrics NAME` lists
            them.

    Returns:
        The metric.

    Example:
        >>> metric("ndcg", k=10)
        Ndcg(k=10, gain='linear')
    """
    if isinstance(spec, Metric):
        if options:
            raise TypeError(
                f"options go with a name; {spec!r} is made already, got {', '.join(options)} besides"
            )
        return spec
    if isinstance(spec, type) and issubclass(spec, Metric):
        raise TypeError(
            f"pass a metric's name or an instance, such as metric({spec.name!r}); got the class {spec.__name__}"
        )
    if not isinstance(spec, str):
        return from_function(spec, **options)
    if spec not in _BY_NAME:
        close = difflib.get_close_matches(spec.lower(), _BY_NAME, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"names: {', '.join(_BY_NAME)}"
        raise ValueError(f"there is no metric named {spec!r}; {hint}")
    cls = _BY_NAME[spec]
    known = metric_options(cls)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(f"{spec} has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    return cls(**options)


def metric_options(cls: type[Metric]) -> dict[str, Any]:
    """The options of a metric class and their defaults; none for a class that is no dataclass."""
    if not is_dataclass(cls):
        return {}
    return {option.name: option.default for option in fields(cls) if option.init}


def with_options(metric: Metric, **options: Any) -> Metric:
    """The same metric with other options; those that it does not have are left out."""
    known = metric_options(type(metric))
    changed = {option: value for option, value in options.items() if option in known}
    return type(metric)(**{option: getattr(metric, option) for option in known} | changed)


def comparison_metric(
    spec: Any, *, generator: torch.Generator | None = None, **options: Any
) -> ComparisonMetric:
    """A metric that comparisons decide, from what `metric` takes, with options where it has them.

    A user's function is watched when it first runs, or else taken as a black box.
    """
    chosen = metric(spec)
    if isinstance(chosen, ComparisonMetric):
        chosen = chosen if isinstance(chosen, FunctionMetric) else with_options(chosen, **options)
    elif isinstance(chosen, FunctionMetric):
        chosen = on_sight(chosen, generator=generator)
    if not isinstance(chosen, ComparisonMetric):
        raise TypeError(
            f"UniLoss needs a metric that comparisons of scores decide; {chosen.name} is not one. "
            "Metrics of text and other black boxes need a learned surrogate"
        )
    return chosen


def metric_config(metric: Metric) -> dict[str, Any]:
    """Name and options of a metric, ready for JSON; of one that is or has a function only the name."""
    if not metric.portable:
        return {"function": metric.name}
    options = {option: getattr(metric, option) for option in metric_options(type(metric))}
    return {"name": metric.name, "options": options}


def metric_from_config(config: dict[str, Any]) -> Metric:
    """The metric that `metric_config` described; ValueError for a function, which no file can hold."""
    if "function" in config:
        raise ValueError(
            f"the file's metric is, or has, a function of yours, {config['function']}, which no file "
            "can hold; pass it again: load(path, metric=...)"
        )
    return metric(config["name"], **config["options"])
