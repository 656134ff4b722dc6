"""Objectives of boosted trees: their derivatives, their sets, and what they refuse."""

from collections.abc import Callable
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.boosting.drawn_sets import Sets, drawn_sets
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
    inputs = loss.check(scores, target, where)
    plan = loss.plan(inputs)
    better_lost = plan.flip_gains(plan.comparisons(inputs.scores)[0] > 0) < 0
    if better_lost.any() and relaxation != "sigmoid" and loss.metric.higher_is_better:
        return  # these are turned round, which only the sigmoid does not notice
    scores.requires_grad_()
    loss.per_set(scores, target, where=where).sum().backward()
    torch.testing.assert_close(gradient, scores.grad)
    assert gradient.any()


@pytest.mark.parametrize(("metric", "kind"), METRICS)
def test_slopes_are_differences_of_the_convex_relaxation(metric: Any, kind: str) -> None:
    """Of the weighted logistic loss of all comparisons, with the gains of the scores themselves."""
    scores, target, where = made(kind)
    slope = 1.5
    loss = mg.UniLoss(metric, relaxation="logistic", slope=slope)
    gradient, curvature = Slopes(loss, "flip").of(scores, target, where, {})
    inputs = loss.check(scores, target, where)
    plan = loss.plan(inputs)
    comparisons, live = plan.comparisons(inputs.scores)
    gains = plan.flip_gains(comparisons > 0) * live * plan.defined().unsqueeze(-1)
    gains = gains if loss.metric.higher_is_better else -gains
    scale = plan.scale()
    gains = gains if scale is None else gains / scale.unsqueeze(-1)

    def convex(moved: Tensor) -> Tensor:
        compared = plan.comparisons(loss.check(moved, target, where).scores)[0]
        lost = -slope * gains.sign() * compared
        return (gains.abs() * torch.nn.functional.softplus(lost)).sum(-1)

    step = 1e-4
    first = torch.zeros_like(scores)
    second = torch.zeros_like(scores)
    for place in np.ndindex(*scores.shape[1:]):
        moved = torch.zeros_like(scores)
        moved[:, *place] = step
        up = convex(scores + moved)
        down = convex(scores - moved)
        first[:, *place] = (up - down) / (2 * step)
        second[:, *place] = (up + down - 2 * convex(scores)) / step**2
    torch.testing.assert_close(gradient, first, atol=1e-6, rtol=1e-4)
    if kind == "classes" and metric.name == "auc":
        # Log-odds are no straight lines; without their own bend, the curvature is positive.
        assert (curvature[where] > 0).all()
        return
    torch.testing.assert_close(curvature, second, atol=1e-6, rtol=1e-4)


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
    loss = mg.UniLoss("auc")
    plan = loss.plan(loss.check(scores, torch.tensor([1, 0, 1, 0]), None))
    pairs = plan.pairwise()
    assert pairs is not None
    found = swap_gains(pairs, *pairs.compared(scores))
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25], [0.25, 0.25]]))


def test_a_tie_is_lost_in_swaps_too() -> None:
    tied = torch.tensor([[0.5, 0.5, 0.2, 0.2, 0.9, 0.2]])
    target = torch.tensor([[1, 0, 1, 0, 0, 1]])
    below = tied - 1e-6 * target
    slopes = Slopes(mg.UniLoss("map", relaxation="logistic", slope=1.0), "swap")
    everything = torch.ones_like(target).bool()
    expected = slopes.of(below, target, everything, {})
    torch.testing.assert_close(slopes.of(tied, target, everything, {}), expected)


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
    small = 1e-3  # so that splits pay
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
        found = slopes.of(
            scores, torch.tensor(target[own])[None], torch.ones_like(scores).bool(), {}
        )
        for kind in range(2):
            ours[kind][own] = found[kind][0].numpy()
    np.testing.assert_allclose(ours[0][alone], gradient[alone], atol=1e-4)
    np.testing.assert_allclose(ours[1][alone], curvature[alone], atol=1e-4)


