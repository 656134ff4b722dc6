"""What `mg.fit` refuses before it begins: numbers out of range, options without an effect."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from metricgrad.metrics.checks import whole
from metricgrad.surrogates import Surrogate


def check_arguments(
    model: nn.Module, method: str | Surrogate, options: Mapping[str, Any] | None, **numbers: Any
) -> None:
    """Refuses what cannot be trained, and what would have no effect."""
    for name in ("epochs", "batch", "folds", "patience"):
        if numbers[name] is not None:
            whole(name, numbers[name], 1)
    whole("memory", numbers["memory"], 0)
    for name in ("rate", "clip", "budget"):
        if numbers[name] is not None and not numbers[name] > 0:
            unit = " seconds" if name == "budget" else ""
            raise ValueError(f"{name} must be above 0{unit}; got {numbers[name]}")
    if not 0 < numbers["share"] < 1:
        raise ValueError(f"share must be between 0 and 1; got {numbers['share']}")
    if not numbers["decay"] >= 0:
        raise ValueError(f"decay must be 0 or more; got {numbers['decay']}")
    if options and (method == "auto" or isinstance(method, Surrogate)):
        why = "auto chooses them itself" if method == "auto" else "a surrogate has its own"
        raise ValueError(
            f"options are for a method by name, such as 'uniloss'; {why}. Got {dict(options)}"
        )
    if next(model.parameters(), None) is None:
        raise ValueError(f"the model has no parameters to train; got {model!r}")
