"""mg.reexpress: watching and replaying random metrics in plain torch gives what they compute."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import WatchedMetric

Program = Callable[[Tensor, Tensor], Tensor]


def pairs_won(s: Tensor, y: Tensor) -> Tensor:
    return (s.unsqueeze(0) > s.unsqueeze(1)).float().mean(-1)


def hits_so_far(s: Tensor, y: Tensor) -> Tensor:
    return y[s.argsort(descending=True)].float().cumsum(0)


def in_the_top(s: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(s).scatter(0, s.topk(2).indices, 1.0)


def of_the_lowest(s: Tensor, y: Tensor) -> Tensor:
    order = torch.sort(s).indices
    return y[order[:2]].float().sum() * torch.ones(len(s))


SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda s: s,
    "sigmoid": torch.sigmoid,
    "scaled": lambda s: 2 * s - 0.3,
    "centred": lambda s: s - s.mean(),
    "clamped": lambda s: s.clamp(-1, 1),
    "relu": F.relu,
    "norm": lambda s: s / (1 + s.abs().max()),
}
DECIDED: dict[str, Program] = {
    "gt": lambda s, y: (s > 0.1).float(),
    "ge": lambda s, y: (s >= 0).double(),
    "lt": lambda s, y: (s < y).float(),
    "le": lambda s, y: torch.le(s, 0.5).float(),
    "sign": lambda s, y: s.sign(),
    "above the mean": lambda s, y: (s > s.mean()).float(),
    "where": lambda s, y: torch.where(s > 0, y, 1 - y).float(),
    "masked": lambda s, y: y.masked_fill(s <= 0, 0).float(),
    "picked": lambda s, y: y[s > 0].sum() * torch.ones(len(s)),
    "pairs": pairs_won,
    "ranks": lambda s, y: s.argsort().argsort().double(),
    "sorted labels": hits_so_far,
    "top": in_the_top,
    "gathered top": lambda s, y: y[s.topk(2).indices].float().mean() * torch.ones(len(s)),
    "lowest": of_the_lowest,
    "the highest": lambda s, y: F.one_hot(s.argmax(), len(s)).float(),
    "its label": lambda s, y: y[s.argmax()] * torch.ones(len(s)),
    "its place": lambda s, y: (torch.arange(len(s)) == s.argmin()).float(),
    "second stage": lambda s, y: (
        (s.unsqueeze(0) > s.unsqueeze(1)).sum(-1).argsort(stable=True).float()
    ),
    "k-th value": lambda s, y: (s >= s.topk(2).values[-1]).float(),
    "sorted values": lambda s, y: (s > s.sort().values[len(s) // 2]).float(),
}
ROUNDED: dict[str, Program] = {
    "eq": lambda s, y: (s == s.max()).float(),
    "round": lambda s, y: s.round(),
    "floor": lambda s, y: torch.floor(s).clamp(0, 2),
    "trunc": lambda s, y: s.long().double(),
    "many steps": lambda s, y: (20 * s).round(),
    "bucketize": lambda s, y: torch.bucketize(
        s, torch.tensor([-1.0, 0.0, 1.0], dtype=s.dtype)
    ).float(),
}
JOIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plus": lambda a, b: a + b,
    "times": lambda a, b: a * b,
    "larger": torch.maximum,
    "either": lambda a, b: ((a > 0) | (b > 0)).float(),
    "first of": lambda a, b: torch.where(a >= b, a, -b),
}
REDUCE: dict[str, Program] = {
    "mean": lambda v, y: v.mean(),
    "share": lambda v, y: (v * y).sum() / v.abs().sum().clamp(min=1),
    "largest": lambda v, y: v.max(),
    "most": lambda v, y: v.cumsum(0).amax(),
    "order of counts": lambda v, y: (
        y[v.argsort(descending=True, stable=True)].float().cumsum(0) ** 2
    ).sum(),
    "dot": lambda v, y: torch.einsum("n,n->", v.double(), y.double()),
}


@st.composite
def programs(draw: st.DrawFn, blocks: dict[str, Program], tied: bool = True) -> tuple[str, Program]:
    """A random metric: smooth, then discrete operations, joined and reduced; `tied` allows ties."""
    smooth_ones = [name for name in SMOOTH if tied or name not in ("clamped", "relu")]
    chosen = draw(
        st.lists(
            st.tuples(st.sampled_from(smooth_ones), st.sampled_from(list(blocks))),
            min_size=1,
            max_size=3,
        )
    )
    joins = draw(st.lists(st.sampled_from(list(JOIN)), min_size=2, max_size=2))
    reduce = draw(st.sampled_from(list(REDUCE)))

    def program(s: Tensor, y: Tensor) -> Tensor:
        values = [blocks[block](SMOOTH[smooth](s), y) for smooth, block in chosen]
        total = values[0]
        for value, join in zip(values[1:], joins, strict=False):
            total = JOIN[join](total.double(), value.double())
        return REDUCE[reduce](total, y)

    return f"{chosen} {joins} {reduce}", program


def a_set(seed: int, size: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64)
    target = torch.rand(size, generator=generator) < 0.5
    target[:2] = torch.tensor([True, False])
    return scores, target.long()


def recorded(program: Program, scores: Tensor, target: Tensor) -> tuple[WatchedMetric, Any, Tensor]:
    metric = mg.reexpress(program)
    assert isinstance(metric, WatchedMetric)
    plan = metric.reexpress(scores.shape, target, None, scores.dtype)
    values, _ = plan.comparisons(scores)
    return metric, plan, values


@given(programs({**DECIDED, **ROUNDED}), st.integers(0, 10**6), st.booleans())
@settings(max_examples=120, deadline=None)
def test_replaying_gives_what_a_program_computes(
    named: tuple[str, Program], seed: int, tied: bool
) -> None:
    program, (scores, target) = named[1], a_set(seed)
    scores = (2 * scores).round() / 2 if tied else scores
    metric, plan, values = recorded(program, scores, target)
    own = program(scores, target).double()
    torch.testing.assert_close(metric(scores, target).double(), own)
    torch.testing.assert_close(plan.from_bits(values > 0).double(), own)


@given(programs(DECIDED, tied=False), st.integers(0, 10**6))
@settings(max_examples=120, deadline=None)
def test_other_bits_give_the_value_of_other_scores(named: tuple[str, Program], seed: int) -> None:
    """A recording of some scores, given the bits of others, is the program's value of those."""
    program, (scores, target) = named[1], a_set(seed)
    other = a_set(seed + 1)[0]
    metric, plan, values = recorded(program, scores, target)
    _, _, others = recorded(program, other, target)
    if others.shape == values.shape:
        torch.testing.assert_close(
            plan.from_bits(others > 0).double(), program(other, target).double()
        )
    bits = torch.rand(3, len(values), generator=torch.Generator().manual_seed(seed)) < 0.5
    together = plan.from_bits(bits)
    metric.habits.vmaps = False
    torch.testing.assert_close(plan.from_bits(bits), together)
