"""Every loss on hostile sets, where value and gradient must be finite; memory over many steps.

A loss is called on every layout that it takes, and on each of these sets of the layout: no item,
one item, one class, equal scores, scores of +-1e30, float16 and bfloat16, everything masked, NaN
behind the mask, 10^5 items, and three sets at once. The gradient must have the shape and dtype of
the scores.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics import ComparisonMetric
from metricgrad.surrogates.wrappers import WithMemory
from tools.campaign.case import Case, Outcome

CLASSES = 4
MANY = 100_000
PLAIN = 40
GROWTH = 16.0  # megabytes that a process may grow by after the first fifth of the steps
Make = Callable[[], mg.Surrogate]


class Hostile(NamedTuple):
    """A set that loss code tends to break on."""

    kind: str
    scores: Tensor
    target: Tensor
    where: Tensor | None = None


def cases(size: int, seed: int) -> list[Case]:
    """Every loss with every metric that it takes, then memory over `size` steps."""
    found = [
        Case(name, partial(check, make, layouts, seed))
        for name, (make, layouts) in losses().items()
    ]
    for name, make in in_training().items():
        found.append(Case(f"memory of {name}", partial(check_memory, make, size, seed)))
    return found


def losses() -> dict[str, tuple[Make, list[str]]]:
    """Makers of all losses, and the layouts they take: of every metric, baselines, wrappers."""
    found: dict[str, tuple[Make, list[str]]] = {}
    public = [getattr(mg, name) for name in dir(mg)]
    kinds = [each for each in public if isinstance(each, type) and issubclass(each, mg.Surrogate)]
    for kind in kinds:
        for name in mg.metric_names() if kind is not mg.Surrogate else []:
            metric = mg.metric(name, **OPTIONS.get(name, {}))
            layouts = layouts_of(metric, kind)
            make = partial(kind, metric)
            if kind is mg.ReLoss and metric.layout == "heatmaps":  # its network asks for the size
                make = partial(kind, metric, net=mg.nets.Heatmaps((10, 10)))
            if layouts:
                found[f"{kind.__name__}({name})"] = (make, layouts)
    for name in ("f1", "average_precision", "accuracy", "ndcg", "mean_iou"):
        for options in VARIANTS:
            shown = ", ".join(f"{key}={value}" for key, value in options.items())
            made = (partial(mg.UniLoss, name, **options), layouts_of(mg.metric(name), mg.UniLoss))
            found[f"UniLoss({name}, {shown})"] = made
    labelled = mg.metric("f1", multilabel=True)
    found["UniLoss(f1, multilabel=True)"] = (partial(mg.UniLoss, labelled), ["labels"])
    for name, kind in vars(mg.baselines).items():
        if isinstance(kind, type) and name != "Baseline":
            kinds = [each for each in kind.kinds if each != "labels"]
            found[f"baselines.{name}"] = (kind, kinds or ["heatmaps"])
    black_box = mg.reexpress(balanced, watch=False, flips=16)
    return found | {
        "with_memory(UniLoss(f1))": (lambda: mg.with_memory(mg.UniLoss("f1"), 64), ["binary"]),
        "with_memory(UniLoss(auc))": (lambda: mg.with_memory(mg.UniLoss("auc"), 64), ["binary"]),
        "with_ordinary(UniLoss(f1))": (lambda: mg.with_ordinary(mg.UniLoss("f1")), ["binary"]),
        "UniLoss of a function": (lambda: mg.UniLoss(balanced), ["binary"]),
        "UniLoss of a black box": (lambda: mg.UniLoss(black_box), ["binary"]),
    }


def layouts_of(metric: mg.Metric, kind: type) -> list[str]:
    """The layouts on which a kind of loss takes a metric."""
    text = metric.layout in ("tokens", "spans")
    compared = text or isinstance(metric, ComparisonMetric)
    if kind in (mg.UniLoss, mg.MetricLoss) and not compared:
        return []
    if (kind is mg.UniLoss and text) or (kind is mg.BilevelLoss and metric.layout not in BILEVEL):
        return []  # UniLoss needs comparisons, BilevelLoss one vector per item
    own = "tokens" if text else metric.layout
    return [own, "classes"] if own == "binary" and metric.takes_classes else [own]


OPTIONS: dict[str, dict[str, Any]] = {"oks_ap": {"sigmas": 0.1}}  # which the maps here need
BILEVEL = ("binary", "labels", "grades")
VARIANTS: list[dict[str, Any]] = [
    {"interpolation": "idw"},
    {"interpolation": "idw", "portion": 0.5},
    {"samples": 4},
    {"portion": 0.5},
    {"relaxation": "squared_hinge", "slope": 0.1},
    {"squash": True},
]


def balanced(scores: Tensor, target: Tensor) -> Tensor:
    """Balanced accuracy, as a user would write it."""
    predicted = scores > 0
    positive = target > 0
    recall = (predicted & positive).sum() / positive.sum().clamp(min=1)
    return (recall + (~predicted & ~positive).sum() / (~positive).sum().clamp(min=1)) / 2


def check(make: Make, layouts: list[str], seed: int) -> Outcome:
    """Calls a loss on the hostile sets of every layout that it takes."""
    failures: list[str] = []
    number = 0
    flat = isinstance(make(), WithMemory)  # it takes one set at a time
    for layout in layouts:
        for each in hostile(layout, most(make(), layout), seed):
            if flat and each.kind == "three sets":
                continue
            number += 1
            found = complaint(make(), each)
            if found:
                failures.append(f"{layout}, {each.kind}: {found}")
    return Outcome(f"{number} sets ({', '.join(layouts)})", failures)


def most(loss: mg.Surrogate, layout: str) -> int:
    """How many items the largest set has: fewer where every pair of items is stored."""
    order = loss.metric is not None and loss.metric.decided_by == "order"
    settings = loss.config()
    stored = settings.get("interpolation") == "idw" or settings.get("samples")
    if order and (stored or settings.get("portion", 1.0) < 1):
        return MANY // 100
    return MANY // 5 if order and layout == "classes" else MANY


def complaint(loss: mg.Surrogate, each: Hostile) -> str | None:
    """What is wrong with a loss's value or gradient on a set; None if nothing is."""
    scores = each.scores.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = loss(scores, each.target, each.where)
            value.backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    gradient = scores.grad
    if value.dim() or not value.isfinite():
        return f"the value is {value.tolist()}"
    if gradient is None:
        return "there is no gradient"
    if gradient.shape != scores.shape or gradient.dtype != scores.dtype:
        return f"the gradient is {gradient.dtype} {list(gradient.shape)}"
    wrong = int((~gradient.isfinite()).sum())
    return (
        f"{wrong} of {gradient.numel()} entries of the gradient are not finite" if wrong else None
    )


