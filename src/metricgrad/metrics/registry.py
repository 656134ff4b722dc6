"""Metrics by name: one name, one class, whatever the family of the scores."""

import difflib
from dataclasses import fields, is_dataclass
from typing import Any

from metricgrad.metrics.agreement import Accuracy, BalancedAccuracy, ErrorRate, GMean, Hamming, Mcc
from metricgrad.metrics.base import Metric
from metricgrad.metrics.confusion import F1, FBeta, Jaccard, Precision, Recall
from metricgrad.metrics.curves import Auc, AveragePrecision, Eer, PartialAuc, RecallAtPrecision
from metricgrad.metrics.function import from_function
from metricgrad.metrics.kappa import Kappa
from metricgrad.metrics.pose import Pck
from metricgrad.metrics.ranking import Map, Mrr, Ndcg, PrecisionAtK, RecallAtK
from metricgrad.metrics.segmentation import Dice, MeanIou
from metricgrad.metrics.text import Bleu, EditDistance, ExactMatch, RougeL, SpanF1, WordErrorRate

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
