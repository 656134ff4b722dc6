"""The share of wrong items that receive a gradient at random initialisation, by metric.

An item is wrong if its decision is wrong. Where order counts, a positive is wrong if a negative has
a higher score. Metrics with a cut-off (EER, precision at k, NDCG at k, ...) change only near the
cut, so most flips gain nothing; `samples=K` averages flip gains over K configurations drawn around
the current one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import metricgrad as mg

_SETS = 20
_ITEMS = 256
_POSITIVES = 0.1  # share of the items
_CLASSES = 100
_MAP = 64  # height and width of a heatmap


def run(
    settings: Mapping[str, Any], seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """The share for one metric, for every number of samples in the settings."""
    generator = torch.Generator().manual_seed(seed)
    metric = mg.metric(settings["metric"], **settings.get("metric_options", {}))
    scores, target, wrong = _KINDS[settings["kind"]](generator)
    values = {}
    for samples in settings["samples"]:
        scores = scores.detach().requires_grad_()
        loss = mg.UniLoss(
            metric,
            slope=settings["slope"],
            samples=samples,
            generator=torch.Generator().manual_seed(seed),
        )
        loss(scores, target).backward()
        assert scores.grad is not None
        received = scores.grad != 0
        if received.dim() > wrong.dim():  # an item has several scores
            received = received.flatten(wrong.dim()).any(-1)
        values[f"samples_{samples}"] = received[wrong].float().mean().item()
    return {"values": values}


def _order(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.randn(_SETS, _ITEMS, generator=generator)
    target = (torch.rand(_SETS, _ITEMS, generator=generator) < _POSITIVES).long()
    highest = torch.where(target == 0, scores, -torch.inf).amax(-1, keepdim=True)
    return scores, target, (target == 1) & (scores < highest)


def _decisions(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    scores, target, _ = _order(generator)
    return scores, target, (scores > 0) != (target == 1)


def _classes(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.randn(_SETS, _ITEMS, _CLASSES, generator=generator)
    target = torch.randint(_CLASSES, (_SETS, _ITEMS), generator=generator)
    return scores, target, scores.argmax(-1) != target


def _maps(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    maps = torch.randn(_SETS, 8, 1, _MAP, _MAP, generator=generator)
    joints = torch.rand(_SETS, 8, 1, 2, generator=generator) * (_MAP - 1)
    joints = torch.cat([joints, torch.full((_SETS, 8, 1, 1), 8.0)], -1)
    right = mg.metric("pck")(maps.unsqueeze(2), joints.unsqueeze(2))
    return maps, joints, (right == 0).unsqueeze(-1)


_KINDS = {"order": _order, "decisions": _decisions, "classes": _classes, "maps": _maps}
