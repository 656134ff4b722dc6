"""What training leaves behind: a model, the threshold at which it decides, and how it was found."""

import html
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics.one_score import item_target
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.training.data import CHUNK, features, numbers
from metricgrad.training.decision import Decision
from metricgrad.training.labels import label
from metricgrad.training.stack import modes_kept
from metricgrad.training.trials import Trial, best_first
from metricgrad.training.validation import ValidationItems

_SHOWN = 5  # trials in the table of a `Fit`,
_COLUMNS = 100  # and letters in a line above it
_SETS = 512  # score sets that are kept,
_SET = 128  # and the items of each


@dataclass(kw_only=True)
class Trained:
    """A model and the threshold at which it decides.

    Attributes:
        model: The trained model, in `eval()` mode, with the weights of the chosen epoch.
        metric: The metric that it was trained for.
        threshold: A score above it is a positive decision. For many classes there is one each, and
            the class that is highest above its own wins. None if the metric has no threshold.
    """

    model: nn.Module
    metric: Metric
    threshold: Tensor | None

    @property
    def offsets(self) -> Tensor | None:
        """Numbers that are added to the scores of the classes, `[C]`; None if there are none."""
        if self.threshold is None or not self.threshold.dim() or self.metric.layout == "labels":
            return None
        return -self.threshold

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """Raw scores of items, without offsets.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]` for binary scores, `[items, C]` otherwise.
        """
        with modes_kept(self.model):
            self.model.eval()
            own = next(self.model.parameters(), torch.zeros(0))
            parts = features(x, own.dtype).split(CHUNK)
            found = torch.cat([self.model(part.to(own.device)).cpu() for part in parts])
        if found.dim() == 1 or self.metric.layout == "labels":
            return found
        target = found[..., 0]  # of the same shape as the target of such scores
        return self.metric.item_scores(found, target)

    def predict(self, x: Any) -> Tensor:
        """Decisions: 0 or 1 for binary scores and labels, otherwise the class of the highest score.

        Thresholds and offsets that were tuned with the model are applied.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]`, `[items, C]` for labels, or `[items, H, W]` for label maps.
        """
        scores = self.scores(x)
        if scores.dim() == 1 or self.metric.layout == "labels":
            return (scores > (0.0 if self.threshold is None else self.threshold)).long()
        if self.offsets is not None:
            scores = self.metric.at_threshold(self.threshold, scores)[1]
        classes = self.metric.class_dim
        if self.metric.layout == "maps" and scores.shape[classes] == 1:  # one score a pixel
            return (scores.squeeze(classes) > 0).long()
        return scores.argmax(classes)

    def measure(self, x: Any, y: Any, **rows: Any) -> float:
        """The metric of items, at the threshold.

        Args:
            x: `[items, ...]`, an array or a tensor.
            y: Their targets, `[items]` or, as in `mg.fit`, `[items, 1]`.
            **rows: Further arguments of the metric, by name: `[items]`.
        """
        return self.measure_scores(self.scores(x), y, **rows)

    def measure_scores(self, scores: Tensor, y: Any, **rows: Any) -> float:
        """The metric of items whose scores are known, at the threshold.

        Args:
            scores: The scores of the items, as `scores` returns them.
            y: Their targets, as in `measure`.
            **rows: Further arguments of the metric, as in `measure`.
        """
        metric, scores = self.metric.at_threshold(self.threshold, scores)
        return float(metric(scores, item_target(numbers(y), metric), **rows))


class Finalists(NamedTuple):
    """The models that were compared at the end; a side that was not tried is None.

    Attributes:
        ordinary: Trained on the ordinary loss, such as cross-entropy, or ListNet for queries.
        challenger: Trained on the best other loss.
    """

    ordinary: Trained | None = None
    challenger: Trained | None = None

    @classmethod
    def of(cls, decision: Decision, metric: Metric, model: Callable[[Trial], nn.Module]) -> Self:
        """Both sides of a decision, the ordinary one first, each with the model of its trial."""
        return cls(
            *(
                None
                if trial is None
                else Trained(model=model(trial), metric=metric, threshold=trial.threshold)
                for trial in (decision.ordinary, decision.challenger)
            )
        )


