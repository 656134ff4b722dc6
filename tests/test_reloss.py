"""ReLoss: the objective, the penalty, the networks, and what a learned loss keeps."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.metrics.base import Inputs
from metricgrad.surrogates.alignment import (
    gradient_norms,
    gradient_penalty,
    item_penalty,
    soft_spearman,
    sorting_network_rank,
)
from metricgrad.surrogates.nets.items import Sees, seen
from metricgrad.surrogates.nets.text import positions
from metricgrad.surrogates.score_sets import broad
from tests.trainings import seeded

pytestmark = pytest.mark.filterwarnings("ignore:this ReLoss has not learned")

Sets = tuple[Tensor, Tensor]


def binary(sets: int = 6, items: int = 12, seed: int = 0) -> Sets:
    return broad(sets, items)(seeded(seed))


def classes(sets: int = 6, items: int = 12, number: int = 4, seed: int = 0) -> Sets:
    return broad(sets, items, classes=number)(seeded(seed))


def tokens(
    sets: int = 5, items: int = 3, length: int = 6, vocabulary: int = 4, seed: int = 0
) -> Sets:
    scores, target = broad(sets, items * length, classes=vocabulary)(seeded(seed))
    target = target.unflatten(1, (items, length))
    target[:, :, -1] = -1  # padding
    return scores.unflatten(1, (items, length)), target


def references() -> Sets:
    scores, target = tokens()
    return scores, torch.stack([target, target.roll(1, -1), torch.full_like(target, -1)], -2)


def spans(sets: int = 5, items: int = 4, length: int = 7, seed: int = 0) -> Sets:
    scores = torch.randn(sets, items, length, 2, generator=seeded(seed))
    return scores, mg.decode_spans(torch.randn(sets, items, length, 2, generator=seeded(seed + 1)))


def maps(sets: int = 5, items: int = 2, joints: int = 3, seed: int = 0) -> Sets:
    scores = torch.randn(sets, items, joints, 6, 5, generator=seeded(seed))
    return scores, torch.rand(sets, items, joints, 2, generator=seeded(seed + 1)) * 4


KINDS: dict[str, tuple[Any, Any, Sets]] = {
    "classification": (
        "accuracy",
        lambda: mg.nets.Classification(width=8, generator=seeded()),
        classes(),
    ),
    "binary accuracy": (
        "accuracy",
        lambda: mg.nets.Classification(width=8, generator=seeded()),
        binary(),
    ),
    "margin": (
        "accuracy",
        lambda: mg.nets.Classification(width=8, sees="margin", generator=seeded()),
        classes(),
    ),
    "set, binary": (
        "f1",
        lambda: mg.nets.SetNetwork(width=8, context=4, generator=seeded()),
        binary(),
    ),
    "set, no context": (
        "auc",
        lambda: mg.nets.SetNetwork(width=8, context=0, generator=seeded()),
        binary(),
    ),
    "set, classes": (
        "f1",
        lambda: mg.nets.SetNetwork(width=8, context=4, generator=seeded()),
        classes(),
    ),
    "set, labels": (
        mg.metric("f1", multilabel=True),
        lambda: mg.nets.SetNetwork(width=8, context=4, generator=seeded()),
        broad(6, 12, classes=3, multilabel=True)(seeded()),
    ),
    "set, grades": (
        "ndcg",
        lambda: mg.nets.SetNetwork(width=8, context=4, generator=seeded()),
        binary(),
    ),
    "embeddings": (
        "accuracy",
        lambda: mg.nets.Embeddings(4, width=8, embedding=5, generator=seeded()),
        classes(),
    ),
    "embedded text": (
        mg.metric("edit_distance", normalized=True, end=3),
        lambda: mg.nets.Embeddings(4, width=8, embedding=5, generator=seeded()),
        tokens(),
    ),
    "embedded references": (
        mg.metric("edit_distance", padding=0),
        lambda: mg.nets.Embeddings(4, width=8, embedding=6, blocks=1, generator=seeded()),
        references(),
    ),
    "heatmaps": (
        mg.metric("pck", radius=1.5),
        lambda: mg.nets.Heatmaps((6, 5), width=8, embedding=4, generator=seeded()),
        maps(),
    ),
    "sequence": (
        "bleu",
        lambda: mg.nets.Sequence(width=8, heads=2, blocks=1, generator=seeded()),
        tokens(),
    ),
    "references": (
        "bleu",
        lambda: mg.nets.Sequence(width=8, heads=2, blocks=1, generator=seeded()),
        references(),
    ),
    "spans": (
        mg.metric("span_f1", decode=mg.decode_spans),
        lambda: mg.nets.Spans(width=8, heads=2, blocks=1, generator=seeded()),
        spans(),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, **options: Any) -> tuple[mg.ReLoss, Tensor, Tensor]:
    metric, net, (scores, target) = KINDS[kind]
    return mg.ReLoss(metric, net=net(), **options), scores, target


class Mean(nn.Module):
    """A user's own network: a weight times the mean score."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        return self.weight * scores.mean(-1)


