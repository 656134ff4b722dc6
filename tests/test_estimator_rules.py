"""What estimators pass on and how they decide, on made-up scores: nothing is trained here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from sklearn.exceptions import NotFittedError
from torch import nn

import metricgrad as mg
from metricgrad.estimators import networks
from metricgrad.estimators.networks import perceptron, plain_setting
from metricgrad.estimators.target import fitting_folds
from tests.made_fits import THRESHOLD, FakeFit


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an estimator passes to `fit`; the model's weights become 1, 2, ... and its bias 0."""
    found: dict[str, Any] = {}

    def fit(model: nn.Sequential, data: Any, **options: Any) -> Any:
        found.update(options, model=[each.clone() for each in model.parameters()], data=data)
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(torch.arange(1.0, 1 + each.numel()).reshape(each.shape))
            for layer in model:
                if isinstance(layer, nn.Linear):
                    layer.bias.zero_()
        threshold = {"classes": None, "order": None}.get(found.get("kind", ""), THRESHOLD)
        return FakeFit(model, options["metric"], threshold)

    monkeypatch.setattr(networks, "fit", fit)
    return found


X = np.array([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]])
Y = np.array(["no", "yes", "no", "yes", "no", "no"])


def test_defaults() -> None:
    common = {
        "method": "auto", "model": "network", "engine": None, "hidden": (100, 30, 10),
        "epochs": 20, "rate": None, "decay": 0.0,
        "folds": None, "budget": None, "options": None, "random_state": None, "progress": False,
    }  # fmt: skip
    assert mg.MetricClassifier().get_params() == {
        **common, "metric": "f1", "batch": 256, "balanced": False, "positive": None,
        "class_weight": None, "warm_start": False,
    }  # fmt: skip
    assert mg.MetricRanker().get_params() == {**common, "metric": "ndcg", "batch": 32}


def test_everything_that_a_classifier_was_given_reaches_fit(passed: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "method": "uniloss", "epochs": 7, "batch": 5, "rate": 0.3, "decay": 0.1, "folds": 2,
        "balanced": True, "budget": 9.0, "options": {"slope": 3.0}, "progress": True,
    }  # fmt: skip
    model = mg.MetricClassifier("mcc", hidden=(4, 3), random_state=5, **given)
    assert model.fit(X, Y, folder="here") is model
    assert {name: passed[name] for name in given} == given
    assert passed["folder"] == "here"
    assert passed["metric"] == mg.metric("mcc")
    seed = int(np.random.RandomState(5).randint(2**31 - 1))
    assert passed["seed"] == seed
    expected = [*perceptron(1, (4, 3), 1, seed).parameters()]
    assert all(torch.equal(*pair) for pair in zip(passed["model"], expected, strict=True))
    x = passed["data"].x
    target = passed["data"].y
    assert x.flatten().tolist() == X.ravel().tolist()
    assert target.tolist() == [0, 1, 0, 1, 0, 0]
    assert model.n_iter_ == 3
    assert (model.n_features_in_, list(model.classes_)) == (1, ["no", "yes"])


def test_rows_choose_items_of_features_and_target(passed: dict[str, Any]) -> None:
    rows = np.array([1, 3, 4])
    mg.MetricClassifier(random_state=0, positive="yes").fit(X * 3, Y, rows=rows)
    x = passed["data"].x
    target = passed["data"].y
    assert x.flatten().tolist() == [0.0, 0.0, 0.0]
    assert target.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("target", "asked", "expected"),
    [
        ([0] * 9 + [1] * 5, None, None),
        ([0] * 9 + [1] * 4, None, 4),
        ([0] * 9 + [1], None, 1),
        ([0] * 9 + [1] * 4, 3, 3),
        ([0] * 9 + [1] * 4 + [2] * 2, None, 2),
        ([[0, 1]] * 4, None, None),
    ],
)
def test_folds_are_no_more_than_the_rarest_class_has_items(
    target: list[Any], asked: int | None, expected: int | None
) -> None:
    assert fitting_folds(asked, torch.tensor(target)) == expected


