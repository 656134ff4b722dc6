"""Candidates: losses with their settings, any of which may win the search.

A method is the lower-case name of a surrogate. Two settings of UniLoss matter most: its slope, and
whether training starts on the ordinary loss. A gentle slope ignores hopeless items and wins on
noisy labels; a steep one fits the last items. A flexible model on clean data needs the warm start,
which hurts on noisy data. So several slopes are tried, cold and warm, each with several learning
rates.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics.rows import SAMPLE_WEIGHT, Rows
from metricgrad.surrogates import BilevelLoss, MetricLoss, ReLoss, Surrogate, UniLoss, baselines
from metricgrad.surrogates.base import TargetKind
from metricgrad.surrogates.baselines import Baseline
from metricgrad.surrogates.wrappers import Ordinary

RATES = (0.003, 0.01, 0.03, 0.1)
ORDINARY = "cross_entropy"
_SLOPES = (0.5, 2.0, 8.0, 30.0)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


_PAPERS: dict[str, type[Surrogate]] = {"uniloss": UniLoss, "reloss": ReLoss, "bilevel": BilevelLoss}
_COMPARED = ("metric_loss", "uniloss")  # losses that need a metric which comparisons decide
_COLD = (ORDINARY, "metric_loss", "bilevel")  # losses that need no start on the ordinary one
BASELINES: dict[str, type[Baseline]] = {
    _snake(name): cls
    for name, cls in vars(baselines).items()
    if isinstance(cls, type) and issubclass(cls, Baseline) and cls is not Baseline
}
_METHODS: dict[str, type[Surrogate]] = {"metric_loss": MetricLoss, **_PAPERS, **BASELINES}
_PLACES = ("maps", "tokens", "spans")  # layouts whose items are pixels or places of a text
_ORDINARY_OF = ("labels", *_PLACES)  # layouts whose cross-entropy must know what an item is
# The loss that people use today for the metric of this name.
_USUAL = {
    "f1": "soft_f_beta",
    "jaccard": "soft_jaccard",
    "mcc": "soft_mcc",
    "average_precision": "smooth_ap",
    "auc": "pairwise_ranking",
    "ndcg": "lambda_loss",
    "map": "smooth_ap",
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A loss with its settings; the search tries it with every learning rate.

    With a warm start, the first half of the epochs is spent on the ordinary loss.
    """

    method: str  # the name of the surrogate, or of its class if the user passed one
    options: Mapping[str, Any] = field(default_factory=dict)
    warm_start: bool = False
    given: Surrogate | None = None  # what the user passed
    notes: tuple[str, ...] = ()  # what else tells it apart from others, such as "15 leaves"

    def __str__(self) -> str:
        told = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.options.items()
        ]
        told += ["warm start"] if self.warm_start else []
        told += self.notes
        return self.method + (f" ({', '.join(told)})" if told else "")

    @property
    def as_ordinary(self) -> bool:
        """Whether its gradient is as long as the ordinary one, so that the same rates suit it."""
        return self.method == "metric_loss"

    def scale(self, metric: Metric) -> float:
        """The factor of the scores that stands for the slope of the loss.

        Comparisons of scores with each other and with 0 grow with the scores, so UniLoss with slope
        k is UniLoss with slope 1 on k times the scores. All slopes are then one loss, which many
        models can share.
        """
        if self.method == "uniloss" and metric.scale_free:
            return float(self.options.get("slope", 1.0))
        return 1.0

    def kin(self, metric: Metric) -> tuple[Any, ...]:
        """What candidates trained together share: all but a slope that `scale` stands for."""
        scaled = self.scale(metric) != 1.0 or self.options.get("slope") == 1.0
        options = {
            name: value for name, value in self.options.items() if name != "slope" or not scaled
        }
        return (self.method, repr(sorted(options.items())), self.warm_start, id(self.given))

    def loss(self, metric: Metric, seed: int) -> Surrogate:
        """The loss of scores multiplied by `scale`; a copy of the user's, as some losses learn."""
        if self.given is not None:
            return copy.deepcopy(self.given)
        generator = torch.Generator().manual_seed(seed)
        match self.method:
            case "metric_loss":
                return MetricLoss(metric, generator=generator, **self.options)
            case "uniloss":
                options = dict(self.options)
                if self.scale(metric) != 1.0:
                    options["slope"] = 1.0
                return UniLoss(metric, generator=generator, **options)
            case "reloss":
                shipped = shipped_reloss(metric, self.options)
                return shipped or learned_reloss(metric, generator, self.options)
            case "bilevel":
                return BilevelLoss(metric, generator=generator, **self.options)
            case "cross_entropy" if metric.layout in _ORDINARY_OF and not self.options:
                return Ordinary(metric)
            case _:
                return BASELINES[self.method](**self.options)


def method_names() -> list[str]:
    """The names of all methods."""
    return sorted(_METHODS)


