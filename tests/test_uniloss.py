"""UniLoss: the laws of every surrogate, and the paper's own."""

from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.reexpression import ComparisonMetric
from metricgrad.surrogates.interpolation import sample_anchors
from metricgrad.surrogates.inverse_distance import inverse_distance
from tests.cases import Case
from tests.test_contracts import generator
from tests.test_reexpression import ALL_PAIRS, DECIDED, separated

SETTINGS: list[dict[str, Any]] = [
    {},
    {"slope": 1.0, "relaxation": "logistic"},
    {"slope": 1.0, "relaxation": "squared_hinge"},
    {"slope": 2.0, "relaxation": 0.5},
    {"slope": 2.0, "samples": 3},
    {"slope": 2.0, "portion": 0.5},
    {"slope": 2.0, "interpolation": "idw", "anchors": 4},
]
# One form of every kind of re-expression; options such as averages change the metric's formula,
# which its own tests hold, and not what the loss does with it.
KINDS = [
    "accuracy()-binary", "accuracy()-multi-class", "accuracy(k=2)-multi-class",
    "hamming()-multi-label", "f1(threshold=0.5)-binary", "f1()-multi-class",
    "mcc()-multi-class",
    "f1(average=micro,multilabel=True)-multi-label", "kappa(weights=quadratic)-multi-class",
    "gmean()-multi-class", "auc()-binary", "auc()-multi-class", "auc(average=micro)-multi-class",
    "auc(average=weighted,multilabel=True)-multi-label", "partial_auc(max_fpr=0.4)-binary",
    "average_precision()-binary", "average_precision(interpolated=True)-binary",
    "eer()-binary",
    "recall_at_precision(min_precision=0.6)-binary", "ndcg()-ranking", "ndcg(k=3)-ranking",
    "map(k=3)-ranking", "mrr()-ranking", "precision_at_k(k=3)-binary", "recall_at_k(k=3)-binary",
    "pck()-pose", "mean_iou(ignore_index=0)-segmentation", "accuracy(pairs=all)-multi-class",
    "gmean(pairs=all)-multi-class", "f1(pairs=all)-multi-class",
    "kappa(weights=quadratic,pairs=all)-multi-class", "mean_iou(pairs=all)-segmentation",
    "pck(pairs=all)-pose",
]  # fmt: skip
FORMS = {str(case): case for case in DECIDED + ALL_PAIRS}
every_kind = pytest.mark.parametrize("case", [FORMS[name] for name in KINDS], ids=str)


