"""Trees as a torch module, so that what scores items need not know what a model is made of."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metricgrad.boosting.growing import Forest


class BoostedTrees(nn.Module):
    """Trees that have been grown, as a model: columns in, raw scores out.

    It has no gradient. Its one parameter is empty: it says that columns are float64, where large
    whole numbers stay what they are.

    Attributes:
        forest: The trees, of whichever library grew them.
    """

    def __init__(self, forest: Forest) -> None:
        super().__init__()
        self.forest = forest
        self.empty = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[N]`, or `[N, classes]`, of columns `[N, columns]`."""
        return torch.from_numpy(self.forest.scores(x.cpu().numpy()).astype(np.float32))

    def extra_repr(self) -> str:
        """The library that grew the trees."""
        return self.forest.engine


def own_booster(model: nn.Module) -> Any:
    """The booster of a model, as its library has it; AttributeError where there is none."""
    if isinstance(model, BoostedTrees) and model.forest.booster is not None:
        return model.forest.booster
    raise AttributeError("booster_ exists only for models grown by LightGBM or XGBoost")
