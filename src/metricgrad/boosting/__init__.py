"""Boosted trees on any metric: objectives and evaluations for LightGBM, XGBoost and CatBoost.

libraries     how the libraries call a function, and a metric as their evaluation
objective     a metric as their objective, with sets (`drawn_sets`) and derivatives (`slopes`)
growing       trees that are grown one by one, with a module for each library
"""

from metricgrad.boosting.libraries import Evaluation as Evaluation
from metricgrad.boosting.libraries import evaluation as evaluation
from metricgrad.boosting.libraries import start as start
from metricgrad.boosting.objective import Objective as Objective
from metricgrad.boosting.objective import objective as objective