def table(rows: int = 300, seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Columns and noisy classes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    level = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.normal(size=rows)
    cuts = np.quantile(level, np.linspace(0, 1, classes + 1)[1:-1] ** 0.3)
    return x, np.searchsorted(cuts, level)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


QUIET: dict[str, Any] = {"verbose": -1, "num_threads": 1, "seed": 0, "num_leaves": 7}


def lgb_train(objective: Any, x: np.ndarray, y: np.ndarray, **data: Any) -> np.ndarray:
    classes = int(y.max()) + 1
    many = classes > 2 and objective.metric.layout != "grades"
    params = {**QUIET, "objective": objective, "num_class": classes if many else 1}
    booster = lgb.train(params, lgb.Dataset(x, y, **data), num_boost_round=20)
    return np.asarray(booster.predict(x))


def lgb_sklearn(objective: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    model = lgb.LGBMClassifier(n_estimators=20, objective=objective, verbose=-1, n_jobs=1)
    return np.asarray(model.fit(x, y).predict(x, raw_score=True))


def xgb_train(objective: Any, x: np.ndarray, y: np.ndarray, **data: Any) -> np.ndarray:
    xgb = pytest.importorskip("xgboost")
    classes = int(y.max()) + 1
    many = classes > 2 and objective.metric.layout != "grades"
    params = {"max_depth": 3, "nthread": 1} | ({"num_class": classes} if many else {})
    given = xgb.DMatrix(x, y, **data)
    return xgb.train(params, given, num_boost_round=20, obj=objective).predict(
        given, output_margin=True
    )


def xgb_sklearn(objective: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    xgb = pytest.importorskip("xgboost")
    model = xgb.XGBClassifier(n_estimators=20, max_depth=3, objective=objective, n_jobs=1)
    return model.fit(x, y).predict(x, output_margin=True)


ENGINES = [lgb_train, lgb_sklearn, xgb_train, xgb_sklearn]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["average_precision", "f1"])
def test_every_engine_learns_a_binary_metric(name: str, engine: Callable[..., np.ndarray]) -> None:
    x, y = table()
    objective = mg.boosting.objective(name, set_size=100, generator=seeded())
    scores = engine(objective, x, y)
    assert mg.metric(name)(scores, y) > 0.7
    assert mg.metric(name)(np.zeros(len(y)), y) < 0.5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["accuracy", "f1"])
def test_every_engine_learns_a_metric_of_classes(
    name: str, engine: Callable[..., np.ndarray]
) -> None:
    x, y = table(classes=3)
    objective = mg.boosting.objective(name, set_size=100, ordinary=0.1, generator=seeded())
    scores = engine(objective, x, y).reshape(len(y), 3)
    assert mg.metric(name)(scores, y) > 0.8


def queries() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = table(classes=4)
    return x, y, np.repeat(np.arange(30), 10)


@pytest.mark.parametrize("gains", ["flip", "swap"])
@pytest.mark.parametrize("name", ["ndcg", "map", "mrr"])
def test_queries_are_ranked(name: str, gains: Gains) -> None:
    x, y, ids = queries()
    y = y if name == "ndcg" else (y > 1).astype(int)
    metric = mg.metric(name)
    before = metric(x[:, 3], y, groups=ids).mean()
    objective = mg.boosting.objective(metric, gains=gains, generator=seeded())
    scores = lgb_train(objective, x, y, group=[10] * 30)
    assert metric(scores, y, groups=ids).mean() > max(before, 0.8)
    objective = mg.boosting.objective(metric, gains=gains, groups=ids, generator=seeded())
    other = lgb_train(objective, x, y)
    np.testing.assert_allclose(other, scores, rtol=1e-4, atol=1e-5)


def test_rankers_of_both_libraries_take_groups() -> None:
    xgb = pytest.importorskip("xgboost")
    x, y, ids = queries()
    metric = mg.metric("ndcg", k=5)
    before = metric(x[:, 3], y, groups=ids).mean()
    ranker = lgb.LGBMRanker(
        n_estimators=20, objective=mg.boosting.objective(metric), verbose=-1, n_jobs=1
    )
    ranker.fit(x, y, group=[10] * 30)
    wrapped = xgb.XGBRegressor(
        n_estimators=20, max_depth=3, n_jobs=1, objective=mg.boosting.objective(metric, groups=ids)
    )
    wrapped.fit(x, y)
    found = [
        np.asarray(ranker.predict(x)),
        wrapped.predict(x),
        xgb_train(mg.boosting.objective(metric), x, y, qid=ids),
    ]
    for scores in found:
        assert metric(scores, y, groups=ids).mean() > before + 0.05


def test_a_function_of_ones_own_is_boosted() -> None:
    x, y = table()
    amount = np.where(x[:, 3] > 0, 5.0, 0.5)  # those below are not worth the cost
    objective = mg.boosting.objective(with_amounts, rows={"amount": amount}, set_size=100)
    scores = lgb_train(objective, x, y)
    metric = mg.metric(with_amounts)
    assert metric(scores, y, amount=amount) > 0.8 * metric(2.0 * y - 1, y, amount=amount)
    evaluation = mg.boosting.evaluation(with_amounts, rows={"amount": amount})
    name, value, higher = evaluation(y, scores, None, None)
    assert (name, higher) == ("with_amounts", True)
    assert value == pytest.approx(float(metric(scores, y, amount=amount)))


def test_early_stopping_reads_the_metric() -> None:
    xgb = pytest.importorskip("xgboost")
    x, y = table()
    evaluation = mg.boosting.evaluation("f1")
    params = {**QUIET, "objective": mg.boosting.objective("f1"), "metric": "none"}
    valid = lgb.Dataset(x[200:], y[200:])
    booster = lgb.train(
        params, lgb.Dataset(x[:200], y[:200]), 50, valid_sets=[valid], feval=evaluation,
        callbacks=[lgb.early_stopping(5, verbose=False)],
    )  # fmt: skip
    told = booster.best_score["valid_0"]["f1"]
    assert told == pytest.approx(
        float(mg.metric("f1")(np.asarray(booster.predict(x[200:])), y[200:]))
    )
    held = xgb.DMatrix(x[200:], y[200:])
    stop = xgb.callback.EarlyStopping(rounds=5, maximize=True, save_best=True)
    other = xgb.train(
        {"nthread": 1}, xgb.DMatrix(x[:200], y[:200]), 50, obj=mg.boosting.objective("f1"),
        evals=[(held, "valid")], custom_metric=evaluation, callbacks=[stop], verbose_eval=False,
    )  # fmt: skip
    scores = other.predict(held, output_margin=True)
    assert other.best_score == pytest.approx(float(mg.metric("f1")(scores, y[200:])))
    wrapped = xgb.XGBClassifier(
        n_estimators=9, n_jobs=1, objective=mg.boosting.objective("f1"), eval_metric=evaluation
    )
    wrapped.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])], verbose=False)
    last = wrapped.evals_result()["validation_0"]["f1"][-1]
    scores = wrapped.predict(x[200:], output_margin=True)
    assert -last == pytest.approx(float(mg.metric("f1")(scores, y[200:])))


