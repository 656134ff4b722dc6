"""A task: data, network, ordinary loss and metric; and the training that all tasks share.

A run trains a network on the loss of its row, once for each learning rate of the table, by Adam
with half a cosine wave. The network is measured on validation data after every epoch, and its best
epoch counts. The best learning rate on validation data gives the values of the run.

Where a decision among classes can be tuned, all of this happens twice: once for the scores as they
are, and once with one offset per class added to them, chosen on validation data. The second values
have `_tuned` in their names. The two may come from different epochs and learning rates.

A task that can be seen (`shown`) keeps the predictions of the first seed for a few test images.

With `warm` in the settings, that share of the epochs is spent on the ordinary loss, with a wave of
learning rates of its own, and only later epochs count.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings

_AT_ONCE = 64  # images that are scored together when nothing has a gradient
PLAIN = ""
TUNED = "_tuned"


@dataclass(frozen=True)
class Examples:
    """Inputs `[N, ...]`, targets `[N, ...]`, and what counts of them."""

    x: Tensor
    target: Tensor
    where: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def at(self, index: Tensor) -> "Examples":
        """Some of the examples: indices, or a flag for each."""
        where = None if self.where is None else self.where[index]
        return Examples(self.x[index], self.target[index], where)


Loss = Callable[[Tensor, Examples], Tensor]
ScoreSets = list[tuple[Tensor, ...]]  # scores, target and, if there are any, flags
Value = Callable[[Tensor, Examples], float]
Keep = Callable[[list[dict[str, Any]]], None]


def value_of(metric: mg.Metric) -> Value:
    """The metric of all scores of a part, as one set."""
    return lambda scores, part: float(metric(scores, part.target, where=part.where))


def as_they_are(batch: Examples, generator: torch.Generator) -> Examples:
    """A batch that is not augmented."""
    return batch


@dataclass(frozen=True)
class Task:
    """What a training needs to know."""

    metric: mg.Metric  # decides on validation data
    values: Mapping[str, Value]  # what is tested; the first is the value of the metric
    train: Examples
    valid: Examples
    test: Examples
    network: Callable[[], nn.Module]
    ordinary: Loss
    loss: Callable[[int], Loss]  # that of the row, for a training of so many steps
    augment: Callable[[Examples, torch.Generator], Examples] = as_they_are
    class_dim: int | None = None  # of the scores, if one offset per class can be tuned
    sets: Callable[[Tensor, Examples, torch.Generator], ScoreSets] | None = None  # of a part
    shown: Callable[[Tensor, Examples], dict[str, Any]] | None = None  # of test scores


def run_task(
    task: Task, settings: Settings, seed: int, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains at every learning rate that is not known yet, and tests the best ones."""
    trials = list(known)
    for rate in settings["rates"][len(trials) :]:
        trials.append({"learning_rate": rate, **train(task, settings, rate, seed)})
        keep(trials)
    values: dict[str, float] = {}
    chosen: dict[str, Any] = {}
    for kind in _kinds(task):
        known_ones = [trial for trial in trials if f"valid{kind}" in trial]
        if not known_ones:
            raise RuntimeError(f"every training diverged in its first epoch: {settings['rates']}")
        sign = 1 if task.metric.higher_is_better else -1
        best = max(known_ones, key=lambda trial, kind=kind: sign * trial[f"valid{kind}"])
        values |= {f"{name}{kind}": value for name, value in best[f"test{kind}"].items()}
        chosen[f"learning_rate{kind}"] = best["learning_rate"]
        chosen[f"epoch{kind}"] = best[f"epoch{kind}"]
    result = {"values": values, "chosen": chosen, "trials": [_unseen(trial) for trial in trials]}
    kept = {trial["learning_rate"]: trial["shown"] for trial in trials if "shown" in trial}
    if seed == 0 and chosen["learning_rate"] in kept:
        result["shown"] = kept[chosen["learning_rate"]]
    return result


