"""Losses across processes: real ones, whose union must be what one process computes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import metricgrad as mg
from benchmarks import scaling
from metricgrad.processes import join
from tests.processes import launch, results, stop
from tests.trained_together import TASKS, Trained, batch, train, train_all

ROOT = Path(__file__).parents[1]
SIZES = (2, 4)


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return ((scores > 0) * (target * amount - 1.0)).mean()


class Form(NamedTuple):
    """A loss, and a call of it with the sets of all processes."""

    loss: Callable[[], mg.Surrogate]
    scores: Tensor
    target: Tensor
    rest: dict[str, Tensor]


def forms() -> dict[str, Form]:
    """Calls of every form that the losses take, of 12 rows each."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(12, dtype=torch.float64, generator=generator)
    table = torch.randn(12, 5, dtype=torch.float64, generator=generator)
    maps = torch.randn(12, 3, 4, 4, dtype=torch.float64, generator=generator)
    places = torch.arange(12)
    truth = (places % 3 == 0).long()
    truths = ((places[:, None] + torch.arange(5)) % 3 == 0).long()
    counted = places % 5 != 1
    amount = 3 * torch.rand(12, dtype=torch.float64, generator=generator)
    f1 = mg.metric("f1", multilabel=True)
    return {
        "where": Form(lambda: mg.UniLoss("auc"), flat, truth, {"where": counted}),
        "groups": Form(lambda: mg.UniLoss("ndcg"), flat, places % 4, {"groups": places % 5}),
        "rows": Form(lambda: mg.UniLoss(profit), flat, truth, {"amount": amount}),
        "column": Form(lambda: mg.UniLoss("f1"), flat[:, None], truth[:, None], {}),
        "classes": Form(lambda: mg.UniLoss("f1"), table, places % 5, {}),
        "labels": Form(lambda: mg.UniLoss(f1), table, truths, {"where": counted}),
        "sets": Form(lambda: mg.UniLoss("f1"), table, truths, {}),
        "label maps": Form(
            lambda: mg.UniLoss("mean_iou"), maps, (places % 3)[:, None, None].expand(12, 4, 4), {}
        ),
        "half precision": Form(lambda: mg.UniLoss("auc"), flat.bfloat16(), truth, {}),
        "random anchors": Form(by_anchors, flat, truth, {}),
        "learned": Form(bilevel, flat, truth, {}),
        "ordinary": Form(lambda: mg.with_ordinary(mg.UniLoss("f1")), flat, truth, {}),
    }


def by_anchors() -> mg.Surrogate:
    return mg.UniLoss("auc", interpolation="idw", generator=torch.Generator().manual_seed(1))


def bilevel() -> mg.Surrogate:
    return mg.BilevelLoss("f1", generator=torch.Generator().manual_seed(0)).double()


class Found(NamedTuple):
    """What one call gives: the value, the gradient by the own scores, the values of the sets."""

    value: Tensor
    gradient: Tensor
    each: Tensor


def call(loss: mg.Surrogate, form: Form, own: slice) -> Found:
    loss.eval()
    scores = form.scores[own].clone().requires_grad_()
    rest = {name: value[own] for name, value in form.rest.items()}
    value = loss(scores, form.target[own], **rest)
    value.backward()
    assert scores.grad is not None
    each = loss.per_set(scores.detach(), form.target[own], **rest)
    return Found(value.detach(), scores.grad, each)


def own_rows() -> slice:
    """A quarter of the rows for the first process, the rest for the last one, else none."""
    rank = dist.get_rank()
    return slice(3 if rank else 0, 3 if rank < dist.get_world_size() - 1 else 12)


def padded_sets() -> Found:
    """Each process has sets of its own length; together they are padded to the longest."""
    rank = dist.get_rank()
    scores, target, where = (each[2 * rank : 2 * rank + 2, : 3 + rank] for each in sets_by_length())
    scores = scores.clone().requires_grad_()
    loss = mg.across_ranks(mg.UniLoss("average_precision"))
    value = loss(scores, target, where)
    value.backward()
    assert scores.grad is not None
    return Found(value.detach(), scores.grad, loss.per_set(scores.detach(), target, where))


