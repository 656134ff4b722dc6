"""The command line: one file a command, which reads arguments, calls `studies` and prints.

Only typer and rich are imported here. A command imports what it needs when it runs, so that
`metricgrad --help` does not wait for torch.
"""

from metricgrad.cli import compare as compare
from metricgrad.cli import learn as learn
from metricgrad.cli import list_metrics as list_metrics
from metricgrad.cli import predict as predict
from metricgrad.cli import train as train
from metricgrad.cli import write_report as write_report
from metricgrad.cli.app import app as app
