"""Memory: past scores join the set."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import metricgrad as mg


def batch(seed: int, size: int = 8) -> tuple[Tensor, Tensor]:
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


def test_files_without_a_memory_are_refused_and_moves_take_it_along() -> None:
    loss = mg.with_memory(mg.UniLoss("auc"))
    loss(*batch(0))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "scores", "target"'):
        loss.load_state_dict({})
    assert loss.double().scores.dtype == torch.float64
    assert loss.target.dtype == torch.int64
    assert loss.to("meta").scores.device.type == "meta"


def test_tensors_that_are_used_again_do_not_change_the_memory() -> None:
    loss = mg.with_memory(mg.UniLoss("auc"))
    scores, target = batch(0)
    loss(scores, target)
    kept = scores.clone(), target.clone()
    scores.zero_()
    target.zero_()
    assert loss.scores.equal(kept[0])
    assert loss.target.equal(kept[1])


class Trained(nn.Module):
    """A model that computes its own loss, so that its wrapper sees the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.loss = mg.with_memory(mg.UniLoss("auc"), size=64)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.linear(x).squeeze(-1), target)


def train_on_one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    model = Trained()
    wrapped = DistributedDataParallel(model)
    source = torch.Generator().manual_seed(rank)
    seen: list[Tensor] = []
    for step in range(3):
        size = 6 + 3 * rank + step  # every rank has batches of its own size
        target = torch.randint(0, 2, (size,), generator=source)
        wrapped(torch.randn(size, 3, generator=source), target).backward()
        seen.insert(0, target)
        assert model.loss.target.equal(torch.cat(seen))
    weights = [torch.zeros(1, 3) for _ in range(2)]
    gradient = model.linear.weight.grad
    assert gradient is not None
    distributed.all_gather(weights, gradient)
    assert weights[0].equal(weights[1])
    del wrapped  # first, because it holds the group
    distributed.destroy_process_group()


def test_every_process_has_a_memory_of_its_own(tmp_path: Path) -> None:
    spawn(train_on_one_rank, (str(tmp_path),), nprocs=2)


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


def test_outside_training_the_loss_takes_weights_as_without_a_memory() -> None:
    scores = torch.tensor([0.5, -0.2, 0.3, -1.0])
    target = torch.tensor([1, 1, 0, 0])
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0])
    plain = mg.UniLoss("f1")
    loss = mg.with_memory(plain, size=8).eval()
    value = loss(scores, target, sample_weight=weights)
    assert value == plain(scores, target, sample_weight=weights)
    assert value != plain(scores, target)