def test_an_evaluation_may_tune_the_threshold() -> None:
    target = np.array([0, 0, 1, 1])
    chances = np.array([0.1, 0.2, 0.3, 0.4])
    assert mg.boosting.evaluation("f1")(target, chances, None, None)[1] == pytest.approx(2 / 3)
    assert mg.boosting.evaluation("f1", tune=True)(target, chances, None, None)[1] == 1.0


def test_an_evaluation_of_queries_is_their_mean() -> None:
    _, y, ids = queries()
    scores = np.random.default_rng(0).normal(size=len(y))
    expected = float(mg.metric("ndcg")(scores, y, groups=ids).mean())
    told = mg.boosting.evaluation("ndcg")(y, scores, None, np.full(30, 10))
    assert told == ("ndcg", pytest.approx(expected), True)
    assert mg.boosting.evaluation("ndcg", groups=ids)(y, scores) == pytest.approx(-expected)


def test_boosters_start_from_ordinary_ones() -> None:
    xgb = pytest.importorskip("xgboost")
    x, y = table()
    ordinary = lgb.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(x, y)
    start = mg.boosting.start(ordinary, x)
    np.testing.assert_allclose(
        1 / (1 + np.exp(-start)), np.asarray(ordinary.predict_proba(x))[:, 1]
    )
    data = lgb.Dataset(x, y, init_score=start)
    objective = mg.boosting.objective("average_precision")
    booster = lgb.train({**QUIET, "objective": objective}, data, num_boost_round=10)
    metric = mg.metric("average_precision")
    assert metric(start + np.asarray(booster.predict(x)), y) > metric(start, y)
    model = xgb.XGBClassifier(n_estimators=5, n_jobs=1).fit(x, y)
    odds = mg.boosting.start(model, x)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), model.predict_proba(x)[:, 1], rtol=1e-5)
    with pytest.raises(TypeError, match=r"must be a model of LightGBM.*got builtins\.dict"):
        mg.boosting.start({}, x)


