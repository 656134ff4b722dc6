"""Boosted trees at the front doors: the search, the choice between models, files and commands."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.datasets import load_breast_cancer, load_wine
from typer.testing import CliRunner

import metricgrad as mg
from metricgrad.boosting import growing
from metricgrad.boosting.forest_module import own_booster
from metricgrad.cli import app
from metricgrad.estimators import models
from metricgrad.estimators.features import Category
from metricgrad.training import fit_trees
from metricgrad.training.candidates import Candidate
from metricgrad.training.data import Items, stream_seed
from metricgrad.training.fit_trees import TreeFit
from metricgrad.training.split import SplitPlan, split_data
from metricgrad.training.tree_trials import PlannedTrees, TreeData, TreeSearch

X, Y = (np.asarray(each) for each in load_breast_cancer(return_X_y=True))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small trees: these tests are about the rules, not about the models."""
    monkeypatch.setattr(fit_trees, "_LEAVES", (4, 7))
    monkeypatch.setattr(fit_trees, "_MOST", 40)


def mixed(number: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    """A table with gaps and categories, and a target that needs both."""
    source = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "size": source.normal(size=number),
            "kind": np.array(["a", "b", "c", None])[source.integers(0, 4, number)],
            "when": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(source.integers(0, 99, number), "D"),
        }
    )
    worth = frame["size"].to_numpy() + 2 * (frame["kind"] == "b")
    frame.loc[::9, "size"] = np.nan
    return frame, np.asarray(worth > 1).astype(int)


def tree_data(metric: str = "f1", rows: Any = None) -> TreeData:
    items = Items(torch.from_numpy(X), torch.from_numpy(Y), rows=rows or {})
    return TreeData(items, "binary", 2, (), mg.metric(metric))


def search_of(data: TreeData, folds: int = 2, most: int = 40) -> TreeSearch:
    plan = SplitPlan(data.metric, True, 1, False, folds, 0.2)
    split = split_data(data.items, None, plan, 0)
    return TreeSearch(data, split, "lightgbm", 0, 1, most)


ORDINARY = PlannedTrees(Candidate("cross_entropy"), 7, 0.1)


# ---------------------------------------------------------------------------
# trials


