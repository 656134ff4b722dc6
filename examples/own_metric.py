"""Write the metric, get the loss: eight metrics in plain torch, each trained on as it stands.

`mg.reexpress` watches a function run, finds the comparisons behind its `>`, `argmax`, `sort` and
`topk`, and replays it with other outcomes; `mg.UniLoss` makes a loss of that. First what was found
in one of the functions, then what training does to each: a linear model is trained on the ordinary
loss, and goes on either with that or with the metric, for the same number of steps. Values are of
data that neither has seen. Customers are made up: a small group that nearly always responds, and
many who do now and then; a linear model cannot have both, and the metric says which matters. Digits
come with scikit-learn. For figures on real data, with everything tuned: `python -m benchmarks run
own_metrics`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

import metricgrad as mg


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """What a contact earns, if the best tenth is contacted: 8 for a response, less 1 for the contact itself."""
    contacted = scores.topk(len(scores) // 10).indices
    return (8.0 * target[contacted] - 1.0).mean()


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


def customers(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features `[size, 6]` and responses `[size]`."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, 6, generator=generator)
    keen = (features[:, 0] > 1.5) & (features[:, 1].abs() < 1)
    now_and_then = torch.sigmoid(1.2 * features[:, 1] + 0.8 * features[:, 2] - 3.0)
    responds = torch.rand(size, generator=generator) < torch.where(keen, 0.8, now_and_then)
    return features, responds.long()


def digits() -> tuple[Tensor, Tensor]:
    """Images `[1797, 64]` and digits."""
    features, target = load_digits(return_X_y=True)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(features / 16.0, dtype=torch.float32)[order], torch.tensor(target)[
        order
    ].long()


def train(
    model: torch.nn.Module, loss: Function, x: Tensor, y: Tensor, steps: int, seed: int
) -> None:
    """A plain loop with batches of 200."""
    generator, optimizer = (
        torch.Generator().manual_seed(seed),
        torch.optim.Adam(model.parameters(), lr=0.003),
    )
    for _ in range(steps):
        batch = torch.randint(0, len(x), (200,), generator=generator)
        optimizer.zero_grad()
        loss(model(x[batch]).squeeze(-1), y[batch]).backward()
        optimizer.step()


def compare(
    metric: mg.Metric, ordinary: Function, outputs: int, x: Tensor, y: Tensor
) -> list[float]:
    """The metric on the second half of the data, after the ordinary loss alone and after training on the metric."""
    half, values = len(y) // 2, []
    for loss in (ordinary, mg.UniLoss(metric)):
        torch.manual_seed(0)
        model = torch.nn.Linear(x.shape[-1], outputs)
        train(model, ordinary, x[:half], y[:half], 200, seed=0)
        train(model, loss, x[:half], y[:half], 150, seed=1)
        scores = model(x).squeeze(-1).detach()
        if metric.name == "f2":  # it decides at a threshold, so that is tuned for both
            scores = scores - mg.best_threshold(scores[:half], y[:half], metric)
        values.append(metric(scores[half:], y[half:]).item())
    return values


def binary(scores: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of class indices."""
    return F.binary_cross_entropy_with_logits(scores, target.float())


def squared(scores: Tensor, target: Tensor) -> Tensor:
    """Squared error of class indices."""
    return F.mse_loss(scores, target.float())


def main() -> None:
    """Prints what was found in a function, and the table."""
    print(
        mg.reexpress(precision_at_recall, best=1.0).explain(
            torch.randn(12), torch.arange(12) % 3 == 0
        )
    )
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("data", "metric", "ordinary loss", "trained on it"):
        table.add_column(column, justify="left" if column in ("data", "metric") else "right")
    for function, best in ((profit, None), (lift, None), (f2, 1.0), (precision_at_recall, 1.0)):
        values = compare(mg.reexpress(function, best=best), binary, 1, *customers(40_000, seed=0))
        table.add_row("customers", function.__name__, *(f"{value:.3f}" for value in values))
    for function, ordinary, outputs in (
        (kappa, F.cross_entropy, 10),
        (macro_f1, F.cross_entropy, 10),
        (top2_accuracy, F.cross_entropy, 10),
        (kendall_tau, squared, 1),
    ):
        values = compare(mg.reexpress(function, best=1.0), ordinary, outputs, *digits())
        table.add_row("digits", function.__name__, *(f"{value:.3f}" for value in values))
    Console().print(table)


if __name__ == "__main__":
    main()
