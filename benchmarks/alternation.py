"""Algorithm 1 of Learning Surrogate Losses in plain eager PyTorch: a yardstick for our speed.

It is written from the paper's pseudo-code without anything of the library. Every batch takes a
forward pass, scikit-learn's metric, and a step of `torch.optim.Adam` with clipped gradients.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn


def paper_network(
    features: int,
    hidden: Sequence[int] = (100, 30, 10),
    dropout: float = 0.2,
    normed: bool = False,
) -> nn.Sequential:
    """The paper's model (Sec. 4.1): hidden layers with batch norm, dropout and Leaky-ReLU.

    The paper has batch norm "at each layer", which may mean the output too: `normed`.
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [
            nn.Linear(features, width),
            nn.BatchNorm1d(width),
            nn.Dropout(dropout),
            nn.LeakyReLU(),
        ]
        features = width
    output = [nn.Linear(features, 1), *[nn.BatchNorm1d(1)] * normed, nn.Flatten(0)]
    return nn.Sequential(*layers, *output)


class SetNetwork(nn.Module):
    """h(mean_i g(y_i, s_i)), Eqn. 2, with the paper's widths."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(2, 30), nn.LeakyReLU(), nn.Linear(30, 30), nn.LeakyReLU())
        self.h = nn.Sequential(
            nn.Linear(30, 10),
            nn.LeakyReLU(),
            nn.Linear(10, 10),
            nn.LeakyReLU(),
            nn.Linear(10, 1),
            nn.Flatten(0),
        )

    def forward(self, target: Tensor, scores: Tensor) -> Tensor:
        """The surrogate's value of one set."""
        items = self.g(torch.stack([target.float(), scores], -1))
        return self.h(items.mean(0, keepdim=True)).squeeze(0)


class PlainAlternation:
    """The paper's loop, for a metric `(target, scores) -> number` of which higher is better."""

    def __init__(
        self,
        model: nn.Module,
        metric: Callable[[np.ndarray, np.ndarray], float],
        x: Tensor,
        y: Tensor,
        rate: float = 1e-3,
        clip: float = 1.0,
        batch: int = 100,
    ) -> None:
        self.model = model
        self.surrogate = SetNetwork()
        self.metric = metric
        self.x = x
        self.y = y
        self.model_adam = torch.optim.Adam(model.parameters(), rate)
        self.surrogate_adam = torch.optim.Adam(self.surrogate.parameters(), rate)
        self.clip = clip
        self.classes = [(y == value).nonzero().squeeze(-1) for value in (0, 1)]
        positives = max(1, round(batch * len(self.classes[1]) / len(y)))
        self.counts = (batch - positives, positives)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Draws a batch with the same share of positives as the data."""
        parts = zip(self.classes, self.counts, strict=True)
        index = torch.cat(
            [members[torch.randint(len(members), (count,))] for members, count in parts]
        )
        return self.x[index], self.y[index]

    def iterate(self, model_steps: int = 3, surrogate_steps: int = 10) -> None:
        """Lines 3 to 13: some steps of the model, then some of the surrogate."""
        self.model.train()
        for _ in range(model_steps):
            x, y = self.sample()
            self.model_adam.zero_grad()
            self.surrogate(y, self.model(x)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.model_adam.step()
        self.model.eval()
        for _ in range(surrogate_steps):
            x, y = self.sample()
            with torch.no_grad():
                scores = self.model(x)
            truth = 1 - self.metric(y.numpy(), scores.numpy())
            self.surrogate_adam.zero_grad()
            (self.surrogate(y, scores) - truth).abs().backward()
            nn.utils.clip_grad_norm_(self.surrogate.parameters(), self.clip)
            self.surrogate_adam.step()
