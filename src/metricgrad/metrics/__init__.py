"""The truth: metrics, each equal to a named reference."""

from metricgrad.metrics.base import TIE_RULES as TIE_RULES
from metricgrad.metrics.base import Inputs as Inputs
from metricgrad.metrics.base import Metric as Metric
from metricgrad.metrics.function import from_function as from_function
from metricgrad.metrics.offsets import best_offsets as best_offsets
from metricgrad.metrics.reexpression import ComparisonMetric as ComparisonMetric
from metricgrad.metrics.registry import comparison_metric as comparison_metric
from metricgrad.metrics.registry import metric as metric
from metricgrad.metrics.registry import metric_config as metric_config
from metricgrad.metrics.registry import metric_from_config as metric_from_config
from metricgrad.metrics.registry import metric_names as metric_names
from metricgrad.metrics.registry import metric_options as metric_options
from metricgrad.metrics.threshold import best_threshold as best_threshold
from metricgrad.metrics.tokens import decode_spans as decode_spans
