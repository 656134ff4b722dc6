"""What a run looks like: pictures, and one HTML page that needs nothing else."""

from metricgrad.report.page import label as label
from metricgrad.report.page import write_comparison as write_comparison
from metricgrad.report.page import write_run as write_run
