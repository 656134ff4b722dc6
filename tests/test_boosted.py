"""Boosted trees at the front doors: estimators, the choice between models, files and commands."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb
from scipy.sparse import csr_matrix
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import metricgrad as mg
from metricgrad.boosting import growing
from metricgrad.cli import app
from metricgrad.estimators import models
from metricgrad.estimators.features import Category
from metricgrad.training import fit_trees
from metricgrad.training.data import Items
from metricgrad.training.fit_trees import TreeFit
from metricgrad.training.tree_trials import TreeData
from tests.trees import ORDINARY, X, Y, mixed, search_of, tree_data


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small trees: these tests are about the rules, not about the models."""
    monkeypatch.setattr(fit_trees, "_LEAVES", (4, 7))
    monkeypatch.setattr(fit_trees, "_MOST", 40)


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


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_a_second_fit_adds_trees_to_the_first(engine: str, tmp_path: Path) -> None:
    frame, y = mixed(1600)
    model = mg.MetricClassifier(
        "f1", model="boosted", engine=engine, warm_start=True, random_state=0
    )
    model.fit(frame[:800], y[:800])
    first = model.booster_
    x = model.prepared(frame).numpy()

    def scores_of(booster: Any, trees: int) -> np.ndarray:
        if engine == "lightgbm":
            return booster.predict(x, raw_score=True, num_iteration=trees)
        matrix = xgb.DMatrix(x, feature_types=booster.feature_types, enable_categorical=True)
        return booster.predict(matrix, output_margin=True, iteration_range=(0, trees))

    trees = model.n_iter_
    begun = scores_of(first, trees)
    kept = model.preparation_
    model.fit(frame[800:], y[800:])
    assert model.preparation_ is kept
    added = model.booster_
    assert added is not first
    number = added.num_trees() if engine == "lightgbm" else added.num_boosted_rounds()
    assert number == trees + model.n_iter_
    np.testing.assert_allclose(scores_of(added, trees), begun, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(scores_of(first, trees), begun)  # the first is as it was
    assert model.score(frame, y) > 0.9
    model.save(tmp_path / "model.safetensors")
    loaded = mg.MetricClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.decision_function(frame), model.decision_function(frame))


def test_trees_that_cannot_be_continued_are_refused() -> None:
    def refused(told: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=told):
            model.set_params(**changes).fit(X, Y)

    model = mg.MetricClassifier("f1", model="boosted", warm_start=True, random_state=0).fit(X, Y)
    before = model.predict(X)
    refused("grown by lightgbm, and engine is 'xgboost'", engine="xgboost")
    refused("model='boosted'; got model='linear'", engine=None, model="linear")
    refused("model='auto' trains several; pass model='boosted'", model="auto")
    model.set_params(model="boosted")
    np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="a model of 30 columns; got X with 29"):
        model.fit(X[:, 1:], Y)
    alone = mg.MetricClassifier("f1", model="boosted", engine="sklearn", random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match="of LightGBM or XGBoost to trees of the same library"):
        alone.set_params(warm_start=True).fit(X, Y)


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
        ({"model": "trees"}, "model must be linear, network, boosted, .* or auto .*; got 'trees'"),
        ({"model": "linear,linear"}, "several of them such as 'boosted,linear'.*; got 'linear,li"),
        ({"model": None}, "model must be linear, network, boosted, .*; got None"),
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
    assert model.fit_.models_verdict() in " ".join(repr(model.fit_).split())
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

    monkeypatch.setattr(models, "_searched", noted)
    with pytest.raises(StopIteration):
        mg.MetricClassifier("f1", model="auto", **settings).fit(X, Y)
    assert tried == kinds


