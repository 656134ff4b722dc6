"""Sets in two passes: the gradient of all items at once, with the activations of a chunk."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metricgrad as mg

CHUNK = 7
ITEMS = 40


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *more, nn.Linear(8, 1), nn.Flatten(0)).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ITEMS, 6, dtype=torch.float64, generator=generator)
    return x, (torch.arange(ITEMS) % 5 == 0).long()


def by_chunks(model: nn.Module, x: Tensor) -> Tensor:
    """The same scores with a graph: what draws random numbers draws them chunk by chunk, too."""
    return torch.cat([model(each) for each in x.split(CHUNK)])


def gradients(model: nn.Module, value: Tensor) -> list[Tensor]:
    """Gradients of all parameters, from scratch."""
    model.zero_grad()
    value.backward()
    found = [each.grad for each in model.parameters()]
    return [each.clone() for each in found if each is not None]


class Two(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.net(left) - self.net(right)


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return ((scores > 0) * (target * amount - 1.0)).mean()


IDS = torch.arange(ITEMS) % 6
CALLS: dict[str, tuple[Callable[[], mg.Surrogate], dict[str, Any]]] = {
    "average precision": (lambda: mg.UniLoss("average_precision"), {}),
    "metric loss": (lambda: mg.MetricLoss("f1"), {}),
    "memory": (lambda: mg.with_memory(mg.UniLoss("auc")), {}),
    "where": (lambda: mg.UniLoss("f1"), {"where": IDS != 2}),
    "groups": (lambda: mg.UniLoss("ndcg"), {"groups": IDS}),
    "rows": (lambda: mg.UniLoss(profit), {"amount": 1.0 + IDS}),
    "across ranks": (lambda: mg.across_ranks(mg.UniLoss("auc")), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_is_that_of_one_pass(name: str) -> None:
    make, rest = CALLS[name]
    x, target = data()
    model = network()
    value = make()(model(x), target, **rest)
    expected = gradients(model, value)
    chunked = mg.in_chunks(model, make(), CHUNK)(x, target, **rest)
    torch.testing.assert_close(chunked, value)
    assert any(each.any() for each in expected)
    torch.testing.assert_close(gradients(model, chunked), expected, rtol=0, atol=1e-9)


def test_inputs_may_have_parts_and_rows_may_be_sets() -> None:
    x, target = data()
    loss = mg.UniLoss("auc")
    model = Two()
    expected = gradients(model, loss(model(x, x.flip(0)), target))
    step = mg.in_chunks(model, loss, CHUNK)
    for parts in ((x, x.flip(0)), [x, x.flip(0)], {"right": x.flip(0), "left": x}):
        torch.testing.assert_close(gradients(model, step(parts, target)), expected)
    layer = nn.Sequential(nn.Linear(2, 1), nn.Flatten(1)).double()
    queries = x.reshape(ITEMS, 3, 2)
    grades = target[:, None] + torch.arange(3)
    expected = gradients(layer, mg.UniLoss("ndcg")(layer(queries), grades))
    value = mg.in_chunks(layer, mg.UniLoss("ndcg"), CHUNK)(queries, grades)
    torch.testing.assert_close(gradients(layer, value), expected)


def test_dropout_repeats_its_masks() -> None:
    x, target = data()
    model = network(nn.Dropout(0.5))
    loss = mg.UniLoss("auc")
    torch.manual_seed(3)
    value = loss(by_chunks(model, x), target)
    expected = gradients(model, value)
    torch.manual_seed(3)
    chunked = mg.in_chunks(model, loss, CHUNK)(x, target)
    assert chunked == value
    after = torch.rand(1)
    torch.manual_seed(5)
    torch.testing.assert_close(gradients(model, chunked), expected)
    ours = torch.rand(1)
    torch.manual_seed(5)
    assert ours == torch.rand(1)  # the second pass leaves the random numbers of others alone
    assert after != ours


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_is_repeated(inside: bool) -> None:
    x, target = data()
    x = x.float()
    model = network().float()
    loss = mg.UniLoss("auc")
    # With its cache, gradients of the chunks would be added up in half precision.
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = gradients(model, loss(by_chunks(model, x), target))
    full = gradients(model, loss(model(x), target))
    assert (full[0] - expected[0]).abs().max() > 1e-4  # autocast makes a difference
    with torch.autocast("cpu", torch.bfloat16):
        value = mg.in_chunks(model, loss, CHUNK)(x, target)
        found = gradients(model, value) if inside else []
    found = found or gradients(model, value)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_value_is_used_like_any_loss() -> None:
    x, target = data()
    model = network()
    step = mg.in_chunks(model, mg.UniLoss("auc"), CHUNK)
    once = gradients(model, step(x, target))
    scaled = gradients(model, 1024 * step(x, target))  # as a GradScaler does
    torch.testing.assert_close(scaled, [1024 * each for each in once])
    model.zero_grad()
    (step(x, target) + step(x, target)).backward()
    twice = [each.grad for each in model.parameters()]
    torch.testing.assert_close(twice, [2 * each for each in once])
    with torch.no_grad():
        assert not step(x, target).requires_grad


def test_no_more_than_a_chunk_is_seen_and_nothing_is_kept() -> None:
    x, target = data()
    model = network()
    seen: list[tuple[int, bool]] = []
    model[0].register_forward_hook(
        lambda _, inputs, output: seen.append((len(output), output.requires_grad))
    )
    value = mg.in_chunks(model, mg.UniLoss("auc"), CHUNK)(x, target)
    sizes = [CHUNK] * (ITEMS // CHUNK) + [ITEMS % CHUNK]
    assert seen == [(size, False) for size in sizes]
    value.backward()
    assert seen[len(sizes) :] == [(size, True) for size in sizes]
    gc.collect()
    gc.disable()
    try:
        kept = weakref.ref(x)
        del x, value
        assert kept() is None  # without a garbage collection, so memory is free at once
    finally:
        gc.enable()


def test_an_empty_set_has_a_zero_gradient() -> None:
    x, target = data()
    model = network()
    value = mg.in_chunks(model, mg.UniLoss("auc"), CHUNK)(x[:0], target[:0])
    assert value == 0
    assert not any(each.any() for each in gradients(model, value))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, track_running_stats=False)])
def test_batch_normalisation_of_a_chunk_is_refused(norm: nn.BatchNorm1d) -> None:
    x, target = data()
    model = network(norm)
    step = mg.in_chunks(model, mg.UniLoss("auc"), CHUNK)
    with pytest.raises(ValueError, match=r"^2 is batch normalisation .* GroupNorm or LayerNorm"):
        step(x, target)
    model.eval()
    if norm.track_running_stats:
        expected = gradients(model, mg.UniLoss("auc")(model(x), target))
        torch.testing.assert_close(gradients(model, step(x, target)), expected)
    else:
        with pytest.raises(ValueError, match="batch normalisation"):
            step(x, target)


def test_a_model_that_moves_between_the_passes_is_noticed() -> None:
    x, target = data()
    model = network()
    value = mg.in_chunks(model, mg.UniLoss("auc"), CHUNK)(x, target)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    with pytest.raises(RuntimeError, match="other scores in the second pass than in the first"):
        value.backward()


def test_wrong_calls_are_refused() -> None:
    x, target = data()
    loss = mg.UniLoss("auc")
    step = mg.in_chunks(network(), loss)
    assert step.chunk == 256
    with pytest.raises(ValueError, match="chunk must be 1 or more; got 0"):
        mg.in_chunks(network(), loss, chunk=0)
    function: Any = nn.functional.mse_loss
    with pytest.raises(TypeError, match=r"a module and a surrogate.* got Sequential and function"):
        mg.in_chunks(network(), function)
    with pytest.raises(ValueError, match=r"each of the 40 targets; got \[39, 6\]"):
        step(x[1:], target)
    numbers: Any = [1.0, 2.0]
    with pytest.raises(TypeError, match="got list of float, float"):
        step(numbers, target)
    with pytest.raises(ValueError, match="x must not require a gradient"):
        step(x.clone().requires_grad_(), target)
    with pytest.raises(ValueError, match=r"scores for each row of x; got \[240\] for 40 rows"):
        mg.in_chunks(nn.Flatten(0), loss)(x, target)
    with pytest.raises(TypeError, match="must give its scores as a tensor; got tuple"):
        mg.in_chunks(nn.LSTM(6, 1).double(), loss)(x, target)