def as_catboost(objective: Any, scores: Any, target: Any, weights: Any) -> np.ndarray:
    """What CatBoost is told of a block of rows, which it passes as sequences."""
    return np.array(objective.calc_ders_range(list(scores), list(target), weights))


def test_catboost_gets_the_slopes_of_a_block_upside_down() -> None:
    _, y = table(rows=50)
    scores = np.random.default_rng(0).normal(size=50)
    objective = mg.boosting.objective("auc", set_size=None, noise=0.0)
    gradient, curvature = objective(y, scores, None, None)
    told = as_catboost(objective, scores, y, None)
    np.testing.assert_allclose(told, np.stack([-gradient, -curvature], -1), rtol=1e-5, atol=1e-7)
    twice = as_catboost(objective, scores, y, [2.0] * 50)
    np.testing.assert_allclose(twice, 2 * told, rtol=1e-5, atol=1e-7)
    evaluation = mg.boosting.evaluation("auc")
    assert evaluation.is_max_optimal()
    error, weight = evaluation.evaluate([scores], y, None)
    assert evaluation.get_final_error(error, weight) == pytest.approx(
        float(mg.metric("auc")(scores, y))
    )


def test_sets_hold_every_row_once_and_classes_evenly() -> None:
    target = torch.tensor([1.0] * 10 + [0.0] * 93)
    sets = drawn_sets(target, 20, seeded())
    rows = sets.rows[sets.real]
    assert sorted(rows.tolist()) == list(range(103))
    assert sets.rows.shape[0] == 5
    for index, real in zip(*sets, strict=True):
        assert target[index[real]].sum() == 2
        assert 20 <= len(index[real]) <= 21
    assert len(drawn_sets(target, 2, seeded()).rows) == 10  # as many as there are positives
    assert drawn_sets(target, None, seeded()).rows.shape == (1, 103)
    assert not torch.equal(drawn_sets(target, 20, torch.Generator()).rows, sets.rows)
    amounts = torch.rand(100, generator=seeded())
    assert sorted(drawn_sets(amounts, 10, seeded()).rows.flatten().tolist()) == list(range(100))


def test_sets_are_drawn_anew_for_every_tree() -> None:
    _, y = table()
    scores = np.random.default_rng(0).normal(size=len(y))
    objective = mg.boosting.objective(
        "auc", set_size=50, ordinary=0.0, noise=0.0, generator=seeded()
    )
    first, second = (objective(y, scores, None, None)[0] for _ in range(2))
    assert not np.allclose(first, second)
    again = mg.boosting.objective("auc", set_size=50, ordinary=0.0, noise=0.0, generator=seeded())
    np.testing.assert_array_equal(again(y, scores, None, None)[0], first)


