"""Losses by name: ours, and what people use today. All take logits and give a 0-dim tensor."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks import own

Loss = Callable[[Tensor, Tensor], Tensor]


def loss(settings: Mapping[str, Any], seed: int) -> Loss:
    """The loss that the settings ask for.

    Args:
        settings: `method`; `metric` with `metric_options` for ours, or `trained_options` where
            training takes others; `loss_options` for the loss itself, and `slope`.
        seed: of the anchors and samples.

    Returns:
        From logits and target to a 0-dim tensor.
    """
    options = dict(settings.get("loss_options", {}))
    slope = {"slope": settings["slope"]} if "slope" in settings else {}
    metric = own.metric(
        settings["metric"], **settings.get("trained_options", settings.get("metric_options", {}))
    )
    generator = torch.Generator().manual_seed(seed)
    match settings["method"]:
        case "cross_entropy":
            return cross_entropy
        case "soft_f1":
            return mg.baselines.SoftFBeta(**slope)
        case "smooth_ap":
            return mg.baselines.SmoothAP(**slope)
        case "uniloss":
            kinds = options.pop("kinds", None)
            if kinds is not None:
                options["anchors"] = partial(_anchors_of, kinds=kinds, number=options["anchors"])
            return mg.UniLoss(metric, generator=generator, **options, **slope)
        case "uniloss_published":
            return mg.UniLoss.as_published(metric, generator=generator, **options)
        case method:
            raise ValueError(f"there is no method {method!r}; see benchmarks/losses.py")


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Binary for scores in the target's shape, multi-class otherwise."""
    if scores.shape == target.shape:
        return F.binary_cross_entropy_with_logits(scores, target.to(scores.dtype))
    return F.cross_entropy(scores, target)


def _anchors_of(
    plan: Any, bits: Tensor, live: Tensor, generator: Any, *, kinds: list[str], number: int
) -> Tensor:
    """Anchors of some kinds only, and the best one unless they are all drawn at random."""
    drawn = mg.sample_anchors(plan, bits, live, generator, number=number, kinds=tuple(kinds))
    return drawn[1:] if kinds == ["bad"] else drawn