def test_two_classes_are_decided_at_the_threshold(passed: dict[str, Any]) -> None:
    model = mg.MetricClassifier("f1", hidden=(), positive="yes").fit(X, Y)
    model._steepness = 2.0
    new = np.array([[0.2], [0.25], [0.3], [1.25]])
    scores = new.ravel() - 0.25
    np.testing.assert_allclose(model.decision_function(new), scores, atol=1e-6)
    assert model.predict(new).tolist() == ["no", "no", "yes", "yes"]
    positive = 1 / (1 + np.exp(-2 * scores))
    np.testing.assert_allclose(
        model.predict_proba(new), np.stack([1 - positive, positive], 1), atol=1e-6
    )
    other = mg.MetricClassifier("f1", hidden=(), positive="no").fit(X, Y)
    other._steepness = 2.0
    assert passed["data"].y.tolist() == [1, 0, 1, 0, 1, 1]
    assert other.predict(new).tolist() == ["yes", "yes", "no", "no"]
    np.testing.assert_allclose(
        other.predict_proba(new), np.stack([positive, 1 - positive], 1), atol=1e-6
    )
    assert model.score(new, ["no", "yes", "yes", "no"]) == pytest.approx(0.5)


def test_many_classes_are_decided_by_the_highest_score(passed: dict[str, Any]) -> None:
    passed["kind"] = "classes"
    model = mg.MetricClassifier("error_rate", hidden=()).fit(X, np.array(list("abcabc")))
    new = np.array([[1.0], [-1.0]])
    scores = new * [1, 2, 3]
    np.testing.assert_allclose(model.decision_function(new), scores)
    assert model.predict(new).tolist() == ["c", "a"]
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(new), expected, atol=1e-6)
    assert model.score(new, ["c", "c"]) == -0.5
    assert passed["metric"] == mg.metric("error_rate")


def test_labels_are_decided_each_at_its_threshold(passed: dict[str, Any]) -> None:
    labels = np.array([[0, 1], [1, 0], [1, 1]])
    model = mg.MetricClassifier("f1", hidden=()).fit(X[:3], labels)
    assert passed["metric"] == mg.metric("f1", multilabel=True)
    assert passed["data"].y.tolist() == labels.tolist()
    new = np.array([[0.2], [0.1], [0.4]])
    scores = new * [1, 2] - 0.25
    np.testing.assert_allclose(model.decision_function(new), scores, atol=1e-6)
    assert model.predict(new).tolist() == [[0, 1], [0, 0], [1, 1]]
    np.testing.assert_allclose(model.predict_proba(new), 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert model.classes_.tolist() == [0, 1]


def test_tags_and_tables_that_do_not_fit(passed: dict[str, Any]) -> None:
    tags = mg.MetricClassifier().__sklearn_tags__()
    assert tags.input_tags.allow_nan
    assert tags.classifier_tags.multi_label
    assert tags.target_tags.single_output
    assert not tags.non_deterministic
    with pytest.raises(ValueError, match="the same number of rows; got 6 and 5"):
        mg.MetricClassifier().fit(pd.DataFrame(X), Y[:5])
    model = mg.MetricClassifier().fit(pd.DataFrame({"one": [0.0, 1.0], "two": ["a", "a"]}), [0, 1])
    assert model.n_features_in_ == 2
    with pytest.raises(ValueError, match="has 3 features"):
        mg.MetricClassifier(positive="yes").fit(X, Y).predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="one of \\['no', 'yes'\\]; got 'on'"):
        mg.MetricClassifier(positive="on").fit(X, Y)


# --------------------------------------------------------------------------------------------------
# model files


