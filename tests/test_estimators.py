"""The estimators as scikit-learn uses them: its own checks, tables of every kind, decisions."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.metrics import average_precision_score, f1_score, ndcg_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import metricgrad as mg

QUICK: dict[str, Any] = {
    "method": "cross_entropy",
    "hidden": (),
    "epochs": 6,
    "rate": 0.1,
    "random_state": 0,
}


UNEQUAL = {
    f"check_sample_weight_equivalence_on_{kind}_data": "other rows are other folds and batches"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [
        mg.MetricClassifier("accuracy", **{**QUICK, "epochs": 3}),
        mg.MetricClassifier("accuracy", "cross_entropy", model="boosted", random_state=0),
    ],
    expected_failed_checks=lambda _: UNEQUAL,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def quick(metric: Any = "f1", **options: Any) -> mg.MetricClassifier:
    return mg.MetricClassifier(metric, **{**QUICK, **options})


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    return np.asarray(x), np.asarray(y)


def test_two_classes(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    names = np.where(y == 1, "benign", "malignant")
    model = quick(positive="malignant").fit(x[::2], names[::2])
    found = model.predict(x[1::2])
    assert set(found) == {"benign", "malignant"}
    assert model.score(x[1::2], names[1::2]) == pytest.approx(
        f1_score(names[1::2] == "malignant", found == "malignant"), abs=1e-6
    )
    assert model.score(x[1::2], names[1::2]) > 0.93
    chances = model.predict_proba(x[1::2])
    assert np.allclose(chances.sum(1), 1)
    assert (model.classes_[chances.argmax(1)] == found).all()
    assert ((model.decision_function(x[1::2]) > 0) == (found == "malignant")).all()


def test_metrics_of_order_decide_at_one_half(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    model = quick("average_precision", method="smooth_ap").fit(x[::2], y[::2])
    expected = average_precision_score(y[1::2], model.decision_function(x[1::2]))
    assert model.score(x[1::2], y[1::2]) == pytest.approx(expected, abs=1e-5)
    assert (model.predict(x[1::2]) == y[1::2]).mean() > 0.9


def test_many_classes() -> None:
    x, y = (np.asarray(part) for part in load_iris(return_X_y=True))
    model = quick("f1", method="uniloss").fit(x[::2], y[::2])
    found = model.predict(x[1::2])
    assert model.score(x[1::2], y[1::2]) == pytest.approx(
        f1_score(y[1::2], found, average="macro"), abs=1e-6
    )
    assert model.predict_proba(x[1::2]).shape == (75, 3)


def test_labels() -> None:
    x, y = make_multilabel_classification(400, 10, n_classes=3, random_state=0)[:2]
    model = quick("f1").fit(x[::2], y[::2])
    found = model.predict(x[1::2])
    assert found.shape == (200, 3)
    assert model.score(x[1::2], y[1::2]) == pytest.approx(
        f1_score(y[1::2], found, average="macro"), abs=1e-6
    )
    assert ((model.predict_proba(x[1::2]) > 0.5) == found).all()


def test_lower_is_better_scores_are_negative(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    model = quick("error_rate").fit(x, y)
    assert -0.1 < model.score(x, y) <= 0
    assert model.score(x, y) == pytest.approx(-(model.predict(x) != y).mean(), abs=1e-6)


def test_it_works_inside_scikit_learn(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    search = GridSearchCV(
        make_pipeline(StandardScaler(), quick()), {"metricclassifier__rate": [1e-5, 0.1]}, cv=2
    )
    assert search.fit(x, y).best_params_ == {"metricclassifier__rate": 0.1}
    assert cross_val_score(quick(), x, y, cv=3).min() > 0.9


def test_pickles_clones_and_repeats(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    model = quick(method="auto", epochs=4).fit(x[:200], y[:200])
    again = pickle.loads(pickle.dumps(model))
    assert (again.decision_function(x) == model.decision_function(x)).all()
    assert len(pickle.dumps(model)) < 300_000
    twin: Any = clone(model)
    twin.fit(x[:200], y[:200])
    assert (twin.decision_function(x) == model.decision_function(x)).all()
    assert model.n_iter_ == model.fit_.decision.winner.epoch
    assert "cross-entropy" in model.fit_.verdict()


# --------------------------------------------------------------------------------------------------
# tables


def mixed(number: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(seed)
    size = generator.normal(50, 20, number)
    colour = generator.choice(["red", "green", "blue", "rarest"], number, p=[0.5, 0.3, 0.19, 0.01])
    known = generator.random(number) < 0.8
    table = pd.DataFrame(
        {
            "size": np.where(known, size, np.nan),
            "colour": pd.Categorical(colour),
            "note": pd.Series(generator.choice(["a", "b"], number)).mask(
                generator.random(number) < 0.1
            ),
            "flag": generator.random(number) < 0.5,
            "bit": generator.integers(0, 2, number),
            "constant": 1.0,
        }
    )
    return table, ((colour == "red") & (~known | (size > 40))).astype(int)


def test_a_mixed_table() -> None:
    (table, y), (other, truth) = mixed(), mixed(seed=1)
    model = quick("f1", hidden=(16,), epochs=20, rate=0.03).fit(table, y)
    assert model.score(other, truth) > 0.9
    assert list(vars(model)["feature_names_in_"]) == list(table.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(other.rename(columns={"size": "length"}))


def test_a_metric_of_ones_own_is_passed_again(
    cancer: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    def right(scores: Any, target: Any) -> float:
        return float(((scores > 0) == (target > 0)).float().mean())

    model = mg.MetricClassifier(
        right, "cross_entropy", hidden=(), epochs=1, rate=0.03, random_state=0
    ).fit(*cancer)
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"pass it again: load\(path, metric=...\)"):
        mg.MetricClassifier.load(tmp_path / "model.safetensors")
    again = mg.MetricClassifier.load(tmp_path / "model.safetensors", metric=right)
    assert again.score(*cancer) == model.score(*cancer)


@pytest.mark.parametrize("metric", ["map", "precision_at_k"])
def test_a_ranker_takes_grades_for_every_metric_of_order(metric: str) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    grades, queries = np.digitize(x[:, 0], [0.3, 1.2]), np.arange(200) // 10
    options = {"k": 3} if metric == "precision_at_k" else {}
    ranker = mg.MetricRanker(
        mg.metric(metric, **options), hidden=(), epochs=2, rate=0.1, random_state=0
    )
    assert ranker.fit(x, grades, groups=queries).score(x, grades, groups=queries) > 0.5
    with pytest.raises(ValueError, match="no grade is above 0"):
        ranker.fit(x, 0 * grades, groups=queries)


def test_rows_of_a_table_are_as_good_as_a_table_of_these_rows() -> None:
    table, y = mixed()
    table = table.assign(few=pd.array(np.arange(len(table)) % 5, dtype="Int8"), huge=1e150)
    rows = np.arange(len(y))[::3]
    some = quick(hidden=(8,)).fit(table, y, rows=rows)
    same = quick(hidden=(8,)).fit(table.iloc[rows], np.asarray(y)[rows])
    assert some.preparation_.columns == same.preparation_.columns
    assert torch.equal(some.prepared(table, rows), same.prepared(table.iloc[rows]))
    assert (some.decision_function(table) == same.decision_function(table)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table.assign(size="large"),
            "column 'size' was numbers in training and has text now ('large' in row 1)",
        ),
        (lambda table: table.assign(bit=np.inf), "column 'bit' contains infinity"),
        (
            lambda table: table.drop(columns="bit"),
            "Feature names seen at fit time, yet now missing",
        ),
    ],
    ids=["text", "infinity", "missing column"],
)
def test_a_table_that_cannot_be_prepared(change: Any, message: str) -> None:
    table, y = mixed()
    model = quick().fit(table, y)
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        model.predict(change(table))


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({}, np.ones(100), "one class only"),
        (
            {"metric": mg.metric("recall_at_k", k=9)},
            np.arange(100) % 3,
            "recall_at_k is for two classes, .* 3: 0, 1, 2",
        ),
        ({"positive": "yes"}, np.arange(100) % 2, r"positive must be one of \[0, 1\]; got 'yes'"),
        (
            {"hidden": (0,)},
            np.arange(100) % 2,
            r"hidden must be widths of layers, such as .* got \(0,\)",
        ),
        ({"method": "magic"}, np.arange(100) % 2, "no method 'magic'"),
        ({}, np.linspace(0, 1, 100), "Unknown label type"),
    ],
    ids=["constant", "three classes", "positive", "hidden", "method", "numbers"],
)
def test_what_cannot_be_trained_is_refused(
    options: dict[str, Any], y: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(np.random.default_rng(0).normal(size=(100, 3)), y)


def test_classes_that_training_did_not_have(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    model = quick().fit(x, y)
    with pytest.raises(ValueError, match="classes that training did not have: 2; it had 0, 1"):
        model.score(x, np.where(y == 1, 2, 0))


# --------------------------------------------------------------------------------------------------
# ranking


def queries(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(80), generator.integers(3, 12, 80))
    x = generator.normal(size=(len(groups), 4))
    return (
        x,
        np.digitize(x[:, 0] - x[:, 1] + 0.5 * generator.normal(size=len(groups)), [0.5, 1.5, 2.5]),
        groups,
    )


@pytest.mark.parametrize("method", ["lambda_loss", "auto"])
def test_a_ranker_orders_documents(method: str) -> None:
    x, grades, groups = queries()
    ranker = mg.MetricRanker("ndcg", **{**QUICK, "method": method}).fit(x, grades, groups=groups)
    other, truth, asked = queries(1)
    scores = ranker.predict(other)
    each = [
        ndcg_score(truth[None, asked == q], scores[None, asked == q])
        for q in range(80)
        if truth[asked == q].any()
    ]
    assert ranker.score(other, truth, groups=asked) == pytest.approx(np.mean(each), abs=1e-5)
    assert ranker.score(other, truth, groups=asked) > 0.9


def test_a_ranker_does_not_care_how_rows_are_sorted() -> None:
    x, grades, groups = queries()
    order = np.random.default_rng(2).permutation(len(x))
    one = mg.MetricRanker("map", **{**QUICK, "method": "list_net"}).fit(x, grades, groups=groups)
    assert one.score(x[order], grades[order], groups=groups[order]) == pytest.approx(
        one.score(x, grades, groups=groups)
    )


def test_what_a_ranker_refuses() -> None:
    x, grades, groups = queries()
    with pytest.raises(ValueError, match="f1 is not a metric of ranked documents"):
        mg.MetricRanker("f1").fit(x, grades, groups=groups)
    with pytest.raises(ValueError, match="must have the same number of rows"):
        mg.MetricRanker().fit(x, grades, groups=groups[:-1])
    with pytest.raises(ValueError, match="groups must have two or more queries; got 1"):
        mg.MetricRanker().fit(x, grades, groups=np.zeros(len(x)))


def test_a_classifier_for_a_function_of_scikit_learn_pickles(
    cancer: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = cancer
    model = quick(f1_score, epochs=1).fit(x[::4], y[::4])
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(x[1::2]) == model.predict(x[1::2])).all()
    assert again.score(x[1::2], y[1::2]) == model.score(x[1::2], y[1::2])


def test_targets_of_pandas_that_may_have_gaps(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cancer
    whole = pd.Series(y, dtype="Int64")
    assert quick().fit(x[::2], whole[::2]).predict(x[:4]).dtype == np.int64
    letters: Any = np.where(y == 1, "a", "b").astype(object)
    letters[:3] = None
    for gaps in (whole.where(whole.index > 2), letters):
        with pytest.raises(
            ValueError, match="the target has 3 missing values; leave their rows out"
        ):
            quick().fit(pd.DataFrame(x), gaps)