def sets_by_length() -> tuple[Tensor, Tensor, Tensor]:
    """Two sets for each of four processes, of as many items as their rank plus 3."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 6, dtype=torch.float64, generator=generator)
    target = (torch.arange(6) % 3 == 0).long().expand(8, 6)
    return scores, target, torch.arange(6) < 3 + torch.arange(8)[:, None] // 2


def refusals() -> dict[str, str]:
    """The error of calls that rank 1 makes differently, and whether a good call works after."""
    odd = dist.get_rank() == 1
    loss = mg.across_ranks(mg.UniLoss("auc"))
    scores = torch.randn(4, dtype=torch.float64)
    target = torch.tensor([0, 1, 0, 1])
    flags = torch.ones(4, dtype=torch.bool)
    sets = torch.zeros(2, 3 + odd)
    calls: dict[str, Callable[[], Any]] = {
        "type": lambda: loss(scores.float() if odd else scores, target),
        "where": lambda: loss(scores, target, flags if odd else None),
        "rows": lambda: loss(scores, target[1:] if odd else target),
        "number": lambda: loss(scores[0] if odd else scores, target),
        "sizes": lambda: loss(sets, sets.long()),
        "failure": lambda: join(lambda: {} if odd else {"scores": scores, "target": target}),
        "all": lambda: loss(scores, target + 1),
        "wrapped": lambda: mg.with_memory(loss)(scores, target),
    }
    said = {}
    for name, attempt in calls.items():
        with pytest.raises((ValueError, TypeError)) as refusal:
            attempt()
        said[name] = str(refusal.value)
    assert loss(scores, target) == loss(scores, target)
    return said


def chunked() -> list[Tensor]:
    """Gradients of DDP by two passes; the processes have 4, 1 or no chunks."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    network.register_buffer("steps", torch.zeros(1))  # which DDP sends to all
    network.double()
    loss = mg.UniLoss("average_precision")
    x, target, _ = batch(TASKS["f1"], 0)
    own = slice(None)
    model: torch.nn.Module = network
    if dist.is_initialized():
        loss = mg.across_ranks(loss)
        model = torch.nn.Sequential(DistributedDataParallel(network))
        cuts = [0, 25, 30, 30, 36] if dist.get_world_size() == 4 else [0, 30, 36]
        own = slice(cuts[dist.get_rank()], cuts[dist.get_rank() + 1])
    step = mg.in_chunks(model, loss, chunk=8)
    for _ in range(2):
        model.zero_grad()
        step(x[own], target[own]).backward()
    return [each.grad.clone() for each in network.parameters() if each.grad is not None]


def sent() -> list[int]:
    """The bytes of every message that a process sends for 256 items."""
    sizes: list[int] = []
    gather = dist.all_gather

    def counting(every: list[Tensor], own: Tensor) -> None:
        sizes.append(own.nbytes)
        gather(every, own)

    dist.all_gather = counting
    mg.across_ranks(mg.UniLoss("auc"))(torch.randn(256), torch.arange(256) % 2)
    dist.all_gather = gather
    return sizes


def everything() -> dict[str, Any]:
    """All that the tests below compare, in one launch."""
    made = {
        name: call(mg.across_ranks(form.loss()), form, own_rows()) for name, form in forms().items()
    }
    empty = mg.across_ranks(mg.UniLoss("auc"))(torch.zeros(0, requires_grad=True), torch.zeros(0))
    empty.backward()
    return {
        "trained": train_all(),
        "forms": made,
        "padded": padded_sets(),
        "chunked": chunked(),
        "sent": sent(),
        "refused": refusals(),
        "empty": empty.item(),
    }


