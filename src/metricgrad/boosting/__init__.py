"""Boosted trees on any metric: objectives and evaluations for LightGBM, XGBoost and CatBoost."""

from metricgrad.boosting.evaluation import Evaluation as Evaluation
from metricgrad.boosting.evaluation import evaluation as evaluation
from metricgrad.boosting.objective import Objective as Objective
from metricgrad.boosting.objective import objective as objective
from metricgrad.boosting.start import start as start
