"""The stand-ins: losses that take a metric's place in training."""

from metricgrad.surrogates.alignment import RankCorrelation as RankCorrelation
from metricgrad.surrogates.alignment import rank_correlation as rank_correlation
from metricgrad.surrogates.base import LearnedSurrogate as LearnedSurrogate
from metricgrad.surrogates.base import Surrogate as Surrogate
from metricgrad.surrogates.bilevel import BilevelLoss as BilevelLoss
from metricgrad.surrogates.interpolation import sample_anchors as sample_anchors
from metricgrad.surrogates.inverse_distance import inverse_distance as inverse_distance
from metricgrad.surrogates.metric_loss import MetricLoss as MetricLoss
from metricgrad.surrogates.reloss import ReLoss as ReLoss
from metricgrad.surrogates.saving import load_surrogate as load_surrogate
from metricgrad.surrogates.uniloss import UniLoss as UniLoss
from metricgrad.surrogates.uniloss import multilinear as multilinear
from metricgrad.surrogates.wrappers import with_memory as with_memory
from metricgrad.surrogates.wrappers import with_ordinary as with_ordinary
