"""`fits` answers from facts: it must say what building the loss and calling it finds."""

import sklearn.metrics as sk
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad import baselines
from metricgrad.surrogates.base import TargetKind

LOSSES = [mg.UniLoss, mg.ReLoss, mg.BilevelLoss]
BASELINES = [
    each
    for each in vars(baselines).values()
    if isinstance(each, type) and each is not baselines.Baseline
]


def accuracy(scores: Tensor, target: Tensor) -> Tensor:
    """The share of correct decisions, of any kind of target."""
    right = (
        (scores > 0) == (target > 0)
        if scores.dim() == target.dim()
        else scores.argmax(-1) == target
    )
    return right.float().mean()


METRICS = {
    **{name: mg.metric(name) for name in mg.metric_names()},
    **{
        f"{name}(multilabel)": mg.metric(name, multilabel=True)
        for name in mg.metric_names()
        if "multi-label" in mg.metric(name).families
    },
    "auc(macro)": mg.metric("auc", average="macro"),
    "accuracy(all pairs)": mg.metric("accuracy", pairs="all"),
    "kappa(quadratic)": mg.metric("kappa", weights="quadratic"),
    "ndcg(5)": mg.metric("ndcg", k=5, gain="exponential"),
    "span_f1(positions)": mg.metric("span_f1", decode=mg.decode_spans),
    "function": mg.from_function(accuracy),
    "labels function": mg.from_function(accuracy, multilabel=True),
    "scikit-learn": mg.from_function(sk.balanced_accuracy_score),
    "watched": mg.reexpress(accuracy),
}


def made_up(size: int = 12) -> dict[TargetKind, tuple[Tensor, Tensor]]:
    """One set of scores and target of every kind."""
    generator = torch.Generator().manual_seed(0)
    places = torch.arange(size)
    table = torch.randn(size, 4, generator=generator)
    return {
        "binary": (table[:, 0], (places % 3 == 0).long()),
        "classes": (table, places % 4),
        "labels": (table[:, :3], ((places.unsqueeze(-1) + torch.arange(3)) % 3 == 0).long()),
        "grades": (table[:, 0], (places % 5).float()),
    }


def trial(
    cls: type[mg.Surrogate], metric: mg.Metric | None, scores: Tensor, target: Tensor
) -> bool:
    """Whether a loss can be built and called."""
    try:
        loss = cls() if metric is None else cls(metric)
        loss.losses(scores.unsqueeze(0), target.unsqueeze(0), None)
    except (TypeError, ValueError):
        return False
    return True


def test_fits_is_what_a_trial_finds() -> None:
    sets = made_up()
    wrong = [
        f"{cls.__name__} for {name} on {kind}: fits says {cls.fits(metric, kind)}"
        for name, metric in METRICS.items()
        for kind, (scores, target) in sets.items()
        for cls in LOSSES
        if cls.fits(metric, kind) != trial(cls, metric, scores, target)
    ]
    wrong += [
        f"{cls.__name__} on {kind}: fits says {cls.fits(METRICS['f1'], kind)}"
        for kind, (scores, target) in sets.items()
        for cls in BASELINES
        if cls.fits(METRICS["f1"], kind) != trial(cls, None, scores, target)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_baseline_fits_whatever_the_metric_is() -> None:
    for cls in BASELINES:
        for kind in made_up():
            assert len({cls.fits(metric, kind) for metric in METRICS.values()}) == 1
