"""Surrogates from files: one safetensors file each, tensors and a JSON header, never pickle."""

from pathlib import Path
from typing import Any

from torch import nn

from metricgrad.storage import read_tensors
from metricgrad.surrogates import baselines
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.ordinary import Ordinary
from metricgrad.surrogates.reloss import ReLoss
from metricgrad.surrogates.uniloss import UniLoss
from metricgrad.surrogates.wrappers import WithMemory, WithOrdinary

_BASELINES = [each for each in vars(baselines).values() if isinstance(each, type)]
_CLASSES = {cls.__name__: cls for cls in (UniLoss, BilevelLoss, Ordinary, *_BASELINES)}


def load_surrogate(
    path: str | Path, *, metric: Any = None, net: nn.Module | None = None
) -> Surrogate:
    """The surrogate that `loss.save(path)` wrote, exactly as it was.

    Args:
        path: A file that `loss.save` wrote.
        metric: A metric or function in place of the stored metric; needed where that is a function
            of your own.
        net: The network of a `ReLoss`, where that is a module of your own; its weights come from
            the file.

    Returns:
        The surrogate.

    Example:
        >>> import tempfile, metricgrad as mg
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mg.UniLoss("f1", slope=2.0).save(f"{folder}/f1.safetensors")
        ...     loss = mg.load_surrogate(f"{folder}/f1.safetensors")
        >>> loss.relaxation.slope
        2.0
    """
    tensors, stored = read_tensors(path, "metricgrad", "surrogate")
    surrogate = _rebuild(stored, metric, net)
    own = next((tensors[name] for name, _ in surrogate.named_parameters()), None)
    if own is not None:
        surrogate.to(own.dtype)
    surrogate.load_state_dict(tensors)
    return surrogate


def _rebuild(stored: dict[str, Any], metric: Any, net: nn.Module | None) -> Surrogate:
    """The surrogate of a description, without its tensors."""
    config = stored["config"]
    if stored["class"] == WithMemory.__name__:
        return WithMemory(_rebuild(config["loss"], metric, net), config["size"])
    if stored["class"] == WithOrdinary.__name__:
        loss, ordinary = (_rebuild(config[name], metric, net) for name in ("loss", "ordinary"))
        return WithOrdinary(loss, config["weight"], ordinary)
    if stored["class"] == ReLoss.__name__:
        return ReLoss.from_config(config, metric, net)
    return _CLASSES[stored["class"]].from_config(config, metric)
