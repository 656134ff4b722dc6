"""Surrogates from files: one safetensors file each, tensors and a JSON header, never pickle."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.metrics.registry import metric_from_config
from metricgrad.storage import damage_told, read_tensors
from metricgrad.surrogates import baselines, nets
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.metric_loss import MetricLoss
from metricgrad.surrogates.reloss import ReLoss
from metricgrad.surrogates.remembering import Remembering
from metricgrad.surrogates.uniloss import UniLoss
from metricgrad.surrogates.union import AcrossRanks
from metricgrad.surrogates.wrappers import Ordinary, WithMemory, WithOrdinary

_OURS = (MetricLoss, UniLoss, ReLoss, BilevelLoss, WithMemory, WithOrdinary, Ordinary, AcrossRanks)
_BASELINES = [each for each in vars(baselines).values() if isinstance(each, type)]
_NETS = {cls.__name__: cls for cls in vars(nets).values() if isinstance(cls, type)}
_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (*_OURS, *_BASELINES)}


def load_surrogate(
    path: str | Path, *, metric: Any = None, net: nn.Module | None = None
) -> Surrogate:
    """The surrogate that `loss.save(path)` wrote, exactly as it was.

    Args:
        path: File that `loss.save` wrote, with any name.
        metric: A metric or function in place of the stored metric; needed if that is your own
            function.
        net: The network of a `ReLoss`, needed if that is your own module; its weights come from
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
    with damage_told(path, "surrogate"):
        _refuse_misfit(tensors, stored, metric, net)
        surrogate = _rebuild(stored, metric, net)
        own = next((tensors[name] for name, _ in surrogate.named_parameters()), None)
        if own is not None:
            surrogate.to(own.dtype)
        surrogate.load_state_dict(tensors)
    return surrogate


def _refuse_misfit(
    tensors: dict[str, Tensor], stored: dict[str, Any], metric: Any, net: nn.Module | None
) -> None:
    """Raises ValueError unless the stored tensors are those of the surrogate that is described.

    It is built without memory first: a few bytes of a damaged description can ask for terabytes.
    """
    numbers = sum(each.numel() for each in tensors.values())
    for size in _sizes(stored):
        if size > numbers:
            raise ValueError(f"it describes a network of size {size}, and stores {numbers} numbers")
    surrogate = _rebuild(stored, metric, net, device="meta")
    free = {
        f"{place}.{name}".removeprefix(".")
        for place, module in surrogate.named_modules()
        if isinstance(module, Remembering)
        for name in module.kept
    }
    needed = {name: list(each.shape) for name, each in surrogate.state_dict().items()}
    found = {name: list(each.shape) for name, each in tensors.items()}
    for name in sorted(needed.keys() | found.keys()):
        ours, theirs = needed.get(name), found.get(name)
        if ours != theirs and not (name in free and theirs is not None):
            raise ValueError(
                f"its description does not fit its tensors: {name} has the shape {ours} by the one "
                f"and {theirs} by the other"
            )


def _sizes(stored: Any) -> Iterator[int]:
    """Widths and numbers of layers, wherever a description has them."""
    match stored:
        case int():
            yield stored
        case list():
            for each in stored:
                yield from _sizes(each)
        case {"class": str(), "config": {**config}}:
            for name in ("net", "hidden", "loss", "ordinary"):
                yield from _sizes(config.get(name))
        case {"kind": str(), "options": {**options}}:
            yield from _sizes(list(options.values()))
        case _:
            pass


def _rebuild(
    stored: dict[str, Any], metric: Any, net: nn.Module | None, device: str | None = None
) -> Surrogate:
    """The surrogate of a description, without its tensors.

    Networks are built on a device, None for the usual one.
    """
    placed = nullcontext() if device is None else torch.device(device)
    settings = dict(stored["config"])
    learned = {name: settings.pop(name) for name in ("universal", "learned") if name in settings}
    for name, value in settings.items():
        match name:
            case "loss" | "ordinary":
                settings[name] = _rebuild(value, metric, net, device)
            case "metric":
                settings[name] = metric_from_config(value) if metric is None else metric
            case "net":
                with placed:
                    settings[name] = _stored_net(**value) if net is None else net
    chosen = _CLASSES[stored["class"]]
    with placed if chosen is BilevelLoss else nullcontext():
        surrogate = chosen(**settings)
    for name, value in learned.items():
        setattr(surrogate, name, value)
    if learned.get("learned"):
        surrogate.requires_grad_(False)
    return surrogate


def _stored_net(kind: str, options: dict[str, Any] | None) -> nets.LossNet:
    """The network that a file names, without its weights; ValueError if it was the user's own."""
    if options is None:
        raise ValueError(
            f"the file's network is your own module, {kind}, which cannot be stored in a "
            "file; pass one of its kind: load_surrogate(path, net=...)"
        )
    return _NETS[kind](**options)