def test_a_trial_measures_validation_rows_every_ten_trees() -> None:
    search = search_of(tree_data())
    trial = search.run(ORDINARY)
    assert trial.epochs == 40
    assert trial.epoch in (10, 20, 30, 40)
    assert trial.curve.shape == (4, 2)
    assert trial.curve[:, 0].isnan().all()  # trees tell no loss
    assert trial.value == search.split.validation.measure(trial.scores).value
    assert trial.value == pytest.approx(float(trial.curve[trial.epoch // 10 - 1, 1]))
    assert trial.folds == 2
    assert search.plans == {trial: ORDINARY}
    # Out-of-fold scores are those of trees that never saw the row.
    fold = search.split.folds[0]
    booster = search.booster(ORDINARY, fold.train, X[fold.valid])
    booster.grow(trial.epoch)
    found = torch.from_numpy(booster.watched()).float()
    assert torch.equal(trial.scores[0][: len(fold.valid)], found)


def test_trees_on_the_ordinary_loss_cannot_win_for_the_metric() -> None:
    search = search_of(tree_data())
    plan = ORDINARY._replace(start=20, options={"slope": 1.0})
    trial = search.run(plan)
    assert trial.curve[:2, 1].isnan().all()
    assert trial.epoch in (30, 40)


def test_exactly_so_many_trees_are_measured() -> None:
    search = search_of(tree_data())
    whole = search.run(ORDINARY)
    again = search.run(ORDINARY, 20)
    assert (again.epoch, again.epochs) == (20, 20)
    assert again.value == pytest.approx(float(whole.curve[1, 1]))
    assert again.curve[0].isnan().all()  # fewer trees are not even looked at
    assert again.curve.shape == (2, 2)


def test_the_rows_of_queries_follow_one_another() -> None:
    x = torch.arange(18.0, dtype=torch.float64).reshape(3, 3, 2)
    y = torch.tensor([[1, 0, 0], [2, 1, 0], [0, 3, 1]])
    where = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    queries = TreeData(Items(x, y, where), "grades", 1, (), mg.metric("ndcg"))
    some = torch.tensor([1, 2])
    rows = queries.rows(some)
    assert rows.x.tolist() == [[6, 7], [8, 9], [12, 13], [14, 15], [16, 17]]
    assert rows.y.tolist() == [2, 1, 0, 3, 1]
    assert rows.sizes is not None
    assert rows.sizes.tolist() == [2, 3]
    assert queries.watched(some).tolist() == x[1:].reshape(6, 2).tolist()
    scores = queries.scores(np.arange(6.0), some)
    assert scores.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert scores.dtype == torch.float32


def test_the_rows_of_a_table_have_their_weights() -> None:
    weight = torch.arange(float(len(Y)))
    some = torch.tensor([5, 2])
    rows = tree_data(rows={"sample_weight": weight}).rows(some)
    assert rows.weight is not None
    assert rows.weight.tolist() == [5, 2]
    assert rows.sizes is None
    assert np.array_equal(rows.x, X[[5, 2]])
    assert rows.y.tolist() == Y[[5, 2]].tolist()
    many = tree_data()
    assert many.rows(some).weight is None
    assert many.scores(np.zeros((2, 4)), some).shape == (2, 4)


def test_a_trial_ends_when_validation_data_gains_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(tree_data(), most=400)
    told: list[int] = []
    search.tell = lambda advance: told.append(advance)
    trial = search.run(ORDINARY)
    assert len(told) == trial.epoch // 10 + 4 < 40
    search.late = lambda: True
    told.clear()
    search.run(ORDINARY)
    assert told == [1]


def test_own_rows_reach_the_objective_of_their_fold() -> None:
    def profit(scores: Any, target: Any, amount: Any) -> Any:
        return ((scores > 0) * (target * amount - 1)).mean()

    amount = torch.arange(len(Y)).double()
    metric = mg.reexpress(profit, higher_is_better=True)
    items = Items(torch.from_numpy(X), torch.from_numpy(Y), rows={"amount": amount})
    search = search_of(TreeData(items, "binary", 2, (), metric))
    fold = search.split.folds[1]
    plan = ORDINARY._replace(start=10, options={})
    objective = search.objective(plan, fold.train, 1)
    assert torch.equal(objective.rows["amount"], amount[fold.train])
    assert objective.generator is not None
    assert objective.generator.initial_seed() == stream_seed(0, 1_001, 0)  # of the second fold
    assert search.objective(ORDINARY, fold.train, 1) is None


# ---------------------------------------------------------------------------
# the search


def test_the_metric_follows_a_quarter_of_the_best_trees_and_both_grow_on_all_rows() -> None:
    found = TreeFit(tree_data(), "lightgbm", folds=2).run()
    usual = found.decision.ordinary
    rival = found.decision.challenger
    assert usual is not None
    assert rival is not None
    start = max(10, round(usual.epoch / 40) * 10)
    assert f"after {start} trees" in str(rival.candidate)
    assert rival.epoch > start
    assert found.unit == "tree"
    assert found.contested
    assert set(found.finalists) == {"cross_entropy", "challenger"}
    for role, trial in (("cross_entropy", usual), ("challenger", rival)):
        assert own_booster(found.finalists[role].model).num_trees() == trial.epoch
    assert "best epoch" not in repr(found)


def test_what_does_not_gain_on_two_folds_is_not_grown_on_five(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, int]] = []
    real = TreeSearch.run

    def noted(self: TreeSearch, plan: PlannedTrees, exactly: int | None = None) -> Any:
        trial = real(self, plan, exactly)
        ran.append((plan.candidate.method, len(self.split.folds)))
        if plan.options is not None:
            trial.value = worth
        return trial

    monkeypatch.setattr(TreeSearch, "run", noted)
    sizes = [("cross_entropy", 2)] * 2
    worth = 0.0
    found = TreeFit(tree_data(), "lightgbm", folds=5).run()
    assert ran == [*sizes, ("cross_entropy", 5), ("metric_loss", 2)]
    assert found.decision.challenger is None
    assert "was no better on 2 of the 5 folds, and was not trained on the others" in found.verdict()
    ran.clear()
    worth = 1.0
    TreeFit(tree_data(), "lightgbm", folds=5).run()
    assert ran[:5] == [*sizes, ("cross_entropy", 5), ("metric_loss", 2), ("metric_loss", 5)]


@pytest.mark.parametrize(
    ("method", "sides"),
    [
        ("cross_entropy", {"cross_entropy"}),
        ("uniloss", {"challenger"}),
        ("metric_loss", {"challenger"}),
    ],
)
def test_one_method_alone(method: str, sides: set[str]) -> None:
    found = TreeFit(tree_data(), "lightgbm", method, folds=2).run()
    assert set(found.finalists) == sides
    assert found.method.startswith(method)
    assert not found.contested


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "focal"}, "grow on cross_entropy, uniloss, metric_loss, or auto; got"),
        ({"method": "auto", "options": {"slope": 2.0}}, "options are for a method on the metric"),
        ({"method": "uniloss", "rate": 0.0}, "rate must be above 0; got 0.0"),
    ],
)
def test_what_trees_cannot_be_asked_for(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeFit(tree_data(), "lightgbm", **given).run()


def test_scikit_learn_has_no_challenger_and_says_so() -> None:
    found = TreeFit(tree_data(), "sklearn", folds=2).run()
    assert found.decision.challenger is None
    with pytest.raises(ValueError, match="ordinary loss only; pip install lightgbm, or xgboost"):
        TreeFit(tree_data(), "sklearn", "uniloss").run()


def test_a_function_that_comparisons_do_not_decide_is_tuned_only() -> None:
    def brier(scores: Any, target: Any) -> float:
        chances = 1 / (1 + np.exp(-np.asarray(scores, dtype=float)))
        return float(np.square(chances - np.asarray(target)).mean())

    metric = mg.from_function(brier, higher_is_better=False)
    items = Items(torch.from_numpy(X), torch.from_numpy(Y))
    found = TreeFit(TreeData(items, "binary", 2, (), metric), "lightgbm", folds=2).run()
    assert found.decision.challenger is None
    with pytest.raises(ValueError, match="trees cannot grow on brier, which comparisons"):
        TreeFit(TreeData(items, "binary", 2, (), metric), "lightgbm", "uniloss").run()


def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[PlannedTrees] = []
    real = TreeSearch.run

    def stopped(self: TreeSearch, plan: PlannedTrees, exactly: int | None = None) -> Any:
        runs.append(plan)
        if len(runs) == after:
            raise KeyboardInterrupt
        return real(self, plan, exactly)

    monkeypatch.setattr(TreeSearch, "run", stopped)
    after = 1
    with pytest.raises(KeyboardInterrupt):
        TreeFit(tree_data(), "lightgbm", folds=2).run()
    runs.clear()
    after = 3  # two sizes are done
    found = TreeFit(tree_data(), "lightgbm", folds=2).run()
    assert found.stopped
    assert found.decision.challenger is None


def test_a_gain_must_be_shown_again_on_another_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.validation.Validation.luck", lambda *_: -1.0)
    seeds: list[int] = []

    def noted(items: Any, valid: Any, plan: Any, seed: int) -> Any:
        seeds.append(seed)
        return split_data(items, valid, plan, seed)

    monkeypatch.setattr(fit_trees, "split_data", noted)
    found = TreeFit(tree_data(), "lightgbm", folds=2, seed=5).run()
    decision = found.decision
    assert seeds == [5, 6]
    assert decision.again
    assert decision.winner is decision.challenger
    assert decision.ordinary is not None
    # Two sizes, the better one, the metric; then both sides again, with as many trees.
    assert len(found.trials) == 6
    usual, best = found.trials[-2:]
    assert (usual.epoch, best.epoch) == (decision.ordinary.epoch, decision.winner.epoch)
    assert best.value is not None
    assert usual.value is not None
    assert decision.gain == pytest.approx(best.value - usual.value)

    runs: list[PlannedTrees] = []
    real = TreeSearch.run

    def stopped(self: TreeSearch, plan: PlannedTrees, exactly: int | None = None) -> Any:
        runs.append(plan)
        if len(runs) == 5:
            raise KeyboardInterrupt
        return real(self, plan, exactly)

    monkeypatch.setattr(TreeSearch, "run", stopped)
    found = TreeFit(tree_data(), "lightgbm", folds=2, seed=5).run()
    assert found.stopped
    assert found.decision.winner is found.decision.ordinary  # its rival was not shown to be better


def test_trials_on_fewer_folds_are_not_the_best_of_a_stopped_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of(tree_data(), folds=4, most=20)
    real = TreeSearch.run
    runs: list[int] = []

    def stopped(self: TreeSearch, plan: PlannedTrees, exactly: int | None = None) -> Any:
        if len(self.split.folds) == 4:
            raise KeyboardInterrupt
        trial = real(self, plan, exactly)
        runs.append(trial.folds)
        return trial

    monkeypatch.setattr(TreeSearch, "run", stopped)
    assert fit_trees._tried(search, [ORDINARY, ORDINARY._replace(leaves=4)]) == []
    assert runs == [2, 2]
    assert search.stopped


def test_finding_out_what_trees_can_grow_on_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert TreeFit(tree_data(), "lightgbm")._on_metric()
    assert torch.equal(torch.get_rng_state(), before)


def test_what_trees_are_tried_on() -> None:
    def metric_plan(method: str = "auto", **given: Any) -> PlannedTrees:
        return TreeFit(tree_data(), "lightgbm", method, **given)._metric_plan(after)

    after = ORDINARY._replace(start=20)
    mixed_loss = metric_plan()
    assert mixed_loss.candidate.method == "metric_loss"
    assert mixed_loss.options == {"ordinary": 0.75, "slope": 1.0}
    assert mixed_loss == after._replace(candidate=mixed_loss.candidate, options=mixed_loss.options)
    assert mixed_loss.candidate.notes == ("after 20 trees",)
    alone = metric_plan("uniloss", options={"slope": 3.0})
    assert (alone.candidate.method, alone.candidate.options) == ("uniloss", {"slope": 3.0})
    assert alone.options == {"ordinary": 0.0, "slope": 3.0}
    for rate, used in ((None, 0.1), (0.5, 0.5)):
        plans = TreeFit(tree_data(), "lightgbm", rate=rate)._ordinary_plans("cross_entropy")
        assert [(plan.leaves, plan.rate, plan.start) for plan in plans] == [
            (4, used, 0),
            (7, used, 0),
        ]
        assert [plan.candidate.notes for plan in plans] == [("4 leaves",), ("7 leaves",)]
    assert [fit_trees._begun(trees) for trees in (10, 40, 60, 120, 300)] == [10, 10, 20, 30, 80]


def test_a_budget_of_trees_has_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [103.0]
    monkeypatch.setattr(fit_trees, "clock", lambda: now[0])
    ends = TreeFit(tree_data(), "lightgbm", budget=10.0)._ends(100.0, 0.35)
    assert not ends()
    now[0] = 103.6
    assert ends()
    assert not TreeFit(tree_data(), "lightgbm")._ends(100.0, 0.35)()


# ---------------------------------------------------------------------------
# the estimators


def test_categories_and_gaps_go_to_the_trees_as_they_are(tmp_path: Path) -> None:
    frame, y = mixed()
    model = mg.MetricClassifier("f1", model="boosted", random_state=0).fit(frame, y)
    assert model.model_ == "boosted"
    x = model.prepared(frame).numpy()
    assert x.shape == (400, 3)
    assert x.dtype == np.float64
    np.testing.assert_array_equal(np.isnan(x[:, 0]), frame["size"].isna())
    column = model.preparation_.columns[1]
    assert isinstance(column, Category)
    kinds = column.frequent
    assert [kinds[int(each)] for each in x[:3, 1]] == frame["kind"].fillna("(missing)")[:3].tolist()
    assert model.preparation_.categories == (1,)
    assert model.score(frame, y) > 0.9
    model.save(tmp_path / "model.safetensors")
    loaded = mg.MetricClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.decision_function(frame), model.decision_function(frame))
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    same = {"metric": loaded.metric, "random_state": None}
    assert loaded.get_params() == model.get_params() | same
    assert loaded.booster_.num_trees() == model.booster_.num_trees() == model.n_iter_


