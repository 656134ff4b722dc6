"""A compiled step of training has the loss of the plain one, in one graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return ((scores > 0) * (amount * target - 1)).mean()


LOSSES: dict[str, Callable[[], mg.Surrogate]] = {
    "average precision": lambda: mg.UniLoss("average_precision"),
    "idw": lambda: mg.UniLoss(
        "f1", interpolation="idw", generator=torch.Generator().manual_seed(0)
    ),
    "ndcg": lambda: mg.UniLoss("ndcg"),
    "a function with amounts": lambda: mg.UniLoss(profit),
    "metric loss": lambda: mg.MetricLoss("f1"),
    "memory": lambda: mg.with_memory(mg.UniLoss("auc"), size=64),
    "learned": lambda: mg.ReLoss.pretrained("f1"),
    "baseline": lambda: mg.baselines.SoftFBeta(),
}


# The compiler looks at gradients of scores that have none of their own.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_training_is_the_plain_one(name: str) -> None:
    features = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    target = torch.arange(32) % 5 == 0
    rows: dict[str, Any] = {"amount": torch.arange(32.0)} if "amounts" in name else {}

    def trained(compiled: bool) -> tuple[list[float], Tensor]:
        torch._dynamo.reset()
        loss = LOSSES[name]()
        weight = torch.ones(4, requires_grad=True)

        def step(inputs: Tensor) -> Tensor:
            return loss(torch.tanh(inputs @ weight), target, **rows)

        called = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        values = []
        for _ in range(3):
            value = called(features)
            values.append(value.item())
            (gradient,) = torch.autograd.grad(value, weight)
            with torch.no_grad():
                weight -= 0.1 * gradient
        with torch.no_grad():
            values.append(called(features).item())
        return values, weight.detach()

    values, weight = trained(compiled=True)
    expected, of_plain = trained(compiled=False)
    assert values == expected
    torch.testing.assert_close(weight, of_plain, rtol=0, atol=0)
