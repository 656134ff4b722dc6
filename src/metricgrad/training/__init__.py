"""What moves parameters: models and learned surrogates, trained together."""

from metricgrad.training.drawing import Batches as Batches
from metricgrad.training.fit import fit as fit
from metricgrad.training.gamma import Gamma as Gamma
from metricgrad.training.gamma import choose_gamma as choose_gamma
from metricgrad.training.guard import TrainingError as TrainingError
from metricgrad.training.joint import JointTraining as JointTraining
from metricgrad.training.published import decides_at_least as decides_at_least
from metricgrad.training.recipes import as_shipped as as_shipped
from metricgrad.training.recipes import collect_scores as collect_scores
from metricgrad.training.recipes import digit_scores as digit_scores
from metricgrad.training.recipes import teach as teach
from metricgrad.training.stack import Stack as Stack
from metricgrad.training.stacked import StackedTraining as StackedTraining
from metricgrad.training.trained import Fit as Fit
from metricgrad.training.trained import Trained as Trained