def test_columns_weights_and_sparse_tables_of_trees() -> None:
    frame, y = mixed()
    model = mg.MetricClassifier("f1", model="boosted", random_state=0).fit(frame, y)
    assert model.feature_importances_.shape == (3,)
    assert model.feature_importances_.argmin() == 2  # dates say nothing
    assert model.get_feature_names_out().tolist() == ["size", "kind", "when"]
    assert not hasattr(model, "coef_")
    assert model.threshold_ == pytest.approx(float(model.trained_.threshold))  # pyright: ignore[reportArgumentType]
    sparse = mg.MetricClassifier("f1", model="boosted", random_state=0).fit(csr_matrix(X), Y)
    dense = mg.MetricClassifier("f1", model="boosted", random_state=0).fit(X, Y)
    np.testing.assert_array_equal(sparse.decision_function(X), dense.decision_function(X))
    left = np.arange(len(Y)) % 2 == 0
    weighted = mg.MetricClassifier("f1", model="boosted", random_state=0)
    weighted.fit(X, Y, sample_weight=left.astype(float))
    assert not np.array_equal(weighted.decision_function(X), dense.decision_function(X))
    with pytest.raises(ValueError, match="trees grow anew; pass warm_start=False"):
        mg.MetricClassifier("f1", model="boosted", warm_start=True).fit(X, Y)


