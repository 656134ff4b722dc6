"""How losses rank score sets of a task, and a loss that is learned to rank them (ReLoss, Table 1).

A network is trained on the ordinary loss. After some of its epochs, its scores on training data are
cut into sets, from which ReLoss learns (`learning_share` is that of made-up sets). A second
network, with another seed, gives sets of test data, on which the rank correlations with the metric
are measured.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.task import Examples, ScoreSets, Task, all_scores, scored, taken

SetLoss = mg.Surrogate | Callable[[Tensor, Tensor], Tensor]

_OTHER = 1000  # added to the seed of the network that nothing learns from


def learned_relation(task: Task, settings: Settings, seed: int, loss: mg.ReLoss) -> mg.ReLoss:
    """The loss after it has learned from score sets of training data; it is frozen."""
    generator = torch.Generator().manual_seed(seed)
    stored = sets_along(task, settings, task.train, seed)
    loss.learn(
        stored,
        steps=settings["learning_steps"],
        sets=settings.get("learning_sets", 64),
        share=settings.get("learning_share", 0.0),
        progress=False,
        generator=generator,
    )
    return loss


def correlations(
    task: Task, settings: Settings, seed: int, losses: Mapping[str, SetLoss]
) -> dict[str, Any]:
    """What `mg.rank_correlation` finds for each loss and the metric, on sets of test data."""
    held = sets_along(task, settings, task.test, seed + _OTHER)
    return ranked(held, task.metric, seed, losses)


def ranked(
    held: ScoreSets, metric: mg.Metric, seed: int, losses: Mapping[str, SetLoss]
) -> dict[str, Any]:
    """What `mg.rank_correlation` finds for each loss and the metric on these sets."""
    found = {}
    for name, loss in losses.items():
        generator = torch.Generator().manual_seed(seed)
        found[name] = mg.rank_correlation(loss, metric, held, generator=generator)
    return found


def coefficients(found: Mapping[str, Any]) -> dict[str, float]:
    """Spearman's and Kendall's correlation of each loss, as the values of a run."""
    values = {}
    for name, each in found.items():
        values[f"{name}_spearman"] = each.spearman
        values[f"{name}_kendall"] = each.kendall
    return values


def sets_along(task: Task, settings: Settings, part: Examples, seed: int) -> ScoreSets:
    """Score sets of a part of the data, taken while a network is trained on the ordinary loss."""
    assert task.sets is not None
    torch.manual_seed(seed)
    model = task.network()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), settings["learning_rate"], fused=True)
    found = []
    for _ in range(settings["learning_epochs"]):
        _train_epoch(task, settings, model, optimizer, generator)
        few = torch.randperm(len(part), generator=generator)[: settings["learning_items"]]
        chosen = part.at(few)
        found += task.sets(all_scores(model, chosen, settings), chosen, generator)
    return found


def _train_epoch(
    task: Task,
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    for batch in taken(task, settings, generator):
        value = task.ordinary(scored(model, batch, settings), batch)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
