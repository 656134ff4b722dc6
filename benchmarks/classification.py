"""The task of most tables: a small network, a loss and a metric; validation decides all choices.

A run trains one model for every point of its grid (learning rate, slope, start, ...), keeps each at
its best moment on validation data, and reports the test value of the best of them. For a metric
with a threshold, the threshold is tuned on validation scores, for every method alike. `start =
"warm"` spends the first half of the budget on cross-entropy. If the settings have `screen`, the
grid is decided after that share of the budget, and only its winner is trained in full. A training
that diverges ends there.

Every point is trained on its own from the same seed. So when a grid grows, the validation values of
the old points come from the old report and only new points are trained, and the winner once more,
because a report does not keep weights.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks import own
from benchmarks.data import Data, Part, load
from benchmarks.losses import cross_entropy, loss
from benchmarks.pooling import known as known_trial
from benchmarks.pooling import points

Settings = Mapping[str, Any]
_CHUNK = 16384


@dataclass(frozen=True)
class Evaluation:
    """The metric of a table's column, with its threshold tuned on validation data if it has one."""

    settings: Settings

    def metric(self, **options: Any) -> mg.Metric:
        """The metric with the column's options and these."""
        return own.metric(
            self.settings["metric"], **self.settings.get("metric_options", {}), **options
        )

    def value(self, scores: Tensor, target: Tensor, threshold: float | None) -> float:
        """The true metric at a threshold."""
        metric = self.metric() if threshold is None else self.metric(threshold=threshold)
        return float(metric(scores, target))

    def tuned(self, scores: Tensor, target: Tensor) -> tuple[float, float | None]:
        """The metric at its best threshold, and that threshold, or None if the metric has none."""
        metric = self.metric()
        threshold = None
        if scores.shape == target.shape and own.decides(self.settings["metric"], metric):
            threshold = float(mg.best_threshold(scores, target, metric, candidates=200))
        return self.value(scores, target, threshold), threshold

    def better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another one, or the first."""
        return than is None or (value > than if self.metric().higher_is_better else value < than)


@dataclass
class Trial:
    """One training: its point of the grid, its curve, and its best moment on validation data."""

    point: dict[str, Any]
    curve: list[list[float]] = field(default_factory=list)
    valid: float | None = None
    step: int = 0
    threshold: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


Training = Callable[[Settings, dict[str, Any], Data, int, int], Trial]


def run(
    settings: Settings,
    seed: int,
    folder: Path | None,
    known: list[dict[str, Any]],
    point: dict[str, Any] | None = None,
    training: Training | None = None,
) -> dict[str, Any]:
    """Trains the grid, or only a `point` that was chosen for all seeds together, and tests it.

    `training` trains one point; `train` does so unless another is given.
    """
    training = training or train
    data = load(settings["dataset"], folder, seed)
    if "rows" in settings:  # the split has shuffled them
        rows = settings["rows"]
        data = data._replace(train=Part(data.train.x[:rows], data.train.y[:rows]))
    evaluation = Evaluation(settings)
    if settings["method"] == "constant":
        return _constant(evaluation, data)
    steps = settings.get("steps") or settings["epochs"] * (len(data.train.y) // settings["batch"])
    if point is None:
        best, trials = _search(settings, data, seed, steps, known, training)
    else:
        best = training(settings, point, data, seed, steps)
        trials = known
    if best.valid is None:
        raise RuntimeError(
            f"every training diverged before its first evaluation: {settings.get('grid')}"
        )
    model = network(settings, data)
    model.load_state_dict(best.state)
    return {
        "value": evaluation.value(predict(model, data.test.x), data.test.y, best.threshold),
        "valid": best.valid,
        "chosen": {**best.point, "step": best.step, "threshold": best.threshold},
        "trials": trials,
        "pooled": point is not None,
        "curve": {"columns": ["step", "loss", "valid"], "rows": best.curve},
    }


def _search(
    settings: Settings,
    data: Data,
    seed: int,
    steps: int,
    known: list[dict[str, Any]],
    training: Training,
) -> tuple[Trial, list[dict[str, Any]]]:
    """The best point on validation data, trained, and the validation values of all points."""
    grid = points(dict(settings))
    screened = len(grid) > 1 and "screen" in settings
    budget = int(steps * settings["screen"]) if screened else steps
    trials = []
    for point in grid:
        old = None if screened else known_trial(known, point)
        if old is None:
            trials.append(training(settings, point, data, seed, budget))
        else:
            trials.append(Trial(point, valid=old["valid"], step=old["step"]))
    best = _best(trials, Evaluation(settings))
    if not best.state or screened:
        best = training(settings, best.point, data, seed, steps)
    return best, [{**trial.point, "step": trial.step, "valid": trial.valid} for trial in trials]


def train(settings: Settings, point: dict[str, Any], data: Data, seed: int, steps: int) -> Trial:
    """Trains one model and keeps it at its best moment on validation data."""
    torch.manual_seed(seed)
    settings = {**settings, **point}
    model = network(settings, data)
    objective = loss(settings, seed)
    trial = Trial(point)
    optimizer = _optimizer(settings, model)
    evaluation = Evaluation(settings)
    warm = steps // 2 if settings.get("start") == "warm" else 0
    every = max(1, steps // settings.get("evaluations", 20))
    losses: list[Tensor] = []
    for step, batch in enumerate(
        _batches(len(data.train.y), settings["batch"], steps, seed), start=1
    ):
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * decay(settings, step - 1, warm, steps)
        target = data.train.y[batch]
        scores = model(data.train.x[batch])
        if not scores.isfinite().all():
            break  # The training has diverged; its best moment before that still counts.
        value = cross_entropy(scores, target) if step <= warm else objective(scores, target)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
        if step % every == 0 or step == steps:
            mean = torch.stack(losses).mean().item()
            validate(trial, model, data.valid, evaluation, step, mean, eligible=step > warm)
            losses.clear()
    return trial


def decay(settings: Settings, done: int, warm: int, steps: int) -> float:
    """The factor of the learning rate: 1, or with `schedule = "cosine"` half a wave per phase."""
    if settings.get("schedule") != "cosine":
        return 1.0
    progress = done / warm if done < warm else (done - warm) / (steps - warm)
    return 0.5 + 0.5 * math.cos(math.pi * progress)


def network(settings: Settings, data: Data) -> nn.Sequential:
    """A ReLU network with `hidden` widths (none: a linear model); one score, or one per class."""
    classes = int(data.train.y.max()) + 1
    widths = [data.train.x.shape[1], *settings["hidden"], 1 if classes == 2 else classes]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([nn.Flatten(0)] if classes == 2 else []))


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of all items, computed in chunks."""
    return torch.cat([model(part) for part in x.split(_CHUNK)])


