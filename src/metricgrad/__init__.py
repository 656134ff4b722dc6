"""Train on the metric you report.

metricgrad turns evaluation metrics that have no useful gradient into losses for PyTorch: metrics,
each equal to a named reference, for many sets at once; and surrogates, losses that take a metric's
place in training.
"""

from typing import TYPE_CHECKING, Any

from metricgrad import ops as ops
from metricgrad.metrics import Metric as Metric
from metricgrad.metrics import best_threshold as best_threshold
from metricgrad.metrics import decode_spans as decode_spans
from metricgrad.metrics import from_function as from_function
from metricgrad.metrics import metric as metric
from metricgrad.metrics import metric_names as metric_names
from metricgrad.metrics import reexpress as reexpress
from metricgrad.surrogates import BilevelLoss as BilevelLoss
from metricgrad.surrogates import ReLoss as ReLoss
from metricgrad.surrogates import Surrogate as Surrogate
from metricgrad.surrogates import UniLoss as UniLoss
from metricgrad.surrogates import baselines as baselines
from metricgrad.surrogates import load_surrogate as load_surrogate
from metricgrad.surrogates import nets as nets
from metricgrad.surrogates import rank_correlation as rank_correlation
from metricgrad.surrogates import sample_anchors as sample_anchors
from metricgrad.surrogates import with_memory as with_memory
from metricgrad.surrogates import with_ordinary as with_ordinary
from metricgrad.training import Fit as Fit
from metricgrad.training import JointTraining as JointTraining
from metricgrad.training import StackedTraining as StackedTraining
from metricgrad.training import collect_scores as collect_scores
from metricgrad.training import fit as fit

__version__ = "0.1.0"

if TYPE_CHECKING:
    from metricgrad.estimators import MetricClassifier as MetricClassifier
    from metricgrad.estimators import MetricRanker as MetricRanker


def __getattr__(name: str) -> Any:
    """The estimators, on first use: scikit-learn takes a second to import, and pandas with it."""
    if name not in ("MetricClassifier", "MetricRanker"):
        raise AttributeError(f"metricgrad has no {name!r}")
    from metricgrad import estimators

    return getattr(estimators, name)
