"""The law of a user's own function: the value of its loss is the function's own, whatever it is."""

from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricgrad as mg
from metricgrad.metrics.watching import NotDecidedError
from tests.sets import Kind, make_set
from tests.watched import Function, auc, confident_mistakes, f1, precision_of_picked


def any_positive_found(scores: Tensor, target: Tensor) -> float:
    return float((scores[target == 1] > 0).any())


def no_mistake(scores: Tensor, target: Tensor) -> float:
    return float(((scores > 0) == (target == 1)).all())


def all_below_zero(scores: Tensor, target: Tensor) -> float:
    return float(not (scores > 0).any())


def first_above_last(scores: Tensor, target: Tensor) -> float:
    return float(scores[0] > scores[-1])


def ascending(scores: Tensor, target: Tensor) -> float:
    return float((scores.diff() > 0).all())


def highest_is_positive(scores: Tensor, target: Tensor) -> float:
    return float(target[scores.argmax()])


def above_three(scores: Tensor, target: Tensor) -> float:
    return float((scores > 3).float().mean())


def mean_score(scores: Tensor, target: Tensor) -> float:
    return float(scores.mean())


def distinct_scores(scores: Tensor, target: Tensor) -> float:
    return len(np.unique(scores)) / 10


def undefined_below_zero(scores: Tensor, target: Tensor) -> float:
    return float(target[scores > 0].double().mean())


def cut_logarithm(scores: Tensor, target: Tensor) -> Tensor:
    """The logarithm of 0 is minus infinity, which the cut makes finite again."""
    return scores.relu().log().clamp(min=-5).mean() + ((scores > 0) * target).double().mean()


HOSTILE = [
    any_positive_found, no_mistake, all_below_zero, first_above_last, ascending,
    highest_is_positive, above_three, mean_score, distinct_scores, undefined_below_zero,
]  # fmt: skip
PLAIN = [f1, auc, precision_of_picked, confident_mistakes, cut_logarithm]
OPTIONS = [{}, {"interpolation": "idw"}, {"portion": 0.5}, {"samples": 2}, {"squash": True}]


@pytest.mark.parametrize("fn", [*HOSTILE, *PLAIN], ids=lambda fn: fn.__name__)
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.sampled_from(["plain", "ties"]), min_size=1, max_size=3),
    shift=st.sampled_from([0.0, 3.0, -3.0]),
    options=st.sampled_from(OPTIONS),
    watch=st.booleans(),
)
def test_the_value_is_the_functions_own(
    fn: Function, seed: int, kinds: list[Kind], shift: float, options: dict[str, Any], watch: bool
) -> None:
    """On every set, what was learned from earlier ones must not change the value."""
    rng = np.random.default_rng(seed)
    own = mg.from_function(fn, higher_is_better=True)
    metric = own if watch else mg.reexpress(fn, higher_is_better=True, watch=False)
    loss = mg.UniLoss(metric, generator=torch.Generator().manual_seed(0), **options)
    for kind in kinds:
        size = int(rng.integers(1, 12))
        scores, target = map(torch.from_numpy, make_set("binary", kind, rng, size))
        scores += shift
        expected = float(fn(scores, target))
        try:
            found = loss(scores.requires_grad_(), target)
        except NotDecidedError:  # a refusal is no wrong value
            continue
        found.backward()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()
        defined = np.isfinite(expected)
        assert found.item() == pytest.approx(-expected if defined else 0.0, rel=1e-6, abs=1e-7)


def test_infinite_values_that_are_cut_do_not_spoil_the_value() -> None:
    loss = mg.UniLoss(cut_logarithm)
    target = torch.tensor([1, 0, 1])
    for scores in (torch.tensor([1.0, 2.0, 0.5]), torch.tensor([1.0, -2.0, 0.5])):
        found = loss(scores.requires_grad_(), target)
        assert found.item() == pytest.approx(-cut_logarithm(scores, target).item())
        found.backward()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()
