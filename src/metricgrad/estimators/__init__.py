"""The scikit-learn door: estimators that train on a metric."""

from metricgrad.estimators.classifier import MetricClassifier as MetricClassifier
from metricgrad.estimators.networks import perceptron as perceptron
from metricgrad.estimators.preparing import Preparation as Preparation
from metricgrad.estimators.ranker import MetricRanker as MetricRanker