def soft_spearman_by_hand(losses: np.ndarray, truth: np.ndarray, slope: float) -> float:
    standard = (losses - losses.mean()) / losses.std()
    ranks = np.array(
        [
            1 + sum(1 / (1 + math.exp(-slope * (a - b))) for j, b in enumerate(standard) if j != i)
            for i, a in enumerate(standard)
        ]
    )
    return float(np.corrcoef(ranks, stats.rankdata(truth))[0, 1])


# -------------------------------------------------------------------------------------------------
# the objective


def test_soft_spearman_matches_hand_computed_values() -> None:
    losses, truth = (
        torch.randn(9, generator=seeded(), dtype=torch.float64),
        torch.tensor([3.0, 1, 1, 2, 5, 5, 5, 0, 4]),
    )
    found = soft_spearman(losses, truth, slope=3.0).item()
    assert found == pytest.approx(
        soft_spearman_by_hand(losses.numpy(), truth.numpy(), 3.0), abs=1e-9
    )


@pytest.mark.parametrize("rank", ["pairwise", "projection", "sorting_network"])
@pytest.mark.parametrize("scale", [1e-4, 0.01, 100.0, 1e5])
def test_soft_spearman_does_not_depend_on_the_scale_of_the_losses(rank: Any, scale: float) -> None:
    losses, truth = (
        torch.randn(32, generator=seeded(), dtype=torch.float64),
        torch.rand(32, generator=seeded(1)),
    )
    plain = soft_spearman(losses, truth, rank=rank)
    torch.testing.assert_close(
        soft_spearman(scale * losses + 7, truth, rank=rank), plain, rtol=1e-6, atol=1e-6
    )


def test_soft_spearman_approaches_scipys_and_shares_ranks_among_ties_of_the_metric() -> None:
    losses, truth = (
        torch.randn(64, generator=seeded()),
        torch.randint(5, (64,), generator=seeded(1)).float(),
    )
    expected = stats.spearmanr(losses, truth)[0]
    assert soft_spearman(losses, truth, slope=1e4).item() == pytest.approx(expected, abs=1e-3)


def test_equal_losses_have_no_correlation_and_a_finite_gradient() -> None:
    losses = torch.full((8,), 0.3, requires_grad=True)
    value = soft_spearman(losses, torch.arange(8.0))
    value.backward()
    assert value == 0
    assert losses.grad is not None
    assert losses.grad.isfinite().all()


def test_a_sorting_network_ranks_any_number_of_values() -> None:
    values = torch.tensor([0.3, -1.0, 2.0, 0.9, -0.2])
    torch.testing.assert_close(
        sorting_network_rank(values, 1e3), mg.ops.hard_rank(values), atol=0.05, rtol=0
    )


