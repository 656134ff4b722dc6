"""BilevelLoss: the network of Eqn. 2, its misfit, and what it learns from made-up sets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import fbeta_score
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.surrogates import LearnedSurrogate
from metricgrad.surrogates.score_sets import Source, broad, paper

KINDS: dict[str, mg.Metric] = {
    "binary": mg.metric("f1"),
    "grades": mg.metric("ndcg"),
    "classes": mg.metric("f1", average="macro"),
    "labels": mg.metric("f1", multilabel=True),
}
SHORT: dict[str, Any] = {"steps": 200, "pool": 2048, "progress": False}
every_kind = pytest.mark.parametrize("kind", KINDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fresh(metric: Any = "f1", seed: int = 0, **options: Any) -> mg.BilevelLoss:
    return mg.BilevelLoss(metric, generator=seeded(seed), **options)


def sets(kind: str, number: int = 3, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores and target of some sets, with all kinds of items in each."""
    generator = seeded(seed)
    scores = torch.randn(
        number, size, *(() if kind in ("binary", "grades") else (4,)), generator=generator
    )
    shape = scores.shape if kind == "labels" else (number, size)
    target = torch.randint(0, 2 if kind in ("binary", "labels") else 4, shape, generator=generator)
    target[:, 0], target[:, 1] = 0, 1
    return scores, target


def profit(scores: Tensor, target: Tensor) -> float:
    """A million for every positive taken, as much to pay for every negative."""
    return 1e6 * float(((scores > 0) * (2 * target.float() - 1)).sum())


@every_kind
def test_orders_and_many_sets(kind: str) -> None:
    loss, (scores, target) = fresh(KINDS[kind]), sets(kind, number=6, size=50)
    together = loss.per_set(scores, target)
    alone = torch.stack([loss.per_set(s, y) for s, y in zip(scores, target, strict=True)])
    grid = loss.per_set(scores.unflatten(0, (2, 3)), target.unflatten(0, (2, 3)))
    order = torch.randperm(50, generator=seeded(1))
    for other in (alone, grid.flatten(), loss.per_set(scores[:, order], target[:, order])):
        torch.testing.assert_close(other, together, rtol=0, atol=1e-6)
    torch.testing.assert_close(loss(scores, target), together.mean(), rtol=0, atol=1e-6)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_items_do_not_count(kind: str, dtype: torch.dtype) -> None:
    loss, (scores, target) = fresh(KINDS[kind]).to(dtype), sets(kind)
    scores = scores.to(dtype)
    where = torch.arange(8) < 5
    expected = loss.per_set(scores[:, :5], target[:, :5])
    spoiled, target[:, 5:] = (
        scores.masked_fill(~where.reshape(8, *(1,) * (scores.dim() - 2)), torch.nan),
        -77,
    )
    torch.testing.assert_close(
        loss.per_set(spoiled, target, where.expand(3, 8)), expected, rtol=0, atol=1e-6
    )
    misfit = loss.misfit(spoiled, target, where.expand(3, 8))
    torch.testing.assert_close(misfit, loss.misfit(scores[:, :5], target[:, :5]), rtol=0, atol=1e-6)
    if kind == "binary":  # a function's target is not checked: padding may hold anything there too
        loss = fresh(profit).to(dtype)
        found = loss(spoiled, target.float().masked_fill(~where, torch.nan), where.expand(3, 8))
        torch.testing.assert_close(found, loss(scores[:, :5], target[:, :5]), rtol=0, atol=1e-6)


def test_each_label_may_have_items_of_its_own() -> None:
    loss, (scores, target) = fresh(KINDS["labels"]), sets("labels", number=1)
    where = torch.rand(scores.shape, generator=seeded(1)) < 0.6
    columns = [(scores[0, :, c][where[0, :, c]], target[0, :, c][where[0, :, c]]) for c in range(4)]
    apart = torch.stack([loss.per_set(s.unsqueeze(-1), y.unsqueeze(-1)) for s, y in columns])
    torch.testing.assert_close(loss(scores, target, where), apart.mean(), rtol=0, atol=1e-6)


@every_kind
def test_the_gradient_is_right(kind: str) -> None:
    loss, (scores, target) = fresh(KINDS[kind]).double(), sets(kind, number=2)
    assert torch.autograd.gradcheck(
        lambda s: loss.per_set(s, target), (scores.double().requires_grad_(),)
    )
    where = torch.arange(8).expand(2, 8) < 5
    assert torch.autograd.gradcheck(
        lambda s: loss.per_set(s, target, where), (scores.double().requires_grad_(),)
    )


