"""The command-line door: reads arguments, prints tables, and leaves the work to the library."""

from metricgrad.cli import comparing as comparing
from metricgrad.cli import learning as learning
from metricgrad.cli import listing as listing
from metricgrad.cli import predicting as predicting
from metricgrad.cli import reporting as reporting
from metricgrad.cli import training as training
from metricgrad.cli.app import app as app
