"""Write a metric in plain torch, and train on it.

`mg.UniLoss` turns a function of `(scores, target)` into a loss. It watches the function run, finds
the comparisons behind its `>`, `argmax`, `sort` and `topk`, and asks what the result would be if
each of them had come out the other way. This script prints what it finds in one function. Then it
trains linear models for four functions. Each model is trained on cross-entropy first, and then for
150 more steps either on cross-entropy or on the metric. The table shows both on test data.

The customers are made up: a small group that nearly always responds to an offer, and many who
respond now and then. A linear model cannot find both, and the metric says which group matters. This
is one seed with fixed settings; `python -m benchmarks run own_metrics` has three seeds on real data
with everything tuned.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import metricgrad as mg

Function = Callable[[Tensor, Tensor], Tensor]


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """What a contact earns if the best tenth is contacted: 8 for a response, less a cost of 1."""
    contacted = scores.topk(len(scores) // 10).indices
    return (8.0 * target[contacted] - 1.0).mean()


def f2(scores: Tensor, target: Tensor) -> Tensor:
    """An F-score in which recall counts more than precision; decisions are made at score > 0."""
    predicted = scores > 0
    positive = target == 1
    hits = (predicted & positive).sum()
    return 5 * hits / (4 * positive.sum() + predicted.sum()).clamp(min=1)


def precision_at_recall(scores: Tensor, target: Tensor) -> Tensor:
    """The best precision at a recall of at least 0.8."""
    hits = target[scores.argsort(descending=True)].float()
    found = hits.cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1)
    return torch.where(found >= 0.8 * hits.sum(), precision, 0).max()


def macro_f1(scores: Tensor, target: Tensor) -> Tensor:
    """The mean F1 of the ten digits, in an ordinary Python loop."""
    predicted = scores.argmax(-1)
    total = torch.zeros(())
    for digit in range(10):
        chosen = predicted == digit
        true = target == digit
        total = total + 2 * (chosen & true).sum() / (chosen.sum() + true.sum()).clamp(min=1)
    return total / 10


def customers() -> tuple[Tensor, Tensor]:
    """Features `[40000, 6]` and responses `[40000]`."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40_000, 6, generator=generator)
    keen = (features[:, 0] > 1.5) & (features[:, 1].abs() < 1)
    now_and_then = torch.sigmoid(1.2 * features[:, 1] + 0.8 * features[:, 2] - 3.0)
    responds = torch.rand(40_000, generator=generator) < torch.where(keen, 0.8, now_and_then)
    return features, responds.long()


def digits() -> tuple[Tensor, Tensor]:
    """Images `[1797, 64]` of handwritten digits, and the digits."""
    images, target = load_digits(return_X_y=True)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16.0).float()[order], torch.tensor(target).long()[order]


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """The ordinary loss, for one score per item or one per class."""
    if scores.shape == target.shape:
        return F.binary_cross_entropy_with_logits(scores, target.float())
    return F.cross_entropy(scores, target)


def train(
    model: torch.nn.Module, loss: Function, x: Tensor, y: Tensor, steps: int, seed: int
) -> None:
    """A plain training loop with batches of 200 items."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (200,), generator=generator)
        optimizer.zero_grad()
        loss(model(x[batch]).squeeze(-1), y[batch]).backward()
        optimizer.step()


def test_value(metric: mg.Metric, loss: Function, outputs: int, x: Tensor, y: Tensor) -> float:
    """Trains on the first half of the data; returns the metric on the second half."""
    half = len(y) // 2
    torch.manual_seed(0)
    model = torch.nn.Linear(x.shape[-1], outputs)
    train(model, cross_entropy, x[:half], y[:half], steps=200, seed=0)
    train(model, loss, x[:half], y[:half], steps=150, seed=1)
    scores = model(x).squeeze(-1).detach()
    if metric.name == "f2":  # tune the threshold of the one metric that has one
        scores = scores - mg.best_threshold(scores[:half], y[:half], metric)
    return metric(scores[half:], y[half:]).item()


def main() -> None:
    """Prints what is found in a function, and what training on each function gives."""
    print(mg.reexpress(f2, best=1.0).explain(torch.randn(20), torch.arange(20) % 4 == 0))
    print(f"\n{'metric':20}{'cross-entropy':>15}{'trained on it':>15}")
    for function, best, (x, y), outputs in (
        (profit, None, customers(), 1),
        (f2, 1.0, customers(), 1),
        (precision_at_recall, 1.0, customers(), 1),
        (macro_f1, 1.0, digits(), 10),
    ):
        metric = mg.reexpress(function, best=best)
        usual = test_value(metric, cross_entropy, outputs, x, y)
        ours = test_value(metric, mg.UniLoss(metric), outputs, x, y)
        print(f"{function.__name__:20}{usual:15.3f}{ours:15.3f}")


if __name__ == "__main__":
    main()