def test_trees_are_left_out_where_columns_outnumber_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """100,000 columns took them more than eight minutes and 8 GB; a network takes 38 s."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 61))).add_prefix("c")
    frame["label"] = (frame["c0"] > 0).astype(int)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    quick = ("--epochs", "1", "--test-share", "0.2", "--seed", "0")
    words = (str(tmp_path / "wide.csv"), "--target", "label", *quick)
    done = run("train", *words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "Model: a network." in done.output
    tried: list[str] = []
    real = models._searched
    monkeypatch.setattr(models, "_searched", lambda *args: tried.append(args[1]) or real(*args))
    x, y = frame.drop(columns="label"), frame["label"]
    mg.MetricClassifier("f1", model="auto", random_state=0, folds=2, **QUICK).fit(x, y)
    assert tried == ["linear", "network"]


def test_a_budget_is_shared_by_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []
    real = models._searched

    def noted(estimator: Any, name: Any, work: Any, seed: int, budget: float, first: Any) -> Any:
        given.append((name, budget))
        return real(estimator, name, work, seed, budget, first)

    monkeypatch.setattr(models, "_searched", noted)
    model = mg.MetricClassifier("f1", model="auto", random_state=0, budget=60.0, **QUICK)
    model.fit(X, Y)
    shares = dict(given)
    assert shares["boosted"] == pytest.approx(21, abs=1)
    assert shares["linear"] < 0.31 * 60
    assert shares["network"] <= 60


@pytest.mark.parametrize(
    ("seconds", "budgets"),
    [
        ([4.0, 5.5, 9.0], {"boosted": 3.5, "linear": 6 * 0.2 / 0.65, "network": 0.5}),
        ([4.0, 6.0], {"boosted": 3.5, "linear": 6 * 0.2 / 0.65}),  # nothing is left for the network
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
    found: dict[str, float] = {}

    def trained(_: Any, name: str, work: Any, seed: int, budget: float, first: Any) -> Any:
        now[0] += seconds[len(found)]
        found[name] = budget
        return SimpleNamespace(fit=SimpleNamespace(stopped=False))

    monkeypatch.setattr(models, "clock", lambda: now[0])
    monkeypatch.setattr(models, "_searched", trained)
    monkeypatch.setattr(models, "_best", lambda found, _: len(found))
    metric = mg.metric("f1")
    items: Any = None
    work = models.Work(X, None, items, metric, "binary", 1, None, False, tmp_path)
    asked = mg.MetricClassifier(metric, model="auto", budget=10.0, random_state=0)
    assert models.fitted_model(asked, work) == len(budgets)
    assert found == pytest.approx(budgets)


@pytest.mark.parametrize("gain", [0.0, 0.01])
def test_a_kind_that_is_no_better_is_trained_on_the_ordinary_loss_only(
    gain: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str, float, Path]] = []
    now = [0.0]

    def trained(estimator: Any, kind: str, work: Any, seed: int, budget: float) -> Any:
        ran.append((kind, estimator.method, budget, work.folder))
        now[0] += 1.0
        return SimpleNamespace(fit=SimpleNamespace(stopped=False))

    monkeypatch.setattr(models, "clock", lambda: now[0])
    monkeypatch.setattr(models, "_trained", trained)
    monkeypatch.setattr(models, "_compared", lambda *_: SimpleNamespace(gain=gain))
    items: Any = None
    work = models.Work(X, None, items, mg.metric("f1"), "binary", 1, None, False, tmp_path)
    asked = mg.MetricClassifier("f1", model="boosted,linear")
    first: Any = SimpleNamespace()
    models._searched(asked, "linear", work, 0, 10.0, first)
    plain = ("linear", "cross_entropy", pytest.approx(3.0), tmp_path / "linear-ordinary")
    searched = ("linear", "auto", pytest.approx(9.0), tmp_path / "linear")
    assert ran == ([plain] if gain == 0 else [plain, searched])
    assert asked.method == "auto"
    ran.clear()
    models._searched(asked, "linear", work, 0, 0.5, first)  # the first training takes a second
    assert all(budget > 0 for _, _, budget, _ in ran)
    ran.clear()
    models._searched(asked, "linear", work, 0, 10.0, None)
    assert ran == [("linear", "auto", 10.0, tmp_path / "linear")]


def test_the_command_takes_the_linear_model_where_it_is_better(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 20))).add_prefix("c")
    frame["target"] = (frame.sum(axis=1) + rng.normal(size=600) > 2).astype(int)
    frame.to_csv(tmp_path / "sums.csv", index=False)
    words = (str(tmp_path / "sums.csv"), "--epochs", "8")
    done = run("train", *words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "Model: a linear model." in done.output
    assert "Chosen among 2 kinds of models: a linear model" in " ".join(done.output.split())


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
        (["--model", "tree"], "got 'tree'"),
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

    assert RunSettings().default_model("auto", wide=False) == "boosted,linear"
    assert RunSettings(group="query").default_model("auto", wide=False) == "boosted"
    assert RunSettings().default_model("auto", wide=True) == "network"
    assert RunSettings().default_model("focal", wide=False) == "network"
    assert RunSettings(group="query").default_model("metric_loss", wide=False) == "network"
    assert RunSettings(group="query").default_model("lambdarank", wide=False) == "boosted"
    done = run("compare", "--model", "boosted", "--methods", "focal")
    assert done.exit_code == 2
    assert "--model boosted has no method 'focal'; choose from all, cross_entropy" in " ".join(
        done.output.split()
    )
