"""Surrogates from files: one safetensors file each, tensors and a JSON header, never pickle."""

from pathlib import Path
from typing import Any

from torch import nn

from metricgrad.metrics.registry import metric_from_config
from metricgrad.storage import read_tensors
from metricgrad.surrogates import baselines, nets
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.metric_loss import MetricLoss
from metricgrad.surrogates.reloss import ReLoss
from metricgrad.surrogates.uniloss import UniLoss
from metricgrad.surrogates.wrappers import Ordinary, WithMemory, WithOrdinary

_OURS = (MetricLoss, UniLoss, ReLoss, BilevelLoss, WithMemory, WithOrdinary, Ordinary)
_BASELINES = [each for each in vars(baselines).values() if isinstance(each, type)]
_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (*_OURS, *_BASELINES)}


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
    settings = dict(stored["config"])
    learned = {name: settings.pop(name) for name in ("universal", "learned") if name in settings}
    for name, value in settings.items():
        match name:
            case "loss" | "ordinary":
                settings[name] = _rebuild(value, metric, net)
            case "metric":
                settings[name] = metric_from_config(value) if metric is None else metric
            case "net":
                settings[name] = _stored_net(**value) if net is None else net
    surrogate = _CLASSES[stored["class"]](**settings)
    for name, value in learned.items():
        setattr(surrogate, name, value)
    if learned.get("learned"):
        surrogate.requires_grad_(False)
    return surrogate


def _stored_net(kind: str, options: dict[str, Any] | None) -> nets.LossNet:
    """The network that a file names, without its weights; ValueError if it was the user's own."""
    if options is None:
        raise ValueError(
            f"the file's network is a module of yours, {kind}, which no file can hold; pass one of "
            "its kind: load_surrogate(path, net=...)"
        )
    return getattr(nets, kind)(**options)