def _unseen(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial without its pictures."""
    return {key: value for key, value in trial.items() if key != "shown"}


def _kinds(task: Task) -> tuple[str, ...]:
    return (PLAIN,) if task.class_dim is None else (PLAIN, TUNED)


def train(task: Task, settings: Settings, rate: float, seed: int) -> dict[str, Any]:
    """The best epochs of a training on validation data, their test values, and the curve."""
    torch.manual_seed(seed)
    model = task.network()
    generator = torch.Generator().manual_seed(seed)
    epochs = settings["epochs"]
    warm = round(settings.get("warm", 0.0) * epochs)
    per_epoch = len(task.train) // settings["batch"]
    loss = task.loss((epochs - warm) * per_epoch)
    learned = loss.parameters() if isinstance(loss, nn.Module) else ()
    optimizer = torch.optim.Adam([*model.parameters(), *learned], rate, fused=True)
    watched = _Watched(task)
    for epoch in range(epochs):
        first, last = (0, warm) if epoch < warm else (warm, epochs)
        total = 0.0
        for step, batch in enumerate(batches(task.train, settings["batch"], generator)):
            done = (epoch - first + step / per_epoch) / (last - first)
            for group in optimizer.param_groups:
                group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * done))
            batch = task.augment(batch, generator)
            scores = scored(model, batch.x, settings)
            if not scores.isfinite().all():
                return watched.result()  # The training has diverged; earlier epochs still count.
            value = (task.ordinary if epoch < warm else loss)(scores, batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            total += float(value.detach()) / per_epoch
        watched.measure(model, settings, epoch + 1, total, counts=epoch >= warm)
    return watched.result()


class _Watched:
    """The best epochs of a training so far; their networks are tested at the end."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[str, Any] = {}
        self.curve: list[list[float]] = []
        self.settings: Settings = {}
        self.models: dict[str, nn.Module] = {}
        self.offsets: Tensor | float = 0.0

    @torch.no_grad()
    def measure(
        self, model: nn.Module, settings: Settings, epoch: int, total: float, *, counts: bool
    ) -> None:
        """Adds an epoch to the curve, and keeps the model where it is the best so far."""
        self.settings = settings
        task = self.task
        scores = all_scores(model, task.valid.x, settings)
        row = [epoch, round(total, 6)]
        for kind in _kinds(task):
            offsets: Tensor | float = 0.0
            if kind == TUNED:
                offsets = tuned_offsets(task, scores)
            value = next(iter(task.values.values()))(scores + offsets, task.valid)
            row.append(round(value, 6))
            key = f"valid{kind}"
            if counts and (key not in self.found or self._better(value, self.found[key])):
                self.found[key] = value
                self.found[f"epoch{kind}"] = epoch
                self.models[kind] = copy.deepcopy(model)
                if kind == TUNED:
                    self.offsets = offsets
        self.curve.append(row)

    def _better(self, value: float, than: float) -> bool:
        return value > than if self.task.metric.higher_is_better else value < than

    @torch.no_grad()
    def result(self) -> dict[str, Any]:
        """Validation values, epochs, and test values of the best models."""
        task = self.task
        for kind, model in self.models.items():
            scores = all_scores(model, task.test.x, self.settings)
            if task.shown is not None and kind == PLAIN:
                self.found["shown"] = task.shown(scores, task.test)
            scores = scores + (self.offsets if kind == TUNED else 0.0)
            self.found[f"test{kind}"] = {
                name: value(scores, task.test) for name, value in task.values.items()
            }
        columns = ["epoch", "loss", *(f"valid{kind}" for kind in _kinds(task))]
        return {**self.found, "curve": {"columns": columns, "rows": self.curve}}


def tuned_offsets(task: Task, scores: Tensor) -> Tensor:
    """One offset per class that is best for validation scores, in a shape to be added to them."""
    assert task.class_dim is not None
    offsets = mg.best_offsets(scores, task.valid.target, task.metric, where=task.valid.where)
    return offsets.reshape(-1, *[1] * (-1 - task.class_dim))


def batches(part: Examples, size: int, generator: torch.Generator) -> Iterator[Examples]:
    """Whole batches of a part in random order."""
    order = torch.randperm(len(part), generator=generator)
    for index in order[: len(part) // size * size].split(size):
        yield part.at(index)


def scored(model: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    """Scores of a network; convolutions are computed in bfloat16 if the settings say so."""
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.get("half", False)):
        return model(x).float()


@torch.no_grad()
def all_scores(model: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    """Scores of all examples in `eval()` mode; leaves the model in `train()` mode."""
    model.eval()
    found = torch.cat([scored(model, part, settings) for part in x.split(_AT_ONCE)])
    model.train()
    return found