@pytest.fixture(scope="module", params=SIZES)
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of 2 or 4 processes found."""
    return results(launch(everything, request.param, tmp_path_factory.mktemp("processes")))


@pytest.mark.parametrize("name", TASKS)
def test_training_is_the_same_in_any_number_of_processes(name: str, together: Any) -> None:
    alone = train(name)
    assert alone.gradients.abs().amax(-1).min() > 1e-4  # there is something to compare
    for each in together:
        found: Trained = each["trained"][name]
        for ours, expected in zip(found[:3], alone[:3], strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        assert found.state.keys() == alone.state.keys()
        for key, expected in alone.state.items():
            torch.testing.assert_close(found.state[key], expected, rtol=0, atol=1e-6)
        assert found.values.equal(together[0]["trained"][name].values)


@pytest.mark.parametrize("name", forms())
def test_every_form_of_a_call_is_joined(name: str, together: Any) -> None:
    form = forms()[name]
    alone = call(form.loss(), form, slice(None))
    found: list[Found] = [each["forms"][name] for each in together]
    for each in found:
        torch.testing.assert_close(each.value, alone.value)
        torch.testing.assert_close(each.each, alone.each)
    gradient = torch.cat([each.gradient for each in found]) / len(found)
    torch.testing.assert_close(gradient, alone.gradient)
    assert gradient.any()


def test_sets_of_different_lengths_are_padded(together: Any) -> None:
    size = len(together)
    scores, target, where = (each[: 2 * size, : 2 + size].clone() for each in sets_by_length())
    loss = mg.UniLoss("average_precision")
    loss(scores.requires_grad_(), target, where).backward()
    assert scores.grad is not None
    for rank, each in enumerate(together):
        found: Found = each["padded"]
        torch.testing.assert_close(found.each, loss.per_set(scores.detach(), target, where))
        own = scores.grad[2 * rank : 2 * rank + 2, : 3 + rank]
        torch.testing.assert_close(found.gradient / size, own)


def test_a_wrong_call_is_told_to_all_in_one_sentence(together: Any) -> None:
    said: dict[str, str] = together[0]["refused"]
    others = "rank 0" if len(together) == 2 else "ranks 0, 2, 3"
    assert all(each["refused"] == said for each in together)
    assert all(each["empty"] == 0 for each in together)
    assert said["type"].startswith("all processes must make the same calls")
    assert f"on {others}: scores float64 [N], target int64 [N]" in said["type"]
    assert "on rank 1: scores float32 [N], target int64 [N]" in said["type"]
    assert "on rank 1: scores float64 [N], target int64 [N], where bool [N]" in said["where"]
    assert said["rows"] == (
        "all processes stop, because one of them could not join its set. on rank 1: ValueError: "
        "target must have as many rows as the scores; got target [3] for scores [4]"
    )
    assert "scores must have at least one dimension" in said["number"]
    assert "scores float32 [N, 4], target int64 [N, 4]" in said["sizes"]
    assert said["failure"].endswith("on rank 1: KeyError: 'scores'")
    assert "target must hold only 0 and 1; got 2" in said["all"]
    assert "mg.across_ranks(mg.with_memory(loss))" in said["wrapped"]


def test_chunks_of_all_processes_have_the_gradient_of_the_union(together: Any) -> None:
    alone = chunked()
    assert len(alone) == 4
    for each in together:
        torch.testing.assert_close(each["chunked"], alone, rtol=0, atol=1e-9)


def test_the_page_says_what_is_sent(together: Any) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text()
    kept = json.loads(scaling.KEPT.read_text())
    assert kept["computed"] == scaling.computed()
    assert all(table in page for table in scaling.tables(kept))
    assert f"its load was {kept['machine']['load']:g}," in page
    for each in together:
        header, buffer = each["sent"]
        assert f"a header of {header} bytes" in page
        assert f"the buffer has {buffer:,} bytes" in page
        for row in kept["computed"]:
            others = row["processes"] - 1
            assert row["scores"] == {"bytes": others * (header + buffer), "messages": 2 * others}
            embeddings = others * 256 * 512 * torch.zeros(1).element_size()
            assert row["embeddings of 512"] == {"bytes": embeddings, "messages": others}


def test_the_example_trains_the_same_with_torchrun() -> None:
    script = str(ROOT / "examples" / "ddp.py")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    alone, together = (
        subprocess.run(
            [sys.executable, *command, script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        ).stdout
        for command in ((), torchrun)
    )
    assert "F1 of the data" in alone
    assert together == alone


def lose_one(how: signal.Signals) -> None:
    """Three steps, of which one process takes only one."""
    loss = mg.across_ranks(mg.UniLoss("auc"))
    for step in range(3):
        if dist.get_rank() == 1 and step == 1:
            stop(how)
        loss(torch.randn(6, requires_grad=True), torch.arange(6) % 2).backward()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_processes_that_lose_one_end_with_a_sentence(how: signal.Signals, tmp_path: Path) -> None:
    halted = 1 if how == signal.SIGSTOP else None
    first, lost, last = launch(lose_one, 3, tmp_path, how, timeout=4.0, halted=halted)
    assert lost.code == (None if halted else -signal.SIGKILL)
    for each in (first, last):
        assert each.code == 1
        assert "RuntimeError: Not all processes answered: one has ended" in each.error


def test_without_processes_it_is_the_loss_itself() -> None:
    for name, form in forms().items():
        ours = call(mg.across_ranks(form.loss()), form, slice(None))
        assert all(
            a.equal(b) for a, b in zip(ours, call(form.loss(), form, slice(None)), strict=True)
        ), name
    memory = mg.with_memory(mg.across_ranks(mg.UniLoss("auc")))
    assert memory(torch.randn(4), torch.tensor([0, 1, 0, 1])) >= 0
    assert mg.across_ranks(mg.UniLoss("f1")).readable
    assert mg.across_ranks(mg.MetricLoss("f1")).remembers


def test_it_is_saved_and_loaded_with_its_loss(tmp_path: Path) -> None:
    loss = mg.across_ranks(mg.with_memory(mg.UniLoss("auc", slope=2.0)))
    loss(torch.randn(8), torch.arange(8) % 2)
    loss.save(tmp_path / "loss.safetensors")
    loaded = mg.load_surrogate(tmp_path / "loss.safetensors")
    assert type(loaded) is type(loss)
    assert loaded.description() == loss.description()
    scores = torch.randn(8)
    assert loaded(scores, torch.arange(8) % 2) == loss(scores, torch.arange(8) % 2)
