"""The scikit-learn door: estimators that train on a metric."""

from metricgrad.estimators.classifier import MetricClassifier as MetricClassifier
from metricgrad.estimators.ranker import MetricRanker as MetricRanker
