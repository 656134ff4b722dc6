"""A task: data, network, ordinary loss and metric; and the training that all tasks share.

A run trains a network on the loss of its row, once for each learning rate of the table, by Adam
(or SGD with momentum, if the settings say so) with half a cosine wave. The network is measured on
validation data after every epoch, and its best epoch counts. The best learning rate on validation
data gives the values of the run. With `screen` in the settings, a number of epochs, learning rates
are compared after so many epochs each, and only the best one gets a whole training.

Where a decision among classes can be tuned, all of this happens twice: once for the scores as they
are, and once with one offset per class added to them, chosen on validation data. The second values
have `_tuned` in their names. The two may come from different epochs and learning rates.

A task that can be seen (`shown`) or read (`samples`) keeps a few predictions of the first seed.

With `warm` in the settings, that share of the epochs is spent on the ordinary loss, with a wave of
learning rates of its own (from `warm_rate`, if given), and only later epochs count. With 0 epochs,
the network is tested as it is: that is where the rows of a fine-tuning start.

A training curve has three values per epoch: the mean loss, the mean metric of the training batches
(measured while the network changes), and the metric on validation data.
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
_POOLED = 20  # batches whose examples are sorted by length together
_SHOWN = ("shown", "samples")  # what a run keeps of its best network, for pictures and examples
PLAIN = ""
TUNED = "_tuned"


@dataclass(frozen=True)
class Examples:
    """Inputs `[N, ...]`, targets `[N, ...]`, what counts of them, and further inputs."""

    x: Tensor
    target: Tensor
    where: Tensor | None = None
    others: tuple[Tensor, ...] = ()  # what the network takes after x

    def __len__(self) -> int:
        return len(self.x)

    def at(self, index: Tensor) -> "Examples":
        """Some of the examples: indices, or a flag for each."""
        where = None if self.where is None else self.where[index]
        others = tuple(part[index] for part in self.others)
        return Examples(self.x[index], self.target[index], where, others)


Loss = Callable[[Tensor, Examples], Tensor]
ScoreSets = list[tuple[Tensor, ...]]  # scores, target and, if there are any, flags
Value = Callable[[Tensor, Examples], float]
Keep = Callable[[list[dict[str, Any]]], None]


def value_of(metric: mg.Metric) -> Value:
    """The metric of all scores of a part, as one set."""
    return lambda scores, part: float(metric(scores, part.target, where=part.where))


def all_of_them(scores: Tensor) -> Tensor:
    """Scores that are kept as they are."""
    return scores


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
    shown: Callable[[Tensor, Examples], dict[str, Any]] | None = None  # of test scores, to be drawn
    lengths: Tensor | None = None  # of training examples, if those of a batch should be alike
    # What `values` need of scores, for those that are too large to keep: the ids of tokens.
    decoded: Callable[[Tensor], Tensor] = all_of_them
    samples: Callable[[Tensor, Examples], list[Any]] | None = None  # of the test part, to be read
    seen: bool = True  # whether the curve has the metric of training batches


def run_task(
    task: Task, settings: Settings, seed: int, known: list[dict[str, Any]], keep: Keep
) -> dict[str, Any]:
    """Trains at every learning rate that is not known yet, and tests the best ones."""
    trials = list(known)
    whole = _trained(task, settings, seed, trials, keep)
    values: dict[str, float] = {}
    chosen: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for kind in _kinds(task):
        best = _best(task, whole, kind)
        values |= {f"{name}{kind}": value for name, value in best[f"test{kind}"].items()}
        chosen[f"learning_rate{kind}"] = best["learning_rate"]
        chosen[f"epoch{kind}"] = best[f"epoch{kind}"]
        if kind == PLAIN:
            shown = {name: best[name] for name in _SHOWN if name in best}
    kept = [{key: value for key, value in each.items() if key not in _SHOWN} for each in trials]
    return {"values": values, "chosen": chosen, **shown, "trials": kept}


def _trained(
    task: Task, settings: Settings, seed: int, trials: list[dict[str, Any]], keep: Keep
) -> list[dict[str, Any]]:
    """Adds the trials that are missing; gives those that had all epochs."""
    rates = settings["rates"]
    short = settings.get("screen", 0) if len(rates) > 1 else 0

    def add(rate: float, epochs: int) -> None:
        trained = train(task, {**settings, "epochs": epochs}, rate, seed)
        trials.append({"learning_rate": rate, **trained})
        keep(trials)

    for rate in rates[len(trials) :]:
        add(rate, short or settings["epochs"])
    if not short:
        return trials
    if len(trials) == len(rates):
        add(_best(task, trials, PLAIN)["learning_rate"], settings["epochs"])
    return trials[len(rates) :]


def _best(task: Task, trials: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The trial that is best on validation data."""
    known_ones = [trial for trial in trials if f"valid{kind}" in trial]
    if not known_ones:
        rates = [trial["learning_rate"] for trial in trials]
        raise RuntimeError(f"every training diverged in its first epoch: {rates}")
    sign = 1 if task.metric.higher_is_better else -1
    return max(known_ones, key=lambda trial: sign * trial[f"valid{kind}"])


