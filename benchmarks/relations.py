"""How losses rank score sets of a task, and a loss that is learned to rank them (ReLoss, Table 1).

A network is trained on the ordinary loss. After some of its epochs, its scores on training data are
cut into sets, from which ReLoss learns. A second network, with another seed, gives sets of test
data, on which the rank correlations with the metric are measured.
"""

from collections.abc import Mapping

import torch
from torch import nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.task import Examples, ScoreSets, Task, all_scores, scored, taken

_OTHER = 1000  # added to the seed of the network that nothing learns from


def learned_relation(task: Task, settings: Settings, seed: int, loss: mg.ReLoss) -> mg.ReLoss:
    """The loss after it has learned from score sets of training data; it is frozen."""
    generator = torch.Generator().manual_seed(seed)
    stored = sets_along(task, settings, task.train, seed)
    loss.learn(
        stored,
        steps=settings["learning_steps"],
        sets=settings.get("learning_sets", 64),
        share=0.0,
        progress=False,
        generator=generator,
    )
    return loss


def correlations(
    task: Task, settings: Settings, seed: int, losses: Mapping[str, mg.Surrogate]
) -> dict[str, float]:
    """Spearman's and Kendall's correlation of each loss with the metric, on sets of test data."""
    held = sets_along(task, settings, task.test, seed + _OTHER)
    return ranked(held, task.metric, seed, losses)


def ranked(
    held: ScoreSets, metric: mg.Metric, seed: int, losses: Mapping[str, mg.Surrogate]
) -> dict[str, float]:
    """Spearman's and Kendall's correlation of each loss with the metric on these sets."""
    values = {}
    for name, loss in losses.items():
        generator = torch.Generator().manual_seed(seed)
        found = mg.rank_correlation(loss, metric, held, generator=generator)
        values[f"{name}_spearman"] = found.spearman
        values[f"{name}_kendall"] = found.kendall
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
