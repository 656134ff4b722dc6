"""What enters a group and what comes out of it: a candidate with a learning rate, before and after its training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from metricgrad.training.candidates import Candidate

PlannedTrial = tuple[Candidate, float]


@dataclass(frozen=True)
class TrialSettings:
    """What the groups of one fit have in common; `mg.fit` describes them."""

    seed: int = 0
    decay: float = 0.0
    clip: float | None = 1.0
    memory: int = 0
    patience: int | None = None
    known: Mapping[str, Any] = field(
        default_factory=dict
    )  # what else a training that goes on must agree in


@dataclass(eq=False)
class Trial:
    """One entrant after its group: a candidate with a learning rate.

    Attributes:
        candidate: the loss.
        rate: its learning rate.
        epochs: how many it was trained for.
        epoch: the best of them.
        value: the metric there, on validation data; None if the training diverged.
        threshold: where it decides.
        scores: `[K, V, ...]`, of the validation data.
        state: of the model, where there is one fold.
        curve: `[epochs, 2]`, loss and metric.
    """

    candidate: Candidate
    rate: float
    epochs: int
    epoch: int
    value: float | None
    threshold: Tensor | None
    scores: Tensor
    state: dict[str, Tensor]
    curve: Tensor

    def forget(self) -> None:
        """Leaves scores and state, which take room, and keeps what tells how it went."""
        self.scores, self.state = self.scores[:0].clone(), {}
