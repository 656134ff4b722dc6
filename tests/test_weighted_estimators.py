"""Weights, sparse tables, warm starts and fitted attributes of the classifier."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.utils import get_tags
from sklearn.utils.class_weight import compute_sample_weight

import metricgrad as mg
from metricgrad.estimators import sparse as sparse_tables
from metricgrad.estimators.item_data import item_data

QUICK: dict[str, Any] = {
    "method": "cross_entropy",
    "hidden": (),
    "epochs": 3,
    "rate": 0.1,
    "folds": 1,
    "random_state": 0,
}
Table = tuple[np.ndarray, np.ndarray]


def quick(metric: Any = "f1", **options: Any) -> mg.MetricClassifier:
    return mg.MetricClassifier(metric, **{**QUICK, **options})


@pytest.fixture(scope="module")
def cancer() -> Table:
    x, y = load_breast_cancer(return_X_y=True)
    return np.asarray(x), np.asarray(y)


# --------------------------------------------------------------------------------------------------
# weights


@pytest.mark.parametrize("method", ["cross_entropy", "uniloss"])
def test_it_trains_and_validates_with_weights(cancer: Table, method: str) -> None:
    x, y = cancer
    weight = np.random.default_rng(0).random(len(y)) * 3
    model = quick(method=method).fit(x, y, weight)
    items = model.fit_.validation
    live = items.live[0]
    scores = model.fit_.decision.winner.scores[0][live].numpy()
    own = items.rows["sample_weight"][0][live].numpy()
    decided = scores > model.threshold_
    expected = f1_score(items.target[0][live], decided, sample_weight=own)
    assert model.fit_.value == pytest.approx(expected, abs=1e-6)
    expected = f1_score(y, model.predict(x), sample_weight=weight)
    assert model.score(x, y, weight) == pytest.approx(expected, abs=1e-6)
    assert model.score(x, y) == pytest.approx(f1_score(y, model.predict(x)), abs=1e-6)
    plain = quick(method=method).fit(x, y)
    assert not np.allclose(plain.decision_function(x), model.decision_function(x))


def test_weights_of_some_rows_are_theirs(cancer: Table) -> None:
    x, y = cancer
    weight = np.random.default_rng(0).random(len(y))
    rows = np.arange(0, len(y), 2)
    model = quick("auc").fit(x, y, weight, rows=rows)
    alone = quick("auc").fit(x[rows], y[rows], weight[rows])
    np.testing.assert_array_equal(model.decision_function(x), alone.decision_function(x))
    expected = roc_auc_score(y, model.decision_function(x), sample_weight=weight)
    assert model.score(x, y, sample_weight=weight) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("given", ["balanced", {0: 5.0, 1: 0.5}, {1: 3}], ids=str)
def test_class_weights_are_weights_of_items(cancer: Table, given: Any) -> None:
    x, y = cancer
    own = np.random.default_rng(0).random(len(y))
    model = quick(class_weight=given).fit(x, y, own)
    weight = own * compute_sample_weight(given, y)
    same = quick().fit(x, y, weight)
    np.testing.assert_array_equal(model.decision_function(x), same.decision_function(x))
    plain = quick().fit(x, y, own)
    assert not np.allclose(model.decision_function(x), plain.decision_function(x))


def test_a_heavy_class_is_predicted_more_often() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 2)) + y[:, None]
    share = [
        (quick("f1", class_weight=given, epochs=10).fit(x, y).predict(x) == 1).mean()
        for given in (None, {1: 50.0})
    ]
    assert share[1] > share[0] + 0.2


def test_what_weights_must_be(cancer: Table) -> None:
    x, y = cancer
    for given, message in (
        ("even", r"class_weight must be None, 'balanced' or a dict .* got 'even'"),
        ({2: 1.0}, r"for some of the classes 0, 1; got \{2: 1\.0\}"),
        ({0: -1.0}, r"weight of 0 or more .* got \{0: -1\.0\}"),
    ):
        with pytest.raises(ValueError, match=message):
            quick(class_weight=given).fit(x, y)
    with pytest.raises(ValueError, match="all weights of the items are 0; pass some above 0"):
        quick(class_weight={0: 0, 1: 0}).fit(x, y)
    with pytest.raises(ValueError, match="at least one non-zero number"):
        quick().fit(x, y, np.zeros(len(y)))
    with pytest.raises(ValueError, match="class_weight needs one class per item"):
        quick(class_weight="balanced").fit(x, np.stack([y, 1 - y], -1))
    with pytest.raises(ValueError, match="soft_f_beta takes no weights of items"):
        quick(method="soft_f_beta").fit(x, y, np.ones(len(y)))
    with pytest.raises(TypeError, match="Weights are for metrics of decisions and of curves"):
        quick(lambda scores, target: (scores > 0).mean()).fit(x, y, np.ones(len(y)))


def test_labels_take_weights() -> None:
    x, y = make_multilabel_classification(300, 10, n_classes=3, random_state=0)[:2]
    weight = np.random.default_rng(0).random(300)
    model = quick("f1").fit(x, y, weight)
    expected = f1_score(y, model.predict(x), average="macro", sample_weight=weight)
    assert model.score(x, y, weight) == pytest.approx(expected, abs=1e-6)
    assert np.shape(model.threshold_) == (3,)


def test_the_data_of_items() -> None:
    x = np.zeros((4, 1))
    y = np.array(["a", "b", "a", "a"])
    amount = np.arange(4.0)

    def data(weight: Any = None, by_class: Any = None, rows: Any = None) -> dict[str, list[float]]:
        target = y if rows is None else y[rows]
        found = item_data(x, target, weight, by_class, {"amount": amount}, rows)
        return {name: each.tolist() for name, each in found.items()}

    assert data() == {"amount": [0, 1, 2, 3]}
    assert data(rows=np.array([3, 1])) == {"amount": [3, 1]}
    assert data([1, 2, 3, 4])["sample_weight"] == [1, 2, 3, 4]
    assert data([1, 2, 3, 4], rows=np.array([3, 1])) == {"amount": [3, 1], "sample_weight": [4, 2]}
    assert data(by_class={"b": 5.0})["sample_weight"] == [1, 5, 1, 1]
    assert data([1, 2, 3, 4], {"b": 5.0})["sample_weight"] == [1, 10, 3, 4]
    assert data([0, 0, 0, 1], {"a": 2.0, "b": 0.0})["sample_weight"] == [0, 0, 0, 2]
    assert data(by_class="balanced")["sample_weight"] == pytest.approx([2 / 3, 2, 2 / 3, 2 / 3])
    column = item_data(x, y[:, None], None, {"b": 5.0}, {}, None)
    assert column["sample_weight"].tolist() == [1, 5, 1, 1]
    with pytest.raises(ValueError, match="all weights of the items are 0"):
        data([0, 0, 0, 1], rows=np.array([0, 1]))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        data([1, 2, 3, -1])


# --------------------------------------------------------------------------------------------------
# sparse tables


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_tables_are_trained_on_as_dense_ones(
    cancer: Table, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_tables, "_BLOCK_VALUES", 1000)  # many blocks
    x, y = cancer
    x = np.where(x > np.median(x, 0), x, 0.0)
    x[3, 2] = np.nan
    dense = quick().fit(x, y)
    model = quick().fit(kind(x), y)
    np.testing.assert_array_equal(model.decision_function(kind(x)), dense.decision_function(x))
    assert (model.predict(kind(x)) == dense.predict(x)).all()
    assert model.score(kind(x), y) == dense.score(x, y)
    rows = np.arange(0, len(y), 3)
    some = quick().fit(kind(x), y, rows=rows)
    np.testing.assert_array_equal(
        some.decision_function(x), quick().fit(x[rows], y[rows]).decision_function(x)
    )


def test_entries_that_are_stored_twice_add_up() -> None:
    twice = sparse.coo_array((np.array([1.0, 2.0, 5.0]), (np.array([0, 0, 2]), np.zeros(3, int))))
    (column,) = sparse_tables.sparse_columns(twice)
    assert column.tolist() == [3.0, 0.0, 5.0]
    parts = (np.array([1.0, 2.0, 5.0]), np.array([0, 0, 2]), np.array([0, 3]))
    by_column = sparse.csc_array(parts, shape=(3, 1))
    (column,) = sparse_tables.sparse_columns(by_column)
    assert column.tolist() == [3.0, 0.0, 5.0]
    assert by_column.nnz == 3  # the table of the user stays as it is


def test_a_sparse_table_that_does_not_fit_is_told(
    cancer: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = cancer
    asked = []

    def none_left(size: int) -> None:
        asked.append(size)
        raise MemoryError

    monkeypatch.setattr(sparse_tables, "check_memory", none_left)
    with pytest.raises(ValueError, match=r"569 rows and 30 columns, which take 0\.0 GB .* Truncat"):
        quick().fit(sparse.csr_array(x), y)
    assert asked == [4 * x.size]


def test_a_ranker_refuses_sparse_tables() -> None:
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        mg.MetricRanker().fit(
            sparse.csr_array(np.eye(6)), np.arange(6) % 2, groups=np.arange(6) // 3
        )


# --------------------------------------------------------------------------------------------------
# attributes


def test_a_linear_model_has_weights_for_its_columns() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(200) < 0.1, np.nan, rng.normal(40, 10, 200)),
            "city": rng.choice(["Rom", "Paris"], 200),
            "member": rng.integers(0, 2, 200),
        }
    )
    frame.loc[0, "city"] = "Ulm"
    y = (frame["age"].fillna(40) + 5 * (frame["city"] == "Rom") > 45).astype(int)
    model = quick(hidden=()).fit(frame, y)
    names = model.get_feature_names_out().tolist()
    assert names[:2] == ["age", "age=(missing)"]
    assert set(names[2:5]) == {"city=Rom", "city=Paris", "city=(rare)"}
    assert names[5:] == ["member"]
    assert model.coef_.shape == (1, 6)
    assert model.intercept_.shape == (1,)
    features = model.prepared(frame).numpy()
    decided = features @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(decided.ravel(), model.decision_function(frame), atol=1e-5)
    assert model.threshold_ == pytest.approx(float(model.trained_.threshold or 0))
    assert isinstance(model.threshold_, float)
    with pytest.raises(ValueError, match=r"input_features must name the 3 columns .* got \['a'\]"):
        model.get_feature_names_out(["a"])
    assert names == model.get_feature_names_out(["age", "city", "member"]).tolist()


def test_many_classes_have_a_row_of_weights_each(cancer: Table) -> None:
    x, y = (np.asarray(part) for part in load_iris(return_X_y=True))
    model = quick("f1").fit(x, y)
    decided = model.prepared(x).numpy() @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(decided, model.decision_function(x), atol=1e-5)
    assert model.get_feature_names_out().tolist() == ["x0", "x1", "x2", "x3"]
    with pytest.raises(AttributeError, match="f1 does not use a threshold here"):
        _ = model.threshold_
    x, y = cancer
    by_order = quick("auc", hidden=(4,)).fit(x, y)
    assert not hasattr(by_order, "threshold_")
    with pytest.raises(AttributeError, match="coef_ belongs to linear models; pass model='linear'"):
        _ = by_order.coef_


@pytest.mark.parametrize(
    "name", ["threshold_", "coef_", "intercept_", "feature_importances_", "booster_"]
)
def test_attributes_come_with_fitting(name: str) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(quick(), name)
    assert not hasattr(quick(), name)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        quick().get_feature_names_out()


@pytest.mark.parametrize(("model", "labels"), [("network", True), ("boosted", False)])
def test_what_scikit_learn_is_told(model: str, labels: bool) -> None:
    tags = get_tags(quick(model=model))
    assert tags.input_tags.allow_nan
    assert tags.input_tags.sparse
    assert tags.classifier_tags is not None
    assert tags.classifier_tags.multi_label == labels
    assert tags.target_tags.single_output
    assert not tags.non_deterministic


# --------------------------------------------------------------------------------------------------
# warm starts


def test_a_warm_start_goes_on_from_the_network(cancer: Table) -> None:
    x, y = cancer
    first = quick(warm_start=True, hidden=(4,)).fit(x, y)
    before = [each.clone() for each in first.trained_.model.parameters()]
    scale = first.preparation_.columns
    first.set_params(rate=1e-9)
    first.fit(2 * x[::2], y[::2])
    after = list(first.trained_.model.parameters())
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(old, new, atol=1e-5, rtol=0)
    assert first.preparation_.columns == scale
    cold = quick(warm_start=False, hidden=(4,), rate=1e-9).fit(x, y)
    assert not torch.allclose(next(cold.trained_.model.parameters()), before[0], atol=1e-3)


def test_a_warm_start_keeps_the_positive_class(cancer: Table) -> None:
    x, y = cancer
    names = np.where(y == 1, "benign", "malignant")
    with pytest.warns(UserWarning, match="'malignant' is the positive class"):
        model = quick(warm_start=True).fit(x, names)
    fewer = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:50]])
    model.fit(x[fewer], names[fewer])
    assert model.target_.ordered.tolist() == ["benign", "malignant"]


def test_what_a_warm_start_must_share(cancer: Table) -> None:
    x, y = cancer
    model = quick(warm_start=True).fit(x, y)
    with pytest.raises(ValueError, match=r"trained for the classes \[0, 1\], and .* has \[0, 2\]"):
        model.fit(x, 2 * y)
    with pytest.raises(ValueError, match="a model of 30 columns; got X with 5"):
        model.fit(x[:, :5], y)
    model.set_params(hidden=(3,))
    with pytest.raises(ValueError, match=r"hidden layers \(\); got hidden=\(3,\)"):
        model.fit(x, y)
