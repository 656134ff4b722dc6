"""The same training in any number of processes, to be compared: batches cut into uneven parts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import metricgrad as mg

STEPS = 5
ITEMS = 36


class Task(NamedTuple):
    """A loss, how many scores an item has, and what its target is."""

    loss: Callable[[], mg.Surrogate]
    outputs: int = 1
    grouped: bool = False


TASKS = {
    "average precision": Task(lambda: mg.UniLoss("average_precision")),
    "f1": Task(lambda: mg.UniLoss("f1")),
    "accuracy of classes": Task(lambda: mg.UniLoss("accuracy"), outputs=4),
    "ndcg of queries": Task(lambda: mg.UniLoss("ndcg"), grouped=True),
    "metric loss": Task(lambda: mg.MetricLoss("f1")),
    "memory": Task(lambda: mg.with_memory(mg.UniLoss("average_precision"), size=50)),
    "reloss": Task(lambda: mg.ReLoss.pretrained("f1").double()),
    "cross-entropy": Task(lambda: mg.baselines.CrossEntropy()),
}


class Trained(NamedTuple):
    """Values of every step, gradients of every step, final weights, final state of the loss."""

    values: Tensor
    gradients: Tensor
    weights: Tensor
    state: dict[str, Tensor]


def batch(task: Task, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, target and query ids of a step; its positives come first."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ITEMS, 6, dtype=torch.float64, generator=generator)
    noise = torch.randn(ITEMS, dtype=torch.float64, generator=generator)
    rank = (x[:, 0] + noise).argsort(descending=True)
    x = x[rank]
    places = torch.arange(ITEMS)
    if task.outputs > 1:
        return x, places % task.outputs, places
    if task.grouped:
        return x, places % 4, torch.randint(0, 5, (ITEMS,), generator=generator)
    return x, (places < 8).long(), places


def part(step: int) -> slice:
    """The items of this process: uneven, at times none; only the first ones have positives."""
    if not dist.is_initialized():
        return slice(0, ITEMS)
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(100 + step)
    inner = torch.randint(0, ITEMS + 1, (size - 1,), generator=generator).sort().values.tolist()
    if step == 0:
        inner[-1] = ITEMS  # the last process has nothing
    if step == 1:
        inner[0] = 9  # all positives are in the first
    cuts = [0, *inner, ITEMS]
    return slice(cuts[dist.get_rank()], max(cuts[dist.get_rank()], cuts[dist.get_rank() + 1]))


def train(name: str) -> Trained:
    """A few steps of SGD, by this process or along with others."""
    task = TASKS[name]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, task.outputs)).double()
    loss: mg.Surrogate = task.loss()
    model: nn.Module = network
    if dist.is_initialized():
        loss = mg.across_ranks(loss)
        model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    values: list[Tensor] = []
    gradients: list[Tensor] = []
    for step in range(STEPS):
        own = part(step)
        x, target, ids = (each[own] for each in batch(task, step))
        scores = model(x) if task.outputs > 1 else model(x).squeeze(-1)
        optimizer.zero_grad()
        value = loss(scores, target, groups=ids if task.grouped else None)
        value.backward()
        optimizer.step()
        values.append(value.detach().double())
        gradients.append(_flat([_gradient(each) for each in network.parameters()]))
    state = {key.removeprefix("loss."): each for key, each in loss.state_dict().items()}
    weights = _flat([each.detach() for each in network.parameters()])
    return Trained(torch.stack(values), torch.stack(gradients), weights, state)


def train_all() -> dict[str, Trained]:
    """All tasks, one after another."""
    return {name: train(name) for name in TASKS}


def _gradient(parameter: Any) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in parts])