def test_the_weights_of_the_rows_reach_the_library_once() -> None:
    weight = torch.arange(len(Y)).double()
    items = Items(torch.from_numpy(X), torch.from_numpy(Y), rows={"sample_weight": weight})
    search = search_of(TreeData(items, "binary", 2, (), mg.metric("f1")))
    train = search.split.folds[0].train
    rows = search.data.rows(train)
    np.testing.assert_array_equal(rows.weight, weight[train].numpy())
    goal = search.objective(ORDINARY._replace(start=10, options={}), train, 0)
    assert goal.rows == {}
    assert TreeFit(search.data, "lightgbm")._metric_plan(ORDINARY).candidate.method == "metric_loss"
    unit = Items(items.x, items.y, rows={"sample_weight": torch.ones(len(Y))})
    even = search_of(TreeData(unit, "binary", 2, (), mg.metric("f1")))
    assert even.run(ORDINARY).value == pytest.approx(search_of(tree_data()).run(ORDINARY).value)
    assert search.run(ORDINARY).value != even.run(ORDINARY).value


@pytest.mark.parametrize("engine", ["xgboost", "sklearn"])
def test_other_libraries_are_stored_too(engine: str, tmp_path: Path) -> None:
    frame, y = mixed()
    model = mg.MetricClassifier("f1", model="boosted", engine=engine, random_state=0).fit(frame, y)
    assert model.score(frame, y) > 0.9
    model.save(tmp_path / "model.safetensors")
    loaded = mg.MetricClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.decision_function(frame), model.decision_function(frame))
    assert hasattr(model, "booster_") is (engine == "xgboost")


