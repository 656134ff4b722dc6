"""Both learned losses on every layout: they learn from stored and made-up sets, or say why not."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.surrogates.random_sets import SourceName, made_up_source
from tests.trainings import seeded

pytestmark = pytest.mark.filterwarnings(
    "ignore:this .*Loss has not learned", "ignore:the loss has not learned"
)


class Layout(NamedTuple):
    """A metric, and the numbers that tell the shapes of its sets."""

    metric: Any
    size: int = 24
    classes: int | None = None
    shape: tuple[int, ...] | None = None


def share_right(scores: Any, target: Any) -> float:
    return float((scores.argmax(1) == target).mean())


SPANS = {"decode": mg.decode_spans}
LAYOUTS = {
    "binary": Layout(mg.metric("f1")),
    "binary, order": Layout(mg.metric("auc")),
    "binary, cut": Layout(mg.metric("precision_at_k", k=5)),
    "classes, accuracy": Layout(mg.metric("accuracy"), classes=4),
    "classes, top k": Layout(mg.metric("accuracy", k=2), classes=4),
    "classes": Layout(mg.metric("f1"), classes=3),
    "labels": Layout(mg.metric("f1", multilabel=True), classes=3),
    "grades": Layout(mg.metric("ndcg")),
    "maps": Layout(mg.metric("mean_iou"), shape=(2, 3, 6, 5)),
    "maps, ignoring": Layout(mg.metric("dice", ignore_index=0), shape=(2, 3, 6, 5)),
    "poses": Layout(mg.metric("pck", radius=1.5), shape=(4, 2, 8, 7)),
    "poses, sized": Layout(mg.metric("pck"), shape=(4, 2, 8, 7)),
    "poses, areas": Layout(mg.metric("oks_ap", sigmas=0.1), shape=(4, 2, 8, 7)),
    "tokens": Layout(mg.metric("bleu", max_order=2, end=0), shape=(6, 7, 5)),
    "tokens, total": Layout(mg.metric("edit_distance", padding=0), shape=(6, 7, 5)),
    "tokens, ratio": Layout(mg.metric("word_error_rate"), shape=(6, 7, 5)),
    "tokens, decoded": Layout(
        mg.metric("rouge_l", decode=lambda scores: scores.argmax(-1)), shape=(6, 7, 5)
    ),
    "spans": Layout(mg.metric("span_f1", **SPANS), shape=(6, 9, 2)),
    "spans, exact": Layout(mg.metric("exact_match", **SPANS), shape=(6, 9, 2)),
    "own": Layout(mg.from_function(lambda s, y: float(((s > 0) == y).mean()))),
    "own, classes": Layout(mg.from_function(share_right), classes=3),
    "own, labels": Layout(
        mg.from_function(lambda s, y: float(((s > 0) == y).mean()), multilabel=True), classes=3
    ),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def sets_of(
    name: str, number: int, source: SourceName = "broad", seed: int = 0
) -> tuple[Tensor, Tensor]:
    metric, size, classes, shape = LAYOUTS[name]
    return made_up_source(metric, number, size, classes, source, shape=shape)(seeded(seed))


def reloss(metric: Any) -> mg.ReLoss:
    return mg.ReLoss(metric, generator=seeded())


def bilevel(metric: Any) -> mg.BilevelLoss:
    return mg.BilevelLoss(metric, generator=seeded())


def check_gradients(loss: Any, scores: Tensor, target: Tensor) -> None:
    """A misfit that teaches its weights, and a value that moves scores."""
    loss.misfit(scores, target).backward()
    found = [each.grad for each in loss.parameters() if each.grad is not None]
    assert sum(each.abs().sum() for each in found) > 0
    leaf = scores[0].clone().requires_grad_()
    value = loss(leaf, target[0])
    value.backward()
    assert value.isfinite()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert leaf.grad.any()


@every_layout
@pytest.mark.parametrize("make", [reloss, bilevel])
def test_a_loss_has_gradients_and_many_sets_equal_one_by_one(layout: str, make: Any) -> None:
    scores, target = sets_of(layout, 8)
    loss = make(LAYOUTS[layout].metric)
    check_gradients(loss, scores, target)
    apart = torch.stack([loss(s, y) for s, y in zip(scores, target, strict=True)])
    torch.testing.assert_close(loss.per_set(scores, target), apart, atol=1e-5, rtol=1e-4)


def test_of_several_references_a_network_sees_the_likeliest_token() -> None:
    scores, target = (each[0] for each in sets_of("tokens", 1))
    other = target.roll(1, 0)
    odds = [scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1) for ids in (target, other)]
    likeliest = torch.where(odds[0] > odds[1], target, other)
    loss = bilevel(LAYOUTS["tokens"].metric)
    torch.testing.assert_close(
        loss(scores, torch.stack([target, other], -2)), loss(scores, likeliest)
    )


def test_of_several_answers_a_network_sees_the_likeliest() -> None:
    scores = torch.zeros(1, 9, 2)
    scores[0, 6, 0] = 2.0  # a start
    scores[0, 7, 1] = 2.0  # and an end
    answers = torch.tensor([[[1, 2, 3], [6, 7, -1], [-1, -1, -1]]])
    loss = reloss(LAYOUTS["spans"].metric)
    assert loss(scores, answers) == loss(scores, answers[:, 1])
    assert loss(scores, answers) != loss(scores, answers[:, 0])
    assert loss.per_set(scores[None], answers[None]) == loss(scores, answers)


@every_layout
def test_reloss_learns_from_stored_sets(layout: str) -> None:
    loss = reloss(LAYOUTS[layout].metric)
    found = loss.learn([sets_of(layout, 96)], steps=12, sets=16, share=0.0, generator=seeded())
    assert found.spearman > 0.4


@every_layout
def test_reloss_learns_from_made_up_sets(layout: str) -> None:
    metric, size, classes, shape = LAYOUTS[layout]
    source = "broad" if metric.layout == "any" else "uniform"
    loss = reloss(metric)
    found = loss.learn(
        steps=40 if shape is None else 12,
        sets=16,
        size=size,
        classes=classes,
        shape=shape,
        source=source,
        valid=[sets_of(layout, 64, source, seed=1)],
        generator=seeded(),
    )
    assert found.spearman > 0.3


@every_layout
def test_a_bilevel_loss_learns_from_made_up_sets(layout: str) -> None:
    metric, size, classes, shape = LAYOUTS[layout]
    steps = 300 if metric.layout == "maps" else 100  # the mean over classes takes longer
    options = {"sets": 64, "pool": 1024, "rate": 1e-2, "generator": seeded()}
    found = bilevel(metric).learn_universal(
        steps=steps, size=size, classes=classes, shape=shape, **options
    )
    assert found.misfit < 0.8 * found.constant
    assert found.spearman > 0.6


@pytest.mark.parametrize("layout", ["poses", "tokens, total", "spans", "maps"])
def test_a_model_and_a_bilevel_loss_learn_together(layout: str) -> None:
    """Algorithm 1 of Learning Surrogate Losses, from a universal start of the batches' shape."""
    metric = LAYOUTS[layout].metric
    scores, target = sets_of(layout, 20)
    scores, target = scores.flatten(0, 1), target.flatten(0, 1)

    class Shift(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))
            self.shift = torch.nn.Parameter(torch.zeros(scores.shape[1:]))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x + self.shift

    model = Shift()
    run = mg.JointTraining(
        model,
        bilevel(metric),
        scores,
        target,
        start="universal",
        universal={"steps": 2, "pool": 64, "progress": False},
        batch=8,
        stratified=False,
        generator=seeded(),
    )
    run.advance(2)
    assert model.shift.any()