def test_a_file_holds_everything_that_predicting_needs(
    passed: dict[str, Any], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"one": [0.0, 2.0, np.nan, 1.0], "kind": ["a", "b", "a", "b"]})
    settings: dict[str, Any] = {
        "method": "focal", "epochs": np.int64(7), "batch": 5, "rate": 0.3, "decay": 0.1, "folds": 2,
        "balanced": True, "budget": 9.0, "positive": 3, "engine": None,
    }  # fmt: skip
    metric = mg.metric("fbeta", beta=2.0)
    model = mg.MetricClassifier(metric, hidden=(4,), **settings).fit(frame, [3, 8, 3, 8])
    model._steepness = 1.5
    path = tmp_path / "model.safetensors"
    model.save(path)
    with safe_open(path, "pt") as file:
        (stored,) = (file.metadata() or {}).values()
    header = json.loads(stored.partition("\n")[0])  # a digest follows
    number, kind = model.preparation_.columns
    assert header == {
        "metric": {"name": "fbeta", "options": header["metric"]["options"]},
        "model": "network",
        "engine": None,
        "hidden": [4],
        "settings": settings,
        "classes": {"values": [3, 8], "dtype": "<i8"},
        "kind": "binary",
        "order": [1, 0],
        "threshold": 0.25,
        "cut": 0.25,
        "steepness": 1.5,
        "features": 2,
        "names": ["one", "kind"],
        "columns": [
            {"kind": "Number", **vars(number)},
            {"kind": "Category", "frequent": ["a", "b"], "rare": False},
        ],
        "epoch": 3,
    }
    again = mg.MetricClassifier.load(path)
    assert again.get_params() == {**model.get_params(), "epochs": 7}
    assert again.trained_.metric == metric
    assert (again.predict_proba(frame) == model.predict_proba(frame)).all()
    assert (again.predict(frame) == model.predict(frame)).all()
    assert (again.n_iter_, again.n_features_in_) == (3, 2)
    assert again.feature_names_in_.tolist() == ["one", "kind"]
    assert again.preparation_.columns == [number, kind]
    assert not again.trained_.model.training
    assert again.trained_.threshold == THRESHOLD
    other = mg.MetricClassifier.load(path, metric="mcc")
    assert other.trained_.metric == other.metric == mg.metric("mcc")


def test_files_of_arrays_and_of_names(passed: dict[str, Any], tmp_path: Path) -> None:
    passed["kind"] = "order"
    for number, y in enumerate((Y, Y.astype(object), np.array([[0, 1]] * 3 + [[1, 0]] * 3))):
        model = mg.MetricClassifier("f1", hidden=(), positive="yes").fit(X, y)
        model.save(tmp_path / "model.safetensors")
        again = mg.MetricClassifier.load(tmp_path / "model.safetensors")
        assert again.classes_.dtype == model.classes_.dtype, number
        assert again.trained_.threshold is None
        assert "feature_names_in_" not in vars(again)
        assert (again.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_cut": torch.tensor([0.25])}, r"its threshold is \[0.25\], not one number per class"),
        ({"model_": "forest"}, "its model is of an unknown kind, 'forest'"),
    ],
)
def test_files_whose_parts_do_not_fit_are_refused(
    change: dict[str, Any], told: str, passed: dict[str, Any], tmp_path: Path
) -> None:
    model = mg.MetricClassifier("f1", hidden=(), positive="yes").fit(X, Y)
    path = tmp_path / "model.safetensors"
    model.save(path)
    mg.MetricClassifier.load(path)
    vars(model).update(change)
    model.save(path)
    with pytest.raises(ValueError, match=told):
        mg.MetricClassifier.load(path)


