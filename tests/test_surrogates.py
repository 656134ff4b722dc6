"""What all surrogates share: the kinds of targets they fit, the shapes they take, their options."""

from typing import Any

import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad import baselines
from metricgrad.surrogates.base import TargetKind

LOSSES = [mg.MetricLoss, mg.UniLoss, mg.ReLoss, mg.BilevelLoss]
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
        # A set of classes has the shapes of a text, so that a loss of texts takes it for one.
        if (metric.layout, kind) != ("tokens", "classes")
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


ONE_SCORE: dict[str, mg.Surrogate] = {
    "metric loss": mg.MetricLoss("f1").eval(),  # in train() mode its offset moves
    "uniloss": mg.UniLoss("average_precision"),
    "watched": mg.UniLoss(accuracy),
    "reloss": mg.ReLoss("f1").eval(),
    "bilevel": mg.BilevelLoss("auc"),
    "memory": mg.with_memory(mg.UniLoss("f1")),
    "ordinary": mg.with_ordinary(mg.UniLoss("f1")),
    "list net": baselines.ListNet(),
    "cross-entropy": baselines.CrossEntropy(),
    "pairwise": baselines.PairwiseRanking(),
}


@pytest.mark.parametrize("name", ONE_SCORE)
def test_a_model_with_one_output_needs_no_squeeze(name: str) -> None:
    """Scores `[..., N, 1]` of a target `[..., N]` are `[..., N]`, whichever way they come in."""
    loss = ONE_SCORE[name]
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 12, generator=generator)
    target = (torch.rand(4, 12, generator=generator) < 0.4).long()
    target[:, :2] = torch.tensor([0, 1])
    where = torch.arange(12) < 9
    if name == "memory":
        for values in (scores[0], scores[0].unsqueeze(-1)):
            loss.train().load_state_dict(mg.with_memory(mg.UniLoss("f1")).state_dict())
            first = loss(values, target[0], where)
            assert first == mg.UniLoss("f1")(scores[0], target[0], where)
            assert loss.state_dict()["scores"].shape == (9,)
        return
    calls: list[Any] = [loss, loss.per_set, lambda *inputs: loss.losses(*inputs)[1]]
    if isinstance(loss, mg.UniLoss):
        calls.append(loss.relaxed)
    if isinstance(loss, mg.ReLoss | mg.BilevelLoss):
        calls.append(loss.misfit)
    for call in calls:
        for flags in (None, where.expand(4, 12)):
            torch.testing.assert_close(
                call(scores.unsqueeze(-1), target, flags), call(scores, target, flags)
            )


@pytest.mark.parametrize("name", [name for name in ONE_SCORE if name != "watched"])
def test_a_batch_of_columns_is_a_batch_of_items(name: str) -> None:
    loss = ONE_SCORE[name].eval()
    scores = torch.randn(12, generator=torch.Generator().manual_seed(0))
    target = torch.arange(12) % 3 == 0
    where = torch.arange(12) < 9
    expected = loss(scores, target, where)
    column = (scores.unsqueeze(-1), target.unsqueeze(-1))
    torch.testing.assert_close(loss(*column, where.unsqueeze(-1)), expected)
    torch.testing.assert_close(loss(*column, where), expected)


def test_columns_of_labels_and_queries_stay_as_they_are() -> None:
    scores = torch.randn(12, 1, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(12) % 3 == 0).unsqueeze(-1)
    labels = mg.UniLoss(mg.metric("auc", multilabel=True))
    assert labels(scores, target) == mg.UniLoss("auc")(scores, target)
    assert mg.UniLoss("ndcg")(scores, target) == 0  # twelve queries of one document each


@pytest.mark.parametrize("loss", [mg.UniLoss, mg.ReLoss, mg.BilevelLoss])
def test_options_of_the_metric_go_to_the_metric(loss: Any) -> None:
    name = loss.__name__
    for given, options, call in (
        ("ndcg", {"k": 10}, f'mg.{name}(mg.metric("ndcg", k=10))'),
        ("fbeta", {"beta": 2}, f'mg.{name}(mg.metric("fbeta", beta=2))'),
        ("ndcg", {"k": 3, "generator": None}, f'mg.{name}(mg.metric("ndcg", k=3), generator=None)'),
        (mg.metric("map", k=5), {"k": 7}, f'mg.{name}(mg.metric("map", k=7))'),
        (max, {"best": 1.0}, f"mg.{name}(mg.from_function(fn, best=1.0))"),
    ):
        with pytest.raises(TypeError, match=f"of the metric, not of {name}; write ") as refusal:
            loss(given, **options)
        assert str(refusal.value).endswith(call)
    with pytest.raises(TypeError, match=r"k, gain are options of the metric"):
        loss("ndcg", k=3, gain="exponential")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'slpe'"):
        loss("f1", slpe=3)
    with pytest.raises(ValueError, match=r"there is no metric named 'ndgc'"):
        loss("ndgc", k=3)
