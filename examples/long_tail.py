"""Train a classifier on rare classes: macro F1 in place of cross-entropy.

The digits of scikit-learn get rarer from 0 to 9, down to a fiftieth; the test part has as many
of each. Cross-entropy rarely predicts a rare digit. There are two ways out: `mg.best_offsets`
moves the decision of a trained network by one number per class, tuned on validation data, and
`mg.MetricLoss("f1")` trains the metric itself. Compare them on your data. This is one seed;
`python -m benchmarks run long_tail` has three, on images of CIFAR-10.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import metricgrad as mg


def long_tail(y: Tensor, most: int, imbalance: float) -> Tensor:
    """Indices of the items of each class that are kept, fewer from class to class."""
    kept = []
    for label in range(10):
        number = round(most * imbalance ** (-label / 9))
        kept.append((y == label).nonzero().squeeze(-1)[:number])
    return torch.cat(kept)


def trained(loss: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A small network after 300 steps on a loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(300):
        batch = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model


def main() -> None:
    """Prints the macro F1 of test digits, with and without tuned offsets."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(pixels, dtype=torch.float32)[order] / 16
    y = torch.tensor(digits)[order]
    train_x, valid_x, test_x = x[:1000], x[1000:1300], x[1300:]
    train, valid, test = y[:1000], y[1000:1300], y[1300:]
    kept = long_tail(train, most=90, imbalance=50.0)
    metric = mg.metric("f1")
    for name, loss in (
        ("cross-entropy", nn.CrossEntropyLoss()),
        ("MetricLoss", mg.MetricLoss(metric)),
    ):
        model = trained(loss, train_x[kept], train[kept])
        with torch.no_grad():
            offsets = mg.best_offsets(model(valid_x), valid, metric)
            scores = model(test_x)
        plain = metric(scores, test).item()
        tuned = metric(scores + offsets, test).item()
        print(f"{name:13}  macro F1 {plain:.3f}, with tuned offsets {tuned:.3f}")


if __name__ == "__main__":
    main()
