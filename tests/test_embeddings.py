"""LS-ED: what the embeddings of texts see, and that their distance becomes the edit distance."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from tests.trainings import seeded

pytestmark = pytest.mark.filterwarnings("ignore:this ReLoss has not learned")

PADDING, END = 0, 1


def net(classes: int = 6, **options: Any) -> mg.nets.Embeddings:
    return mg.nets.Embeddings(classes, width=16, embedding=8, **options, generator=seeded())


def certain(ids: list[list[int]], classes: int = 6) -> Tensor:
    """Scores of a model that is sure of its tokens."""
    return 60.0 * F.one_hot(torch.tensor(ids), classes).float()


def apart(metric: mg.Metric, scores: Tensor, target: list[Any]) -> float:
    return mg.ReLoss(metric, net=net())(scores, torch.tensor(target)).item()


def corrupted(sets: int, seed: int, items: int = 8, length: int = 6) -> tuple[Tensor, Tensor]:
    """Words of some letters, and scores of more or fewer of them, by chance shifted by a place."""
    source = seeded(seed)
    shape = (sets, items, length)
    target = torch.randint(2, 6, shape, generator=source)
    ends = torch.randint(2, length, (sets, items, 1), generator=source)
    target = torch.where(torch.arange(length) < ends, target, END)
    quality = torch.rand(sets, 1, 1, generator=source)
    wrong = torch.rand(shape, generator=source) > quality
    guessed = torch.where(wrong, torch.randint(1, 6, shape, generator=source), target)
    shifted = torch.rand(sets, items, 1, generator=source) > 0.7 + 0.3 * quality
    guessed = torch.where(shifted, guessed.roll(1, -1), guessed)
    height = 1 + 3 * torch.rand(*shape, 1, generator=source)
    return torch.randn(*shape, 6, generator=source) + height * F.one_hot(guessed, 6), target


METRICS = {
    "padding": mg.metric("edit_distance", padding=PADDING),
    "end": mg.metric("edit_distance", end=END),
    "both": mg.metric("edit_distance", padding=PADDING, end=END),
}


@pytest.mark.parametrize(
    ("kind", "scores", "target"),
    [
        ("padding", [3, 4, 5], [3, 4, 5]),
        ("padding", [3, 4, 0, 0], [3, 4]),
        ("padding", [3, 4, 0], [3, 4, -1]),
        ("end", [3, 4, 1, 5, 2], [3, 4]),
        ("end", [3, 4, 1], [3, 4, 1, 5]),
        ("both", [3, 1, 0, 2], [3, -1, -1, -1]),
    ],
)
def test_texts_that_the_metric_reads_alike_are_not_apart(
    kind: str, scores: list[int], target: list[int]
) -> None:
    metric = METRICS[kind]
    assert metric(certain([scores]), torch.tensor([target])) == 0
    assert apart(metric, certain([scores]), [target]) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "scores", "target"),
    [
        ("padding", [3, 4, 5], [3, 5, 4]),
        ("padding", [3, 4, 2], [3, 4]),
        ("end", [3, 1, 4], [3, 4]),
        ("both", [1, 0, 0], [3, 1, 0]),
    ],
)
def test_texts_that_differ_are_apart(kind: str, scores: list[int], target: list[int]) -> None:
    assert METRICS[kind](certain([scores]), torch.tensor([target])) > 0
    assert apart(METRICS[kind], certain([scores]), [target]) > 0.01


def test_the_nearest_reference_counts_and_empty_ones_do_not() -> None:
    metric = METRICS["padding"]
    scores = certain([[3, 4, 5]])
    alone = [apart(metric, scores, [each]) for each in ([5, 5, 2], [3, 4, 2])]
    both = apart(metric, scores, [[[5, 5, 2], [3, 4, 2], [0, 0, 0]]])
    assert both == pytest.approx(min(alone), abs=1e-5)
    assert max(alone) > 1.1 * min(alone)


def test_a_total_adds_up_and_a_mean_does_not() -> None:
    scores, target = corrupted(1, 0)
    metric = mg.metric("edit_distance", end=END)
    loss = mg.ReLoss(metric, net=net())
    each = torch.stack([loss(s[None], y[None]) for s, y in zip(scores[0], target[0], strict=True)])
    torch.testing.assert_close(loss(scores[0], target[0]), each.sum())
    mean = mg.ReLoss(mg.metric("edit_distance", end=END, normalized=True), net=net())
    torch.testing.assert_close(mean(scores[0], target[0]), each.mean())


def test_masked_places_are_left_out_of_prediction_and_target() -> None:
    metric = METRICS["end"]
    loss = mg.ReLoss(metric, net=net())
    scores, target = certain([[3, 4, 1, 5]]), torch.tensor([[3, 4, 1, 2]])
    where = torch.tensor([[True, True, False, False]])
    expected = loss(certain([[3, 4]]), torch.tensor([[3, 4]]))
    torch.testing.assert_close(loss(scores, target, where), expected)


def test_the_distance_becomes_the_edit_distance() -> None:
    """Of single texts too, though sets of eight were learned from; as LS-ED does, by values."""
    metric = METRICS["end"]
    loss = mg.ReLoss(metric, net=net(), objective="approximation", penalty=0.0)
    stored = corrupted(300, 1)
    learned = loss.learn([stored], steps=120, sets=32, share=0.0, generator=seeded())
    assert learned.spearman > 0.85
    assert loss.scale.item() == pytest.approx(1, abs=0.4)  # it has the metric's scale by itself
    scores, target = (part.flatten(0, 1).unsqueeze(1) for part in corrupted(40, 2))
    found = mg.rank_correlation(loss, metric, [(scores, target)], generator=seeded())
    assert found.spearman > 0.6


def test_what_cannot_be_embedded_is_refused() -> None:
    loss = mg.ReLoss("edit_distance", net=net(5))
    with pytest.raises(ValueError, match=r"tokens \[..., N, T\]; got scores \[2, 3, 6\]"):
        loss(torch.zeros(2, 3, 6), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"target ids must be below 5, .* got 7"):
        loss(torch.zeros(2, 3, 5), torch.full((2, 3), 7))
    spans = mg.ReLoss(mg.metric("span_f1", decode=mg.decode_spans), net=net(2))
    with pytest.raises(ValueError, match=r"nets.Embeddings.* for span_f1"):
        spans(torch.zeros(2, 3, 2), torch.zeros(2, 3))
