"""Objectives of boosted trees: their derivatives, their sets, and what they refuse."""

from collections.abc import Callable
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.boosting.sets import Sets, drawn_sets
from metricgrad.boosting.slopes import Gains, Slopes
from metricgrad.metrics.swaps import swap_gains

SETS = 3
ITEMS = 12
CLASSES = 4


def profit(scores: Tensor, target: Tensor) -> Tensor:
    return ((scores > 0) * (3.0 * target - 1.0)).mean()


def with_amounts(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    return ((scores > 0) * (target * amount - 1.0)).mean()


BINARY = ["average_precision", "auc", "f1", "mcc", "precision_at_k", "eer", "recall_at_precision"]
GRADED = ["ndcg", "map", "mrr"]
MANY = [("accuracy", {}), ("f1", {}), ("f1", {"pairs": "all"}), ("auc", {}), ("kappa", {})]
METRICS = [
    *(pytest.param(mg.metric(name), "binary", id=name) for name in BINARY),
    *(pytest.param(mg.metric(name), "grades", id=name) for name in GRADED),
    *(pytest.param(mg.metric(n, **o), "classes", id=f"{n} of classes {o}") for n, o in MANY),
    pytest.param(profit, "binary", id="profit"),
]


def made(kind: str, seed: int = 0, sets: int = SETS) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, target and `where` of padded sets."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sets, ITEMS, CLASSES) if kind == "classes" else (sets, ITEMS)
    scores = torch.randn(*shape, generator=generator, dtype=torch.float64)
    top = {"binary": 2, "grades": 4, "classes": CLASSES}[kind]
    target = torch.randint(0, top, (sets, ITEMS), generator=generator)
    where = torch.ones(sets, ITEMS, dtype=torch.bool)
    where[0, -3:] = False
    return scores, target, where


@pytest.mark.parametrize("relaxation", ["logistic", "sigmoid", 0.4])
@pytest.mark.parametrize(("metric", "kind"), METRICS)
def test_the_gradient_is_that_of_uniloss(metric: Any, kind: str, relaxation: Any) -> None:
    scores, target, where = made(kind)
    loss = mg.UniLoss(metric, relaxation=relaxation, slope=1.5)
    gradient, _ = Slopes(loss, "flip").of(scores, target, where, {})
    scores.requires_grad_()
    loss.per_set(scores, target, where=where).sum().backward()
    torch.testing.assert_close(gradient, scores.grad)
    assert gradient.any()


@pytest.mark.parametrize(("metric", "kind"), METRICS)
def test_the_curvature_is_the_second_difference_of_the_convex_relaxation(
    metric: Any, kind: str
) -> None:
    """Of the weighted logistic loss of all comparisons, with the gains of the scores themselves."""
    scores, target, where = made(kind)
    slope = 1.5
    loss = mg.UniLoss(metric, relaxation="logistic", slope=slope)
    _, curvature = Slopes(loss, "flip").of(scores, target, where, {})
    inputs = loss.check(scores, target, where)
    plan = loss.plan(inputs)
    comparisons, live = plan.comparisons(inputs.scores)
    weight = plan.flip_gains(comparisons > 0).abs() * live * plan.defined().unsqueeze(-1)
    scale = plan.scale()
    weight = weight if scale is None else weight / scale.unsqueeze(-1)

    def convex(moved: Tensor) -> Tensor:
        compared = plan.comparisons(loss.check(moved, target, where).scores)[0]
        return (weight * torch.nn.functional.softplus(-slope * compared)).sum(-1)

    step = 1e-4
    differences = torch.zeros_like(scores)
    for place in np.ndindex(*scores.shape[1:]):
        moved = torch.zeros_like(scores)
        moved[:, *place] = step
        both = convex(scores + moved) + convex(scores - moved)
        differences[:, *place] = (both - 2 * convex(scores)) / step**2
    if kind == "classes" and metric.name == "auc":
        # Log-odds are no straight lines, and a second derivative without their own bend is positive.
        assert (curvature[where] > 0).all()
        return
    torch.testing.assert_close(curvature, differences, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("relaxation", ["logistic", "sigmoid"])
@pytest.mark.parametrize("name", ["average_precision", "ndcg"])
def test_a_large_set_has_the_same_slopes(
    name: str, relaxation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums along the order, all pairs at once, and pairs of one set at a time."""
    scores, target, where = made("grades" if name == "ndcg" else "binary", sets=5)
    slopes = Slopes(mg.UniLoss(name, relaxation=relaxation, slope=1.5), "flip")
    expected = slopes.of(scores, target, where, {})
    module = "metricgrad.surrogates.pair_sums"
    monkeypatch.setattr(f"{module}._HELD_PAIRS", 1)
    torch.testing.assert_close(slopes.of(scores, target, where, {}), expected)
    monkeypatch.setattr(f"{module}._MOST_PAIRS", -(1 << 40))
    torch.testing.assert_close(slopes.of(scores, target, where, {}), expected)


@pytest.mark.parametrize("name", ["ndcg", "map", "mrr", "average_precision", "auc"])
def test_swap_gains_are_what_swaps_change(name: str) -> None:
    """Against the metric itself, with the two scores exchanged."""
    metric = mg.metric(name)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(8, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 3, 1, 0, 2, 0, 1, 0]) if name == "ndcg" else torch.arange(8) % 3 == 0
    slopes = Slopes(mg.UniLoss(name, relaxation="logistic", slope=1.5), "swap")
    found, curved = slopes.of(scores[None], target[None], torch.ones(1, 8).bool(), {})
    gradient = torch.zeros(8, dtype=torch.float64)
    curvature = torch.zeros(8, dtype=torch.float64)
    for i in range(8):
        for j in range(8):
            if target[i] > target[j]:
                swapped = scores.clone()
                swapped[[i, j]] = scores[[j, i]]
                gain = (metric(swapped, target) - metric(scores, target)).abs()
                lost = torch.sigmoid(-1.5 * (scores[i] - scores[j]))
                gradient[i] -= 1.5 * gain * lost
                gradient[j] += 1.5 * gain * lost
                curvature[[i, j]] += 1.5**2 * gain * lost * (1 - lost)
    torch.testing.assert_close(found[0], gradient)
    torch.testing.assert_close(curved[0], curvature)


def test_swap_gains_of_one_set_need_no_padding() -> None:
    scores = torch.tensor([0.1, 0.4, 0.3, 0.2])
    plan = mg.metric("auc").reexpress((4,), torch.tensor([True, False, True, False]), None, scores.dtype)
    found = swap_gains(plan, *plan.compared(scores))
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25], [0.25, 0.25]]))


def test_swap_gains_of_ndcg_are_the_lambdas_of_lightgbm() -> None:
    """A tree with a leaf for each row tells both: its values are -g / (h + lambda_l2)."""
    rng = np.random.default_rng(0)
    sizes = [7, 5, 8]
    rows = sum(sizes)
    target = rng.integers(0, 4, rows)
    start = rng.normal(size=rows)
    x = np.arange(1.0, rows + 1)[:, None]
    settings = {
        "objective": "lambdarank", "lambdarank_norm": False, "lambdarank_truncation_level": 100,
        "sigmoid": 1.5, "verbose": -1, "num_leaves": rows, "min_data_in_leaf": 0,
        "min_data_in_bin": 1, "min_sum_hessian_in_leaf": 0, "learning_rate": 1.0,
        "boost_from_average": False, "num_threads": 1,
    }  # fmt: skip
    values = []
    alone = np.ones(rows, dtype=bool)  # in a leaf, as most are
    small = 1e-3 # so that splits pay
    for penalty in (0.0, small):
        data = lgb.Dataset(x, target, group=sizes, init_score=start)
        booster = lgb.train({**settings, "lambda_l2": penalty}, data, num_boost_round=1)
        values.append(np.asarray(booster.predict(x, raw_score=True)))
        leaf = np.ravel(np.asarray(booster.predict(x, pred_leaf=True)))
        alone &= np.bincount(leaf)[leaf] == 1
    assert alone.sum() > rows / 2
    free, held = values
    curvature = small * held / (free - held)  # free * h = held * (h + small)
    gradient = -free * curvature
    metric = mg.metric("ndcg", gain="exponential")
    ids = np.repeat(np.arange(3), sizes)
    ours = [np.zeros(rows), np.zeros(rows)]
    slopes = Slopes(mg.UniLoss(metric, relaxation="logistic", slope=1.5), "swap")
    for query in range(3):
        own = ids == query
        scores = torch.tensor(start[own])[None]
        found = slopes.of(scores, torch.tensor(target[own])[None], torch.ones_like(scores).bool(), {})
        for kind in range(2):
            ours[kind][own] = found[kind][0].numpy()
    np.testing.assert_allclose(ours[0][alone], gradient[alone], atol=1e-4)
    np.testing.assert_allclose(ours[1][alone], curvature[alone], atol=1e-4)