def _kinds(task: Task) -> tuple[str, ...]:
    return (PLAIN,) if task.class_dim is None else (PLAIN, TUNED)


def train(task: Task, settings: Settings, rate: float, seed: int) -> dict[str, Any]:
    """The best epochs of one training run on validation data, their tests and the curve."""
    torch.manual_seed(seed)
    model = task.network()
    generator = torch.Generator().manual_seed(seed)
    epochs = settings["epochs"]
    warm = round(settings.get("warm", 0.0) * epochs)
    per_epoch = len(task.train) // settings["batch"]
    loss = task.loss((epochs - warm) * per_epoch)
    learned = loss.parameters() if isinstance(loss, nn.Module) else ()
    optimizer = _optimizer([*model.parameters(), *learned], settings, rate)
    watched = _Watched(task, keeps=seed == 0)
    of_metric = next(iter(task.values.values()))
    if not epochs:
        untrained = [0, 0.0, *([0.0] if task.seen else [])]
        watched.measure(model, settings, untrained, counts=True)
    for epoch in range(epochs):
        first, last = (0, warm) if epoch < warm else (warm, epochs)
        highest = settings.get("warm_rate", rate) if epoch < warm else rate
        total = 0.0
        seen = 0.0
        for step, batch in enumerate(taken(task, settings, generator)):
            done = (epoch - first + step / per_epoch) / (last - first)
            for group in optimizer.param_groups:
                group["lr"] = highest * (0.5 + 0.5 * math.cos(math.pi * done))
            scores = scored(model, batch, settings)
            if not scores.isfinite().all():
                return watched.result()  # The training has diverged; earlier epochs still count.
            value = (task.ordinary if epoch < warm else loss)(scores, batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            total += float(value.detach()) / per_epoch
            if task.seen:
                seen += of_metric(scores.detach(), batch) / per_epoch
        row = [epoch + 1, round(total, 6), *([round(seen, 6)] if task.seen else [])]
        watched.measure(model, settings, row, counts=epoch >= warm)
    return watched.result()


def _optimizer(
    parameters: list[nn.Parameter], settings: Settings, rate: float
) -> torch.optim.Optimizer:
    if settings.get("optimizer", "adam") == "adam":
        return torch.optim.Adam(parameters, rate, fused=True)
    return torch.optim.SGD(
        parameters,
        rate,
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        fused=True,
    )


class _Watched:
    """The best epochs of a training run so far; their networks are tested at the end."""

    def __init__(self, task: Task, *, keeps: bool) -> None:
        self.task = task
        self.keeps = keeps  # whether predictions are kept
        self.found: dict[str, Any] = {}
        self.curve: list[list[float]] = []
        self.settings: Settings = {}
        self.models: dict[str, nn.Module] = {}
        self.offsets: Tensor | float = 0.0

    @torch.no_grad()
    def measure(
        self, model: nn.Module, settings: Settings, row: list[float], *, counts: bool
    ) -> None:
        """Adds an epoch's row to the curve, and keeps the model where it is the best so far."""
        self.settings = settings
        task = self.task
        scores = all_scores(model, task.valid, settings, task.decoded)
        for kind in _kinds(task):
            offsets: Tensor | float = 0.0
            if kind == TUNED:
                offsets = tuned_offsets(task, scores)
            decided = scores + offsets if kind == TUNED else scores  # which may be ids
            value = next(iter(task.values.values()))(decided, task.valid)
            row.append(round(value, 6))
            key = f"valid{kind}"
            if counts and (key not in self.found or self._better(value, self.found[key])):
                self.found[key] = value
                self.found[f"epoch{kind}"] = row[0]
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
            scores = all_scores(model, task.test, self.settings, task.decoded)
            if kind == PLAIN and self.keeps:
                self._keep(scores)
            scores = scores + self.offsets if kind == TUNED else scores
            self.found[f"test{kind}"] = {
                name: value(scores, task.test) for name, value in task.values.items()
            }
        watched = ["train"] if task.seen else []
        columns = ["epoch", "loss", *watched, *(f"valid{kind}" for kind in _kinds(task))]
        return {**self.found, "curve": {"columns": columns, "rows": self.curve}}

    def _keep(self, scores: Tensor) -> None:
        """Keeps what can be drawn or read of the test part."""
        if self.task.shown is not None:
            self.found["shown"] = self.task.shown(scores, self.task.test)
        if self.task.samples is not None:
            self.found["samples"] = self.task.samples(scores, self.task.test)


def tuned_offsets(task: Task, scores: Tensor) -> Tensor:
    """One offset per class that is best for validation scores, in a shape to be added to them."""
    assert task.class_dim is not None
    offsets = mg.best_offsets(scores, task.valid.target, task.metric, where=task.valid.where)
    return offsets.reshape(-1, *[1] * (-1 - task.class_dim))


def batches(
    part: Examples, size: int, generator: torch.Generator, lengths: Tensor | None = None
) -> Iterator[Examples]:
    """Whole batches of a part in random order; with lengths, batches of examples of alike ones."""
    order = torch.randperm(len(part), generator=generator)[: len(part) // size * size]
    if lengths is None:
        indices = list(order.split(size))
    else:
        pools = [pool[lengths[pool].argsort()] for pool in order.split(_POOLED * size)]
        sorted_ones = torch.cat(pools).split(size)
        shuffled = torch.randperm(len(sorted_ones), generator=generator).tolist()
        indices = [sorted_ones[each] for each in shuffled]
    for index in indices:
        yield part.at(index)


def taken(task: Task, settings: Settings, generator: torch.Generator) -> Iterator[Examples]:
    """The augmented training batches of one epoch."""
    for batch in batches(task.train, settings["batch"], generator, task.lengths):
        yield task.augment(batch, generator)


def scored(model: nn.Module, batch: Examples, settings: Settings) -> Tensor:
    """Scores of a network; convolutions are computed in bfloat16 if the settings say so."""
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.get("half", False)):
        return model(batch.x, *batch.others).float()


@torch.no_grad()
def all_scores(
    model: nn.Module,
    part: Examples,
    settings: Settings,
    decoded: Callable[[Tensor], Tensor] = all_of_them,
) -> Tensor:
    """What is kept of the scores of all examples in `eval()` mode; then `train()` mode is back."""
    model.eval()
    indices = torch.arange(len(part)).split(_AT_ONCE)
    found = torch.cat([decoded(scored(model, part.at(index), settings)) for index in indices])
    model.train()
    return found
