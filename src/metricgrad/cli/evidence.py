"""What the report of a run is drawn from: scores of validation and test data, and how losses rank."""

import numpy as np
import torch
from torch import Tensor

from metricgrad.surrogates import Surrogate, UniLoss, rank_correlation
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.training import Fit
from metricgrad.training.candidates import Candidate, ordinary_candidate
from metricgrad.training.validation import bootstrap

_KEPT = 100_000  # items of each kind


def intervals(fit: Fit, x: Tensor, y: Tensor) -> dict[str, list[float]]:
    """95 % intervals of the metric on test data, by resampling its rows; of the `gain` too, on the same rows."""
    draws = {}
    for name, trained in fit.finalists.items():
        scores, generator = trained.scores(x), torch.Generator().manual_seed(0)
        draws[name] = bootstrap(trained.metric, trained.threshold, scores, y, generator).double()
    if len(draws) == 2:
        gain = draws["challenger"] - draws["cross_entropy"]
        draws["gain"] = gain if fit.metric.higher_is_better else -gain
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    return {name: torch.quantile(each, ends).tolist() for name, each in draws.items()}


class Relaxed(Surrogate):
    """UniLoss by the function whose gradient it has; its own value is the metric itself, and tells nothing here."""

    def __init__(self, loss: UniLoss) -> None:
        super().__init__()
        self.loss = loss

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The interpolation of every set, and whether it is defined there."""
        return self.loss.relaxed(scores, target, where), self.loss.losses(scores, target, where)[1]

    def config(self) -> dict[str, object]:
        """That of the loss."""
        return self.loss.config()


def gather(fit: Fit, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    """Scores, decisions and targets, of test and validation data, as arrays by name."""
    x, live = x[:_KEPT], fit.validation.live
    found = {"test_target": y[:_KEPT].numpy()}
    found["valid_target"] = fit.validation.target[live].numpy()[:_KEPT]
    for name, trained in fit.finalists.items():
        scores = trained.scores(x)
        found[f"test_{name}"] = scores.numpy()
        decides = (
            trained.threshold is not None if scores.dim() == 1 else not is_multilabel(fit.metric)
        )
        if decides:  # a metric of order asks for no decision
            found[f"decided_{name}"] = trained.predict(x).numpy()
        trial = fit.decision.ordinary if name == "cross_entropy" else fit.decision.challenger
        assert trial is not None
        found[f"valid_{name}"] = trial.scores[live].numpy()[:_KEPT]
    return {**found, **_alignment(fit)}


def _alignment(fit: Fit) -> dict[str, np.ndarray]:
    """Losses of the score sets against the metric: cross-entropy, and the best of the others."""
    if len(fit.score_sets) < 3:
        return {}
    metric, decision = fit.metric, fit.decision
    best = decision.challenger or decision.winner
    shown: dict[str, Candidate] = {
        "cross-entropy": ordinary_candidate(metric, fit.validation.where is not None)
    }
    if best.candidate.method not in ("cross_entropy", "bilevel"):
        shown[str(best.candidate)] = best.candidate
    found: dict[str, np.ndarray] = {"aligned_names": np.asarray(list(shown))}
    for number, candidate in enumerate(shown.values()):
        scale = candidate.scale(metric)
        sets = [each._replace(scores=scale * each.scores) for each in fit.score_sets]
        loss = candidate.loss(metric, 0)
        loss = Relaxed(loss) if isinstance(loss, UniLoss) else loss
        try:
            ranked = rank_correlation(
                loss, metric, sets, generator=torch.Generator().manual_seed(0)
            )
        except (
            ValueError
        ):  # too few sets have a value, or all have the same: there is no order to show
            return {}
        found[f"aligned_{number}_losses"], found[f"aligned_{number}_values"] = (
            ranked.losses.numpy(),
            ranked.values.numpy(),
        )
        found[f"aligned_{number}_spearman"] = np.asarray(ranked.spearman)
    return found