def test_a_model_whose_library_is_missing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    mg.MetricClassifier("f1", model="boosted", random_state=0).fit(X, Y).save(path)
    monkeypatch.setattr(growing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="lightgbm is not installed"):
        mg.MetricClassifier.load(path)


def test_many_classes_have_offsets() -> None:
    x, y = load_wine(return_X_y=True)
    model = mg.MetricClassifier("f1", model="boosted", random_state=0).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.85
    assert model.trained_.offsets is not None
    assert model.predict_proba(x).shape == (178, 3)
    assert model.decision_function(x).shape == (178, 3)


def test_the_same_seed_grows_the_same_trees() -> None:
    one, other = (
        mg.MetricClassifier("f1", model="boosted", random_state=3).fit(X, Y).decision_function(X)
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "trees"}, "model must be 'linear', 'network', 'boosted' or 'auto'; got 'trees'"),
        ({"model": "boosted", "balanced": True}, "balanced batches are for networks"),
        ({"model": "boosted", "method": "soft_mcc"}, "boosted trees grow on cross_entropy"),
        ({"model": "boosted", "engine": "forest"}, "engine must be one of lightgbm, xgboost"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mg.MetricClassifier("f1", **settings).fit(X, Y)


def test_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="this target has several labels; pass model='network'"):
        mg.MetricClassifier("f1", model="boosted").fit(X, np.stack([Y, 1 - Y], -1))


def test_a_linear_model_has_no_hidden_layers(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"method": "cross_entropy", "epochs": 2, "rate": 0.03}
    linear = mg.MetricClassifier("f1", model="linear", random_state=0, **quick).fit(X, Y)
    plain = mg.MetricClassifier("f1", hidden=(), random_state=0, **quick).fit(X, Y)
    np.testing.assert_array_equal(linear.decision_function(X), plain.decision_function(X))
    assert (linear.model_, plain.model_) == ("linear", "linear")
    linear.save(tmp_path / "model.safetensors")
    loaded = mg.MetricClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.decision_function(X), linear.decision_function(X))


