"""Train on the metric you report.

metricgrad turns evaluation metrics that have no useful gradient into losses for PyTorch. The public
names are listed in `api.py`. They are imported on first use, so that `metricgrad --help` need not
wait for torch, nor a training loop for scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metricgrad.api import *  # noqa: F403
    from metricgrad.estimators import MetricClassifier as MetricClassifier
    from metricgrad.estimators import MetricRanker as MetricRanker

__version__ = "0.1.0"
_ESTIMATORS = ("MetricClassifier", "MetricRanker")


def __dir__() -> list[str]:
    """The public names, and nothing else."""
    listed = [name for name in vars(import_module("metricgrad.api")) if not name.startswith("_")]
    return sorted([*listed, *_ESTIMATORS])


def __getattr__(name: str) -> Any:
    """A public name, on first use."""
    if name.startswith("_"):
        raise AttributeError(f"metricgrad has no {name!r}")
    if name == "ops":  # the other packages import it while the list itself is being imported
        return import_module("metricgrad.ops")
    home = import_module("metricgrad.estimators" if name in _ESTIMATORS else "metricgrad.api")
    if name not in vars(home):
        raise AttributeError(f"metricgrad has no {name!r}; dir(metricgrad) lists what it has")
    globals()[name] = vars(home)[name]
    return vars(home)[name]