def _best(trials: list[Trial], evaluation: Evaluation) -> Trial:
    best = trials[0]
    for trial in trials[1:]:
        if trial.valid is not None and evaluation.better(trial.valid, best.valid):
            best = trial
    return best


def validate(
    trial: Trial,
    model: nn.Module,
    valid: Part,
    evaluation: Evaluation,
    step: int,
    mean: float,
    eligible: bool,
) -> None:
    """Adds a moment to the curve, and keeps the model if it is eligible and the best so far."""
    value, threshold = evaluation.tuned(predict(model, valid.x), valid.y)
    trial.curve.append([step, round(mean, 6), round(value, 6)])
    if eligible and evaluation.better(value, trial.valid):
        trial.valid = value
        trial.step = step
        trial.threshold = threshold
        trial.state = {name: weight.clone() for name, weight in model.state_dict().items()}


def _constant(evaluation: Evaluation, data: Data) -> dict[str, Any]:
    """The better of two constant scores on validation data; of many classes, the most frequent."""
    if int(data.train.y.max()) > 1:
        candidates = [torch.nn.functional.one_hot(data.train.y).sum(0).float()]
    else:
        candidates = [torch.tensor(-1.0), torch.tensor(1.0)]

    def value(score: Tensor, target: Tensor) -> float:
        scores = score.expand(len(target), *score.shape)
        if evaluation.settings["metric"] in own.FUNCTIONS:
            # These functions rank equal scores in the order of the data, so ties are broken here.
            generator = torch.Generator().manual_seed(0)
            scores = scores + 1e-3 * torch.rand(scores.shape, generator=generator)
        return evaluation.value(scores, target, None)

    best = candidates[0]
    for score in candidates[1:]:
        if evaluation.better(value(score, data.valid.y), value(best, data.valid.y)):
            best = score
    chosen = {"scores": best.tolist()}
    return {"value": value(best, data.test.y), "valid": value(best, data.valid.y), "chosen": chosen}


def _optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    rate = settings["learning_rate"]
    decay = settings.get("weight_decay", 0.0)
    if settings["optimizer"] == "adam":
        return torch.optim.AdamW(model.parameters(), rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(
        model.parameters(), rate, momentum=settings["momentum"], weight_decay=decay, fused=True
    )


def _batches(items: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Indices of each step's batch, epoch after epoch, shuffled; whole batches only."""
    generator = torch.Generator().manual_seed(seed)
    size = min(size, items)
    done = 0
    while True:
        for batch in torch.randperm(items, generator=generator)[: items // size * size].split(size):
            if done == steps:
                return
            done += 1
            yield batch
