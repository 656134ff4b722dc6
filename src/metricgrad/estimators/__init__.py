"""scikit-learn estimators that train on a metric.

`Preparation` and `perceptron` are what they are made of: tables to numbers, and the network.
`ParquetTable` and `survey` do the first for tables that do not fit into memory.
"""

from metricgrad.estimators.classifier import MetricClassifier as MetricClassifier
from metricgrad.estimators.features import Preparation as Preparation
from metricgrad.estimators.networks import perceptron as perceptron
from metricgrad.estimators.parquet_tables import ParquetTable as ParquetTable
from metricgrad.estimators.ranker import MetricRanker as MetricRanker
from metricgrad.estimators.surveys import survey as survey