def test_the_objective_is_the_slopes_of_its_sets_scaled() -> None:
    _, y = table()
    scores = np.random.default_rng(0).normal(size=len(y))
    objective = mg.boosting.objective("auc", set_size=None, ordinary=0.0, noise=0.0)
    gradient, curvature = objective(y, scores, None, None)
    assert curvature.mean() == pytest.approx(0.25, rel=1e-3)
    assert (curvature > 0).all()
    everything = Sets(torch.arange(len(y))[None], torch.ones(1, len(y)).bool())
    loss = mg.UniLoss("auc", relaxation="logistic", slope=1.0)
    raw = Slopes(loss, "flip").of(
        torch.tensor(scores)[everything.rows], torch.tensor(y)[everything.rows],
        everything.real, {},
    )  # fmt: skip
    factor = 0.25 / float(raw[1].mean())
    np.testing.assert_allclose(gradient, factor * raw[0][0], rtol=1e-3, atol=1e-5)
    weights = np.linspace(0.5, 2, len(y))
    weighted = objective(y, scores, weights, None)
    np.testing.assert_allclose(weighted[0], weights * gradient, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(weighted[1], weights * curvature, rtol=1e-4)


def test_queries_of_all_lengths_get_their_own_slopes() -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat([7, 3, 5], [4, 9, 6]))
    target = rng.integers(0, 3, len(ids))
    scores = rng.normal(size=len(ids))
    objective = mg.boosting.objective("ndcg", groups=ids, noise=0.0)
    gradient, _ = objective(target, scores, None, None)
    slopes = Slopes(mg.UniLoss("ndcg", relaxation="logistic", slope=1.0), "flip")
    alone = np.zeros(len(ids))
    for query in (3, 5, 7):
        own = ids == query
        every = torch.ones(1, own.sum()).bool()
        found = slopes.of(
            torch.tensor(scores[own])[None], torch.tensor(target[own])[None], every, {}
        )
        alone[own] = found[0][0].numpy()
    factor = np.abs(gradient).sum() / np.abs(alone).sum()
    np.testing.assert_allclose(gradient, factor * alone, rtol=1e-4, atol=1e-6)


def test_padding_of_drawn_sets_changes_no_row() -> None:
    """Padding points to the first row; AUC gives every row a gradient."""
    y = np.arange(101) % 4 == 0
    scores = np.random.default_rng(0).normal(size=101)
    assert not drawn_sets(torch.tensor(y), 20, seeded()).real.all()
    objective = mg.boosting.objective("auc", set_size=20, noise=0.0, generator=seeded())
    gradient, _ = objective(y.astype(float), scores, None, None)
    np.testing.assert_array_equal(np.sign(gradient), np.where(y, -1, 1))


def test_weights_come_from_every_library() -> None:
    """A weight of 0 leaves a row out, so half of the rows alone decide the trees."""
    xgb = pytest.importorskip("xgboost")
    x, y = table()
    weights = np.where(np.arange(len(y)) < 150, 1.0, 0.0)
    turned = np.where(weights > 0, y, 1 - y)  # what is left out would teach the opposite
    kept = weights > 0
    auc = mg.metric("auc")
    objective = mg.boosting.objective("accuracy")
    found = [
        lgb_train(objective, x, turned, weight=weights),
        xgb_train(objective, x, turned, weight=weights),
        xgb.XGBClassifier(n_estimators=20, max_depth=3, objective=objective, n_jobs=1)
        .fit(x, turned, sample_weight=weights)
        .predict(x, output_margin=True),
        lgb.LGBMClassifier(n_estimators=20, objective=objective, verbose=-1, n_jobs=1)
        .fit(x, turned, sample_weight=weights)
        .predict(x, raw_score=True),
    ]
    for scores in found:
        assert auc(np.asarray(scores)[~kept], y[~kept]) > 0.6
    plain = lgb_train(objective, x, turned)
    assert auc(plain[~kept], y[~kept]) < 0.6


def test_xgboost_weighs_queries() -> None:
    _, y, ids = queries()
    scores = np.random.default_rng(0).normal(size=len(y))
    xgb = pytest.importorskip("xgboost")
    objective = mg.boosting.objective("ndcg", noise=0.0)
    plain, _ = objective(y, scores, None, np.full(30, 10))
    weights = np.linspace(0.5, 2, 30)
    weighed, _ = objective(scores, xgb.DMatrix(y[:, None], y, qid=ids, weight=weights))
    np.testing.assert_allclose(weighed, weights[ids] * plain, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match="one weight for each of the 300 rows; got 7"):
        objective(y, scores, np.ones(7), np.full(30, 10))