def in_settings(settings: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Every form in the first setting, and every kind in the others."""
    forms = [(case, settings[0]) for case in FORMS.values()]
    forms += [(FORMS[name], options) for name in KINDS for options in settings[1:]]
    names = [
        f"{case}-{','.join(f'{k}={v}' for k, v in o.items()) or 'default'}" for case, o in forms
    ]
    return pytest.mark.parametrize(("case", "options"), forms, ids=names)


MONOTONE = [
    case
    for case in DECIDED
    if case.family in ("binary", "ranking")
    and case.name not in ("mcc", "kappa")
    and case.metric.higher_is_better
]


FLAT = [
    case
    for case in DECIDED + ALL_PAIRS
    if case.family in ("binary", "multi-class") and "average" not in case.options
]


def seeded(case: Case, seed: int = 0, **options: Any) -> mg.UniLoss:
    return mg.UniLoss(case.metric, generator=torch.Generator().manual_seed(seed), **options)


def mixed(case: Case, size: int = 4, salt: int = 0) -> tuple[Tensor, Tensor]:
    """A set without ties that has at least one item of class 0 and one of class 1."""
    size = min(size, 2) if case.family in ("segmentation", "pose") else size
    scores, target = separated(case, generator(case, salt), size)
    target.reshape(len(target), -1)[:2] = torch.tensor([[0], [1]]).to(target)[: len(target)]
    return scores, target


@in_settings(SETTINGS)
def test_gradient_is_that_of_the_relaxed_value(case: Case, options: dict[str, Any]) -> None:
    scores, target = mixed(case, 3)

    def relaxed(values: Tensor) -> Tensor:
        return seeded(case, **options).relaxed(values, target)

    assert torch.autograd.gradcheck(relaxed, (scores.requires_grad_(),), atol=1e-4, fast_mode=True)
    (pure,) = torch.autograd.grad(relaxed(scores), scores)
    (through,) = torch.autograd.grad(seeded(case, **options).per_set(scores, target), scores)
    torch.testing.assert_close(pure, through)


@every_kind
@pytest.mark.parametrize("ordinary", [False, True])
def test_inference_leaves_nothing_behind_that_training_cannot_use(
    case: Case, ordinary: bool
) -> None:
    scores, target = mixed(case, 6)
    for truth in (target, torch.zeros_like(target)):  # the second may have no value
        loss: mg.Surrogate = seeded(case)
        loss = mg.with_ordinary(loss) if ordinary else loss
        with torch.inference_mode():
            expected = loss(scores, truth)
        leaf = scores.clone().requires_grad_()
        value = loss(leaf, truth)
        assert value == expected
        value.backward()
        assert leaf.grad is not None


@in_settings(SETTINGS)
def test_value_is_the_metric_as_a_loss(case: Case, options: dict[str, Any]) -> None:
    sets = [mixed(case, 6, salt) for salt in range(3)]
    scores, target = (torch.stack(column) for column in zip(*sets, strict=True))
    values = case.metric(scores, target)
    expected = 1 - values if case.metric.higher_is_better else values
    loss = seeded(case, **options)
    torch.testing.assert_close(loss.per_set(scores, target), expected)
    torch.testing.assert_close(loss(scores, target), expected.mean())
    (gradient,) = torch.autograd.grad(loss(scores.requires_grad_(), target), scores)
    assert gradient.isfinite().all()


@in_settings(SETTINGS)
def test_hard_inputs_give_finite_losses_and_gradients(case: Case, options: dict[str, Any]) -> None:
    scores, target = mixed(case, 4)
    one_class = torch.zeros_like(target), torch.ones_like(target)
    inputs = [
        (torch.zeros_like(scores), target),
        (1e4 * scores.sign(), target),
        (1e4 * scores, target),
    ]
    inputs += [(scores, each) for each in one_class] + [
        (scores[:1], target[:1]),
        (scores[:0], target[:0]),
    ]
    inputs += [(scores.to(dtype), target) for dtype in (torch.float16, torch.bfloat16)]
    for values, truth in inputs:
        leaf = values.clone().requires_grad_()
        loss = seeded(case, **options)(leaf, truth)
        assert loss.shape == ()
        assert loss.isfinite()
        loss.backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert leaf.grad.dtype == values.dtype


@in_settings(SETTINGS[:4])
def test_item_order_and_masked_items_are_irrelevant(case: Case, options: dict[str, Any]) -> None:
    scores, target = mixed(case, 6)
    loss, order, kept = seeded(case, **options), torch.arange(len(target)).flip(0), len(target) // 2
    (gradient,) = torch.autograd.grad(loss.per_set(scores.requires_grad_(), target), scores)
    moved = scores.detach()[order].requires_grad_()
    (permuted,) = torch.autograd.grad(loss.per_set(moved, target[order]), moved)
    torch.testing.assert_close(permuted, gradient[order])
    where = torch.arange(len(target)) < kept
    (masked,) = torch.autograd.grad(loss.per_set(scores, target, where), scores)
    (short,) = torch.autograd.grad(loss.per_set(scores[:kept], target[:kept]), scores)
    torch.testing.assert_close(masked, short)
    assert not masked[kept:].any()


@pytest.mark.parametrize("case", MONOTONE, ids=str)
def test_positives_are_never_pushed_down(case: Case) -> None:
    scores, target = mixed(case, 12)
    for options in SETTINGS[:5]:
        loss = seeded(case, **options)
        (gradient,) = torch.autograd.grad(loss(scores.requires_grad_(), target), scores)
        assert (gradient[target == target.max()] <= 1e-12).all(), options
        assert (gradient[target == target.min()] >= -1e-12).all(), options


@every_kind
def test_the_same_generator_gives_the_same_result(case: Case) -> None:
    scores, target = mixed(case, 5)
    for options in SETTINGS[4:]:
        first, again = (seeded(case, **options).relaxed(scores, target) for _ in range(2))
        assert first == again


@every_kind
def test_idw_equals_the_metric_at_its_anchors(case: Case) -> None:
    metric = case.metric
    assert isinstance(metric, ComparisonMetric)
    scores, target = mixed(case, 4)
    inputs = metric.check(scores, target, None)
    plan = metric.reexpress(inputs.scores.shape, inputs.target, None, torch.float64)
    comparisons, live = plan.comparisons(inputs.scores)
    anchors = sample_anchors(
        plan, comparisons > 0, live, torch.Generator().manual_seed(0), number=3
    )
    values = plan.from_bits(anchors)
    for anchor, value in zip(anchors, values, strict=True):
        apart = torch.zeros(anchor.shape, dtype=torch.float64)
        found = inverse_distance(apart, (anchors ^ anchor) & live, values)
        torch.testing.assert_close(found, value, rtol=0, atol=1e-9)


def test_idw_is_equation_ten() -> None:
    soft, anchors = (
        torch.tensor([0.2, 0.7, 0.4]),
        torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 1]]).bool(),
    )
    values = torch.tensor([1.0, 0.5, 0.25])
    distances = [((soft - anchor.float()) ** 2).sum().sqrt() for anchor in anchors]
    expected = sum(v / d for v, d in zip(values, distances, strict=True)) / sum(
        1 / d for d in distances
    )
    bits = soft > 0.5
    found = inverse_distance((soft - bits.float()).abs().double(), anchors ^ bits, values)
    torch.testing.assert_close(found, expected)


def test_the_released_gradient_is_that_of_the_papers_code() -> None:
    """The code's quotient rule has a wrong sign: N' / S + N S' / S^2 in place of a minus."""
    soft = torch.tensor([0.2, 0.7, 0.4], dtype=torch.float64, requires_grad=True)
    anchors = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 1]]).bool()
    values = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    difference = soft.detach() - anchors.double()
    distance = difference.norm(dim=-1)
    slope = -difference / distance.unsqueeze(-1) ** 3
    numerator, weights = (values / distance).sum(), (1 / distance).sum()
    up, down = (
        (values.unsqueeze(-1) * slope).sum(0) / weights,
        numerator / weights**2 * slope.sum(0),
    )
    bits = soft.detach() > 0.5
    apart = (soft - bits.double()).abs()
    exact = inverse_distance(apart, anchors ^ bits, values, "exact")
    released = inverse_distance(apart, anchors ^ bits, values, "released")
    torch.testing.assert_close(released, exact)
    (found,) = torch.autograd.grad(exact, soft, retain_graph=True)
    torch.testing.assert_close(found, up - down)
    torch.testing.assert_close(torch.autograd.grad(released, soft)[0], up + down)


