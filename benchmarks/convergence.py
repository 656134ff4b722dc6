"""How fast a model converges with a loss from scratch and with a universal start (Figure 3).

Algorithm 1 runs for several metrics at once, stacked. Recorded along the way are the surrogate's
value on the model's batches, its misfit, and the true loss on test data. Nothing is chosen, so the
test data influences nothing.
"""

from pathlib import Path
from typing import Any

import torch

import metricgrad as mg
from benchmarks.alternation import paper_network
from benchmarks.classification import Settings, predict
from benchmarks.data import load
from benchmarks.surrogate_training import VARIANTS, universal


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Trains for all metrics; the names of the values are METRIC_KIND_ITERATION."""
    data = load(settings["dataset"], folder, seed)
    metrics = settings["metrics"]
    variant = VARIANTS[settings["method"]]
    models = []
    losses = []
    for name in metrics:
        torch.manual_seed(seed)
        models.append(paper_network(data.train.x.shape[1]))
        losses.append(mg.BilevelLoss(name, generator=torch.Generator().manual_seed(seed)))
        if variant["start"] == "universal":
            losses[-1].load_state_dict(universal(name, settings["batch"], seed))
            losses[-1].universal = True
    training = mg.StackedTraining(
        models,
        losses,
        data.train.x,
        data.train.y,
        batch=settings["batch"],
        model_rate=settings["learning_rate"],
        loss_rate=settings["loss_rate"],
        generator=torch.Generator().manual_seed(seed),
        **variant,
    )
    values: dict[str, float] = {}
    for moment in settings["moments"]:
        means = training.advance(moment - training.iteration, progress=False)
        for number, name in enumerate(metrics):
            metric = mg.metric(name)
            test = float(metric(predict(models[number].eval(), data.test.x), data.test.y))
            values[f"{name}_test_{moment}"] = 1 - test if metric.higher_is_better else test
            values[f"{name}_loss_{moment}"] = float(means.loss[number])
            values[f"{name}_misfit_{moment}"] = float(means.misfit[number])
    return {"values": values}
