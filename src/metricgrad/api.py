"""The public names, in reading order; `import metricgrad as mg` offers each as `mg.name`."""

from metricgrad import ops as ops
from metricgrad.metrics import Metric as Metric
from metricgrad.metrics import best_offsets as best_offsets
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
