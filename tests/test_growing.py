"""Trees of each library: what they are grown on, what they tell, and what their text holds."""

import builtins
import json
from typing import Any, get_args

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

import metricgrad as mg
from metricgrad.boosting import growing
from metricgrad.boosting.growing import (
    Engine,
    TreeRows,
    TreeSettings,
    TreeTask,
    installed_engine,
    new_booster,
    read_forest,
)
from metricgrad.boosting.sklearn_trees import NodeForest

ENGINES = get_args(Engine)


def rows_of(task: TreeTask) -> tuple[TreeRows, TreeSettings]:
    """Columns with gaps, the last of them 12 categories; three of these are worth something."""
    source = np.random.default_rng(0)
    x = source.normal(size=(600, 4))
    x[:, 3] = source.integers(0, 12, 600)
    x[source.random(x.shape) < 0.05] = np.nan
    worth = np.nan_to_num(x[:, 0]) + np.isin(x[:, 3], [1, 5, 7])
    y = np.digitize(worth + 0.3 * source.normal(size=600), [0.0, 0.8])
    sizes = np.full(30, 20) if task == "grades" else None
    target = (y > 1).astype(int) if task == "binary" else y
    return TreeRows(x, target, sizes), TreeSettings(task, 3, (3,), leaves=7)


@pytest.mark.parametrize("task", get_args(TreeTask))
@pytest.mark.parametrize("engine", ENGINES)
def test_watched_rows_have_the_scores_of_the_forest_and_of_its_text(
    engine: Engine, task: TreeTask
) -> None:
    rows, settings = rows_of(task)
    booster = new_booster(engine, rows, settings, rows.x)
    booster.grow(5)
    before = booster.watched()
    booster.grow(5)
    after = booster.watched()
    assert after.shape == ((600, 3) if task == "classes" else (600,))
    assert not np.allclose(before, after)
    forest = booster.forest()
    stored = read_forest(engine, forest.to_text())
    assert forest.engine == stored.engine == engine
    np.testing.assert_allclose(forest.scores(rows.x), after, atol=1e-6)
    np.testing.assert_array_equal(stored.scores(rows.x), forest.scores(rows.x))
    unseen = rows.x.copy()
    unseen[:, 3] = np.nan  # a category that training did not have
    assert np.isfinite(stored.scores(unseen)).all()


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_trees_on_a_metric_follow_those_on_the_ordinary_loss(engine: Engine) -> None:
    rows, settings = rows_of("binary")
    asked: list[Any] = []
    objective = mg.boosting.objective("f1")

    def watching(scores: Any, data: Any) -> Any:
        asked.append(np.asarray(scores).copy())
        return objective(scores, data)

    booster = new_booster(engine, rows, settings, rows.x)
    booster.grow(4)
    ordinary = booster.watched()
    booster.grow(3, watching)
    assert len(asked) == 3
    np.testing.assert_allclose(asked[0], ordinary, atol=1e-5)
    np.testing.assert_allclose(booster.forest().scores(rows.x), booster.watched(), atol=1e-5)
    assert not np.allclose(ordinary, booster.watched())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_counts_like_copies_of_a_row(engine: Engine) -> None:
    rows, settings = rows_of("binary")
    weight = np.where(rows.y == 1, 3.0, 1.0)
    index = np.repeat(np.arange(600), weight.astype(int))
    found = []
    for given in (rows._replace(weight=weight), TreeRows(rows.x[index], rows.y[index])):
        booster = new_booster(engine, given, settings, rows.x)
        booster.grow(5)
        found.append(booster.watched())
    plain = new_booster(engine, rows, settings, rows.x)
    plain.grow(5)
    # Bins and the least rows of a leaf count rows, not weights, so copies are only nearly the same.
    assert np.corrcoef(*found)[0, 1] > 0.98
    assert np.abs(found[0] - found[1]).mean() < 0.5 * np.abs(plain.watched() - found[1]).mean()


def test_nodes_give_the_scores_that_scikit_learn_gives() -> None:
    rows, settings = rows_of("classes")
    booster = new_booster("sklearn", rows, settings, rows.x)
    booster.grow(10)
    options: dict[str, Any] = {"categorical_features": [3], "early_stopping": False}
    options["max_bins"] = 100  # fewer than scikit-learn has
    assert rows.least == 20  # as scikit-learn has it
    model = HistGradientBoostingClassifier(max_iter=10, max_leaf_nodes=7, **options)
    expected = model.fit(rows.x, rows.y).decision_function(rows.x)
    np.testing.assert_allclose(booster.forest().scores(rows.x), expected, atol=1e-12)


def test_scikit_learn_grows_on_the_ordinary_loss_only() -> None:
    rows, settings = rows_of("binary")
    booster = new_booster("sklearn", rows, settings, None)
    with pytest.raises(ValueError, match="on the ordinary loss only; pip install lightgbm"):
        booster.grow(1, mg.boosting.objective("f1"))


def test_nodes_that_lead_nowhere_are_refused() -> None:
    rows, settings = rows_of("binary")
    booster = new_booster("sklearn", rows, settings, None)
    booster.grow(2)
    stored = json.loads(booster.forest().to_text())
    for wrong in (0, 10_000):  # a path without an end, and a node that is not there
        stored["trees"][0][0]["left"][0] = wrong
        with pytest.raises(ValueError, match="does not lead to a node below it"):
            NodeForest.of_text(json.dumps(stored))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ["", "tree", "{}", '{"learner": 3}'])
def test_text_that_holds_no_trees_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_forest(engine, text)


def test_the_first_library_that_is_installed_grows_the_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert installed_engine(None) == "lightgbm"
    assert installed_engine("xgboost") == "xgboost"
    missing: set[str] = {"lightgbm"}
    real = growing.importlib.util.find_spec
    monkeypatch.setattr(
        growing.importlib.util, "find_spec", lambda name: None if name in missing else real(name)
    )
    assert installed_engine(None) == "xgboost"
    missing.add("xgboost")
    assert installed_engine(None) == "sklearn"
    with pytest.raises(ImportError, match="lightgbm is not installed; pip install lightgbm, or"):
        installed_engine("lightgbm")
    with pytest.raises(ValueError, match="one of lightgbm, xgboost, sklearn; got 'catboost'"):
        installed_engine("catboost")


def test_no_library_is_imported_before_trees_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def guarded(name: str, *rest: Any, **more: Any) -> Any:
        assert name.split(".")[0] not in ("lightgbm", "xgboost")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert installed_engine(None) == "lightgbm"


@pytest.mark.parametrize(
    ("rows", "bins"), [(50, 100), (6_400, 100), (12_800, 200), (16_320, 255), (10**6, 255)]
)
def test_small_tables_have_fewer_bins(rows: int, bins: int) -> None:
    assert TreeRows(np.zeros((rows, 1)), np.zeros(rows)).bins == bins
