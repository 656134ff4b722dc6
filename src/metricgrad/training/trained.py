"""What a training leaves behind: a model that decides where the metric wants it to, and how it came about."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.training.algorithm import modes_kept
from metricgrad.training.candidates import ORDINARY
from metricgrad.training.data import features, tensor
from metricgrad.training.search import Decision
from metricgrad.training.trials import Trial
from metricgrad.training.validation import ValidationItems, at_threshold, binary_scores

_CHUNK = 16384


@dataclass(kw_only=True)
class Trained:
    """A model and where it decides.

    Attributes:
        model: in `eval()` mode.
        metric: what it was trained for.
        threshold: a score above it is a positive decision; None where the metric has none.
    """

    model: nn.Module
    metric: Metric
    threshold: Tensor | None

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """Raw scores of items.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]` for binary scores, `[items, C]` otherwise.
        """
        with modes_kept(self.model):
            self.model.eval()
            found = torch.cat([self.model(part) for part in features(x).split(_CHUNK)])
        return (
            found
            if found.dim() == 1 or is_multilabel(self.metric)
            else binary_scores(self.metric, found)
        )

    def predict(self, x: Any) -> Tensor:
        """Decisions: 0 or 1 by the threshold, for binary scores and labels; the class of the highest score otherwise.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]`, or `[items, C]` for labels.
        """
        scores = self.scores(x)
        if scores.dim() == 1 or is_multilabel(self.metric):
            return (scores > (0.0 if self.threshold is None else self.threshold)).long()
        return scores.argmax(-1)

    def measure(self, x: Any, y: Any) -> float:
        """The metric of items, at the threshold.

        Args:
            x: `[items, ...]`.
            y: their targets, `[items]` or, as in `mg.fit`, `[items, 1]`.

        Returns:
            The metric.
        """
        metric, scores = at_threshold(self.metric, self.threshold, self.scores(x))
        target = tensor(y)
        column = scores.dim() == 1 and target.shape == (len(scores), 1)
        return float(metric(scores, target.squeeze(1) if column else target))


@dataclass(kw_only=True)
class Fit(Trained):
    """What `mg.fit` leaves behind: the model, and how it came about.

    Attributes:
        value: the metric on validation data.
        decision: who won, against whom, by how much.
        finalists: the models of `cross_entropy` and of the best `challenger`, as far as they took
            part; the model is one of them.
        trials: everything that was tried.
        validation: the validation items, of which the entrants' scores are.
        score_sets: sets of validation items as the entrants scored them, good and bad, to check
            losses on.
        folds: of validation; 1 is one cut.
        seconds: it took.
        stopped: whether Ctrl-C ended it: this is the best so far.
        contested: whether there were to be challengers; there are none if time ran out before them.
    """

    value: float
    decision: Decision
    finalists: dict[str, Trained]
    trials: list[Trial]
    validation: ValidationItems
    score_sets: list[ScoreSets]
    folds: int
    seconds: float
    stopped: bool = False
    contested: bool = False

    @property
    def method(self) -> str:
        """The loss that it was trained on, with its settings."""
        return str(self.decision.winner.candidate)

    def verdict(self) -> str:
        """Who won and by how much, in a sentence."""
        name, found = self.metric.name, self.decision
        how = f"by {self.folds}-fold cross-validation" if self.folds > 1 else "on validation data"
        if found.ordinary is None or found.challenger is None:
            told = f"{self.method}: {name} {self.value:.4f} {how}"
            return told + ("; there was no time for a challenger" if self.contested else "")
        plain = found.ordinary.candidate.method
        usual = "cross-entropy" if plain == ORDINARY else plain
        told = f"{name} {found.challenger.value:.4f} against {usual}'s {found.ordinary.value:.4f} {how}"
        told += f"; on other cuts the gain is {found.gain:.4f}" if found.again else ""
        told += f"; {found.luck:.4f} would be luck"
        if found.gain > found.luck and found.winner is found.ordinary:
            return f"{found.challenger.candidate} may be better, which no second meeting on other cuts has shown: {told}"
        if found.winner is found.challenger:
            return f"{self.method} is better: {told}"
        return f"{usual} is as good here: the best challenger, {found.challenger.candidate}, has {told}"
