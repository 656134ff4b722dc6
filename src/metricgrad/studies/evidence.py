"""What the figures of a run are drawn from: scores, decisions, and how losses rank score sets.

Evidence is stored in `evidence.npz`, one array a name, so that `metricgrad report` can draw the
figures again without the model or the data.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from metricgrad.estimators.ranker import query_scores, query_values
from metricgrad.metrics import Metric
from metricgrad.metrics.rows import at
from metricgrad.storage import complete_file, read_arrays
from metricgrad.studies.results import Finalist, Interval, Role
from metricgrad.surrogates import Surrogate, UniLoss, rank_correlation
from metricgrad.training import Fit, Trained
from metricgrad.training.candidates import Candidate, ordinary_candidate
from metricgrad.training.data import Items
from metricgrad.training.labels import label
from metricgrad.training.trials import Trial
from metricgrad.training.validation import bootstrap

_CUTS = 300  # thresholds at which a metric is drawn,
_OWN_CUTS = 100  # and a function of the user's own
_DRAWS = 200  # of the queries of a test part
_KEPT = 100_000  # items that are stored of validation and of test data, at most


@dataclass(frozen=True)
class TestedRows:
    """Test rows as the model takes them, and their classes, where they have some."""

    items: Items
    classes: list[str] = field(default_factory=list)
    positive_share: float | None = None


@dataclass(frozen=True)
class TestedFinalist:
    """A finalist with its trial, its role and its model."""

    role: Role
    trial: Trial
    trained: Trained


@dataclass(frozen=True)
class FinalistScores:
    """Scores of a finalist; `decisions` on test data are None for a metric of order.

    `curve` has thresholds and the metric of validation data there, `[2, K]`. It is kept for
    functions of the user's own, which a report could not call again.
    """

    role: Role
    test: np.ndarray
    validation: np.ndarray
    decisions: np.ndarray | None
    curve: np.ndarray | None = None


@dataclass(frozen=True)
class LossAlignment:
    """A loss beside the metric, over score sets, with their rank correlation."""

    label: str
    losses: np.ndarray
    values: np.ndarray
    spearman: float


@dataclass(frozen=True)
class Evidence:
    """Targets, the scores of each finalist, and how well losses are aligned with the metric."""

    test_target: np.ndarray
    validation_target: np.ndarray
    finalists: list[FinalistScores]
    alignments: list[LossAlignment]

    @classmethod
    def gather(cls, fit: Fit, items: Items) -> Self:
        """Scores, decisions and alignment of the finalists, on validation and test data."""
        kept = items.take(torch.arange(min(len(items), _KEPT)))
        tested = Items(kept.x, kept.y, kept.where, kept.rows)
        live = fit.validation.live
        finalists: list[FinalistScores] = []
        for each in finalists_of(fit):
            trained = each.trained
            scores = _test_scores(trained, tested)
            one_score = scores.dim() == 1
            decides = trained.threshold is not None if one_score else fit.metric.layout != "labels"
            decides = decides and tested.where is None
            finalists.append(
                FinalistScores(
                    each.role,
                    scores.numpy(),
                    each.trial.scores[live].numpy()[:_KEPT],
                    trained.predict(tested.x).numpy() if decides else None,
                    None if fit.metric.portable else _own_curve(fit, each.trial),
                )
            )
        target = fit.validation.target[live].numpy()[:_KEPT]
        return cls(tested.y.numpy(), target, finalists, _alignments(fit))

    def of(self, finalist: Finalist) -> FinalistScores:
        """The scores of a finalist; ValueError where the file has none."""
        found = next((each for each in self.finalists if each.role == finalist.role), None)
        if found is None:
            raise ValueError(f"evidence.npz has no scores of {finalist.method}; run it again")
        return found

    def save(self, path: Path) -> None:
        """Writes all arrays to one `.npz` file."""
        found = {"test_target": self.test_target, "valid_target": self.validation_target}
        for each in self.finalists:
            found[f"test_{each.role}"] = each.test
            if each.decisions is not None:
                found[f"decided_{each.role}"] = each.decisions
            found[f"valid_{each.role}"] = each.validation
            if each.curve is not None:
                found[f"curve_{each.role}"] = each.curve
        if self.alignments:
            found["aligned_names"] = np.asarray([each.label for each in self.alignments])
        for number, each in enumerate(self.alignments):
            found[f"aligned_{number}_losses"] = each.losses
            found[f"aligned_{number}_values"] = each.values
            found[f"aligned_{number}_spearman"] = np.asarray(each.spearman)
        arrays: Any = found  # NumPy's annotation takes keywords for flags
        # An open file, as NumPy would append .npz to a temporary name.
        with complete_file(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote."""
        found = read_arrays(path)
        finalists = [
            FinalistScores(
                role,
                found[f"test_{role}"],
                found[f"valid_{role}"],
                found.get(f"decided_{role}"),
                found.get(f"curve_{role}"),
            )
            for role in get_args(Role)
            if f"test_{role}" in found
        ]
        alignments = [
            LossAlignment(
                str(name),
                found[f"aligned_{number}_losses"],
                found[f"aligned_{number}_values"],
                float(found[f"aligned_{number}_spearman"]),
            )
            for number, name in enumerate(found.get("aligned_names", []))
        ]
        return cls(found["test_target"], found["valid_target"], finalists, alignments)


