"""Train on a profit in which every customer has an amount of their own.

Contacting a customer costs 1 and earns their amount if they respond. Which customers are worth it?
`profit` says so in one line, and takes the amounts as a third argument. The loss passes them on by
that name: `loss(scores, target, amount=amount)`.

The customers are made up. Those who respond most often spend little; those who spend much respond
rarely. What somebody spends is known once they have bought, so it is there to train on and to count
the profit, but not to decide who is contacted. Cross-entropy finds out who responds, and no
threshold turns that into who is worth a contact. Trained on the profit, the same linear model
weighs both. This is one seed with fixed settings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg

COST = 1.0


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    """Profit for each customer on the list, if those with a score above 0 are contacted."""
    contacted = scores > 0
    return (contacted * (target * amount - COST)).mean()


def customers(number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features `[number, 6]`, responses `[number]`, and what a response is worth `[number]`."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(number, 6, generator=generator)
    chance = torch.sigmoid(1.5 * features[:, 0] + features[:, 1] - 2.0)
    responds = torch.rand(number, generator=generator) < chance
    noise = torch.randn(number, generator=generator)
    amount = 2.0 * torch.exp(features[:, 2] - 0.5 * features[:, 0] + 0.5 * noise)
    return features, responds.long(), amount


def train(on_profit: bool) -> torch.nn.Module:
    """A plain training loop with batches of 200 customers."""
    features, responds, amount = customers(5000, seed=0)
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    loss = mg.UniLoss(profit, slope=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        batch = torch.randint(0, len(features), (200,), generator=generator)
        scores = model(features[batch]).squeeze(-1)
        optimizer.zero_grad()
        if on_profit:
            loss(scores, responds[batch], amount=amount[batch]).backward()
        else:
            F.binary_cross_entropy_with_logits(scores, responds[batch].float()).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def test_profit(model: torch.nn.Module) -> float:
    """The profit of new customers, at the threshold that is best on validation data."""
    features, responds, amount = customers(5000, seed=1)
    scores = model(features).squeeze(-1)
    threshold = mg.best_threshold(scores, responds, profit, amount=amount)
    features, responds, amount = customers(50_000, seed=2)
    scores = model(features).squeeze(-1) - threshold
    return mg.metric(profit)(scores, responds, amount=amount).item()


def main() -> None:
    """Prints the profit for each customer, by loss."""
    print("profit for each customer on the list, threshold tuned")
    print(f"{'cross-entropy':20}{test_profit(train(on_profit=False)):8.3f}")
    print(f"{'trained on it':20}{test_profit(train(on_profit=True)):8.3f}")


if __name__ == "__main__":
    main()
