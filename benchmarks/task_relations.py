"""The ordinary loss and ReLoss beside the metric, for the tasks that see (ReLoss, Table 1).

ReLoss learns from score sets of training data, and both losses are compared with the metric on sets
of test data, which come from the training of a second network (`relations.py`). A report keeps both
losses and the metric of some sets, for a picture like the paper's Figure 1b.
"""

import importlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.relations import SetLoss, coefficients, correlations, learned_relation
from benchmarks.task import Task

_DOTS = 60
_DIGITS = 5
_MARGIN = 0.5  # of the contrastive loss, as in `retrieval.py`


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Learns a loss for the task of the row, and measures how it and the ordinary loss rank."""
    module = importlib.import_module(f"benchmarks.{settings['of']}")
    task: Task = module.task(settings, seed, folder)
    generator = torch.Generator().manual_seed(seed)
    # Heatmaps need a network of their size; other scores have one.
    net = mg.nets.Heatmaps(settings["maps"], generator=generator) if "maps" in settings else None
    loss = mg.ReLoss(task.metric, net=net, generator=generator)
    relation = learned_relation(task, settings, seed, loss)
    losses = {"ordinary": ordinary(settings), "reloss": relation}
    found = correlations(task, settings, seed, losses)
    values = coefficients(found)
    dots: dict[str, list[float]] = {}
    for name, each in found.items():
        dots[name] = [round(value, _DIGITS) for value in _some(each.losses)]
        dots["metric"] = [round(value, _DIGITS) for value in _some(each.values)]
    values["gain"] = values["reloss_spearman"] - values["ordinary_spearman"]
    return {"values": values, "shown": dots}


def _some(values: Tensor) -> list[float]:
    """At most 60 of the values, evenly spaced, so that all moments of the training are there."""
    number = min(_DOTS, len(values))
    return values[torch.linspace(0, len(values) - 1, number).round().long()].tolist()


def ordinary(settings: Settings) -> SetLoss:
    """The ordinary loss of a task, for the sets that the task makes of its scores."""
    match settings["of"]:
        case "poses":
            return mg.baselines.HeatmapMSE(sigma=1.0)
        case "retrieval":
            return lambda scores, relevant: contrastive(scores / settings["scale"], relevant)
        case _:
            return F.cross_entropy


def contrastive(cosines: Tensor, relevant: Tensor) -> Tensor:
    """The contrastive loss of one query, `[N]` and `[N]`."""
    together = (1 - cosines).square()[relevant == 1]
    apart = (cosines - _MARGIN).relu().square()[relevant == 0]
    return together.mean() + apart.mean()