def test_multilinear_is_exact_one_flip_away() -> None:
    scores, target = torch.tensor([0.3, -0.2, 0.5, 0.1]), torch.tensor([1, 0, 0, 1])
    for name in ("f1", "average_precision", "mcc", "auc", "eer"):
        metric = mg.metric(name)
        assert isinstance(metric, ComparisonMetric)
        values, _ = metric.comparisons(scores, target)
        gains = metric.flip_gains(values > 0, target)
        for place in range(len(values)):
            flipped = (values > 0) ^ (torch.arange(len(values)) == place)
            step = (flipped.to(gains) - (values > 0).to(gains)) @ gains
            found = metric.from_bits(values > 0, target) + step
            torch.testing.assert_close(found, metric.from_bits(flipped, target).to(found))


WITHOUT_CUT = [
    "accuracy",
    "error_rate",
    "balanced_accuracy",
    "fbeta",
    "f1",
    "jaccard",
    "mcc",
    "kappa",
    "gmean",
]
RANKED = ["auc", "average_precision", "map", "ndcg"]


@pytest.mark.parametrize("name", [*WITHOUT_CUT, *RANKED])
def test_wrong_items_receive_a_gradient(name: str) -> None:
    scores = torch.randn(256, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = (torch.rand(256, generator=torch.Generator().manual_seed(1)) < 0.2).long()
    (gradient,) = torch.autograd.grad(mg.UniLoss(name)(scores, target), scores)
    wrong = (scores > 0) != (target > 0) if name in WITHOUT_CUT else (target > 0)
    assert (gradient[wrong] != 0).float().mean() >= 0.9


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "f1", "mcc", "kappa"])
def test_wrong_items_of_a_hundred_classes_receive_a_gradient(name: str) -> None:
    scores = torch.randn(128, 100, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.randint(0, 100, (128,), generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(mg.UniLoss(name)(scores, target), scores)
    wrong = scores.argmax(-1) != target
    assert (gradient[wrong] != 0).any(-1).float().mean() >= 0.9


def test_wrong_joints_of_large_maps_receive_a_gradient() -> None:
    maps = torch.randn(4, 6, 64, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    joints = torch.cat([torch.rand(4, 6, 2) * 64, torch.full((4, 6, 1), 12.0)], -1)
    metric = mg.metric("pck")
    (gradient,) = torch.autograd.grad(mg.UniLoss(metric)(maps, joints), maps)
    wrong = metric(maps.detach().reshape(24, 1, 1, 64, 64), joints.reshape(24, 1, 1, 3)) == 0
    assert gradient.flatten(2).any(-1).flatten()[wrong].float().mean() >= 0.9


@pytest.mark.parametrize("case", FLAT, ids=str)
def test_descending_the_loss_improves_the_metric(case: Case) -> None:
    cut_off = case.name in (
        "precision_at_k",
        "recall_at_k",
        "eer",
        "recall_at_precision",
        "precision_at_recall",
        "partial_auc",
    )
    options: dict[str, Any] = {"slope": 1.0, "samples": 64 if cut_off else 0}
    scores, target = mixed(case, 30)
    scores = (scores / 2).requires_grad_()
    loss = seeded(case, **options).eval()  # in train() mode it warns of sets with one positive
    optimizer = torch.optim.Adam([scores], lr=0.1)
    start = loss(scores, target).item()
    for _ in range(100):
        optimizer.zero_grad()
        loss(scores, target).backward()
        optimizer.step()
    assert loss(scores, target).item() < start or start == 0


def profit(scores: Tensor, target: Tensor) -> Tensor:
    """What the three items with the highest scores earn: unbounded, and decided by order."""
    return (8 * target[scores.topk(3).indices] - 1).double().mean()


def smooth_profit(scores: Tensor, target: Tensor) -> Tensor:
    """The same, with a part that depends on the scores themselves."""
    return 3 * profit(scores, target) + (scores * target / 10 - scores**2 / 20).sum()


@pytest.mark.parametrize("options", [{}, {"samples": 3}, {"interpolation": "idw"}], ids=str)
@pytest.mark.parametrize("function", [profit, smooth_profit])
def test_an_unbounded_function_has_the_gradient_of_its_relaxed_value(
    function: Any, options: dict[str, Any]
) -> None:
    scores = torch.randn(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores.requires_grad_()
    target = (torch.arange(14).reshape(2, 7) % 3 == 0).long()

    def loss() -> mg.UniLoss:
        return mg.UniLoss(
            function, slope=1.0, generator=torch.Generator().manual_seed(0), **options
        )

    assert torch.autograd.gradcheck(
        lambda values: loss().relaxed(values, target), (scores,), fast_mode=True
    )
    (pure,) = torch.autograd.grad(loss().relaxed(scores, target).mean(), scores)
    value = loss()(scores, target)
    (through,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(pure, through, rtol=0, atol=0)
    assert pure.abs().sum() > 0
    truth = [function(s, y) for s, y in zip(scores, target, strict=True)]
    torch.testing.assert_close(value, -torch.stack(truth).mean())


def test_two_logits_and_a_trailing_one_are_binary() -> None:
    scores, target = (
        torch.randn(8, 2, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1] * 4),
    )
    loss = mg.UniLoss("average_precision")
    difference = scores[:, 1] - scores[:, 0]
    assert (
        loss(scores, target) == loss(difference, target) == loss(difference.unsqueeze(-1), target)
    )


def test_sets_without_a_value_are_left_out() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], requires_grad=True)
    loss = mg.UniLoss("auc")
    assert loss(scores, torch.tensor([[0, 0, 1], [0, 0, 0]])) == loss(
        scores[:1], torch.tensor([[0, 0, 1]])
    )
    nothing = loss(scores, torch.zeros(2, 3))
    nothing.backward()
    assert nothing.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_autocast_leaves_the_loss_in_float32() -> None:
    scores = torch.randn(16, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1] * 8)
    for name in ("average_precision", "f1", "ndcg"):
        expected = mg.UniLoss(name)(scores.bfloat16(), target)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert mg.UniLoss(name)(scores.bfloat16(), target) == expected
        assert expected.dtype == torch.float32


def test_large_sets_hold_no_pair_matrix() -> None:
    scores = torch.randn(20_000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target, loss = torch.arange(20_000) % 10 == 0, mg.UniLoss("average_precision")
    for function in (loss, loss.relaxed):
        held: list[int] = []

        def pack(tensor: Tensor, held: list[int] = held) -> Tensor:
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = function(scores, target)
        assert 0 < sum(held) < 200_000
        value.backward()


def test_one_set_alone_and_among_others_has_the_same_gradient() -> None:
    """One set goes without padding, several are padded: two roads to one result."""
    scores = torch.randn(
        3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    target = torch.rand(3, 40, generator=torch.Generator().manual_seed(1)) < torch.tensor(
        [[0.1], [0.5], [0.9]]
    )
    for name in ("average_precision", "auc", "eer", "partial_auc", "map"):
        for relaxation in ("sigmoid", "logistic", "squared_hinge", 0.5):
            loss = mg.UniLoss(name, relaxation=relaxation, slope=1.0)
            (together,) = torch.autograd.grad(loss.per_set(scores, target).sum(), scores)
            values = [loss.per_set(s, y) for s, y in zip(scores, target, strict=True)]
            (alone,) = torch.autograd.grad(sum(values, torch.zeros(())), scores)
            torch.testing.assert_close(together, alone)
            torch.testing.assert_close(loss.per_set(scores, target), torch.stack(values))