def test_the_penalty_matches_hand_computed_values() -> None:
    weights = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    scores = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    losses = (weights * scores).mean(-1)  # an item's own slope is its weight
    norms = [math.sqrt((1 + 4) / 2), math.sqrt(9 / 2)]
    torch.testing.assert_close(
        gradient_norms(losses, scores).detach(), torch.tensor(norms, dtype=torch.float64)
    )
    expected = sum((norm - 1) ** 2 for norm in norms) / 2
    assert gradient_penalty(gradient_norms(losses, scores)).item() == pytest.approx(expected)


def test_the_released_penalty_wants_each_item_to_have_a_gradient_of_one() -> None:
    weights = torch.tensor([[1.0, 2.0, 3.0], [0.0, 3.0, 6.0]], dtype=torch.float64)
    scores = torch.zeros(2, 3, 2, dtype=torch.float64, requires_grad=True)
    losses = (weights * scores.sum(-1)).mean(-1)
    each = weights * math.sqrt(2) / 3  # an item's share of the mean, over its two classes
    expected = (each - 1).square()
    torch.testing.assert_close(item_penalty(losses, scores, None).detach(), expected.mean())
    where = torch.tensor([[True, True, False], [True, True, True]])
    found = item_penalty(losses, scores, where).detach()
    torch.testing.assert_close(found, expected[where].mean())
    flat = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    binary = item_penalty((weights * flat).mean(-1), flat, None).detach()
    torch.testing.assert_close(binary, (weights / 3 - 1).square().mean())


def test_only_gradients_that_stick_out_are_penalised_by_default() -> None:
    slopes = torch.tensor([1.0] * 7 + [9.0])  # the mean is 2, so three times the mean is 6
    scores = torch.zeros(8, 3, requires_grad=True)
    losses = slopes * scores.mean(-1)
    assert gradient_penalty(gradient_norms(losses, scores), "at_most").item() == pytest.approx(
        (9 / 2 - 3) ** 2 / 8
    )
    assert mg.ReLoss("f1").smooth == "at_most"


def test_the_misfit_is_the_papers_objective_by_hand() -> None:
    metric = mg.from_function(lambda s, y: float((s > 0).mean()), best=1.0, worst=0.0)
    loss = mg.ReLoss(metric, net=Mean(), penalty=10.0, smooth="equal", slope=2.0)
    scores, target = torch.randn(7, 5, generator=seeded()), torch.zeros(7, 5)
    losses, truth = 2 * scores.mean(-1).numpy(), 1 - (scores > 0).double().mean(-1).numpy()
    expected = (
        1 - soft_spearman_by_hand(losses, truth, 2.0) + 10.0 * (2.0 - 1.0) ** 2
    )  # the slope is 2 everywhere
    assert loss.misfit(scores, target).item() == pytest.approx(expected, abs=1e-5)
    approximation = mg.ReLoss(loss.metric, net=Mean(), penalty=0.0, objective="approximation")
    assert approximation.misfit(scores, target).item() == pytest.approx(
        float(((losses - truth) ** 2).mean()), abs=1e-5
    )


def test_the_misfit_teaches_the_parameters_and_leaves_the_scores_alone() -> None:
    loss, scores, target = made("set, binary")
    scores = scores.clone().requires_grad_()
    loss.misfit(scores, target).backward()
    assert scores.grad is None
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for parameter in loss.net.parameters()
    )


# -------------------------------------------------------------------------------------------------
# the networks


def test_the_network_for_classes_has_the_papers_size() -> None:
    assert sum(each.numel() for each in mg.ReLoss("accuracy").parameters()) == 33_409


@every_kind
def test_every_network_passes_gradcheck(kind: str) -> None:
    loss, scores, target = made(kind)
    loss.double()
    some = scores[:2].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss.per_set(s, target[:2]), (some,))