def queries() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.random.default_rng(2)
    x = source.normal(size=(900, 4))
    grades = np.digitize(x[:, 0] * x[:, 1] + 0.2 * source.normal(size=900), [0.5, 1.2])
    return x, grades, np.repeat(np.arange(60), 15)


def test_only_trees_know_lambdarank() -> None:
    x, grades, groups = queries()
    ranker = mg.MetricRanker("ndcg", "lambdarank", model="auto", folds=2, random_state=0)
    ranker.fit(x, grades, groups=groups)
    assert [each.name for each in ranker.fit_.models] == ["boosted trees (LightGBM)"]


@pytest.mark.parametrize("method", ["auto", "lambdarank", "uniloss"])
def test_a_ranker_of_trees(method: str, tmp_path: Path) -> None:
    x, grades, groups = queries()
    ranker = mg.MetricRanker("ndcg", method, model="boosted", folds=2, random_state=0)
    ranker.fit(x, grades, groups=groups)
    assert ranker.score(x, grades, groups=groups) > 0.9
    ranker.save(tmp_path / "model.safetensors")
    loaded = mg.MetricRanker.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(x), ranker.predict(x))
    assert ranker.booster_.num_trees() == ranker.n_iter_


# ---------------------------------------------------------------------------
# the choice between models


QUICK: dict[str, Any] = {"method": "cross_entropy", "epochs": 2, "rate": 0.03, "hidden": (4,)}


def test_auto_tries_every_kind_of_model_on_the_same_rows(tmp_path: Path) -> None:
    model = mg.MetricClassifier("f1", model="auto", random_state=0, folds=2, **QUICK)
    model.fit(X, Y, folder=tmp_path)
    names = [each.name for each in model.fit_.models]
    assert sorted(names) == ["a linear model", "a network", "boosted trees (LightGBM)"]
    assert model.fit_.models_verdict().startswith("Chosen among 3 kinds of models: ")
    assert model.fit_.models_verdict() in repr(model.fit_)
    assert {each.name for each in tmp_path.iterdir()} == {"linear", "network"}
    assert model.fit_.value == model.fit_.models[0].value


def test_a_model_is_taken_where_its_gain_is_not_chance() -> None:
    """A sign that is the product of two columns: no linear model has it, and trees do."""
    source = np.random.default_rng(0)
    x = source.normal(size=(600, 2))
    product = (x[:, 0] * x[:, 1] > 0).astype(int)
    line = (x[:, 0] + x[:, 1] + 0.01 * source.normal(size=600) > 0).astype(int)
    settings = QUICK | {"hidden": (), "epochs": 20, "rate": 0.1}
    for y, kind in ((product, "boosted"), (line, "linear")):
        model = mg.MetricClassifier("accuracy", model="auto", random_state=0, **settings).fit(x, y)
        assert model.model_ == kind
        assert [each.name for each in model.fit_.models] == [
            model.fit_.models[0].name,
            *({"a linear model", "boosted trees (LightGBM)"} - {model.fit_.models[0].name}),
        ]


