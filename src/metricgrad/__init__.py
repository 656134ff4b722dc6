"""Train on the metric you report.

metricgrad turns evaluation metrics that have no useful gradient into losses for PyTorch. The public
names are listed in `api.py`. Each is imported from its package on first use, so that
`metricgrad --help` need not wait for torch, nor a training loop for scikit-learn.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metricgrad.api import *  # noqa: F403

__version__ = "0.1.0"


@cache
def _homes() -> dict[str, str]:
    """The package of each public name; `api.py` is read for it, since running it imports all."""
    listed = Path(__file__).with_name("api.py").read_text(encoding="utf-8")
    found = re.findall(r"^from (\S+) import (\w+)", listed, re.MULTILINE)
    return {name: home for home, name in found}


def __dir__() -> list[str]:
    """The public names, and nothing else."""
    return sorted(_homes())


def __getattr__(name: str) -> Any:
    """A public name, on first use; `__all__` is what `from metricgrad import *` asks for."""
    if name == "__all__":
        return __dir__()
    if name.startswith("_"):
        raise AttributeError(f"metricgrad has no {name!r}")
    if name not in _homes():
        raise AttributeError(f"metricgrad has no {name!r}; dir(metricgrad) lists what it has")
    home = _homes()[name]
    module = home == __name__  # as `ops` is; the other names are in packages
    value = import_module(f"{home}.{name}") if module else getattr(import_module(home), name)
    globals()[name] = value
    return value
