"""Memory: past scores join the set."""

import pytest
import torch

import metricgrad as mg


def batch(seed: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator), torch.randint(0, 2, (size,), generator=generator)


@pytest.mark.parametrize("name", ["average_precision", "f1", "auc"])
def test_the_set_is_the_batch_and_the_latest_items(name: str) -> None:
    loss, plain = mg.with_memory(mg.UniLoss(name), size=12), mg.UniLoss(name)
    (s0, y0), (s1, y1), (s2, y2) = (batch(seed) for seed in range(3))
    assert loss(s0, y0) == plain(s0, y0)
    assert loss(s1, y1) == plain(torch.cat([s1, s0]), torch.cat([y1, y0]))
    s2.requires_grad_()
    joined = torch.cat([s2, s1, s0[:4]]), torch.cat([y2, y1, y0[:4]])
    value = loss(s2, y2)
    assert value == plain(*joined)
    (gradient,) = torch.autograd.grad(value, s2)
    (expected,) = torch.autograd.grad(plain(*joined), s2)
    torch.testing.assert_close(gradient, expected)


def test_classes_masks_and_two_logits() -> None:
    loss = mg.with_memory(mg.UniLoss("accuracy"), size=100)
    generator = torch.Generator().manual_seed(0)
    scores, target = (
        torch.randn(6, 4, generator=generator),
        torch.randint(0, 4, (6,), generator=generator),
    )
    where = torch.tensor([True, True, False, True, False, True])
    loss(scores, target, where)
    assert loss.scores.shape == (4, 4)
    joined = torch.cat([scores, scores[where]]), torch.cat([target, target[where]])
    assert loss(scores, target) == mg.UniLoss("accuracy")(*joined)
    column = mg.with_memory(mg.UniLoss("auc"))
    column(torch.randn(5, 1), torch.tensor([0, 1, 0, 1, 1]))
    assert column.scores.shape == (5,)


def test_evaluation_leaves_the_memory_alone() -> None:
    loss = mg.with_memory(mg.UniLoss("auc"))
    loss(*batch(0))
    loss.eval()
    assert loss(*batch(1)) == mg.UniLoss("auc")(*batch(1))
    assert loss.scores.equal(batch(0)[0])


def test_state_is_saved_and_restored_exactly() -> None:
    loss, other = mg.with_memory(mg.UniLoss("auc")), mg.with_memory(mg.UniLoss("auc"))
    loss(*batch(0))
    other.load_state_dict(loss.state_dict())
    assert loss(*batch(1)) == other(*batch(1))
    other.forget()
    assert len(other.scores) == 0
    assert other(*batch(2)) == mg.UniLoss("auc")(*batch(2))


def test_a_rare_positive_is_remembered() -> None:
    loss = mg.with_memory(mg.UniLoss("average_precision"))
    loss(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))
    scores = torch.tensor([0.5, -0.5], requires_grad=True)
    loss(scores, torch.tensor([0, 0])).backward()
    assert scores.grad is not None
    assert (scores.grad > 0).all()


def test_batches_without_a_value_are_warned_of_once() -> None:
    def train(loss: mg.UniLoss, target: list[int]) -> None:
        for _ in range(60):
            loss(torch.randn(4, requires_grad=True), torch.tensor(target))

    loss = mg.UniLoss("auc")
    with pytest.warns(
        UserWarning, match=r"50 of the first 50 batches had no value .* mg\.with_memory\(loss\)"
    ):
        train(loss, [0, 0, 0, 0])
    train(loss, [0, 0, 0, 0])  # warnings are errors: once is enough
    train(mg.UniLoss("auc"), [0, 1, 0, 1])
    assert not mg.UniLoss("auc").eval()(torch.randn(4), torch.zeros(4)).any()


def test_what_a_memory_cannot_hold_is_refused() -> None:
    loss = mg.with_memory(mg.UniLoss("auc"))
    with pytest.raises(
        ValueError, match=r"one flat set, without set dimensions; got scores \[2, 3\]"
    ):
        loss(torch.randn(2, 3), torch.tensor([[0, 1, 0], [1, 0, 1]]))
    assert len(loss.scores) == 0
    loss(*batch(0))
    with pytest.raises(
        ValueError, match=r"the memory holds items of shape \[\]; got scores \[3, 2\]"
    ):
        loss(torch.randn(3, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="size must be 1 or more; got 0"):
        mg.with_memory(mg.UniLoss("auc"), size=0)
