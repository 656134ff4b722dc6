"""The task of most tables: a small network, a loss, a metric; everything chosen on validation data.

A run trains one model for every point of its grid (learning rate, slope, start, ...), keeps each at
its best moment on validation data, and reports the test value of the one that was best there. A
metric of decisions has its threshold tuned on validation scores, for every method alike. `start =
"warm"` spends the first half of the same budget on cross-entropy. With `screen` in the settings the
grid is decided after that share of the budget, and only the winner is trained in full. A training
that diverges ends there.

Every point is trained from the same seed on its own, so a grid that grows takes the known points'
validation values from the old report and trains only the new ones (and again the winner, whose
weights a report does not keep).
"""

import itertools
import math
from collections.abc import Iterator, Mapping
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
class Judge:
    """The metric that decides, and where it has a threshold, the one that was best on validation data."""

    settings: Settings

    def metric(self, **options: Any) -> mg.Metric:
        """The metric of the table's column."""
        return own.metric(
            self.settings["metric"], **self.settings.get("metric_options", {}), **options
        )

    def value(self, scores: Tensor, target: Tensor, threshold: float | None) -> float:
        """The true metric."""
        return float(
            self.metric(**({} if threshold is None else {"threshold": threshold}))(scores, target)
        )

    def tuned(self, scores: Tensor, target: Tensor) -> tuple[float, float | None]:
        """The metric at its best threshold, and that threshold; None where the metric has none."""
        metric, threshold = self.metric(), None
        if scores.shape == target.shape and own.decides(self.settings["metric"], metric):
            threshold = float(mg.best_threshold(scores, target, metric, candidates=200))
        return self.value(scores, target, threshold), threshold

    def better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another."""
        return than is None or (value > than if self.metric().higher_is_better else value < than)


@dataclass
class Trial:
    """One training: its point of the grid, its curve, and the best moment on validation data."""

    point: dict[str, Any]
    curve: list[list[float]] = field(default_factory=list)
    valid: float | None = None
    step: int = 0
    threshold: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


def run(
    settings: Settings,
    seed: int,
    folder: Path | None,
    known: list[dict[str, Any]],
    point: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One run.

    Args:
        settings: the merged settings of a table.
        seed: of the cut, the weights, the batches and the anchors.
        folder: where the data sets are.
        known: trials of an earlier report of the same settings with a smaller grid.
        point: of the grid, where it has been chosen for all seeds together.

    Returns:
        `value` on test data, `valid`, the chosen point, all points with their validation values,
        and the curve.
    """
    data, judge = load(settings["dataset"], folder, seed), Judge(settings)
    if settings["method"] == "constant":
        return _constant(judge, data)
    steps = settings.get("steps") or settings["epochs"] * (len(data.train.y) // settings["batch"])
    if point is None:
        best, trials = _tournament(settings, data, seed, steps, known)
    else:
        best, trials = train(settings, point, data, seed, steps), known
    if best.valid is None:
        raise RuntimeError(
            f"every training diverged before its first evaluation: {settings.get('grid')}"
        )
    model = network(settings, data)
    model.load_state_dict(best.state)
    return {
        "value": judge.value(predict(model, data.test.x), data.test.y, best.threshold),
        "valid": best.valid,
        "chosen": {**best.point, "step": best.step, "threshold": best.threshold},
        "trials": trials,
        "pooled": point is not None,
        "curve": {"columns": ["step", "loss", "valid"], "rows": best.curve},
    }


def _tournament(
    settings: Settings, data: Data, seed: int, steps: int, known: list[dict[str, Any]]
) -> tuple[Trial, list[dict[str, Any]]]:
    """The best point on validation data, trained, and all points with their validation values."""
    grid, judge = points(dict(settings)), Judge(settings)
    screened = len(grid) > 1 and "screen" in settings
    trials = []
    for point in grid:
        old = None if screened else known_trial(known, point)
        if old is None:
            trials.append(
                train(
                    settings,
                    point,
                    data,
                    seed,
                    int(steps * settings["screen"]) if screened else steps,
                )
            )
        else:
            trials.append(Trial(point, valid=old["valid"], step=old["step"]))
    best = _best(trials, judge)
    if not best.state or screened:
        best = train(settings, best.point, data, seed, steps)
    return best, [{**trial.point, "step": trial.step, "valid": trial.valid} for trial in trials]


def train(settings: Settings, point: dict[str, Any], data: Data, seed: int, steps: int) -> Trial:
    """Trains one model and remembers it at its best moment on validation data."""
    torch.manual_seed(seed)
    settings = {**settings, **point}
    model, objective, trial = network(settings, data), loss(settings, seed), Trial(point)
    optimizer, judge = _optimizer(settings, model), Judge(settings)
    warm = steps // 2 if settings.get("start") == "warm" else 0
    every = max(1, steps // settings.get("evaluations", 20))
    losses: list[Tensor] = []
    for step, batch in enumerate(
        _batches(len(data.train.y), settings["batch"], steps, seed), start=1
    ):
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * _decay(settings, step - 1, warm, steps)
        scores, target = model(data.train.x[batch]), data.train.y[batch]
        if not scores.isfinite().all():
            break  # diverged: what it was before that still counts
        value = cross_entropy(scores, target) if step <= warm else objective(scores, target)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
        if step % every == 0 or step == steps:
            _look(
                trial,
                model,
                data.valid,
                judge,
                step,
                torch.stack(losses).mean().item(),
                eligible=step > warm,
            )
            losses.clear()
    return trial


def _decay(settings: Settings, done: int, warm: int, steps: int) -> float:
    """What is left of the learning rate: all of it, or with `schedule = "cosine"` half a wave in each phase."""
    if settings.get("schedule") != "cosine":
        return 1.0
    progress = done / warm if done < warm else (done - warm) / (steps - warm)
    return 0.5 + 0.5 * math.cos(math.pi * progress)


def network(settings: Settings, data: Data) -> nn.Sequential:
    """Fully connected with ReLU: `hidden` widths (none is a linear model), one score or one per class."""
    classes = int(data.train.y.max()) + 1
    widths = [data.train.x.shape[1], *settings["hidden"], 1 if classes == 2 else classes]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([nn.Flatten(0)] if classes == 2 else []))


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of all items, a chunk at a time."""
    return torch.cat([model(part) for part in x.split(_CHUNK)])


def _best(trials: list[Trial], judge: Judge) -> Trial:
    best = trials[0]
    for trial in trials[1:]:
        if trial.valid is not None and judge.better(trial.valid, best.valid):
            best = trial
    return best


def _look(
    trial: Trial,
    model: nn.Module,
    valid: Part,
    judge: Judge,
    step: int,
    mean: float,
    eligible: bool,
) -> None:
    value, threshold = judge.tuned(predict(model, valid.x), valid.y)
    trial.curve.append([step, round(mean, 6), round(value, 6)])
    if eligible and judge.better(value, trial.valid):
        trial.valid, trial.step, trial.threshold = value, step, threshold
        trial.state = {name: weight.clone() for name, weight in model.state_dict().items()}


def _constant(judge: Judge, data: Data) -> dict[str, Any]:
    """The better of two constant scores, on validation data; for many classes, the most frequent one."""
    if int(data.train.y.max()) > 1:
        candidates = [torch.nn.functional.one_hot(data.train.y).sum(0).float()]
    else:
        candidates = [torch.tensor(-1.0), torch.tensor(1.0)]

    def value(score: Tensor, target: Tensor) -> float:
        scores = score.expand(len(target), *score.shape)
        if (
            judge.settings["metric"] in own.FUNCTIONS
        ):  # these take equal scores in the order of the data
            scores = scores + 1e-3 * torch.rand(
                scores.shape, generator=torch.Generator().manual_seed(0)
            )
        return judge.value(scores, target, None)

    best = candidates[0]
    for score in candidates[1:]:
        if judge.better(value(score, data.valid.y), value(best, data.valid.y)):
            best = score
    chosen = {"scores": best.tolist()}
    return {"value": value(best, data.test.y), "valid": value(best, data.valid.y), "chosen": chosen}


def _optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    rate, decay = settings["learning_rate"], settings.get("weight_decay", 0.0)
    if settings["optimizer"] == "adam":
        return torch.optim.AdamW(model.parameters(), rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(
        model.parameters(), rate, momentum=settings["momentum"], weight_decay=decay, fused=True
    )


def _batches(items: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Indices of each step's batch: epoch after epoch, every item at most once in each, whole batches only."""
    generator = torch.Generator().manual_seed(seed)
    size, done = min(size, items), 0
    while True:
        for batch in torch.randperm(items, generator=generator)[: items // size * size].split(size):
            if done == steps:
                return
            done += 1
            yield batch