def test_swaps_of_a_large_set_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.surrogates.pair_sums._MOST_SWAPS", 10)
    objective = mg.boosting.objective("auc", gains="swap", set_size=None)
    with pytest.raises(ValueError, match=r"16 are too many; pass smaller sets"):
        objective(np.arange(8) % 2, np.arange(8.0), None, None)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_share_of_log_loss_joins(classes: int) -> None:
    _, y = table(classes=classes)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(len(y), classes) if classes > 2 else len(y))
    objective = mg.boosting.objective("f1", ordinary=1.0, noise=0.0)
    gradient, curvature = objective(y, scores, None, None)
    raised = torch.tensor(scores, requires_grad=True)
    if classes > 2:
        torch.nn.functional.cross_entropy(raised, torch.tensor(y), reduction="sum").backward()
    else:
        torch.nn.functional.binary_cross_entropy_with_logits(
            raised, torch.tensor(y, dtype=raised.dtype), reduction="sum"
        ).backward()
    assert raised.grad is not None
    np.testing.assert_allclose(gradient, raised.grad, rtol=1e-4, atol=1e-5)
    assert curvature.max() <= 0.25 + 1e-6


def test_the_metric_joins_log_loss_at_its_length() -> None:
    _, y = table()
    scores = np.random.default_rng(0).normal(size=len(y))

    def slopes(ordinary: float) -> np.ndarray:
        objective = mg.boosting.objective("auc", set_size=None, ordinary=ordinary, noise=0.0)
        return np.stack(objective(y, scores, None, None))

    log_loss = slopes(1.0)
    metric = slopes(0.0)
    metric *= np.linalg.norm(log_loss[0]) / np.linalg.norm(metric[0])
    np.testing.assert_allclose(slopes(0.25), 0.75 * metric + 0.25 * log_loss, rtol=1e-3, atol=1e-5)


def test_noise_is_that_of_the_scores_and_new_for_every_tree() -> None:
    _, y = table()
    scores = np.random.default_rng(0).normal(size=len(y))
    noisy = mg.boosting.objective("auc", set_size=None, noise=0.5, generator=seeded())
    first, second = (noisy(y, scores, None, None)[0] for _ in range(2))
    assert not np.allclose(first, second)
    source = seeded()
    torch.randperm(len(y), generator=source)  # the sets are drawn before
    moved = scores + 0.5 * torch.randn(len(y), generator=source).numpy()
    quiet = mg.boosting.objective("auc", set_size=None, noise=0.0)
    np.testing.assert_allclose(first, quiet(y, moved, None, None)[0], rtol=1e-4, atol=1e-6)


def test_the_row_at_a_cut_takes_the_average_of_what_refers_to_it() -> None:
    def hits(scores: Tensor, target: Tensor) -> Tensor:
        return (target * (scores > scores.sort(descending=True).values[5])).sum() / 5

    _, y = table(rows=50)
    scores = torch.tensor(np.random.default_rng(0).normal(size=(1, 50)))
    target = torch.tensor(y)[None]
    loss = mg.UniLoss(hits, relaxation="logistic", slope=1.0)
    everything = torch.ones_like(target).bool()
    gradient, curvature = Slopes(loss, "flip").of(scores, target, everything, {})
    raised = scores.requires_grad_()
    loss.relaxed(raised, target).backward()
    assert raised.grad is not None
    cut = int(scores[0].argsort(descending=True)[5])
    whole = raised.grad[0]
    expected = whole.clone()
    expected[cut] /= 50 - 1  # the others, and its own comparison with itself, which is always 0
    torch.testing.assert_close(gradient[0], expected)
    others = torch.arange(50) != cut
    assert 0 < curvature[0, cut] < curvature[0, others].max()