def plain(layout: str, items: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An ordinary set with about that many items (pixels, tokens)."""
    few = 3 + items // 100

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def whole(below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=generator)

    match layout:
        case "binary":
            return normal(items), whole(2, items)
        case "grades":
            return normal(items), whole(5, items)
        case "classes":
            return normal(items, CLASSES), whole(CLASSES, items)
        case "labels":
            return normal(items, CLASSES), whole(2, items, CLASSES)
        case "maps":
            return normal(few, CLASSES, 10, 10), whole(CLASSES, few, 10, 10)
        case "heatmaps":
            size = torch.tensor([9.0, 9.0, 5.0])
            return normal(few, 3, 10, 10), torch.rand(few, 3, 3, generator=generator) * size
        case _:
            return normal(few, 12, 8), whole(8, few, 12)


def hostile(layout: str, many: int, seed: int) -> Iterator[Hostile]:
    """The hostile sets of a layout."""
    generator = torch.Generator().manual_seed(seed)
    scores, target = plain(layout, PLAIN, generator)
    masked = torch.zeros(len(target), dtype=torch.bool)
    half = torch.arange(len(target)) % 2 == 0
    spoiled = scores.clone()
    spoiled[~half] = torch.nan
    sign = scores.sign()
    # Losses of heatmaps square the scores, and float32 ends at 3e38.
    huge = 1e15 if layout == "heatmaps" else 1e30
    yield Hostile("plain", scores, target)
    yield Hostile("no item", scores[:0], target[:0])
    yield Hostile("one item", scores[:1], target[:1])
    if layout != "heatmaps":
        yield Hostile("one class (0)", scores, torch.zeros_like(target))
        yield Hostile("one class (1)", scores, torch.ones_like(target))
    yield Hostile("all scores 0", torch.zeros_like(scores), target)
    yield Hostile("all scores equal", torch.full_like(scores, 1.5), target)
    yield Hostile(f"scores of +-{huge:g}", sign * huge, target)
    yield Hostile(f"scores of 0 and {huge:g}", sign.clamp(min=0) * huge, target)
    yield Hostile(f"float64, +-{huge:g}", sign.double() * huge, target)
    yield Hostile("float16", scores.half(), target)
    yield Hostile("float16, +-6e4", sign.half() * 6e4, target)
    yield Hostile(f"bfloat16, +-{huge:g}", sign.bfloat16() * huge, target)
    yield Hostile("all masked", scores, target, masked)
    yield Hostile("NaN behind the mask", spoiled, target, half)
    yield Hostile("three sets", torch.stack([scores] * 3), torch.stack([target] * 3))
    scores, target = plain(layout, many, generator)
    if layout in ("binary", "grades"):  # one in a hundred, as in tables of this size
        target = target.where(torch.rand(target.shape, generator=generator) < 0.01, 0)
    yield Hostile(f"{many:,} items", scores, target)


def in_training() -> dict[str, Make]:
    """Losses whose memory is watched; a black box is too slow for it."""
    return {
        "UniLoss(f1)": lambda: mg.UniLoss("f1"),
        "UniLoss(average_precision)": lambda: mg.UniLoss("average_precision"),
        "UniLoss(auc, idw)": lambda: mg.UniLoss("auc", interpolation="idw"),
        "with_memory(UniLoss(f1))": lambda: mg.with_memory(mg.UniLoss("f1"), 256),
        "UniLoss of a function": lambda: mg.UniLoss(balanced),
        "ReLoss(f1)": lambda: mg.ReLoss("f1"),
        "BilevelLoss(f1)": lambda: mg.BilevelLoss("f1"),
        "baselines.SmoothAP": lambda: mg.baselines.SmoothAP(),
    }


def check_memory(make: Make, steps: int, seed: int) -> Outcome:
    """Trains a small model with batches of changing sizes; its process must stop growing."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    loss = make()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    before = 0.0
    for step in range(steps):
        if step == steps // 5:
            before = resident()
        size = 16 + 7 * step % 48
        x = torch.randn(size, 8, generator=generator)
        target = (x[:, 0] + torch.randn(size, generator=generator) > 0).long()
        loss(model(x).squeeze(-1), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    grown = resident() - before
    wrong = [f"{grown:.0f} MB more after {steps:,} steps than after {steps // 5:,}"]
    return Outcome(f"{steps:,} steps", wrong if grown > GROWTH else [])


def resident() -> float:
    """Memory of this process, in megabytes; 0 where the system does not tell."""
    path = Path("/proc/self/statm")
    pages = int(path.read_text().split()[1]) if path.exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
