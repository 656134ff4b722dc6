"""The paper's own protocol once in full (Sec. 4.1), resumable.

A run has two stacks, one after the other: SL-S and SL-R of all metrics, whose losses learn along
with the models, then SL-U of all metrics. Before them, gamma of every metric of decisions is chosen
by cross-validation, in short trainings at higher rates. Nothing else is chosen: the last models are
tested. Validation and test values are recorded along the way.

The run writes a checkpoint of its stack every so many iterations, and beside it, as JSON, what it
knows so far. A run that was stopped continues from there and ends with the same numbers.
"""

import functools
import json
from pathlib import Path
from typing import Any

import torch

import metricgrad as mg
from benchmarks.alternation import paper_network
from benchmarks.classification import Evaluation, Settings, predict
from benchmarks.data import Data, Part, load
from benchmarks.surrogate import as_loss
from metricgrad.training import choose_gamma, decides_at_least

_STACKS = {"refined": ("sl_s", "sl_r"), "universal": ("sl_u",)}


def run(
    settings: Settings,
    seed: int,
    folder: Path | None,
    known: list[dict[str, Any]],
    kept: Path | None = None,
) -> dict[str, Any]:
    """Trains both stacks; `kept` is the path, without a suffix, of what a stopped run left."""
    data = load(settings["dataset"], folder, seed)
    progress = _Progress(settings, kept)
    gammas = progress.known("gammas", functools.partial(_gammas, settings, data.train, seed))
    values: dict[str, float] = {}
    for name in _STACKS:
        rows = _trained(settings, data, seed, gammas, progress, name)
        values |= rows[-1]["test"]
    return {"values": values, "gammas": gammas, "curve": progress.content["curves"]}


class _Progress:
    """What a run knows so far, in a file if it has a place for one."""

    def __init__(self, settings: Settings, kept: Path | None) -> None:
        self._kept = kept
        self.content: dict[str, Any] = {"configuration": dict(settings), "curves": {}}
        path = self.path(".progress")
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if found["configuration"] == self.content["configuration"]:
                self.content = found
                return
        for name in _STACKS:  # of another configuration
            checkpoint = self.path(f".{name}.checkpoint")
            if checkpoint is not None:
                checkpoint.unlink(missing_ok=True)

    def path(self, suffix: str) -> Path | None:
        """A file beside the report."""
        return None if self._kept is None else self._kept.with_name(self._kept.name + suffix)

    def known(self, name: str, found: Any) -> Any:
        """What was found before, or is found and kept now."""
        if name not in self.content:
            self.content[name] = found()
            self.write()
        return self.content[name]

    def write(self) -> None:
        """Stores all so far, in one piece."""
        path = self.path(".progress")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(self.content))
            partial.replace(path)


def _gammas(settings: Settings, train: Part, seed: int) -> dict[str, float]:
    """The gamma of every metric that decides at a threshold, by cross-validation."""
    torch.manual_seed(seed)
    found = {}
    for name in settings["metrics"]:
        if mg.metric(name).has_threshold:
            chosen = choose_gamma(
                lambda: paper_network(train.x.shape[1], normed=settings["normed"]),
                name,
                train.x,
                train.y,
                start="universal",
                batch=settings["batch"],
                universal=settings.get("universal"),
                generator=torch.Generator().manual_seed(seed),
                **settings["gamma"],
            )
            found[name] = chosen.gamma
    return found


def _trained(
    settings: Settings,
    data: Data,
    seed: int,
    gammas: dict[str, float],
    progress: _Progress,
    name: str,
) -> list[dict[str, Any]]:
    """The curve of one stack: iterations, validation and test values."""
    runs = [(method, metric) for method in _STACKS[name] for metric in settings["metrics"]]
    training = _stack(settings, data.train, seed, gammas, runs)
    checkpoint = progress.path(f".{name}.checkpoint")
    if checkpoint is not None and checkpoint.exists():
        training.resume(checkpoint)
    curve = progress.content["curves"].setdefault(name, [])
    curve[:] = [row for row in curve if row["iteration"] <= training.iteration]
    while True:
        if training.iteration and (
            not curve or curve[-1]["iteration"] < training.iteration  # or it stopped in between
        ):
            curve.append(_row(training, runs, data, gammas))
            progress.write()
        left = settings["iterations"] - training.iteration
        if left <= 0:
            return curve
        training.advance(min(left, settings["every"]), progress=False)
        if checkpoint is not None:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            training.save(checkpoint)


def _stack(
    settings: Settings,
    train: Part,
    seed: int,
    gammas: dict[str, float],
    runs: list[tuple[str, str]],
) -> mg.StackedTraining:
    """The stack of some methods and metrics, at the paper's settings."""
    models = []
    losses = []
    for _, metric in runs:
        torch.manual_seed(seed)
        models.append(paper_network(train.x.shape[1], normed=settings["normed"]))
        chosen = decides_at_least(mg.metric(metric), gammas.get(metric))
        losses.append(mg.BilevelLoss(chosen, generator=torch.Generator().manual_seed(seed)))
    return mg.StackedTraining(
        models,
        losses,
        train.x,
        train.y,
        start=["scratch" if method == "sl_s" else "universal" for method, _ in runs],
        refine=runs[0][0] != "sl_u",
        universal={"source": "paper", "progress": False, **settings.get("universal", {})},
        model_rate=settings["rate"],
        loss_rate=settings["rate"],
        clip=settings["clip"],
        balanced=True,
        batch=settings["batch"],
        model_steps=settings["model_steps"],
        loss_steps=settings["loss_steps"],
        generator=torch.Generator().manual_seed(seed),
    )


def _row(
    training: mg.StackedTraining,
    runs: list[tuple[str, str]],
    data: Data,
    gammas: dict[str, float],
) -> dict[str, Any]:
    """Losses of all models now; decisions at gamma, and at the threshold that validates best."""
    row: dict[str, Any] = {"iteration": training.iteration, "valid": {}, "test": {}}
    for model, (method, name) in zip(training.models, runs, strict=True):
        evaluation = Evaluation({"metric": name})
        scores = [predict(model.eval(), part.x) for part in (data.valid, data.test)]
        metric = decides_at_least(mg.metric(name), gammas.get(name))
        for kind, found, part in zip(
            ("valid", "test"), scores, (data.valid, data.test), strict=True
        ):
            row[kind][f"{method}_{name}"] = as_loss(evaluation, float(metric(found, part.y)))
        _, threshold = evaluation.tuned(scores[0], data.valid.y)
        if threshold is not None:
            tuned = evaluation.value(scores[1], data.test.y, threshold)
            row["test"][f"{method}_{name}_tuned"] = as_loss(evaluation, tuned)
    return row
