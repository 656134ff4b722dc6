"""Metrics of text as comparisons: every place of a text is won or lost."""

from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import tried_flip_gains
from metricgrad.metrics.registry import comparison_metric

METRICS: list[tuple[str, dict[str, Any]]] = [
    ("bleu", {}),
    ("bleu", {"smoothing": "add-k", "max_order": 2}),
    ("edit_distance", {}),
    ("edit_distance", {"normalized": True, "padding": 0}),
    ("exact_match", {"end": 1}),
    ("rouge_l", {}),
    ("span_f1", {"detokenize": lambda ids: [token // 2 for token in ids]}),
    ("word_error_rate", {}),
]
every_metric = pytest.mark.parametrize(("name", "options"), METRICS)


def texts(references: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores `[2, 3, 5, 6]` of two sets, most of whose places favour the target's token."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 5, 6, generator=g, dtype=torch.float64)
    shape = (2, 3, references, 5) if references else (2, 3, 5)
    target = torch.randint(0, 6, shape, generator=g)
    target[0, 0, ..., 4] = -100
    goal = target[..., 0, :] if references else target
    favoured = torch.rand(2, 3, 5, 1, generator=g, dtype=torch.float64) < 0.7
    scores.scatter_add_(-1, goal.clamp(min=0).unsqueeze(-1), 4 * favoured.double())
    return scores, target


@every_metric
@pytest.mark.parametrize("references", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_bits_give_the_metric_and_gains_are_exact(
    name: str, options: dict[str, Any], references: int, masked: bool
) -> None:
    scores, target = texts(references)
    where = None
    if masked:
        where = torch.ones(2, 3, 5, dtype=torch.bool)
        where[0, 1] = False
        where[1, 2, 3:] = False
    expected = mg.metric(name, **options)(scores, target, where=where)
    metric = comparison_metric(mg.metric(name, **options))
    inputs = metric.check(scores, target, where)
    torch.testing.assert_close(metric.evaluate(*inputs), expected)
    plan = metric.reexpress(inputs.scores.shape, inputs.target, inputs.where, torch.float64)
    comparisons, live = plan.comparisons(inputs.scores)
    bits = comparisons > 0
    torch.testing.assert_close(plan.from_bits(bits), expected)
    drawn = torch.rand(3, *bits.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    for each in (bits, drawn):
        tried = torch.where(live, tried_flip_gains(plan, each), 0.0)
        torch.testing.assert_close(plan.flip_gains(each), tried)
    assert tried.abs().sum() > 0


def test_without_scores_a_lost_place_matches_nothing() -> None:
    metric = comparison_metric("exact_match")
    target = torch.tensor([[1, 2, 3]])
    value = metric.from_bits(torch.tensor([[True, True, True], [True, False, True]]), target,
                             shape=(1, 3, 6))  # fmt: skip
    assert value.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("loss", [mg.UniLoss, mg.MetricLoss])
@every_metric
def test_losses_have_the_metric_as_value_and_better_text_as_gradient(
    loss: Any, name: str, options: dict[str, Any]
) -> None:
    scores, target = texts()
    metric = mg.metric(name, **options)
    leaf = scores.clone().requires_grad_()
    optimizer = torch.optim.Adam([leaf], 0.1)
    made = loss(metric)
    value = metric(scores, target).mean()
    first = made(leaf, target)
    torch.testing.assert_close(first, 1 - value if metric.higher_is_better else value)
    for _ in range(60):
        optimizer.zero_grad()
        made(leaf, target).backward()
        optimizer.step()
    assert made(leaf, target) < 0.3 * first


def test_a_place_without_a_token_gets_no_gradient() -> None:
    scores, target = texts()
    leaf = scores.clone().requires_grad_()
    mg.UniLoss("rouge_l")(leaf, target).backward()
    assert leaf.grad is not None
    assert not leaf.grad[0, 0, 4].any()
    assert leaf.grad[0, 0, :4].any()


def test_soft_bits_of_tokens_are_their_probabilities() -> None:
    """Among the tokens of a vocabulary, every rival takes part, not the highest one alone."""
    scores = torch.tensor([[[2.0, 1.0, 0.5, -1.0]]], requires_grad=True)
    target = torch.tensor([[1]])
    loss = mg.UniLoss("exact_match", slope=1.0, soft_rivals=True)
    value = loss.relaxed(scores, target)
    torch.testing.assert_close(value, 1 - scores.softmax(-1)[0, 0, 1])
    value.backward()
    assert scores.grad is not None
    assert scores.grad.ne(0).all()
    hard = mg.UniLoss("exact_match", slope=1.0).relaxed(scores, target)
    assert hard.item() == pytest.approx(1 - torch.tensor(-1.0).sigmoid().item())


def test_metric_loss_weighs_the_metric_of_tokens_as_among_classes() -> None:
    """With scores of a text, the two gradients have the same length and half of the weight."""
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.arange(12).reshape(3, 4) % 5
    metric = mg.UniLoss("span_f1", soft_rivals=True)
    (by_metric,) = torch.autograd.grad(metric(scores, target), scores)
    plain = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    (by_tokens,) = torch.autograd.grad(plain, scores)
    (both,) = torch.autograd.grad(mg.MetricLoss("span_f1")(scores, target), scores)
    scaled = by_metric * by_tokens.norm() / by_metric.norm()
    torch.testing.assert_close(both, (by_tokens + scaled) / 2)


def test_an_edit_counts_the_same_in_a_short_and_in_a_long_set() -> None:
    """The total edit distance has no bound, so its gradient is divided by its range."""
    scores, target = texts()
    lengths = []
    for copies in (1, 8):
        leaf = scores[1].repeat(copies, 1, 1).requires_grad_()
        mg.UniLoss("edit_distance")(leaf, target[1].repeat(copies, 1)).backward()
        assert leaf.grad is not None
        lengths.append(float(leaf.grad.abs().sum()))
    assert lengths[1] == pytest.approx(lengths[0])


def test_saved_and_loaded(tmp_path: Any) -> None:
    scores, target = texts()
    loss = mg.MetricLoss(mg.metric("edit_distance", normalized=True, padding=0))
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert repr(loaded.metric) == repr(loss.metric)
    torch.testing.assert_close(loaded(scores, target), loss(scores, target))


def test_decoders_and_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(TypeError, match=r"span_f1 has a custom decoder.*mg\.ReLoss"):
        mg.UniLoss(mg.metric("span_f1", decode=mg.decode_spans))
    scores, target = texts()
    with pytest.raises(ValueError, match=r"a target token for each place.*\[2, 3, 4\]"):
        mg.UniLoss("bleu")(scores, target[..., :4])
