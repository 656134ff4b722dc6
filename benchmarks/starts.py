"""Fine-tuning: a network is trained once on the ordinary loss, and every row starts from it.

The network is kept as it was after each of its epochs, too. What it gave on training data at these
moments is what ReLoss learns from (with p = 0, nothing made up), and what the network of the next
seed gave on test data is what the losses are judged on: score sets of models from bad to good.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.relations import ranked
from benchmarks.stored import moments, stored, trained
from benchmarks.task import Examples, Loss, ScoreSets, Task, all_scores, scored, taken

State = dict[str, Any]
_SEEDS = 3  # the start after the last seed's is that of the first


def starts(task: Task, settings: Settings, seed: int) -> list[State]:
    """The network after each epoch on the ordinary loss; the last one is where the rows start.

    `task.network` gives an untrained network. `start` in the settings has `epochs`, the `rate`, how
    many `moments` are kept, and over how many `warm_steps` the rate rises. `shared` names all other
    settings that the network depends on.
    """
    names = [*settings["shared"], "task", "dataset", "start", "batch"]
    of = {"seed": seed, **{name: settings[name] for name in names}}

    def make(begun: Any) -> list[State]:
        return _trained(task, settings, seed, begun)

    return stored(f"{settings['task']}-start", of, make)


def _trained(task: Task, settings: Settings, seed: int, begun: Any) -> list[State]:
    torch.manual_seed(seed)
    model = task.network()
    plan = settings["start"]
    optimizer = torch.optim.Adam(model.parameters(), plan["rate"], fused=True)
    every = len(task.train) // settings["batch"]

    def train_epoch(epoch: int) -> None:
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        for step, batch in enumerate(taken(task, settings, generator)):
            done = (epoch + step / every) / plan["epochs"]
            for group in optimizer.param_groups:
                warm = min(1.0, (epoch * every + step + 1) / plan.get("warm_steps", 1))
                group["lr"] = plan["rate"] * warm * (0.5 + 0.5 * math.cos(math.pi * done))
            value = task.ordinary(scored(model, batch, settings), batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()

    kept = moments(plan["epochs"], plan["moments"])
    return trained(begun, model, optimizer, train_epoch, kept)


def fine_tuning(plain: Task, settings: Settings, seed: int, loss: Callable[[int], Loss]) -> Task:
    """The task of a row: its network is the one that the ordinary loss has trained."""
    begin = starts(plain, settings, seed)[-1]
    return replace(plain, network=lambda: begun_from(plain, begin), loss=loss)


def begun_from(task: Task, state: State) -> nn.Module:
    """A network of the task with these weights."""
    model = task.network()
    model.load_state_dict(state)
    return model


def sets_of(
    task: Task, settings: Settings, part: Examples, models: list[State], generator: torch.Generator
) -> ScoreSets:
    """Score sets of a part of the data, as the network gave them at each of its moments."""
    assert task.sets is not None
    found = []
    for state in models:
        few = torch.randperm(len(part), generator=generator)[: settings["learning_items"]]
        drawn = part.at(few)
        scores = all_scores(begun_from(task, state), drawn, settings)
        found += task.sets(scores, drawn, generator)
    return found


def learned(task: Task, settings: Settings, seed: int, loss: mg.ReLoss, name: str) -> mg.ReLoss:
    """The loss after it has learned from the start's outputs on training data; it is frozen.

    `name` tells losses with other networks and objectives apart.
    """
    names = [*settings["shared"], "task", "dataset", "start", "batch"]
    names += [each for each in settings if each.startswith("learning_")]
    of = {
        "seed": seed,
        "metric": loss.metric.name,
        **{each: settings[each] for each in sorted(names)},
    }

    def make(_: Any) -> State:
        generator = torch.Generator().manual_seed(seed)
        models = starts(task, settings, seed)
        given = sets_of(task, settings, task.train, models, generator)
        loss.learn(
            given,
            steps=settings["learning_steps"],
            sets=settings["learning_sets"],
            share=0.0,
            rate=settings.get("learning_rate", 1e-2),
            progress=False,
            generator=generator,
        )
        return loss.state_dict()

    loss.load_state_dict(stored(f"{settings['task']}-{name}", of, make))
    loss.freeze()
    return loss


def correlations(
    task: Task, settings: Settings, seed: int, losses: Mapping[str, mg.Surrogate]
) -> dict[str, Any]:
    """What `mg.rank_correlation` finds for each loss and the metric, on sets of test data.

    The sets are of the network of the next seed, from which no loss of this seed has learned.
    """
    models = starts(task, settings, (seed + 1) % _SEEDS)
    generator = torch.Generator().manual_seed(seed)
    held = sets_of(task, settings, task.test, models, generator)
    return ranked(held, task.metric, seed, losses)
