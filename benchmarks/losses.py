"""Losses by name: ours and those that people use today. All take logits and give a 0-dim tensor."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks import own
from benchmarks.peers import formulas, layers

Loss = Callable[[Tensor, Tensor], Tensor]


def loss(settings: Mapping[str, Any], seed: int) -> Loss:
    """The loss for the `method` in the settings.

    Our losses are of `metric` with its `metric_options`, or with `trained_options` where the metric
    to train on has other options than the reported one. `loss_options` and `slope` are options of
    the loss itself.
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
        case "metric_loss":
            return mg.MetricLoss(metric, generator=generator, **options, **slope)
        case "uniloss_published":
            return mg.UniLoss.as_published(metric, generator=generator, **options)
        case "any_loss":
            return partial(formulas.any_loss, **options)
        case "ap_perf":
            return layers.ap_perf()
        case "torchsort_ap":
            return layers.torchsort_ap(settings["strength"])
        case method:
            raise ValueError(f"there is no method {method!r}; benchmarks/losses.py has all methods")


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy if scores and target have the same shape, otherwise multi-class."""
    if scores.shape == target.shape:
        return F.binary_cross_entropy_with_logits(scores, target.to(scores.dtype))
    return F.cross_entropy(scores, target)


def _anchors_of(
    plan: Any, bits: Tensor, live: Tensor, generator: Any, *, kinds: list[str], number: int
) -> Tensor:
    """Anchors of some kinds only; the ideal one joins them unless all are bad ones."""
    drawn = mg.sample_anchors(plan, bits, live, generator, number=number, kinds=tuple(kinds))
    return drawn[1:] if kinds == ["bad"] else drawn
