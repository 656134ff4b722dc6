"""A fit that nothing was trained for, with scores that a test chose."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.training import Trained

THRESHOLD = torch.tensor(0.25)


class FakeFit(Trained):
    """What `mg.fit` returns, as far as estimators use it, with scores that the test chose."""

    def __init__(
        self, model: nn.Module, metric: Any, threshold: Tensor | None, **made: Any
    ) -> None:
        super().__init__(model=model, metric=metric, threshold=threshold)
        winner = SimpleNamespace(epoch=3, scores=made.get("scores", torch.tensor([[-1.0, 1.0]])))
        self.method = "uniloss"
        self.value = 0.5
        self.decision: Any = SimpleNamespace(winner=winner)
        target = made.get("target", torch.tensor([[0, 1]]))
        live = made.get("live", torch.ones(target.shape[:2], dtype=torch.bool))
        rows = made.get("rows", {})
        self.validation: Any = SimpleNamespace(target=target, live=live, rows=rows)