def candidates_of(
    method: str | Surrogate, options: Mapping[str, Any] | None = None
) -> list[Candidate]:
    """The settings of a method that are tried; an option that is given is not tried."""
    if isinstance(method, Surrogate):
        names = {cls: name for name, cls in _METHODS.items()}
        name = names.get(type(method), _snake(type(method).__name__))
        starts = (False,) if name in _COLD else (False, True)
        return [Candidate(name, given=method, warm_start=warm) for warm in starts]
    if method not in _METHODS:
        raise ValueError(
            f"there is no method {method!r}; available: auto, {', '.join(method_names())}"
        )
    given = dict(options or {})
    if method in _COLD:
        return [Candidate(method, given)]
    if method != "uniloss":
        return [Candidate(method, given, warm) for warm in (False, True)]
    slopes: Sequence[float] = (given.pop("slope"),) if "slope" in given else _SLOPES
    warmed = slopes[1::2] or slopes
    return [
        *(Candidate(method, {"slope": slope, **given}) for slope in slopes),
        *(Candidate(method, {"slope": slope, **given}, warm_start=True) for slope in warmed),
    ]


def challengers(metric: Metric) -> list[Candidate]:
    """What `method="auto"` compares with the ordinary loss: ours, and what people use today."""
    found = [*candidates_of("metric_loss"), *candidates_of("uniloss")]
    # Curves over the items of a data set, such as AUC; rankings of one query gain nothing by it.
    if metric.decided_by == "order" and metric.takes_classes:
        found.append(Candidate("uniloss", {"relaxation": "squared_hinge"}))
    if metric.name in _USUAL and metric.layout != "labels":
        found.append(Candidate(_USUAL[metric.name]))
    return found


def fitting(
    found: list[Candidate], metric: Metric, scores: Tensor, target: Tensor
) -> list[Candidate]:
    """The candidates whose losses take such scores `[items, ...]` and targets `[items, ...]`."""
    kind = target_kind(metric, scores, target)
    methods = {each.method for each in found if takes(each.method, metric, kind)}
    if methods & set(_COMPARED) and not _is_decided(metric, scores, target):
        methods -= set(_COMPARED)
    return [each for each in found if each.method in methods]


def require_weights(found: list[Candidate], rows: Rows) -> None:
    """ValueError where a loss would train as if all items had the same weight."""
    for each in found:
        weighs = _METHODS[each.method].weighs if each.given is None else each.given.weighs
        if SAMPLE_WEIGHT in rows and not weighs:
            raise ValueError(
                f"{each.method} takes no weights of items; train on 'metric_loss', 'uniloss', "
                f"'cross_entropy', 'focal' or 'auto' with {SAMPLE_WEIGHT}"
            )


def require_fitting(method: str, metric: Metric) -> None:
    """ValueError for a method by name that has no loss for a metric of maps or texts.

    Losses of items say themselves which shapes they take, and no loss of items takes these.
    """
    methods = ["auto", *(name for name in method_names() if takes(name, metric, None))]
    if metric.layout in ("heatmaps", *_PLACES) and method not in methods:
        raise ValueError(
            f"for {metric.name}, whose scores are {metric.layout}, method must be "
            f"{', '.join(map(repr, methods))} or a surrogate that takes them; got {method!r}"
        )


def usual_methods(metric: Metric) -> list[str]:
    """The methods of a comparison unless others are asked for: today's, and the papers'."""
    usual = [_USUAL[metric.name]] if metric.name in _USUAL else []
    return [ORDINARY, *usual, "focal", "metric_loss", *_PAPERS]


def takes(method: str, metric: Metric, kind: TargetKind | None) -> bool:
    """Whether a method has a loss for targets of a kind; None is the kind of maps and texts."""
    if kind is None:  # comparisons decide maps and tokens, and may decide a function
        decided = method in _COMPARED and metric.layout != "spans" and metric.ordinary is not None
        return decided or (method == metric.ordinary and metric.layout != "any")
    return _METHODS[method].fits(metric, kind)


def target_kind(metric: Metric, scores: Tensor, target: Tensor) -> TargetKind | None:
    """The kind of targets, by their shape and values; None for maps and texts."""
    if scores.dim() == 2 and target.dim() == 1:
        return "classes"
    if scores.shape != target.shape:
        return None
    if not ((target == 0) | (target == 1)).all():
        return "grades"
    return "labels" if metric.layout == "labels" else "binary"


def ordinary_candidate(metric: Metric, sets: bool = False) -> Candidate:
    """What people train on for such a metric; ListNet where every item is a set."""
    return Candidate("list_net" if sets else metric.ordinary or ORDINARY)


def _is_decided(metric: Metric, scores: Tensor, target: Tensor) -> bool:
    """Whether comparisons decide a metric; for a user's function, that shows when it runs."""
    if metric.decided_by != "anything":
        return True
    from metricgrad.metrics.watching import NotDecidedError

    try:
        loss = Candidate("uniloss").loss(metric, 0)
        loss.losses(scores.unsqueeze(0), target.unsqueeze(0), None)
    except NotDecidedError:
        return False
    return True


def shipped_reloss(metric: Metric, options: Mapping[str, Any]) -> ReLoss | None:
    """The loss that ships for a metric; None if there is none, or if options ask for another."""
    if metric.binary_or_classes and not options:
        with suppress(ValueError):  # none ships for this metric
            return ReLoss.pretrained(metric.name)
    return None


def learned_reloss(
    metric: Metric, generator: torch.Generator, options: Mapping[str, Any], steps: int = 300
) -> ReLoss:
    """A loss that is learned now, from made-up sets."""
    loss = ReLoss(metric, generator=generator, **options)
    loss.learn(steps=steps, progress=False, generator=generator)
    return loss