def test_a_file_of_a_ranker_has_its_settings(passed: dict[str, Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method": "list_net", "model": "network", "hidden": (4, 3), "epochs": 7, "batch": 5,
        "rate": 0.3, "decay": 0.1, "folds": 2, "budget": 9.0,
    }  # fmt: skip
    passed["kind"] = "order"
    ranker = mg.MetricRanker(mg.metric("ndcg", k=3), **settings)
    ranker.fit(X, [0, 1, 2, 0, 3, 0], groups=[0, 0, 0, 1, 1, 1])
    ranker.save(tmp_path / "model.safetensors")
    again = mg.MetricRanker.load(tmp_path / "model.safetensors")
    assert again.get_params() == ranker.get_params()
    assert (again.model_, again.n_iter_, again.n_features_in_) == ("network", 3, X.shape[1])
    assert (again.predict(X) == ranker.predict(X)).all()


def test_settings_as_json_has_them() -> None:
    assert plain_setting(np.float64(0.5)) == 0.5
    assert not isinstance(plain_setting(np.float64(0.5)), np.generic)
    assert [plain_setting(each) for each in ("a", 1, 0.5, True, None)] == ["a", 1, 0.5, True, None]
    assert plain_setting(mg.UniLoss("f1")) == "uniloss"


# --------------------------------------------------------------------------------------------------
# ranking


def ranked(queries: int, passed: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What a ranker passes on for queries of two documents."""
    x = np.tile([[0.0], [1.0]], (queries, 1))
    mg.MetricRanker(**options).fit(x, x.ravel(), groups=np.repeat(np.arange(queries), 2))
    return passed


def test_everything_that_a_ranker_was_given_reaches_fit(passed: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "method": "list_net", "epochs": 7, "batch": 5, "rate": 0.3, "decay": 0.1, "folds": 2,
        "budget": 9.0, "options": {"a": 1}, "progress": True,
    }  # fmt: skip
    metric = mg.metric("ndcg", k=3)
    found = ranked(2, passed, metric=metric, hidden=(4,), random_state=5, **given)
    assert {name: found[name] for name in given} == given
    assert found["metric"] is metric
    seed = int(np.random.RandomState(5).randint(2**31 - 1))
    assert found["seed"] == seed
    expected = [*perceptron(1, (4,), 1, seed).parameters()]
    assert all(torch.equal(*pair) for pair in zip(found["model"], expected, strict=True))


@pytest.mark.parametrize(("queries", "folds"), [(2, 2), (4, 4), (7, 5), (999, 5), (1000, None)])
def test_folds_of_a_ranker(queries: int, folds: int | None, passed: dict[str, Any]) -> None:
    assert ranked(queries, passed)["folds"] == folds


def test_queries_become_items(passed: dict[str, Any]) -> None:
    x = np.array([[0.0], [1.0], [0.0], [1.0], [1.0]])
    ranker = mg.MetricRanker(hidden=()).fit(x, [0, 1, 2, 0, 3], groups=["b", "a", "b", "b", "a"])
    items = passed["data"]
    assert items.x.squeeze(-1).tolist() == [[1, 1, 0], [0, 0, 1]]
    assert items.y.tolist() == [[1, 3, 0], [0, 2, 0]]
    assert items.where.tolist() == [[True, True, False], [True, True, True]]
    assert (items.x.dtype, items.y.dtype) == (torch.float32, torch.float32)
    assert ranker.predict(x).tolist() == [0, 1, 0, 1, 1]
    assert (ranker.n_iter_, vars(ranker)["n_features_in_"]) == (3, 1)
    ranker = mg.MetricRanker("mrr", hidden=()).fit(x, [0, 1, 2, 0, 3], groups=[1, 0, 1, 1, 0])
    # Query 0: the second of two relevant documents; query 1: the second; query 2: nothing relevant.
    new = np.array([[3.0], [2.0], [3.0], [2.0], [1.0], [5.0]])
    value = ranker.score(new, [0, 1, 0, 0.5, 0, 0], groups=[0, 0, 1, 1, 1, 2])
    assert value == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"number of rows; got 6, 6 and 5"):
        ranker.score(new, np.ones(6), groups=np.ones(5))
    with pytest.raises(ValueError, match="number of rows; got 6, 5 and 6"):
        ranker.score(new, np.ones(5), groups=np.ones(6))
    frame = pd.DataFrame({"one": x.ravel()})
    named = mg.MetricRanker(hidden=()).fit(frame, [1] * 5, groups=[1, 1, 2, 2, 2])
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame.rename(columns={"one": "two"}))


def test_a_ranker_takes_lists_and_missing_values(passed: dict[str, Any]) -> None:
    ranker = mg.MetricRanker(hidden=()).fit([[0.0], [2.0], [None]], [0, 1, 1], groups=[1, 2, 2])
    assert passed["data"].x.tolist() == [[[-1, 0], [0, 0]], [[1, 0], [0, 1]]]
    assert ranker.predict([[2.0]]).tolist() == [1]
    with pytest.raises(ValueError, match="is expecting 1 features"):
        ranker.predict([[2.0, 1.0]])


@pytest.mark.parametrize("metric", ["f1", "auc", "hamming", "bleu", lambda scores, target: 0.0])
def test_a_ranker_takes_metrics_of_ranked_documents_only(metric: Any) -> None:
    with pytest.raises(ValueError, match="is not a metric of ranked documents; pass 'ndcg', 'map'"):
        mg.MetricRanker(metric).fit(X, np.arange(6), groups=np.arange(6) // 2)


def test_a_ranker_predicts_only_after_training() -> None:
    with pytest.raises(NotFittedError, match="This MetricRanker instance is not fitted yet"):
        mg.MetricRanker().predict(np.zeros((2, 3)))
