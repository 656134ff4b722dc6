"""Methods by name: how each becomes a loss, and which settings of it enter a tournament.

A method is the lower-case name of a surrogate. What matters most about UniLoss is its slope, and
whether training starts on the ordinary loss: a gentle slope ignores hopeless items and wins on
noisy labels, a steep one fits the last ones; a flexible model on clean data needs the warm start,
on noisy data it hurts. So these are tried, each with several learning rates.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.confusion import ConfusionMetric
from metricgrad.metrics.counts import ClassificationMetric
from metricgrad.metrics.curves import CurveMetric
from metricgrad.metrics.ranking import RankingMetric
from metricgrad.surrogates import BilevelLoss, ReLoss, Surrogate, UniLoss, baselines
from metricgrad.surrogates.baselines import Baseline

Start = Literal["cold", "warm"]
RATES = (0.003, 0.01, 0.03, 0.1)
ORDINARY = "cross_entropy"
_SLOPES = (0.5, 2.0, 8.0, 30.0)
_LEARNED = {"uniloss": UniLoss, "reloss": ReLoss, "bilevel": BilevelLoss}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


BASELINES: dict[str, type[Baseline]] = {
    _snake(name): cls
    for name, cls in vars(baselines).items()
    if isinstance(cls, type) and issubclass(cls, Baseline) and cls is not Baseline
}
# What people use where a metric of this name decides.
_USUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "f1": ("soft_f_beta", {}), "jaccard": ("soft_jaccard", {}), "mcc": ("soft_mcc", {}),
    "average_precision": ("smooth_ap", {}), "auc": ("pairwise_ranking", {}), "ndcg": ("lambda_loss", {}),
    "map": ("smooth_ap", {}),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Candidate:
    """A loss with its settings, and how training on it starts; it enters once with every learning rate.

    Attributes:
        method: name of the surrogate, or of its class where the user passed one.
        options: of the loss.
        start: `"warm"` spends the first half of the training on the ordinary loss.
        given: the user's own surrogate.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Start = "cold"
    given: Surrogate | None = None

    def __str__(self) -> str:
        told = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.options.items()
        ]
        told += ["warm start"] if self.start == "warm" else []
        return self.method + (f" ({', '.join(told)})" if told else "")

    def scale(self, metric: Metric) -> float:
        """By what scores are multiplied before the loss sees them, in place of its slope.

        Comparisons of scores with each other and with 0 grow with the scores, so UniLoss with slope
        k is UniLoss with slope 1 of k times the scores, and losses of all slopes are one, for many
        models at once.
        """
        plain = isinstance(metric, ClassificationMetric | RankingMetric) and not getattr(
            metric, "threshold", 0.0
        )
        return float(self.options.get("slope", 1.0)) if self.method == "uniloss" and plain else 1.0

    def kin(self, metric: Metric) -> tuple[Any, ...]:
        """What candidates must agree in to be trained together: everything but a slope that `scale` stands for."""
        scaled = self.scale(metric) != 1.0 or self.options.get("slope") == 1.0
        options = {
            name: value for name, value in self.options.items() if name != "slope" or not scaled
        }
        return (self.method, repr(sorted(options.items())), self.start, id(self.given))

    def loss(self, metric: Metric, seed: int) -> Surrogate:
        """The loss itself, of scores multiplied by `scale`; the user's own as a copy, as some learn on the way."""
        if self.given is not None:
            return copy.deepcopy(self.given)
        generator = torch.Generator().manual_seed(seed)
        match self.method:
            case "uniloss":
                options = dict(self.options)
                if self.scale(metric) != 1.0:
                    options["slope"] = 1.0
                return UniLoss(metric, generator=generator, **options)
            case "reloss":
                return _reloss(metric, generator, self.options)
            case "bilevel":
                return BilevelLoss(metric, generator=generator, **self.options)
            case _:
                return BASELINES[self.method](**self.options)


def method_names() -> list[str]:
    """All methods that can be named."""
    return sorted([*_LEARNED, *BASELINES])


def candidates_of(
    method: str | Surrogate, metric: Metric, options: Mapping[str, Any] | None = None
) -> list[Candidate]:
    """What a method enters with: its settings that are tried.

    Args:
        method: a name, or a surrogate.
        metric: what is trained for.
        options: of the loss; a setting that is given is not tried.

    Returns:
        The candidates.
    """
    if isinstance(method, Surrogate):
        names = {cls: name for name, cls in {**_LEARNED, **BASELINES}.items()}
        name = names.get(type(method), _snake(type(method).__name__))
        starts: tuple[Start, ...] = ("cold",) if name in (ORDINARY, "bilevel") else ("cold", "warm")
        return [Candidate(name, given=method, start=start) for start in starts]
    if method not in method_names():
        raise ValueError(
            f"there is no method {method!r}; there are auto, {', '.join(method_names())}"
        )
    given = dict(options or {})
    if method in (ORDINARY, "bilevel"):
        return [Candidate(method, given)]
    if method == "uniloss":
        slopes: Sequence[float] = (given.pop("slope"),) if "slope" in given else _SLOPES
        return [
            *(Candidate(method, {"slope": slope, **given}) for slope in slopes),
            *(
                Candidate(method, {"slope": slope, **given}, "warm")
                for slope in slopes[1::2] or slopes
            ),
        ]
    return [Candidate(method, given, start) for start in ("cold", "warm")]


def challengers(metric: Metric) -> list[Candidate]:
    """Whom cross-entropy meets in `method="auto"`: UniLoss, and what people use for the metric."""
    found = candidates_of("uniloss", metric)
    if isinstance(metric, CurveMetric):
        found.append(Candidate("uniloss", {"relaxation": "squared_hinge"}))
    usual = _USUAL.get(metric.name)
    if usual is not None and not getattr(metric, "multilabel", False):
        found.append(Candidate(usual[0], usual[1]))
    return found


def usual_methods(metric: Metric) -> list[str]:
    """What a comparison has unless others are asked for: what people use, and what the papers have."""
    usual = _USUAL.get(metric.name)
    return [ORDINARY, *([usual[0]] if usual else []), "focal", *_LEARNED]


def takes(method: str, metric: Metric, scores: Tensor, target: Tensor) -> bool:
    """Whether a method has a loss of such scores and targets.

    Args:
        method: its name.
        metric: what is trained for.
        scores: `[items]` or `[items, classes]`, of any values.
        target: theirs.

    Returns:
        Whether it can be trained on.
    """
    try:
        loss = (
            ReLoss(metric)
            if method == "reloss"
            else candidates_of(method, metric)[0].loss(metric, 0)
        )
        loss.losses(scores.unsqueeze(0), target.unsqueeze(0), None)
    except (TypeError, ValueError):
        return False
    return True


def ordinary_candidate(metric: Metric, sets: bool = False) -> Candidate:
    """What people train on: cross-entropy; for graded documents, and where items are queries, ListNet, its kin."""
    graded = isinstance(metric, RankingMetric) and "binary" not in metric.families
    return Candidate("list_net" if graded or sets else ORDINARY)


def _reloss(metric: Metric, generator: torch.Generator, options: Mapping[str, Any]) -> ReLoss:
    """The loss that ships for a metric, or one that is learned now, from made-up sets."""
    plain = isinstance(metric, ConfusionMetric | CurveMetric) and not metric.multilabel
    if plain and not options:
        try:
            return ReLoss.pretrained(metric.name)
        except ValueError:
            pass
    loss = ReLoss(metric, generator=generator, **options)
    loss.learn(progress=False, generator=generator)
    return loss
