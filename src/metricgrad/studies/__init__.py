"""What a command does, without the command: tables, splits, run folders, comparisons, results.

Imports point one way within the package too: settings, results, tables and cells, then run folders
and evidence, then the studies `run` and `comparison`.
"""

from metricgrad.studies.cells import Executor as Executor
from metricgrad.studies.cells import LocalProcesses as LocalProcesses
from metricgrad.studies.cells import LostCellError as LostCellError
from metricgrad.studies.cells import Outcome as Outcome
from metricgrad.studies.cells import UnfinishedError as UnfinishedError
from metricgrad.studies.comparison import compare as compare
from metricgrad.studies.comparison import paired_differences as paired_differences
from metricgrad.studies.measuring import measure_methods as measure_methods
from metricgrad.studies.own_metrics import AmountColumns as AmountColumns
from metricgrad.studies.prediction import Predictions as Predictions
from metricgrad.studies.prediction import predict as predict
from metricgrad.studies.ray_cells import executor_for as executor_for
from metricgrad.studies.records import SuspiciousColumn as SuspiciousColumn
from metricgrad.studies.results import ComparisonResult as ComparisonResult
from metricgrad.studies.results import Difference as Difference
from metricgrad.studies.results import Finalist as Finalist
from metricgrad.studies.results import RunResult as RunResult
from metricgrad.studies.run import StoredComparison as StoredComparison
from metricgrad.studies.run import StoredRun as StoredRun
from metricgrad.studies.run import read_run as read_run
from metricgrad.studies.run import train as train
from metricgrad.studies.run_folder import RunFolder as RunFolder
from metricgrad.studies.settings import ComparisonSettings as ComparisonSettings
from metricgrad.studies.settings import RunSettings as RunSettings
from metricgrad.studies.splits import load_split as load_split
from metricgrad.studies.splits import load_table as load_table