@every_kind
def test_the_penalty_has_a_gradient_for_every_network(kind: str) -> None:
    loss, scores, target = made(kind, penalty=1.0)
    inputs = loss.check(scores.detach(), target, None)
    inputs = Inputs(inputs.scores.requires_grad_(), inputs.target, inputs.where)
    gradient_penalty(gradient_norms(loss.raw(inputs), inputs.scores)).backward()
    found = torch.cat([each.grad.flatten() for each in loss.parameters() if each.grad is not None])
    assert found.isfinite().all()
    assert found.abs().sum() > 0


@every_kind
def test_many_sets_equal_one_by_one(kind: str) -> None:
    loss, scores, target = made(kind)
    one_by_one = torch.stack([loss(s, y) for s, y in zip(scores, target, strict=True)])
    torch.testing.assert_close(loss.per_set(scores, target), one_by_one, atol=1e-6, rtol=1e-5)
    grid = loss.per_set(scores.unsqueeze(1), target.unsqueeze(1))
    torch.testing.assert_close(grid, one_by_one.unsqueeze(1), atol=1e-6, rtol=1e-5)


@every_kind
def test_the_order_of_items_does_not_matter(kind: str) -> None:
    loss, scores, target = made(kind)
    order = torch.randperm(scores.shape[1], generator=seeded(3))
    torch.testing.assert_close(
        loss.per_set(scores[:, order], target[:, order]),
        loss.per_set(scores, target),
        atol=1e-6,
        rtol=1e-5,
    )


@every_kind
def test_items_that_do_not_count_change_nothing(kind: str) -> None:
    loss, scores, target = made(kind)
    where = torch.ones(scores.shape[:2], dtype=torch.bool)
    where[:, 1] = False
    kept = torch.arange(scores.shape[1]) != 1
    spoiled = scores.clone()
    spoiled[:, 1] = 1e4
    expected = loss.per_set(scores[:, kept], target[:, kept])
    torch.testing.assert_close(loss.per_set(spoiled, target, where), expected, atol=1e-5, rtol=1e-4)
    assert loss(scores, target, torch.zeros_like(where)) == 0


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hard_inputs_give_finite_values_and_gradients(kind: str, dtype: torch.dtype) -> None:
    loss, scores, target = made(kind)
    for hard in (torch.zeros_like(scores), 1e4 * scores.sign()):
        inputs = hard.to(dtype).requires_grad_()
        value = loss(inputs, target)
        value.backward()
        assert inputs.grad is not None
        assert value.isfinite()
        assert inputs.grad.isfinite().all()


@every_kind
def test_a_loss_is_exact_after_save_and_load(kind: str, tmp_path: Path) -> None:
    loss, scores, target = made(kind)
    loss.orientation.neg_()
    loss.scale.fill_(0.7)
    loss.save(tmp_path / "loss.safetensors")
    again = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert repr(again) == repr(loss)
    assert torch.equal(again.per_set(scores, target), loss.per_set(scores, target))


