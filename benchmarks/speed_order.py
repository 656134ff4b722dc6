"""Speed and memory of metrics of order and their losses, from a batch to a million scores.

Sums over all pairs are running sums over sorted scores, so `torch.sort` of the same scores is the
yardstick.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import metricgrad as mg
from benchmarks.timing import Row, best_of, peak_memory, within

MILLION = 1_000_000
BATCH = 256
SEED = 0


def one_large_set() -> Iterator[Row]:
    """Time and memory for one set of a million items."""
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(MILLION, generator=generator)
    target = (torch.rand(MILLION, generator=generator) < 0.1).long()
    for name in ("auc", "average_precision"):
        metric = mg.metric(name)
        call = lambda m=metric: m(scores, target)  # noqa: E731
        yield within(
            f"{name}, 1 x 1,000,000, against torch.sort", call, lambda: scores.sort(), 4, rounds=5
        )
    for name in ("auc", "average_precision"):
        small, large = (peak_memory("metric", name, millions * MILLION) for millions in (4, 16))
        ratio = large / small
        yield Row(
            f"{name}, memory, 16 against 4 million items",
            large,
            small,
            "MiB",
            ratio,
            "at most 4.4",
            ratio <= 4.4,
        )


def losses_of_order() -> Iterator[Row]:
    """UniLoss of average precision: time of a step on a batch."""
    scores, target = small_batch()

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        scores.grad = None
        loss(scores, target).backward()

    for options, factor, rounds in (
        ({}, 2, 3000),
        ({"interpolation": "idw", "anchors": 16}, 10, 1000),
    ):
        loss = mg.UniLoss("average_precision", **options)
        claim = (
            f"UniLoss({loss.interpolation!r}) of average precision, 1 x {BATCH}, "
            "against the pairwise logistic loss"
        )
        yield within(
            claim, lambda loss=loss: step(loss), lambda: step(pairwise_logistic), factor, rounds
        )


def losses_of_large_sets() -> Iterator[Row]:
    """UniLoss and its backward pass on one set of up to a million scores, a tenth positive."""
    for name in ("average_precision", "auc", "partial_auc", "ndcg"):
        long, sort = best_of(3, _step(name, MILLION), _sort(MILLION))
        claim = f"UniLoss of {name}, 1 x 1,000,000, against torch.sort"
        yield Row(claim, long, sort, "ms", long / sort, "at most 12", long / sort <= 12)
        (short,) = best_of(20, _step(name, 10_000))
        power = math.log(long / short, 100)
        claim = f"UniLoss of {name}, from 10,000 to 1,000,000 scores: its time grows by this power"
        yield Row(claim, long, short, "ms", power, "at most 1.15", power <= 1.15)
    for name, items, allowed in (
        *((name, MILLION, 400 * MILLION) for name in ("average_precision", "auc", "ndcg")),
        *(("auc", items, 1 << 30) for items in (100_000, 200_000)),
    ):
        spent = peak_memory("loss", name, items)
        most = allowed / 2**20
        told = "400 bytes an item" if allowed < 1 << 30 else "1 GiB"
        claim = f"UniLoss of {name}, memory, 1 x {items:,}, against {told}"
        yield Row(claim, spent, most, "MiB", spent / most, "at most 1", spent <= most)


def _step(name: str, items: int) -> Callable[[], None]:
    """A loss of so many scores, with its backward pass."""
    loss = mg.UniLoss(name)
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(items, generator=generator).requires_grad_()
    target = (torch.rand(items, generator=generator) < 0.1).long()

    def step() -> None:
        scores.grad = None
        loss(scores, target).backward()

    return step


def _sort(items: int) -> Callable[[], object]:
    scores = torch.randn(items, generator=torch.Generator().manual_seed(SEED))
    return lambda: scores.sort()


def small_batch() -> tuple[Tensor, Tensor]:
    """256 scores, a tenth of them of positives."""
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(BATCH, generator=generator).requires_grad_()
    return scores, (torch.randperm(BATCH, generator=generator) < BATCH // 10).long()


def pairwise_logistic(scores: Tensor, target: Tensor) -> Tensor:
    """The mean of log(1 + exp(-(positive - negative))) over all pairs, in one plain line."""
    return F.softplus(-(scores[target == 1][:, None] - scores[target == 0][None, :])).mean()
