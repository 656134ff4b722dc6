"""What may go wrong while a model and its surrogate are trained in turns, and what is done then.

the metric is NaN on some sets      a warning, once; those sets are left out
the metric is NaN on all of a round the training stops
the metric never changes            a warning, once, after 100 rounds: it gives no gradient
a value is not finite               the surrogate or the model has diverged: the training stops
the misfit stays above 100 ranges   the same, before it overflows
"""

import math
import warnings

import torch
from torch import Tensor

_WATCHED = 100  # rounds after which a metric that never changed is reported
_FAR = 100.0  # a misfit above this is far too large,
_PATIENCE = 50  # and stops the training after so many rounds


class TrainingError(RuntimeError):
    """Raised when a training cannot go on; model and loss are back at their last good state."""


class Guard:
    """Watches one run or many at once; `name` is the metric's, `items` the size of a batch."""

    def __init__(self, name: str, items: int) -> None:
        self._name = name
        self._items = items
        self._low = torch.zeros(())
        self._high = torch.zeros(())
        self._rounds = 0
        self._sets = 0
        self._far = 0
        self._warned = False

    def check_parameters(self, *vectors: Tensor) -> None:
        """Raises unless the parameters of model and surrogate are finite after their last steps."""
        for vector in vectors:
            if not math.isfinite(vector.detach().sum().item()) and not vector.isfinite().all():
                raise TrainingError("a parameter of the model or of the surrogate is not finite")

    def check_misfit(self, misfit: Tensor) -> None:
        """Raises if the distance from the metric is not finite, or stays far too large."""
        highest = misfit.mean(0).max().item()
        if not math.isfinite(highest):
            raise TrainingError("the surrogate's misfit is not finite")
        self._far = self._far + 1 if highest > _FAR else 0
        if self._far == _PATIENCE:
            raise TrainingError(
                f"the surrogate's misfit has been above {_FAR:g} for {_PATIENCE} rounds and is now "
                f"{highest:.3g}"
            )

    def check_truth(self, truth: Tensor) -> None:
        """Raises if the metric, as a loss `[K, ...]`, is NaN on all batches; warns if on some."""
        if self._rounds < _WATCHED:
            self._watch(truth)
        if math.isfinite(truth.sum().item()):
            return
        known = truth.isfinite()
        if not known.any(0).all():
            raise TrainingError(f"{self._name} gave NaN on all {len(truth)} batches of a round")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name} gave NaN on {int((~known).sum())} of {truth.numel()} batches of "
                f"{self._items} items, which are left out; larger or stratified batches may help",
                stacklevel=6,
            )

    def _watch(self, truth: Tensor) -> None:
        """Warns, once, if the metric has been the same from the start."""
        low = truth.nan_to_num(math.inf).amin(0)
        high = truth.nan_to_num(-math.inf).amax(0)
        self._low = torch.minimum(self._low, low) if self._rounds else low
        self._high = torch.maximum(self._high, high) if self._rounds else high
        self._rounds += 1
        self._sets += len(truth)
        if self._rounds == _WATCHED and (self._low >= self._high).any():
            value = self._low[self._low >= self._high].flatten()[0]
            warnings.warn(
                f"{self._name}, as a loss, was {value:.6g} on all of the first {self._sets} "
                f"batches of {self._items} items, so the surrogate has nothing to learn from them; "
                "larger or stratified batches may help, or a model that already knows something",
                stacklevel=7,
            )

    def state(self) -> Tensor:
        """Everything it has counted so far, as one tensor."""
        counts = [self._rounds, self._sets, self._far, self._warned]
        seen = [self._low.flatten().double(), self._high.flatten().double()]
        return torch.cat([torch.tensor(counts, dtype=torch.float64), *seen])

    def restore(self, state: Tensor) -> None:
        """Goes back to an earlier state."""
        self._rounds, self._sets, self._far = (int(count) for count in state[:3])
        self._warned = bool(state[3])
        self._low, self._high = state[4:].float().reshape(2, -1).squeeze(-1)
