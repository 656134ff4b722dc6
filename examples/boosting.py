"""Boosted trees for the profit of the best tenth: whom should we call if we can call 10 %?

A call costs 1 and earns the customer's amount if they buy. LightGBM on log loss finds out who buys,
and its best tenth are the surest buyers, who spend little. The same trees, continued on the profit
of the best tenth, find those who are worth a call. Only the objective is another one.

This profit is a sum over customers, so there is a loss made for it: a regression on what each of
them spends. It does about as well. The objective needs no such idea, only the metric.

The customers are made up. What somebody spends is known once they have bought, so it is there to
train on and to count the profit, but not to decide whom to call. This is one seed with fixed
settings.
"""

import lightgbm as lgb
import numpy as np
import torch
from torch import Tensor

import metricgrad as mg

QUIET = {"verbose": -1, "num_threads": 1, "seed": 0, "num_leaves": 15}


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    """Profit for each call, if the tenth with the highest scores is called."""
    calls = max(1, len(scores) // 10)
    called = scores > scores.sort(descending=True).values[calls]
    return (called * (target * amount - 1.0)).sum() / calls


def customers(number: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns `[number, 6]`, who buys `[number]`, and for how much `[number]`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 6))
    chance = 1 / (1 + np.exp(2.0 - 1.5 * x[:, 0] - x[:, 1] * x[:, 2]))
    buys = (rng.random(number) < chance).astype(int)
    amount = 2.0 * np.exp(x[:, 3] - 0.5 * x[:, 0] + 0.5 * rng.normal(size=number))
    return x, buys, amount


def main() -> None:
    """Prints the profit for each call, by objective."""
    x, buys, amount = customers(10_000, seed=0)
    ordinary = lgb.train({**QUIET, "objective": "binary"}, lgb.Dataset(x, buys), 50)

    objective = mg.boosting.objective(
        profit, rows={"amount": amount}, generator=torch.Generator().manual_seed(0)
    )
    start = mg.boosting.start(ordinary, x)
    data = lgb.Dataset(x, buys, init_score=start)
    continued = lgb.train({**QUIET, "objective": objective}, data, 50)
    spent = lgb.train({**QUIET, "objective": "regression"}, lgb.Dataset(x, buys * amount), 50)

    x, buys, amount = customers(50_000, seed=1)
    start = mg.boosting.start(ordinary, x)
    for name, scores in (
        ("log loss", start),
        ("log loss, then profit", start + np.asarray(continued.predict(x))),
        ("what each of them spends", spent.predict(x)),
    ):
        value = mg.metric(profit)(scores, buys, amount=amount).item()
        print(f"trees on {name:25} profit for each call {value:6.3f}")


if __name__ == "__main__":
    main()
