"""scikit-learn estimators that train on a metric.

`Preparation` and `perceptron` are what they are made of: tables to numbers, and the network.
"""

from metricgrad.estimators.classifier import MetricClassifier as MetricClassifier
from metricgrad.estimators.features import Preparation as Preparation
from metricgrad.estimators.networks import perceptron as perceptron
from metricgrad.estimators.ranker import MetricRanker as MetricRanker