class ComparedModel(NamedTuple):
    """A kind of model that was trained, the loss that it took, and its validation value."""

    name: str
    method: str
    value: float


@dataclass(kw_only=True, repr=False)
class Fit(Trained):
    """What `mg.fit` returns: the trained model, and how it was found.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.linspace(-1, 1, 200).unsqueeze(-1)
        >>> y = (x[:, 0] > 0.5).long()
        >>> found = mg.fit(torch.nn.Linear(1, 1), (x, y), metric="f1", method="uniloss", epochs=2)
        >>> found.predict(x).shape, found.metric.name, found.folds
        (torch.Size([200]), 'f1', 5)

    Attributes:
        value: The metric of the model on validation data, at its threshold or offsets.
        decision: Which trial won, against which, and by how much.
        finalists: The models of the `ordinary` loss and of the best `challenger`, as far as they
            were tried. The model is one of them.
        trials: All candidates at all learning rates that were tried, with their curves.
        validation: The validation items, which the scores of the trials belong to.
        score_sets: Sets of validation items as the trials scored them, well and badly, on which
            losses can be checked.
        folds: Folds of cross-validation; 1 is a single split.
        seconds: Duration of the whole call, with the search and all trainings.
        stopped: Whether Ctrl-C ended the search; this is the best result until then.
        contested: Whether the search was meant to try challengers; it may have run out of time.
        models: The kinds of models that an estimator compared, starting with the one that it took;
            a single entry if there was no choice. Empty for your own model.
        models_luck: A gain of one kind of model over another below this value could be chance.
        unit: What a trial counts: epochs or trees.
    """

    value: float
    decision: Decision
    finalists: Finalists
    trials: list[Trial]
    validation: ValidationItems
    score_sets: list[ScoreSets]
    folds: int
    seconds: float
    stopped: bool = False
    contested: bool = False
    models: list[ComparedModel] = field(default_factory=list)
    models_luck: float = 0.0
    unit: Literal["epoch", "tree"] = "epoch"

    @property
    def method(self) -> str:
        """The loss that the model was trained on, with its settings."""
        return str(self.decision.winner.candidate)

    def verdict(self) -> str:
        """Which loss won and by how much, in a few sentences."""
        name = label(self.metric.name)
        found = self.decision
        how = f"by {self.folds}-fold cross-validation" if self.folds > 1 else "on validation data"
        if found.ordinary is None or found.challenger is None:
            return f"{label(self.method)}: {name} {self.value:.4f} {how}.{self._uncontested()}"
        usual = label(str(found.ordinary.candidate))
        challenger = label(str(found.challenger.candidate))
        if found.winner is found.challenger:
            head = f"{challenger} is better than {usual}"
        elif found.gain > found.luck:
            head = f"{challenger} may be better, but it was not compared again on other splits"
        elif found.gain < -found.luck:
            head = f"The best challenger, {challenger}, is worse than {usual}"
        else:
            head = f"No difference is shown between {usual} and the best challenger, {challenger}"
        told = [
            f"{head}: {name} {found.challenger.value:.4f} for {challenger} and "
            f"{found.ordinary.value:.4f} for {usual}, {how}."
        ]
        if found.again:
            told.append(f"On other splits of the data the gain is {found.gain:.4f}.")
        told.append(f"A gain below {found.luck:.4f} could be chance.")
        return " ".join(told)

    def _uncontested(self) -> str:
        """Why no challenger met the ordinary loss, where one was to: a sentence, or nothing."""
        if not self.contested:
            return ""
        usual = self.decision.winner.candidate.method
        left = [each for each in self.trials if each.candidate.method != usual]
        if self.unit == "epoch" or not left:
            return " There was no time for a challenger."
        best = best_first(left, self.metric)[0]
        return (
            f" {label(str(best.candidate))} was no better on {best.folds} of the {self.folds} "
            "folds, and was not trained on the others."
        )

    def models_verdict(self) -> str:
        """Which kind of model was taken, if there was a choice; otherwise an empty text."""
        if len(self.models) < 2:
            return ""
        taken, *others = self.models
        rest = ", ".join(f"{each.name} {each.value:.4f}" for each in others)
        return (
            f"Chosen among {len(self.models)} kinds of models: {taken.name}, "
            f"{label(self.metric.name)} {taken.value:.4f}. The others: {rest}. A difference below "
            f"{self.models_luck:.4f} could be chance."
        )

    def __repr__(self) -> str:
        header, *rows = self._table()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (header, *rows)
        ]
        told = [self._headline()]
        for sentences in (self.models_verdict(), self.verdict()):
            told += textwrap.wrap(sentences, _COLUMNS)
        return "\n".join([*told, "", *lines, "", self._footer()])

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._table()
        )
        return (
            f"<p><b>{html.escape(self._headline())}</b><br>"
            f"{html.escape(f'{self.models_verdict()} {self.verdict()}'.strip())}</p>"
            f"<table>{rows}</table><p>{html.escape(self._footer())}</p>"
        )

    def _headline(self) -> str:
        """Metric, winner, value and threshold in a line."""
        name = label(self.metric.name)
        line = f"Fit: {name} {self.value:.4f}, trained on {label(self.method)}"
        if self.threshold is None:
            return line
        kind = "thresholds" if self.offsets is None else "offsets"
        cuts = (self.threshold if self.offsets is None else self.offsets).flatten().tolist()
        if len(cuts) == 1:
            return f"{line}, threshold {cuts[0]:.4g}"
        return f"{line}, {len(cuts)} {kind} from {min(cuts):.4g} to {max(cuts):.4g}"

    def _table(self) -> list[tuple[str, ...]]:
        """The best few trials on all folds, the best first, below a header.

        Rounds of a search that are equally long train the same again, so the last one stands for
        them, or the one that was compared in the end.
        """
        whole: dict[tuple[str, float, int], Trial] = {}
        for trial in self.trials:
            key = (str(trial.candidate), trial.rate, trial.epochs)
            known = whole.get(key)
            compared = known in (self.decision.ordinary, self.decision.challenger)
            if trial.value is not None and trial.folds >= self.folds:
                whole[key] = known if known is not None and compared else trial
        rows = [
            (
                f"{trial.value:.4f}",
                label(str(trial.candidate)),
                f"{trial.rate:g}",
                f"{trial.epoch} of {trial.epochs}",
            )
            for trial in best_first(list(whole.values()), self.metric)[:_SHOWN]
        ]
        kept = "best epoch" if self.unit == "epoch" else "trees"
        return [(label(self.metric.name), "trial", "rate", kept), *rows]

    def _footer(self) -> str:
        """How many trials there were, how they were validated, and how long it took."""
        trials = f"{len(self.trials)} trial{'s' if len(self.trials) > 1 else ''}"
        split = f"{self.folds} folds" if self.folds > 1 else "one split"
        stopped = ", stopped early" if self.stopped else ""
        return f"{trials}, {split}, {self.seconds:.1f} s{stopped}"


def kept_score_sets(trials: list[Trial], items: ValidationItems, seed: int) -> list[ScoreSets]:
    """A few sets of validation items, drawn at random, as each trial scored them."""
    if items.where is not None or items.rows:  # a score set has scores and target alone
        return []
    generator = torch.Generator().manual_seed(seed)
    number = max(1, _SETS // len(trials))
    found = []
    for trial in trials:
        if trial.value is not None:
            fold = int(torch.randint(len(trial.scores), (), generator=generator))
            known = items.live[fold].nonzero().squeeze(-1)
            size = (number, min(_SET, len(known)))
            drawn = known[torch.randint(len(known), size, generator=generator)]
            found.append(ScoreSets(trial.scores[fold][drawn], items.target[fold][drawn]))
    return found