def test_log_loss_has_a_share_where_it_knows_what_counts() -> None:
    assert mg.boosting.objective("f1").ordinary == 0.75
    assert mg.boosting.objective("ndcg").ordinary == 0.0
    assert mg.boosting.objective(with_amounts, rows={"amount": [1.0, 2.0]}).ordinary == 0.0
    assert mg.boosting.objective("f1", ordinary=0.0).ordinary == 0.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metric": "bleu"}, "trees score the rows of a table, and bleu is about tokens"),
        ({"metric": "pck"}, "pck is about heatmaps; pass a metric of classes or rankings"),
        ({"metric": "ndgc"}, "did you mean ndcg"),
        ({"set_size": 1}, "set_size must be .*got 1"),
        ({"ordinary": 1.5}, "ordinary is a share from 0 to 1; got 1.5"),
        ({"noise": -1.0}, "noise must be 0 or more, and finite; got -1.0"),
        ({"noise": float("inf")}, "noise must be 0 or more, and finite; got inf"),
        ({"metric": "ndcg", "ordinary": 0.5}, "ndcg has grades; pass ordinary=0, got 0.5"),
        ({"relaxation": "squared_hinge"}, "boosted trees take .*got 'squared_hinge'"),
        ({"gains": "swaps"}, "gains must be .*got 'swaps'"),
        ({"slope": -1.0}, "slope must be above 0; got -1.0"),
    ],
)
def test_options_that_cannot_be_boosted_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mg.boosting.objective(**{"metric": "auc"} | options)


@pytest.mark.parametrize(
    ("metric", "options", "target", "group", "sentence"),
    [
        ("auc", {}, [0, 0, 0, 0], None, "all 4 targets are 0, so no set has a positive"),
        ("auc", {}, [0, 1, np.nan, np.nan], None, "2 of 4 targets are NaN; leave these rows out"),
        ("auc", {}, [0, 1, 0], None, r"got \[4\] and \[3\]"),
        ("auc", {}, [0, 1, 2, 0], None, "0 and 1"),
        ("ndcg", {}, [0, 1, 2, 0], None, "ndcg ranks the rows of a query; pass groups=ids"),
        ("ndcg", {}, [0, 1, 2, 0], [2, 3], "must add up to 4 rows; they add up to 5"),
        ("ndcg", {}, [0, 0, 0, 0], [2, 2], "all 4 targets are 0, so no query"),
        ("ndcg", {"groups": [0, 0, 1]}, [0, 1, 2, 0], None, r"each of the 4 rows .*got \[3\]"),
        ("f1", {"gains": "swap"}, [0, 1, 1, 0], None, "swap gains are for metrics of the order"),
        ("eer", {"gains": "swap"}, [0, 1, 1, 0], None, "swap gains are for metrics that add up"),
    ],
)
def test_rows_that_cannot_be_boosted_are_refused(
    metric: str, options: Any, target: list[float], group: Any, sentence: str
) -> None:
    objective = mg.boosting.objective(metric, **options)
    with pytest.raises(ValueError, match=sentence):
        objective(np.array(target), np.zeros(4), None, group)


def test_what_catboost_cannot_do_is_refused() -> None:
    block = [0.1, 0.2, 0.3], [0, 1, 0], None
    for objective in (
        mg.boosting.objective("ndcg"),
        mg.boosting.objective("auc", groups=[0, 0, 0]),
        mg.boosting.objective(with_amounts, rows={"amount": [1.0, 2.0, 3.0]}),
    ):
        with pytest.raises(ValueError, match="CatBoost passes blocks of rows without saying which"):
            objective.calc_ders_range(*block)
    with pytest.raises(ValueError, match=r"row by row, and accuracy is about a set of rows; use"):
        mg.boosting.objective("accuracy").calc_ders_multi([0.1, 0.2], 1, None)


@pytest.mark.parametrize(("method", "tried"), [("auto", "metric_loss"), ("uniloss", "uniloss")])
def test_the_front_door_mixes_log_loss_into_the_challenger(
    method: str, tried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metricgrad.training.fit_trees._MOST", 20)
    monkeypatch.setattr("metricgrad.training.fit_trees._LEAVES", (7,))
    x, y = table()
    model = mg.MetricClassifier(metric="f1", model="boosted", method=method, random_state=0)
    methods = {trial.candidate.method for trial in model.fit(x, y).fit_.trials}
    assert methods == {"cross_entropy", tried}