@pytest.mark.parametrize("make", [reloss, bilevel])
@pytest.mark.parametrize(
    ("metric", "scores", "target", "message"),
    [
        ("edit_distance", (3, 7, 5), (3, 6), r"one target id for each place .* target \[3, 6\]"),
        ("bleu", (3, 7), (3, 7), r"takes scores \[..., N, T, V\].* got scores \[3, 7\]"),
        (LAYOUTS["spans"].metric, (3, 7, 3), (3, 7), r"start and end scores \[..., N, T, 2\]"),
        ("pck", (3, 2, 5, 5), (3, 2, 2), r"pck takes heatmaps .* got scores \[3, 2, 5, 5\]"),
        (
            mg.from_function(lambda s, y: float((s.mean((1, 2)) - y).mean()), set_dims=(3, 1)),
            (3, 2, 2),
            (3,),
            r"for other shapes, pass mg.ReLoss a network of your own",
        ),
    ],
    ids=["lengths", "no tokens", "no ends", "no sizes", "own shapes"],
)
def test_what_a_loss_cannot_take_is_refused_in_a_sentence(
    make: Any, metric: Any, scores: tuple[int, ...], target: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(metric)(torch.zeros(scores), torch.zeros(target))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: reloss("bleu").learn(),
            r"the shape of one set's scores, \(N, T, V\).*learn\(shape",
        ),
        (
            lambda: bilevel("pck").learn_universal(shape=(3, 4)),
            r"\(N, K, H, W\).*learn_universal\(shape=.*got shape=\(3, 4\)",
        ),
        (
            lambda: reloss("mean_iou").learn(shape=(2, 3, 4, 4), source="paper"),
            "source of mean_iou must be 'broad' or 'uniform'; got 'paper'",
        ),
        (
            lambda: reloss("f1").learn(source="wide"),  # type: ignore[arg-type]
            "source must be 'paper', 'broad', 'uniform' or a function of a generator; got 'wide'",
        ),
        (
            lambda: reloss(mg.metric("bleu", end=0)).learn(shape=(2, 3, 1)),
            "bleu has no token left in a vocabulary of 1",
        ),
        (lambda: reloss("bleu").learn(shape=(2, 0, 4)), "a number in shape must be 1 or more"),
    ],
)
def test_made_up_sets_need_a_shape(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