@every_kind
def test_hard_inputs_give_finite_losses_and_gradients(kind: str) -> None:
    loss, (scores, target) = fresh(KINDS[kind]), sets(kind, number=1)
    scores, target = scores[0], target[0]
    inputs = [
        (torch.zeros_like(scores), target),
        (1e4 * scores.sign(), target),
        (scores[:1], target[:1]),
    ]
    inputs += [(scores, torch.zeros_like(target)), (scores, torch.ones_like(target))]
    inputs += [(scores.to(dtype), target) for dtype in (torch.float16, torch.bfloat16)]
    for values, truth in inputs:
        leaf = values.clone().requires_grad_()
        value = loss(leaf, truth)
        value.backward()
        assert value.isfinite()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        # One class alone has no value of AUC, say: such a set is left out (design: undefined sets).
        assert leaf.grad.any() == loss.losses(leaf, truth, None)[1].any()
        assert loss.misfit(values, truth).isfinite()
    assert loss.losses(scores, target, None)[1].all()


@every_kind
def test_without_items_the_loss_is_zero_but_attached(kind: str) -> None:
    loss, (scores, target) = fresh(KINDS[kind]), sets(kind)
    for number, where in ((0, None), (8, torch.zeros(3, 8, dtype=torch.bool))):
        leaf = scores[:, :number].clone().requires_grad_()
        value = loss(leaf, target[:, :number], where)
        (gradient,) = torch.autograd.grad(value, leaf)
        assert value == 0
        assert not gradient.any()
    where = torch.tensor([True, False, True]).unsqueeze(-1).expand(3, 8)
    torch.testing.assert_close(
        loss(scores, target, where), loss(scores[::2], target[::2]), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_left_outside(dtype: torch.dtype) -> None:
    loss, (scores, target) = fresh(), sets("binary")
    expected = loss(scores, target), loss.misfit(scores, target)
    with torch.autocast("cpu", dtype=dtype):
        assert (loss(scores, target), loss.misfit(scores, target)) == expected


def test_it_is_the_network_of_the_paper() -> None:
    loss, (scores, target) = fresh(hidden=((7, 5), (4, 3))), sets("binary", number=1)

    def linear(layers: nn.ParameterList, number: int) -> nn.Linear:
        weight, bias = layers[2 * number], layers[2 * number + 1]
        layer = nn.Linear(*weight.shape)
        layer.weight, layer.bias = nn.Parameter(weight.T), nn.Parameter(bias)
        return layer

    g, h = [linear(loss.g, i) for i in range(2)], [linear(loss.h, i) for i in range(3)]
    components = [torch.stack([y.float(), s]) for s, y in zip(scores[0], target[0], strict=True)]
    for layer in g:
        components = [F.leaky_relu(layer(each)) for each in components]
    indicators = sum(components, torch.zeros(5)) / 8
    for layer in h[:2]:
        indicators = F.leaky_relu(layer(indicators))
    torch.testing.assert_close(
        loss(scores[0], target[0]), h[2](indicators).squeeze(), rtol=0, atol=1e-6
    )


def test_pixels_of_label_maps_are_items() -> None:
    maps = torch.randn(2, 3, 4, 5, generator=seeded())
    labels = torch.randint(3, (2, 4, 5), generator=seeded(1))
    pixels = fresh(KINDS["classes"])(maps.movedim(1, -1).reshape(-1, 3), labels.flatten())
    torch.testing.assert_close(fresh("mean_iou")(maps, labels), pixels)


def test_classes_and_labels_are_means_over_columns() -> None:
    loss, labels = fresh(), fresh(KINDS["labels"])
    scores, target = sets("labels", number=1)
    columns = loss.per_set(scores[0].T, target[0].T)
    torch.testing.assert_close(labels(scores, target), columns.mean(), rtol=0, atol=1e-6)
    scores, target = sets("classes", number=1)
    others = torch.stack(
        [scores[0][:, [j for j in range(4) if j != c]].logsumexp(-1) for c in range(4)]
    )
    columns = loss.per_set(scores[0].T - others, (target == torch.arange(4).unsqueeze(-1)).long())
    torch.testing.assert_close(
        fresh(KINDS["classes"])(scores, target), columns.mean(), rtol=0, atol=1e-6
    )
    pair, truth = torch.randn(9, 2, generator=seeded()), torch.arange(9) % 2
    torch.testing.assert_close(loss(pair, truth), loss(pair[:, 1] - pair[:, 0], truth))
    torch.testing.assert_close(loss(pair[:, :1], truth), loss(pair[:, 0], truth))


@every_kind
@pytest.mark.parametrize(
    ("distance", "of"),
    [
        ("l1", abs),
        ("l2", lambda gap: gap**2),
        ("huber", lambda gap: gap**2 / 2 if abs(gap) < 1 else abs(gap) - 0.5),
    ],
)
def test_the_misfit_is_the_mean_distance_from_the_metric(
    kind: str, distance: Any, of: Callable[[float], float]
) -> None:
    loss, (scores, target) = fresh(KINDS[kind], distance=distance), sets(kind, number=6)
    with torch.no_grad():
        loss.h[-1].add_(torch.tensor([1.2]))  # some gaps above 1, some below
    gaps = loss.per_set(scores, target) - (1 - KINDS[kind](scores, target))
    expected = sum(of(gap) for gap in gaps.tolist()) / 6
    assert isinstance(loss, LearnedSurrogate)
    assert loss.misfit(scores, target).item() == pytest.approx(expected, abs=1e-6)
    leaf = scores.clone().requires_grad_()
    loss.misfit(leaf.unflatten(0, (2, 3)), target.unflatten(0, (2, 3))).backward()
    assert leaf.grad is None
    assert all(each.grad is not None and each.grad.isfinite().all() for each in loss.parameters())


@pytest.mark.parametrize("distance", ["l1", "l2", "huber"])
def test_sets_without_a_value_are_left_out(distance: Any) -> None:
    """However they are spread over the dimensions of sets, and without a trace in the gradient."""
    metric = mg.from_function(lambda s, y: float("nan") if y[-1] else 0.25, best=1.0, worst=0.0)
    loss, (scores, target) = fresh(metric, distance=distance), sets("binary", number=6)
    target[:, -1] = torch.tensor([1, 1, 1, 0, 1, 0])
    misfit = loss.misfit(scores.unflatten(0, (2, 3)), target.unflatten(0, (2, 3)))
    known = loss.misfit(scores[[3, 5]], target[[3, 5]])
    torch.testing.assert_close(misfit, known, rtol=0, atol=1e-6)
    found, expected = (
        torch.autograd.grad(each, list(loss.parameters())) for each in (misfit, known)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert loss.misfit(scores[0], target[0]) == 0


def test_weights_come_from_the_generator() -> None:
    state = torch.get_rng_state()
    one, same, other = fresh(), fresh(), fresh(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name))
        assert not torch.equal(value, other.get_parameter(name))
    found = [
        each.learn_universal(steps=5, pool=64, progress=False, generator=seeded(3))
        for each in (one, same)
    ]
    assert found[0] == found[1]
    assert torch.equal(one.g[0], same.g[0])


@every_kind
def test_a_saved_loss_is_the_same(kind: str, tmp_path: Path) -> None:
    loss = fresh(KINDS[kind], hidden=((5, 6), (4,)), distance="huber")
    loss.save(tmp_path / "fresh.safetensors")
    loss.learn_universal(
        steps=5, pool=64, classes=4 if kind in ("classes", "labels") else None, progress=False
    )
    loss.save(tmp_path / "learned.safetensors")
    loaded = mg.load_surrogate(tmp_path / "learned.safetensors")
    assert isinstance(loaded, mg.BilevelLoss)
    assert loaded.config() == loss.config()
    assert loaded.universal
    assert not vars(mg.load_surrogate(tmp_path / "fresh.safetensors"))["universal"]
    assert loaded(*sets(kind)) == loss(*sets(kind))
    assert loaded.misfit(*sets(kind)) == loss.misfit(*sets(kind))


def test_a_function_is_passed_again(tmp_path: Path) -> None:
    loss, inputs = fresh(profit), sets("binary")
    misfit = loss.misfit(*inputs)
    loss.save(tmp_path / "loss.safetensors")
    with pytest.raises(ValueError, match=r"your own function, profit, .* pass it again"):
        mg.load_surrogate(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors", metric=profit)
    assert isinstance(loaded, mg.BilevelLoss)
    assert loaded.misfit(*inputs) == misfit


@pytest.mark.parametrize("name", ["average_precision", "error_rate", "mcc"])
def test_metrics_are_learned_from_made_up_sets(name: str) -> None:
    loss = fresh(name)
    scores, target = broad(512, 100)(seeded(9))
    before = loss.misfit(scores, target).item()
    learned = loss.learn_universal(**SHORT, generator=seeded(1))
    assert learned.spearman > 0.75
    assert learned.misfit < 0.6 * learned.constant
    assert loss.misfit(scores, target).item() < before / 2
    truth = loss.metric(scores, target).to(scores)
    direction = -1.0 if loss.metric.higher_is_better else 1.0
    assert direction * mg.ops.spearman(loss.per_set(scores, target), truth) > 0.75


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_classes_and_labels_are_learned_too(kind: str) -> None:
    learned = fresh(KINDS[kind]).learn_universal(**SHORT, classes=3, size=50, generator=seeded(1))
    assert learned.spearman > 0.8
    assert learned.misfit < learned.constant


def test_unbounded_metrics_are_standardised() -> None:
    loss, (scores, target) = fresh(profit), sets("binary", number=40)
    truth = -loss.metric(scores, target)
    start = fresh(lambda s, y: 0.0).per_set(scores, target)  # the same weights, as they are
    misfit = loss.misfit(scores, target)
    torch.testing.assert_close(misfit, (start - (truth - truth.mean()) / truth.std()).abs().mean())
    torch.testing.assert_close(loss.per_set(scores, target), truth.mean() + start * truth.std())
    shift = loss.shift.clone()
    loss.misfit(scores[:5], target[:5])
    assert loss.shift == shift  # once
    learned = loss.learn_universal(**SHORT, generator=seeded(1))
    assert learned.spearman > 0.9
    assert learned.misfit < learned.constant < 3  # in units of its spread


def test_a_lambda_of_scikit_learn_and_a_source_of_ones_own() -> None:
    def source(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        target = torch.rand(50, 30, generator=generator) < 0.3
        noise = torch.rand(50, 1, generator=generator) * torch.randn(50, 30, generator=generator)
        return target.float() - 0.5 + 2 * noise, target

    loss = fresh(lambda s, y: fbeta_score(y, s > 0, beta=2))
    learned = loss.learn_universal(
        steps=300, pool=300, source=source, progress=False, generator=seeded(1)
    )
    assert learned.spearman > 0.8
    assert loss.universal


def test_a_diverged_loss_is_as_it_was() -> None:
    loss = fresh()
    with pytest.raises(
        RuntimeError, match=r"learning f1 diverged at step \d+ of 200 .* smaller rate than 1e\+30"
    ):
        loss.learn_universal(**SHORT, rate=1e30)
    assert all(
        torch.equal(value, loss.state_dict()[name]) for name, value in fresh().state_dict().items()
    )
    assert not loss.universal


def test_the_papers_sets_know_nothing_of_each_other() -> None:
    scores, target = paper(500, 200, prevalence=0.2, mean=1.5, spread=0.5)(seeded())
    found = [
        target.float().mean(),
        scores.mean(),
        scores.std(),
        (scores[target].mean() - scores[~target].mean()),
    ]
    torch.testing.assert_close(
        torch.stack(found), torch.tensor([0.2, 1.5, 0.5, 0.0]), rtol=0, atol=0.01
    )
    _, target = paper(100, 90, classes=3)(seeded())
    torch.testing.assert_close(
        target.flatten().bincount() / 9000, torch.full((3,), 1 / 3), rtol=0, atol=0.02
    )


def test_broad_sets_differ_as_they_say() -> None:
    scores, target = broad(2000, 500)(seeded())
    positive, negative = ((scores * part).sum(-1) / part.sum(-1) for part in (target, ~target))
    gap, middle = (positive - negative)[:1500], (positive + negative)[:1500] / 2
    spread = torch.stack([s[~y].std() for s, y in zip(scores[:1500], target[:1500], strict=True)])
    even = (
        ((target.float().mean(-1) - 0.5).abs() < 0.08)[:1500].float().mean()
    )  # 1/2, or near it by chance
    found = [
        gap.mean(),
        gap.quantile(0.05),
        gap.quantile(0.95),
        middle.mean(),
        middle.std(),
        spread.mean(),
        even,
    ]
    expected = torch.tensor([2.0, -0.7, 4.7, 0.0, 1.0, 1.2, 0.5 + 0.5 * 0.16 / 0.96])
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=0.15)
    assert (positive - negative)[1500:].abs().max() < 0.5  # the paper's
    _, target = broad(2000, 400, classes=4)(seeded())
    most = F.one_hot(target[:1500], 4).float().mean(1).amax(-1)
    found = torch.stack([(most < 0.35).float().mean(), (most > 0.9).float().mean()])
    torch.testing.assert_close(found, torch.tensor([0.16, 0.1]), rtol=0, atol=0.03)  # even, uneven


@pytest.mark.parametrize("make", [paper, broad])
@pytest.mark.parametrize("number", [3, 16])
def test_sources_have_the_shapes_of_every_kind(make: Callable[..., Source], number: int) -> None:
    many = (number, 7, 4)
    for options, shapes in (
        ({}, [(number, 7)] * 2),
        ({"classes": 4}, [many, (number, 7)]),
        ({"classes": 4, "multilabel": True}, [many] * 2),
    ):
        draw = make(number, 7, **options)
        found, again = draw(seeded()), draw(seeded())
        assert [each.shape for each in found] == shapes
        assert found[1].dtype == (torch.bool if shapes[0] == shapes[1] else torch.int64)
        assert found[1].max() <= 3
        assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


def learn(metric: Any, **options: Any) -> Any:
    return fresh(metric).learn_universal(**{**SHORT, **options})


PLANES = mg.from_function(profit, set_dims=(3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fresh(hidden=5), r"hidden must be the widths of g and of h, .* got 5"),
        (
            lambda: fresh(hidden=(30, 10)),
            r"hidden must be the widths of g and of h, .* got \(30, 10\)",
        ),
        (lambda: fresh(hidden=((3,), ())), r"hidden must be the widths of g and of h"),
        (lambda: fresh(hidden=((3,), (0,))), "a width in hidden must be 1 or more; got 0"),
        (lambda: fresh(distance="l3"), "distance must be one of 'l1', 'l2', 'huber'; got 'l3'"),
        (
            lambda: fresh()(torch.zeros(4, 5), torch.zeros(3)),
            r"got scores \[4, 5\] and target \[3\]",
        ),
        (
            lambda: fresh(profit)(torch.zeros(4, 3), torch.zeros(4)),
            r"a set network takes .* got scores \[4, 3\] .* profit",
        ),
        (
            lambda: fresh(PLANES)(torch.zeros(4, 5, 5), torch.zeros(4, 5, 5)),
            r"a set network takes .* for profit",
        ),
        (
            lambda: learn("f1", source="narrow"),
            "source must be 'paper', 'broad', 'uniform' or a function .* got 'narrow'",
        ),
        (
            lambda: learn("f1", source=lambda _: (torch.zeros(9), torch.zeros(9))),
            r"a leading dimension .* scores \[9\]",
        ),
        (
            lambda: learn("f1", source=lambda _: sets("binary", 0)),
            r"a source must give .* got scores \[0, 8\]",
        ),
        (
            lambda: learn(KINDS["labels"]),
            r"f1 is about items with labels; pass their number: learn_universal\(classes=...\)",
        ),
        (lambda: learn("f1", classes=1), "classes must be 2 or more; got 1"),
        (lambda: learn("f1", pool=10), "pool must be 64 or more; got 10"),
        (
            lambda: learn(lambda s, y: torch.nan),
            "function gave NaN or infinity on 2048 of 2048 made-up sets",
        ),
        (
            lambda: learn(lambda s, y: 0.3),
            "function, as a loss, is -0.3 on all of 2048 made-up sets",
        ),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_loss_in_double_precision_is_loaded_as_such(tmp_path: Path) -> None:
    loss = fresh().double()
    loss.save(tmp_path / "loss.safetensors")
    there = mg.load_surrogate(tmp_path / "loss.safetensors")
    for name, value in loss.state_dict().items():
        assert torch.equal(there.state_dict()[name], value)
        assert there.state_dict()[name].dtype == torch.float64


def test_a_label_that_counts_nowhere_is_left_out() -> None:
    loss = fresh(mg.metric("f1", multilabel=True))
    scores, target = torch.randn(7, 3, generator=seeded()), torch.arange(21).reshape(7, 3) % 2 == 0
    where = torch.tensor([True, False, True]).expand(7, 3)
    torch.testing.assert_close(loss(scores, target, where), loss(scores[:, ::2], target[:, ::2]))
