"""What all surrogates share: the kinds of targets they fit, the shapes they take, their options."""

from typing import Any

import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad import baselines
from metricgrad.surrogates.base import TargetKind, as_loss

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


@pytest.mark.parametrize("name", ONE_SCORE)
def test_a_batch_of_columns_is_a_batch_of_items(name: str) -> None:
    loss = ONE_SCORE[name].eval()
    scores = torch.randn(12, generator=torch.Generator().manual_seed(0))
    target = torch.arange(12) % 3 == 0
    where = torch.arange(12) < 9
    expected = loss(scores, target, where)
    column = (scores.unsqueeze(-1), target.unsqueeze(-1))
    torch.testing.assert_close(loss(*column, where.unsqueeze(-1)), expected)
    torch.testing.assert_close(loss(*column, where), expected)


COLUMNS = [
    *("f1", "auc", "accuracy", "average_precision", "ndcg", "mrr", accuracy),
    mg.metric("recall_at_k", k=3),
]


@pytest.mark.parametrize("metric", COLUMNS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_metric_and_loss_read_the_same_sets_of_columns(metric: Any) -> None:
    """The loss of every shape is 1 - metric of that shape, and both are those of the items."""
    generator = torch.Generator().manual_seed(0)
    items = torch.randn(3, 12, generator=generator)
    truth = (torch.arange(12) % 3 == 0).expand(3, 12)
    where = (torch.arange(12) < 9).expand(3, 12)
    made = mg.metric(metric)
    loss = mg.UniLoss(metric).eval()
    for scores, target, flags in (
        (items[0], truth[0], None),
        (items[0], truth[0], where[0]),
        (items, truth, None),
        (items, truth, where),
    ):
        expected = made(scores, target, where=flags)
        relaxed = loss.relaxed(scores, target, flags)
        column = scores.unsqueeze(-1)
        for answer in (target, target.unsqueeze(-1)):
            for mask in (flags, None if flags is None else flags.unsqueeze(-1)):
                torch.testing.assert_close(made(column, answer, where=mask), expected)
                losses = loss.per_set(column, answer, mask)
                torch.testing.assert_close(losses, as_loss(made, expected))
                torch.testing.assert_close(loss(column, answer, mask), losses.mean())
                torch.testing.assert_close(loss.relaxed(column, answer, mask), relaxed)
    groups = torch.arange(12) // 6
    expected = made(items[0], truth[0], groups=groups)
    both = (items[0].unsqueeze(-1), truth[0].unsqueeze(-1))
    torch.testing.assert_close(made(*both, groups=groups), expected)
    torch.testing.assert_close(loss.per_set(*both, groups=groups), as_loss(made, expected))


def test_a_column_of_grades_is_ranked() -> None:
    """Sixty-four sets of one document would have a gradient of 0, without a word."""
    scores = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)).requires_grad_()
    grades = (torch.arange(64) % 4).unsqueeze(-1)
    loss = mg.UniLoss("ndcg")(scores, grades)
    loss.backward()
    assert loss > 0
    assert scores.grad is not None
    assert (scores.grad != 0).all()


def test_a_column_of_labels_is_one_label() -> None:
    scores = torch.randn(12, 1, generator=torch.Generator().manual_seed(0))
    target = (torch.arange(12) % 3 == 0).unsqueeze(-1)
    metric = mg.metric("auc", multilabel=True)
    assert metric(scores, target) == mg.metric("auc")(scores, target)
    for loss in (mg.UniLoss(metric), mg.with_memory(mg.UniLoss(metric))):
        assert loss(scores, target) == mg.UniLoss("auc")(scores, target)


def test_a_narrow_map_keeps_its_width() -> None:
    """Maps one pixel wide have a trailing dimension of 1, too, which is no column of scores."""
    scores = torch.randn(2, 3, 4, 1, generator=torch.Generator().manual_seed(0))
    target = torch.randint(3, (2, 4, 1), generator=torch.Generator().manual_seed(1))
    metric = mg.metric("mean_iou")
    assert metric.item_scores(scores, target) is scores
    torch.testing.assert_close(mg.UniLoss(metric)(scores, target), 1 - metric(scores, target))


def test_sets_of_one_item_stay_sets_where_the_library_counts_sets() -> None:
    """Groups with one document, and score sets, say which of their dimensions are sets."""
    scores = torch.randn(5, generator=torch.Generator().manual_seed(0))
    grades = torch.tensor([1, 0, 2, 0, 1])
    ids = torch.tensor([7, 7, 3, 9, 5])
    assert mg.UniLoss("ndcg").per_set(scores, grades, groups=ids).shape == (4,)
    assert mg.metric("ndcg")(scores, grades, groups=ids).shape == (4,)
    assert mg.metric("f1").of_sets(scores.unsqueeze(-1), (grades > 0).unsqueeze(-1)).shape == (5,)


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