def test_trees_stay_unless_another_model_beats_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.validation.Validation.luck", lambda *_: 1.0)
    model = mg.MetricClassifier("f1", model="auto", random_state=0, folds=2, **QUICK).fit(X, Y)
    assert model.model_ == "boosted"
    assert model.fit_.models_luck == 1.0


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, ["boosted", "linear", "network"]),
        ({"hidden": ()}, ["boosted", "linear"]),
        ({"method": "focal"}, ["linear", "network"]),
        ({"method": "metric_loss"}, ["boosted", "linear", "network"]),
        ({"balanced": True}, ["linear", "network"]),
        ({"method": mg.UniLoss("f1")}, ["linear", "network"]),
    ],
)
def test_what_auto_tries(
    settings: dict[str, Any], kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def noted(_: Any, name: str, *rest: Any) -> Any:
        tried.append(name)
        if len(tried) == len(kinds):
            raise StopIteration
        return SimpleNamespace(fit=SimpleNamespace(stopped=False))

    monkeypatch.setattr(models, "_trained", noted)
    with pytest.raises(StopIteration):
        mg.MetricClassifier("f1", model="auto", **settings).fit(X, Y)
    assert tried == kinds


def test_a_budget_is_shared_by_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []
    real = models._trained

    def noted(estimator: Any, name: Any, work: Any, seed: int, budget: float) -> Any:
        given.append((name, budget))
        return real(estimator, name, work, seed, budget)

    monkeypatch.setattr(models, "_trained", noted)
    model = mg.MetricClassifier("f1", model="auto", random_state=0, budget=60.0, **QUICK)
    model.fit(X, Y)
    shares = dict(given)
    assert shares["boosted"] == pytest.approx(21, abs=1)
    assert shares["linear"] < 0.31 * 60
    assert shares["network"] <= 60


@pytest.mark.parametrize(
    ("seconds", "budgets"),
    [
        ([4.0, 5.5, 9.0], {"boosted": 3.5, "linear": 1.8, "network": 0.5}),
        ([4.0, 6.0], {"boosted": 3.5, "linear": 1.8}),  # nothing is left for the network
        ([20.0], {"boosted": 3.5}),
    ],
)
def test_every_model_has_a_share_of_the_time_that_is_left(
    seconds: list[float],
    budgets: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    found: dict[str, tuple[float, Path]] = {}

    def trained(_: Any, name: str, work: models.Work, seed: int, budget: float) -> Any:
        now[0] += seconds[len(found)]
        found[name] = (budget, Path(work.folder or ""))
        return SimpleNamespace(fit=SimpleNamespace(stopped=False))

    monkeypatch.setattr(models, "clock", lambda: now[0])
    monkeypatch.setattr(models, "_trained", trained)
    monkeypatch.setattr(models, "_best", lambda found, _: len(found))
    metric = mg.metric("f1")
    items: Any = None
    work = models.Work(X, None, items, metric, "binary", 1, None, False, tmp_path)
    asked = mg.MetricClassifier(metric, model="auto", budget=10.0, random_state=0)
    assert models.fitted_model(asked, work) == len(budgets)
    assert {name: budget for name, (budget, _) in found.items()} == pytest.approx(budgets)
    assert all(folder == tmp_path / name for name, (_, folder) in found.items())


def test_no_other_model_is_tried_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(fit=SimpleNamespace(stopped=True))
    monkeypatch.setattr(models, "_trained", lambda *_: stopped)
    items: Any = None
    work = models.Work(X, None, items, mg.metric("f1"), "binary", 1, None, False, None)
    assert models.fitted_model(mg.MetricClassifier(model="auto"), work) is stopped


# ---------------------------------------------------------------------------
# the command


def run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words])


def test_train_compare_and_predict_with_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame, y = mixed()
    frame.assign(target=y).to_csv("data.csv", index=False)
    done = run("train", "data.csv", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "Model: boosted trees (LightGBM)." in done.output
    result = json.loads(Path("run/result.json").read_text())
    assert result["unit"] == "tree"
    assert result["models"][0]["name"] == "boosted trees (LightGBM)"
    page = Path("run/report.html").read_text()
    assert "boosted trees (LightGBM) trained on" in page
    assert "best number" in page
    found = run("predict", "run", "data.csv", "--target", "target", "--json")
    assert json.loads(found.stdout)["value"] > 0.9
    compared = run("compare", "data.csv", "--model", "boosted", "--splits", "2", "--out", "both")
    assert compared.exit_code == 0, compared.output
    stored = json.loads(Path("both/result.json").read_text())
    assert list(stored["values"]) == ["cross_entropy", "uniloss", "metric_loss", "auto"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "tree"], "--model must be one of linear, network, boosted, auto; got 'tree'"),
        (["--model", "boosted", "--hidden", "3"], "--hidden is for networks; leave it out with"),
        (["--model", "boosted", "--method", "focal"], "boosted trees grow on cross_entropy"),
        (["--engine", "forest"], "engine must be one of lightgbm, xgboost, sklearn"),
    ],
)
def test_wrong_options(words: list[str], message: str, tmp_path: Path) -> None:
    done = run("train", *words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_losses_of_networks_choose_a_network_and_only_trees_are_compared_with_trees() -> None:
    from metricgrad.studies import RunSettings

    assert RunSettings().default_model("auto") == "boosted"
    assert RunSettings().default_model("focal") == "network"
    assert RunSettings(group="query").default_model("metric_loss") == "network"
    assert RunSettings(group="query").default_model("lambdarank") == "boosted"
    done = run("compare", "--model", "boosted", "--methods", "focal")
    assert done.exit_code == 2
    assert "--model boosted has no method 'focal'; choose from all, cross_entropy" in " ".join(
        done.output.split()
    )
