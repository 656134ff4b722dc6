"""The search of boosted trees: trials on folds, the challenger, the decision, what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

import metricgrad as mg
from metricgrad.boosting.growing import own_booster
from metricgrad.boosting.lightgbm_trees import LightGBMBooster
from metricgrad.training import fit_trees
from metricgrad.training.data import Items, stream_seed
from metricgrad.training.fit_trees import TreeFit
from metricgrad.training.split import split_data
from metricgrad.training.tree_trials import PlannedTrees, TreeData, TreeSearch
from tests.trees import ORDINARY, X, Y, search_of, tree_data


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small trees: these tests are about the rules, not about the models."""
    monkeypatch.setattr(fit_trees, "_LEAVES", (4, 7))
    monkeypatch.setattr(fit_trees, "_MOST", 40)


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


@pytest.mark.parametrize("options", [None, {"slope": 2.0}], ids=["log loss", "metric"])
def test_a_screened_trial_goes_on_with_the_same_trees(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ORDINARY._replace(start=0 if options is None else 10, options=options)
    search = search_of(tree_data(), folds=5)
    expected = search.run(plan)
    grown: list[int] = []
    real = LightGBMBooster.grow

    def counted(self: Any, trees: int, objective: Any = None) -> None:
        grown.append(trees)
        real(self, trees, objective)

    monkeypatch.setattr(LightGBMBooster, "grow", counted)
    begun = search.screen(plan, 20)
    assert begun.folds == 2
    assert sum(grown) == 2 * 20
    search.screen(ORDINARY._replace(leaves=4), 20)
    grown.clear()
    found = search.run(plan, begun=begun)
    blocks = int(found.curve[:, 1].isfinite().sum()) + plan.start // 10
    assert sum(grown) == 5 * 10 * blocks - 2 * 20
    assert search.growing == {}
    assert torch.equal(found.scores, expected.scores)
    assert (found.value, found.epoch, found.folds) == (expected.value, expected.epoch, 5)


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
    search.late = lambda: False
    begun = search.screen(ORDINARY, 30)
    search.late = lambda: True
    told.clear()
    search.run(ORDINARY, begun=begun)
    assert told == [1, 1, 1]  # what has grown already takes no time


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
    for finalist, trial in zip(found.finalists, (usual, rival), strict=True):
        assert finalist is not None
        assert own_booster(finalist.model).num_trees() == trial.epoch
    assert "best epoch" not in repr(found)


def test_what_does_not_gain_on_two_folds_is_not_grown_on_five(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, int]] = []
    real = TreeSearch.measured

    def noted(self: TreeSearch, plan: PlannedTrees, trees: Any, exactly: Any = None) -> Any:
        trial = real(self, plan, trees, exactly)
        ran.append((plan.candidate.method, len(trees)))
        if plan.options is not None:
            trial.value = worth
        return trial

    monkeypatch.setattr(TreeSearch, "measured", noted)
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
        ("cross_entropy", {"ordinary"}),
        ("uniloss", {"challenger"}),
        ("metric_loss", {"challenger"}),
    ],
)
def test_one_method_alone(method: str, sides: set[str]) -> None:
    found = TreeFit(tree_data(), "lightgbm", method, folds=2).run()
    assert {name for name, each in found.finalists._asdict().items() if each is not None} == sides
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
    with pytest.raises(ValueError, match="cannot grow on brier, which is not decided"):
        TreeFit(TreeData(items, "binary", 2, (), metric), "lightgbm", "uniloss").run()


def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[PlannedTrees] = []
    real = TreeSearch.measured

    def stopped(self: TreeSearch, plan: PlannedTrees, trees: Any, exactly: Any = None) -> Any:
        runs.append(plan)
        if len(runs) == after:
            raise KeyboardInterrupt
        return real(self, plan, trees, exactly)

    monkeypatch.setattr(TreeSearch, "measured", stopped)
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
    real = TreeSearch.measured

    def stopped(self: TreeSearch, plan: PlannedTrees, trees: Any, exactly: Any = None) -> Any:
        runs.append(plan)
        if len(runs) == 5:
            raise KeyboardInterrupt
        return real(self, plan, trees, exactly)

    monkeypatch.setattr(TreeSearch, "measured", stopped)
    found = TreeFit(tree_data(), "lightgbm", folds=2, seed=5).run()
    assert found.stopped
    assert found.decision.winner is found.decision.ordinary  # its rival was not shown to be better


def test_trials_on_fewer_folds_are_not_the_best_of_a_stopped_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of(tree_data(), folds=4, most=20)
    real = TreeSearch.measured
    runs: list[int] = []

    def stopped(self: TreeSearch, plan: PlannedTrees, trees: Any, exactly: Any = None) -> Any:
        if len(trees) == 4:
            raise KeyboardInterrupt
        trial = real(self, plan, trees, exactly)
        runs.append(trial.folds)
        return trial

    monkeypatch.setattr(TreeSearch, "measured", stopped)
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
