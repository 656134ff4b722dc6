"""The trainings of the task `surrogate`: whole grids, metrics and seeds as one stack.

All trials of a seed get the same batches in the same order. Seeds have training parts of their own,
which are joined to one table.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import Part
from metricgrad.training import Batches, Stack, decides_at_least

LOSSES = {
    "cross_entropy": mg.baselines.CrossEntropy,
    "cost_sensitive": mg.baselines.CrossEntropy,
    "pairwise_ranking": mg.baselines.PairwiseRanking,
    "lovasz": mg.baselines.Lovasz,
}
VARIANTS = {
    "sl_u": {"start": "universal", "refine": False},
    "sl_s": {"start": "scratch"},
    "sl_r": {"start": "universal"},
}
_NOT_OF_LOSS = ("learning_rate", "loss_rate")


@dataclass
class Best:
    """The best moment on validation data, by one metric."""

    valid: float | None = None
    step: int = 0
    threshold: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class StackedTrial:
    """One of the trainings in a stack; `metric` is None if its loss serves all metrics."""

    point: dict[str, Any]
    metric: str | None
    model: nn.Module
    best: dict[str, Best]
    seed: int
    place: int = 0  # of its seed among the seeds


class Joined:
    """The training parts of all seeds as one table, and the rows of each seed."""

    def __init__(self, parts: list[Part]) -> None:
        self.x = torch.cat([part.x for part in parts]) if len(parts) > 1 else parts[0].x
        self.y = torch.cat([part.y for part in parts]) if len(parts) > 1 else parts[0].y
        lengths = [len(part.y) for part in parts]
        self.rows = list(torch.arange(len(self.y)).split(lengths))

    def of(self, place: int) -> Tensor:
        """The targets of one seed."""
        return self.y[self.rows[place]]


def loss_of(settings: Settings, trial: StackedTrial, steps: int) -> mg.Surrogate:
    """The loss of a trial that does not learn along with the model."""
    method = settings["method"]
    options = {name: value for name, value in trial.point.items() if name not in _NOT_OF_LOSS}
    if method == "uniloss":
        return mg.UniLoss(trial.metric, **options)
    if method == "metric_loss":
        return mg.MetricLoss(trial.metric, steps=steps, **options)
    if method == "global_objective":
        objective = "auc" if trial.metric == "auc" else "average_precision"
        return mg.baselines.GlobalObjective(objective=objective, **options)
    return LOSSES[method](**options)


def direct(settings: Settings, trials: list[StackedTrial], train: Joined) -> Iterator[int]:
    """Trains on losses that do not learn; yields the step whenever it is time to validate."""
    rates = [trial.point["learning_rate"] for trial in trials]
    side = Stack([trial.model for trial in trials], torch.tensor(rates).unsqueeze(-1), None)
    steps = settings["iterations"] * settings["model_steps"]
    losses = [loss_of(settings, trial, steps) for trial in trials]
    own = [
        {"params": list(loss.parameters()), "lr": rate}
        for loss, rate in zip(losses, rates, strict=True)
    ]
    optimizer = torch.optim.Adam(own) if any(group["params"] for group in own) else None
    # Trials with the same loss become sets of one call.
    alike: dict[str, list[int]] = {}
    for number, loss in enumerate(losses):
        alike.setdefault(repr(loss) if optimizer is None else str(number), []).append(number)
    for group in alike.values():
        if settings["method"] == "metric_loss":
            shared = losses[group[0]]
            assert isinstance(shared, mg.MetricLoss)
            shared.models = len(group)
    draw = _drawing(settings, trials, train)
    for step in range(1, steps + 1):
        share = 0.5 + 0.5 * math.cos(math.pi * (step - 1) / steps)
        index = draw()
        trials[0].model.train()
        scores = side(train.x[index])
        target = train.y[index]
        if optimizer is not None:
            optimizer.zero_grad()
        values = [losses[each[0]].per_set(scores[each], target[each]) for each in alike.values()]
        side.descend(torch.cat(values), share)
        if optimizer is not None:
            optimizer.step()
        if step % (steps // settings["evaluations"]) == 0:
            side.part()
            yield step


def _drawing(settings: Settings, trials: list[StackedTrial], train: Joined) -> Any:
    """What draws the next batch of every trial, `[R, N]`; trials of one seed share it."""
    places = torch.tensor([trial.place for trial in trials])
    seeds = dict(sorted({trial.place: trial.seed for trial in trials}.items()))
    balanced = settings.get("balanced", False)
    sources = [
        (
            train.rows[place],
            Batches(train.of(place), settings["batch"], True, balanced),
            torch.Generator().manual_seed(seed),
        )
        for place, seed in seeds.items()
    ]

    def draw() -> Tensor:
        drawn = [rows[batches.draw(1, generator)[0]] for rows, batches, generator in sources]
        return torch.stack(drawn)[places]

    return draw


def learned(settings: Settings, trials: list[StackedTrial], train: Joined) -> Iterator[int]:
    """Trains by Algorithm 1; yields the step whenever it is time to validate."""
    joint = stack_of(settings, trials, train)
    for _ in range(settings["evaluations"]):
        joint.advance(settings["iterations"] // settings["evaluations"], progress=False)
        yield joint.iteration * settings["model_steps"]


def stack_of(settings: Settings, trials: list[StackedTrial], train: Joined) -> mg.StackedTraining:
    """The stacked training of the trials, before its first iteration."""
    variant = VARIANTS[settings["method"]]
    losses = []
    for trial in trials:
        gamma = trial.point.get("gamma", settings.get("gamma"))
        metric = mg.metric(trial.metric)
        metric = metric if gamma is None else decides_at_least(metric, gamma)
        loss = mg.BilevelLoss(metric, generator=torch.Generator().manual_seed(trial.seed))
        if variant["start"] == "universal":
            source = settings.get("source", "broad")
            taught = universal(trial.metric or "", settings["batch"], trial.seed, gamma, source)
            loss.load_state_dict(taught)
            loss.universal = True
        losses.append(loss)
    seeds = dict.fromkeys(trial.seed for trial in trials)
    return mg.StackedTraining(
        [trial.model for trial in trials],
        losses,
        train.x,
        train.y,
        model_rates=[trial.point["learning_rate"] for trial in trials],
        loss_rates=[trial.point.get("loss_rate", settings["loss_rate"]) for trial in trials],
        parts=None if len(train.rows) == 1 else [train.rows[trial.place] for trial in trials],
        batch=settings["batch"],
        balanced=settings.get("balanced", False),
        clip=settings.get("clip", 1.0),
        head_start=settings.get("head_start", 0),
        model_steps=settings["model_steps"],
        loss_steps=settings["loss_steps"],
        decay=settings["iterations"] if settings.get("decay", True) else None,
        generator=torch.Generator().manual_seed(next(iter(seeds))),
        **variant,
    )


@functools.cache
def universal(
    metric: str,
    size: int,
    seed: int,
    gamma: float | None = None,
    source: Literal["paper", "broad"] = "broad",
) -> dict[str, Tensor]:
    """The weights of a universal surrogate, learned once for all data sets."""
    chosen = mg.metric(metric)
    chosen = chosen if gamma is None else decides_at_least(chosen, gamma)
    loss = mg.BilevelLoss(chosen, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    loss.learn_universal(size=size, source=source, progress=False, generator=generator)
    return loss.state_dict()
