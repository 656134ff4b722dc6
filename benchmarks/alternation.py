"""Algorithm 1 of Learning Surrogate Losses as its pseudo-code reads, in plain eager PyTorch: the yardstick of speed.

Batch by batch: a forward pass, scikit-learn's metric, a step of `torch.optim.Adam` with clipped
gradients. It is written as one would from the paper, with nothing of the library.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn


def paper_network(
    features: int, hidden: Sequence[int] = (100, 30, 10), dropout: float = 0.2
) -> nn.Sequential:
    """The paper's prediction model (Sec. 4.1): batch normalisation, dropout and Leaky-ReLU after each hidden layer."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [
            nn.Linear(features, width),
            nn.BatchNorm1d(width),
            nn.Dropout(dropout),
            nn.LeakyReLU(),
        ]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, 1), nn.Flatten(0))


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
        """The surrogate of one set."""
        return self.h(
            self.g(torch.stack([target.float(), scores], -1)).mean(0, keepdim=True)
        ).squeeze(0)


class PlainAlternation:
    """The paper's loop.

    Args:
        model: the prediction model.
        metric: `(target, scores) -> number` of NumPy arrays, higher is better.
        x: `[items, features]`.
        y: `[items]`, 0 and 1.
        rate: the learning rate of both.
        clip: the longest gradient.
        batch: items of a batch.
    """

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
        self.model, self.surrogate, self.metric, self.x, self.y = model, SetNetwork(), metric, x, y
        self.model_adam = torch.optim.Adam(model.parameters(), rate)
        self.surrogate_adam = torch.optim.Adam(self.surrogate.parameters(), rate)
        self.clip = clip
        self.classes = [(y == value).nonzero().squeeze(-1) for value in (0, 1)]
        positives = max(1, round(batch * len(self.classes[1]) / len(y)))
        self.counts = batch - positives, positives

    def sample(self) -> tuple[Tensor, Tensor]:
        """A stratified batch."""
        parts = zip(self.classes, self.counts, strict=True)
        index = torch.cat(
            [members[torch.randint(len(members), (count,))] for members, count in parts]
        )
        return self.x[index], self.y[index]

    def iterate(self, model_steps: int = 3, surrogate_steps: int = 10) -> None:
        """Lines 3 to 13."""
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
