"""Batches, and steps of Adam on all parameters at once."""

import pytest
import torch
from torch import Tensor, nn

from metricgrad.training.drawing import Batches, has_classes
from metricgrad.training.stack import Flat, Stack
from tests.trainings import X, Y, network, seeded


@pytest.mark.parametrize(
    ("counts", "size", "parts"),
    [
        ([900, 100], 10, [9, 1]),
        ([996, 4], 100, [99, 1]),  # at least once
        ([50, 30, 20], 7, [4, 2, 1]),  # 3.5, 2.1, 1.4
        ([341, 333, 326], 5, [2, 2, 1]),  # by largest remainder
        ([997, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([980, 10, 10], 20, [18, 1, 1]),
    ],
)
def test_batches_keep_the_shares_of_the_classes(
    counts: list[int], size: int, parts: list[int]
) -> None:
    target = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    target = target[torch.randperm(len(target), generator=seeded())]
    index = Batches(target, size, stratified=True).draw(50, seeded())
    assert index.shape == (50, size)
    for batch in index:
        assert target[batch].bincount(minlength=len(counts)).tolist() == parts
    assert torch.equal(index, Batches(target, size, stratified=True).draw(50, seeded()))
    assert len(index.unique()) > size  # drawn anew
    plain = Batches(target, size, stratified=False).draw(2000, seeded())
    assert plain.shape == (2000, size)
    assert len(plain.unique()) == len(target)


def test_targets_with_few_classes_are_stratified() -> None:
    assert has_classes(Y, 4)
    assert has_classes(torch.tensor([0.0, 1.0]), 4)
    assert not any(
        has_classes(*each) for each in [(Y, 3), (X, 100), (X[:, 0], 5000), (torch.arange(60), 100)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_descent_is_adam_with_clipped_gradients(dtype: torch.dtype, clip: float | None) -> None:
    """On one model, and on two stacked ones with rates of their own."""
    x, y, rates, shares = X.to(dtype), Y.to(dtype), [3e-2, 1e-2], [1.0, 0.5, 0.25, 1.0, 0.1]
    expected, alone, stacked = (
        [network(seed, norm=False).to(dtype) for seed in (0, 1)] for _ in range(3)
    )
    together = Stack(stacked, torch.tensor(rates, dtype=dtype).unsqueeze(-1), clip)
    adams = [
        torch.optim.Adam(model.parameters(), rate)
        for model, rate in zip(expected, rates, strict=True)
    ]
    sides = [Flat(model, rate, clip) for model, rate in zip(alone, rates, strict=True)]

    def value(model: nn.Module, **parameters: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, parameters, (x,)).squeeze(-1)
        return nn.functional.binary_cross_entropy_with_logits(scores, y)

    for share in shares:
        for model, adam, rate in zip(expected, adams, rates, strict=True):
            adam.param_groups[0]["lr"] = rate * share
            adam.zero_grad()
            value(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip or torch.inf)
            adam.step()
        for model, side in zip(alone, sides, strict=True):
            side.join()
            side.descend(value(model), share)
            side.part()
        parameters = together.parameters()
        each = [{name: part[i] for name, part in parameters.items()} for i in (0, 1)]
        together.descend(torch.stack([value(stacked[i], **each[i]) for i in (0, 1)]), share)
    together.part()
    for one, other, wanted in zip(alone, stacked, expected, strict=True):
        torch.testing.assert_close(
            list(one.parameters()), list(wanted.parameters()), rtol=0, atol=1e-6
        )
        torch.testing.assert_close(
            list(other.parameters()), list(wanted.parameters()), rtol=0, atol=1e-6
        )


def test_parted_parameters_have_storage_of_their_own() -> None:
    model = network()
    before, side = (
        [each.clone() for each in model.parameters()],
        Flat(model, 0.1, None),
    )
    side.join()
    assert len({each.untyped_storage().data_ptr() for each in model.parameters()}) == 1
    side.part()
    storages = [each.untyped_storage() for each in model.parameters()]
    assert [each.nbytes() for each in storages] == [4 * each.numel() for each in before]
    assert len({each.data_ptr() for each in storages}) == len(before)
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)


def test_frozen_stacks_compute_no_gradient() -> None:
    stack = Stack([network(0), network(1)], 0.1, None)
    stack.freeze(True)
    assert not stack.vector.requires_grad
    stack.freeze(False)
    assert stack.vector.requires_grad


@pytest.mark.parametrize("number", [1, 3])
def test_stacked_perceptrons_compute_what_each_of_them_does(number: int) -> None:
    """Layers that are linear or ReLU are multiplied at once; others take the general way."""
    plain = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(number)]
    curved = [nn.Sequential(each[0], nn.GELU(), each[2]) for each in plain]
    bare = [nn.Sequential(nn.Linear(4, 2, bias=False)) for _ in range(number)]
    x = torch.randn(number, 7, 4)
    for modules, known in ((plain, True), (curved, False), (bare, False)):
        stack = Stack(modules, 0.1, None, together=number > 1)
        assert (stack._layers is not None) is known
        expected = torch.stack([one(part) for one, part in zip(modules, x, strict=True)])
        torch.testing.assert_close(stack(x), expected)
    stack = Stack(plain, 0.1, None)
    stack(x).square().sum().backward()
    plain[0](x[0]).square().sum().backward()
    own = torch.cat(
        [each.grad.flatten() for each in plain[0].parameters() if each.grad is not None]
    )
    torch.testing.assert_close(stack.gradient[0], own)
    plain[0][0].register_forward_hook(lambda *_: None)
    assert Stack(plain, 0.1, None)._layers is None


def test_stacked_perceptrons_leave_padding_out() -> None:
    networks = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2)]
    x = torch.randn(2, 5, 6, 3, generator=seeded())
    where = torch.rand(2, 5, 6, generator=seeded()) < 0.4
    assert where.sum((1, 2)).unique().numel() == 2  # one model has more rows that count
    stack = Stack(networks, 0.1, None)
    every = stack(x)
    found = stack(x, where)
    torch.testing.assert_close(found[where], every[where])
    assert not found[~where].any()
    found.square().sum().backward()
    gradient = stack.gradient.clone()
    stack.gradient.zero_()
    stack(x)[where].square().sum().backward()
    torch.testing.assert_close(stack.gradient, gradient)