def finalists_of(fit: Fit) -> list[TestedFinalist]:
    """The ordinary loss and its best challenger, as far as they took part."""
    trials = (fit.decision.ordinary, fit.decision.challenger)
    return [
        TestedFinalist(role, trial, trained)
        for role, trial, trained in zip(get_args(Role), trials, fit.finalists, strict=True)
        if trial is not None and trained is not None
    ]


def threshold_curve(
    metric: Metric, scores: Tensor, target: Tensor, chosen: float, number: int = _CUTS
) -> np.ndarray:
    """Thresholds, the chosen one among them, and the metric there: `[2, K]`."""
    cuts = cuts_of(scores.numpy(), chosen, number)
    values = []
    for cut in cuts:
        moved, at_cut = metric.at_threshold(torch.tensor(cut), scores)
        values.append(float(moved(at_cut, target)))
    return np.stack([cuts, values])


def cuts_of(scores: np.ndarray, chosen: float, number: int = _CUTS) -> np.ndarray:
    """Thresholds to draw, the chosen one among them: dense where few items are above.

    They lie halfway between neighbouring scores. Their ranks grow by a constant factor, so that one
    per cent of positives has as many of them as the rest.
    """
    ordered = np.unique(scores.astype(np.float64))[::-1]
    if len(ordered) < 2:
        return np.asarray([chosen])
    ranks = np.unique(np.geomspace(1, len(ordered) - 1, number).round().astype(int))
    halfway = (ordered[ranks - 1] + ordered[ranks]) / 2
    return np.unique(np.append(halfway, chosen))


def _own_curve(fit: Fit, trial: Trial) -> np.ndarray | None:
    """The curve of a function, at few thresholds, as it may be slow; None if it has none."""
    if trial.threshold is None or trial.threshold.dim():
        return None
    live = fit.validation.live
    kept = at(at(fit.validation.rows, live), slice(_KEPT))
    scores, target = (each[live][:_KEPT] for each in (trial.scores, fit.validation.target))
    chosen = trial.threshold.item()
    return threshold_curve(fit.metric.with_rows(kept), scores, target, chosen, _OWN_CUTS)


def value_on_test(trained: Trained, items: Items) -> float:
    """The metric of test rows; of queries the mean over those that have a relevant document."""
    if items.where is None:
        return trained.measure(items.x, items.y, **items.rows)
    return float(query_values(trained, items).mean())


def bootstrap_intervals(fit: Fit, items: Items) -> tuple[list[Interval], Interval | None]:
    """95 % intervals of each finalist's value on test data, and of the gain between two.

    They come from resampled rows, or queries; both finalists are measured on the same draws.
    """
    draws = [_draws(each.trained, items) for each in finalists_of(fit)]
    gain = None
    if len(draws) == 2:
        better = draws[1] - draws[0]
        gain = _quantiles(better if fit.metric.higher_is_better else -better)
    return [_quantiles(each) for each in draws], gain


def _test_scores(trained: Trained, items: Items) -> Tensor:
    """Scores of test rows; those of queries, which are padded, `[queries, documents]`."""
    return trained.scores(items.x) if items.where is None else query_scores(trained, items)


def _draws(trained: Trained, items: Items) -> Tensor:
    """The metric on draws of the test rows, or of the queries, with replacement."""
    generator = torch.Generator().manual_seed(0)
    if items.where is None:
        scores = trained.scores(items.x)
        measured = (trained.metric, trained.threshold, scores, items.y, generator)
        return bootstrap(*measured, items.rows).double()
    values = query_values(trained, items).double()
    drawn = torch.randint(len(values), (_DRAWS, len(values)), generator=generator)
    return values[drawn].mean(-1)


class _Relaxed(Surrogate):
    """UniLoss by the function whose gradient it has; its own value is the metric itself."""

    def __init__(self, loss: UniLoss) -> None:
        super().__init__()
        self.loss = loss

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The interpolation of every set, and whether it is defined there."""
        return self.loss.relaxed(scores, target, where), self.loss.losses(scores, target, where)[1]

    def config(self) -> dict[str, object]:
        """The configuration of the loss."""
        return self.loss.config()


def _alignments(fit: Fit) -> list[LossAlignment]:
    """Cross-entropy and the best other loss on the score sets of the search."""
    if len(fit.score_sets) < 3:
        return []
    best = (fit.decision.challenger or fit.decision.winner).candidate
    usual = ordinary_candidate(fit.metric, fit.validation.where is not None)
    shown: dict[str, Candidate] = {label(str(usual)): usual}
    if best.method not in (usual.method, "bilevel"):
        shown[label(str(best))] = best
    try:
        return [_alignment(fit, name, candidate) for name, candidate in shown.items()]
    except ValueError:  # too few sets have a value, or all have the same: there is no order to show
        return []


def _alignment(fit: Fit, name: str, candidate: Candidate) -> LossAlignment:
    """A candidate's loss beside the metric."""
    scale = candidate.scale(fit.metric)
    sets = [each._replace(scores=scale * each.scores) for each in fit.score_sets]
    loss = candidate.loss(fit.metric, 0)
    loss = _Relaxed(loss) if isinstance(loss, UniLoss) else loss
    generator = torch.Generator().manual_seed(0)
    ranked = rank_correlation(loss, fit.metric, sets, generator=generator)
    return LossAlignment(name, ranked.losses.numpy(), ranked.values.numpy(), ranked.spearman)


def _quantiles(draws: Tensor) -> Interval:
    """The middle 95 %."""
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return (low, high)