def test_a_loss_that_has_learned_nothing_says_so_once() -> None:
    loss, (scores, target) = mg.ReLoss("f1", generator=seeded()), binary()
    with pytest.warns(
        UserWarning, match="has not learned f1 yet and its network is random; call loss.learn"
    ):
        loss(scores, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(scores, target)
        mg.ReLoss.pretrained("f1")(scores, target)


@pytest.mark.parametrize("name", ["f1", "auc", "average_precision", "mcc"])
def test_sets_on_which_the_metric_is_undefined_are_left_out(name: str) -> None:
    loss, (scores, target) = mg.ReLoss.pretrained(name), binary()
    target[:, 0], target[:, 1] = True, False
    target[2] = False  # no positive: no value
    leaf = scores.clone().requires_grad_()
    loss(leaf, target).backward()
    assert leaf.grad is not None
    assert leaf.grad.any(-1).tolist() == [True, True, False, True, True, True]
    for empty in (scores[2], scores[0, :0]):
        leaf = empty.clone().requires_grad_()
        value = loss(leaf, torch.zeros_like(leaf))
        value.backward()
        assert value == 0
        assert leaf.grad is not None
        assert not leaf.grad.any()


@pytest.mark.parametrize(
    "loss", [mg.ReLoss.pretrained("auc"), mg.UniLoss("auc"), mg.baselines.PairwiseRanking()]
)
def test_a_column_of_scores_and_targets_is_one_set_of_items(loss: mg.Surrogate) -> None:
    scores, target = (part[0] for part in binary(items=30))
    column = loss(scores.unsqueeze(-1), target.unsqueeze(-1))
    assert torch.equal(column, loss(scores, target))
    assert column > 0
    where = torch.arange(30) < 20
    masked = loss(scores.unsqueeze(-1), target.unsqueeze(-1), where.unsqueeze(-1))
    assert torch.equal(masked, loss(scores, target, where))


def test_a_column_is_a_label_where_the_metric_is_of_labels() -> None:
    scores, target = torch.randn(30, 1, generator=seeded()), torch.arange(30).unsqueeze(-1) % 3 == 0
    loss = mg.UniLoss("f1")
    labels = mg.UniLoss(mg.metric("f1", multilabel=True))
    torch.testing.assert_close(labels(scores, target), loss(scores.squeeze(-1), target.squeeze(-1)))


def test_of_several_references_the_likeliest_token_is_seen() -> None:
    loss = mg.ReLoss("bleu", generator=seeded())
    scores, target = torch.zeros(1, 3, 5), torch.tensor([[[1, 2, 3], [1, 4, 4]]])
    scores[0, :, 4] = 3.0  # likelier than 2 and 3
    assert torch.equal(loss(scores, target), loss(scores, torch.tensor([[1, 4, 4]])))
    padded = torch.cat([target, torch.full((1, 1, 3), -1)], 1)
    assert torch.equal(loss(scores, padded), loss(scores, target))


def test_the_steepness_of_a_loss_does_not_depend_on_padding_or_on_a_scale_it_does_not_see() -> None:
    loss, (scores, target) = mg.ReLoss.pretrained("auc"), binary(items=10)

    def steepness(scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        inputs = loss.check(scores, target, where)
        inputs = inputs._replace(scores=inputs.scores.clone().requires_grad_())
        return loss.steepness(loss.raw(inputs), inputs).detach()

    expected = steepness(scores, target)
    torch.testing.assert_close(steepness(100 * scores, target), expected, rtol=1e-3, atol=1e-5)
    more, none = (
        torch.cat([scores, torch.full((6, 30), 7.0)], 1),
        torch.zeros(6, 30, dtype=torch.bool),
    )
    where = torch.cat([~torch.zeros_like(target, dtype=torch.bool), none], 1)
    padded = steepness(more, torch.cat([target.bool(), none], 1), where)
    torch.testing.assert_close(padded, expected, rtol=1e-3, atol=1e-5)


def test_the_published_settings_are_those_of_the_released_code(tmp_path: Path) -> None:
    loss = mg.ReLoss.as_published(generator=seeded())
    config = loss.config()
    settings = {name: config[name] for name in ("penalty", "smooth", "rank", "slope", "recipe")}
    assert settings == {
        **{"penalty": 10.0, "smooth": "each_item", "rank": "sorting_network"},
        **{"slope": 5.0, "recipe": "published"},
    }
    scores, target = classes()
    chance = scores.softmax(-1).gather(-1, target.unsqueeze(-1))
    layers: Any = loss.net.layers
    with torch.no_grad():
        layers[-1].bias -= layers(chance).median()  # so that f has both signs
    expected = layers(chance).abs().mean((-1, -2))
    torch.testing.assert_close(loss.raw(loss.check(scores, target, None)), expected)
    loss.save(tmp_path / "loss.safetensors")
    again = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert again.config() == config
    assert torch.equal(again.per_set(scores, target), loss.per_set(scores, target))
    assert isinstance(mg.ReLoss.as_published("f1").net, mg.nets.SetNetwork)


def test_a_users_own_network_is_passed_again(tmp_path: Path) -> None:
    loss = mg.ReLoss("auc", net=Mean(3.0))
    loss.save(tmp_path / "loss.safetensors")
    with pytest.raises(ValueError, match="your own module, Mean"):
        mg.load_surrogate(tmp_path / "loss.safetensors")
    again = mg.load_surrogate(tmp_path / "loss.safetensors", net=Mean(0.0))
    scores, target = binary()
    assert torch.equal(again.per_set(scores, target), loss.per_set(scores, target))


def test_the_same_generator_gives_the_same_weights() -> None:
    one, other = (mg.ReLoss("f1", generator=seeded(4)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_what_a_network_sees() -> None:
    scores = torch.tensor([[[2.0, 1.0, 0.0]]])
    target = torch.tensor([[1]])
    kinds: tuple[Sees, Sees] = ("probability", "margin")
    every, margin = (seen(scores, target, sees) for sees in kinds)
    torch.testing.assert_close(every, scores.softmax(-1)[..., 1])
    torch.testing.assert_close(
        margin, torch.tensor([[-1.0]]).asinh()
    )  # 1 against 2, whatever the third is


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: mg.ReLoss("f1", penalty=-1.0), "penalty must be 0 or more.*-1"),
        (
            lambda: mg.ReLoss("f1", rank="bubble"),  # type: ignore[arg-type]
            "rank must be one of 'pairwise', 'projection', 'sorting_network'; got 'bubble'",
        ),
        (lambda: mg.ReLoss("f1", objective="hope"), "objective must be one of .* got 'hope'"),  # type: ignore[arg-type]
        (lambda: mg.nets.Classification(sees="all"), "sees must be .* got 'all'"),  # type: ignore[arg-type]
        (
            lambda: mg.nets.Heatmaps((3,)),
            r"size must be the height and width of the maps; got \(3,\)",
        ),
        (lambda: mg.nets.Sequence(width=10, heads=4), "width=10 and heads=4"),
        (
            lambda: mg.ReLoss("bleu")(torch.zeros(2, 5, 7), torch.zeros(2, 4)),
            r"a network of tokens takes .* target \[2, 4\]",
        ),
        (
            lambda: mg.ReLoss("accuracy", net=mg.nets.Embeddings(3))(
                torch.zeros(5, 4), torch.zeros(5).long()
            ),
            r"takes scores \[..., N, 3\] .* got scores \[5, 4\]",
        ),
    ],
)
def test_bad_input_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_set_network_has_a_width() -> None:
    with pytest.raises(ValueError, match="width must be 1 or more; got 0"):
        mg.nets.SetNetwork(width=0)


@pytest.mark.parametrize(("maps", "joints"), [((2, 3, 4, 5), (2, 3)), ((2, 3, 6, 5), (2, 4))])
def test_maps_of_another_size_or_number_are_refused(
    maps: tuple[int, ...], joints: tuple[int, ...]
) -> None:
    """Either fault alone is enough."""
    net = mg.nets.Heatmaps((6, 5), width=4, embedding=2)
    inputs = Inputs(torch.randn(maps), torch.zeros(*joints, 2), None)
    with pytest.raises(ValueError, match=r"nets\.Heatmaps\(size=\(6, 5\)\) takes maps"):
        net(mg.metric("pck", radius=1.0), inputs)


def test_the_first_token_of_a_vocabulary_counts() -> None:
    net = mg.nets.Sequence(width=8, heads=2)
    target = torch.tensor([[0, 1, -1]])
    _, ids, counted = net.check(mg.metric("bleu"), torch.randn(1, 3, 4), target, None)
    assert ids.squeeze(-1).tolist() == [[0, 1, -1]]
    assert counted is not None
    assert counted.tolist() == [[True, True, False]]


def test_places_have_waves_of_all_lengths() -> None:
    """As the transformer's: sin and cos of place / 10000^(2 k / width)."""
    found = positions(5, 6, torch.zeros(1, dtype=torch.float64))
    angle = np.arange(5)[:, None] / 10000 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(5, 6)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
