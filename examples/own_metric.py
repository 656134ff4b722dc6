"""Write the metric, get the loss: eight metrics in plain torch, each trained on as it stands.

`mg.reexpress` watches a function run, finds the comparisons behind its `>`, `argmax`, `sort` and `topk`, and replays it
with other outcomes; `mg.UniLoss` makes a loss of that. The first table shows what was found in each function, the second
what training on it does to a linear model of handwritten digits that was trained on cross-entropy before: both have
the same number of further steps, and both are judged on a third of the data that neither has seen. With data this small
the differences say little; `python -m benchmarks run own_metrics` has the figures that count.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

import metricgrad as mg


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """Contact the best tenth of the customers: 8 earned for each response, 1 paid for each contact."""
    contacted = scores.topk(len(scores) // 10).indices
    return (8.0 * target[contacted] - 1.0).sum()


def f2(scores: Tensor, target: Tensor) -> Tensor:
    """Recall counts four times as much as precision."""
    predicted, positive = scores > 0, target == 1
    tp = (predicted & positive).sum()
    return 5 * tp / (4 * positive.sum() + predicted.sum()).clamp(min=1)


def precision_at_recall(scores: Tensor, target: Tensor) -> Tensor:
    """The best precision with a recall of at least 0.8."""
    hits = target[scores.argsort(descending=True)].float()
    found = hits.cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1)
    return torch.where(found >= 0.8 * hits.sum(), precision, 0).max()


def kappa(scores: Tensor, target: Tensor) -> Tensor:
    """Agreement beyond chance, Cohen's."""
    predicted = F.one_hot(scores.argmax(-1), 10).float()
    truth = F.one_hot(target, 10).float()
    agreed = (predicted * truth).sum(-1).mean()
    by_chance = (predicted.mean(0) * truth.mean(0)).sum()
    return (agreed - by_chance) / (1 - by_chance)


def macro_f1(scores: Tensor, target: Tensor) -> Tensor:
    """The mean F1 of the classes, one after another."""
    total = torch.zeros(())
    for digit in range(10):
        predicted, true = scores.argmax(-1) == digit, target == digit
        total = total + 2 * (predicted & true).sum() / (predicted.sum() + true.sum()).clamp(min=1)
    return total / 10


def kendall_tau(scores: Tensor, target: Tensor) -> Tensor:
    """Pairs in order minus pairs out of order, of those whose targets differ."""
    concordance = (scores[:, None] - scores).sign() * (target[:, None] - target).sign()
    return concordance.sum() / (target[:, None] != target).sum().clamp(min=1)


def top2_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    """The target is among the two highest classes."""
    return (scores.topk(2, dim=-1).indices == target[:, None]).any(-1).float().mean()


def lift(scores: Tensor, target: Tensor) -> Tensor:
    """How much richer in positives the best tenth is than the whole."""
    best = target[scores.argsort(descending=True)[: len(scores) // 10]].float()
    return best.mean() / target.float().mean().clamp(min=1e-6)


Function = Callable[[Tensor, Tensor], Tensor]
EIGHTS: list[tuple[Function, float | None]] = [(profit, None), (f2, 1.0), (precision_at_recall, 1.0), (lift, None)]
DIGITS: list[tuple[Function, float | None]] = [(kappa, 1.0), (macro_f1, 1.0), (top2_accuracy, 1.0)]
SIZES: list[tuple[Function, float | None]] = [(kendall_tau, 1.0)]


def train(model: torch.nn.Module, loss: Function, x: Tensor, y: Tensor, steps: int, seed: int) -> None:
    """A plain loop with batches of 200."""
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (200,), generator=generator)
        optimizer.zero_grad()
        loss(model(x[batch]).squeeze(-1), y[batch]).backward()
        optimizer.step()


def compare(function: Function, best: float | None, digit: Tensor, x: tuple[Tensor, Tensor]) -> list[str]:
    """A row of the table: the metric on unseen data after more cross-entropy, and after training on it."""
    metric = mg.reexpress(function, best=best)
    target, ordinary = digit, F.cross_entropy
    if (function, best) in EIGHTS:
        target, ordinary = (digit == 8).long(), lambda s, y: F.binary_cross_entropy_with_logits(s, y.float())
    if (function, best) in SIZES:
        target, ordinary = digit, lambda s, y: F.mse_loss(s, y.float())
    y = target[: len(x[0])], target[len(x[0]) :]
    values = []
    for loss in (ordinary, mg.UniLoss(metric, slope=2.0)):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 10 if (function, best) in DIGITS else 1)
        train(model, ordinary, x[0], y[0], 200, seed=0)
        train(model, loss, x[0], y[0], 100, seed=1)
        values.append(metric(model(x[1]).squeeze(-1).detach(), y[1]).item())
    return [function.__name__, *(f"{value:.3f}" for value in values)]


def main() -> None:
    """Prints what was found in each function, and the table."""
    features, digit = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(features / 16.0, digit, test_size=1 / 3, random_state=0)
    x = torch.tensor(x_train, dtype=torch.float32), torch.tensor(x_test, dtype=torch.float32)
    digits = torch.cat([torch.tensor(y_train), torch.tensor(y_test)]).long()
    print(mg.reexpress(precision_at_recall, best=1.0).explain(torch.randn(12), torch.arange(12) % 3 == 0))
    print()
    table = Table(box=box.SIMPLE_HEAD, title="A linear model of digits, unseen third", title_justify="left")
    for column in ("metric", "ordinary loss", "trained on it"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for function, best in EIGHTS + DIGITS + SIZES:
        table.add_row(*compare(function, best, digits, x))
    Console().print(table)


if __name__ == "__main__":
    main()
