"""Permutation importances: against shuffling the table itself, and what they are measured on."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import SelectFromModel
from sklearn.inspection import permutation_importance
from torch import Tensor, nn

import metricgrad as mg
from metricgrad.estimators import MetricClassifier, Preparation, perceptron
from metricgrad.estimators.importances import column_importances, sampled
from metricgrad.training import Trained
from metricgrad.training.data import Items
from tests.commands import table
from tests.parquet import dataset_of, mixed_table, write_folder

QUICK: dict[str, Any] = {"method": "cross_entropy", "epochs": 3, "rate": 0.03, "random_state": 0}


def profit(scores: Tensor, target: Tensor, amount: Tensor) -> Tensor:
    """What positives bring that were found, less what the others cost."""
    return torch.where(scores > 0, torch.where(target == 1, amount, -0.5), 0.0).mean(-1)


def fitted(metric: Any, hidden: tuple[int, ...], kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A classifier with the table, the target and the data of the rows that it was trained on."""
    x: Any = table().assign(gaps=lambda each: each["two"].where(each["three"] > 0))
    y: Any = x.pop("label")
    own: dict[str, Any] = {}
    if kind == "classes":
        y = np.digitize(x["one"] + (x["kind"] == "a"), [-0.3, 0.8])
    if kind == "labels":
        y = np.stack([y == "yes", x["two"] > 0.5], -1).astype(int)
    if kind in ("binary", "amounts"):
        y = (y == "yes").astype(int)
    if kind == "amounts":
        own = {"amount": np.abs(x["three"].to_numpy())}
    return mg.MetricClassifier(metric, hidden=hidden, **QUICK).fit(x, y, **own), x, y, own


@pytest.mark.parametrize(
    ("metric", "hidden", "kind"),
    [
        ("f1", (), "binary"),
        ("average_precision", (8, 4), "binary"),
        ("error_rate", (8,), "binary"),
        ("f1", (8,), "classes"),
        ("jaccard", (), "labels"),
        (mg.from_function(profit), (), "amounts"),
    ],
)
def test_importances_are_what_shuffling_the_table_does_to_the_score(
    metric: Any, hidden: tuple[int, ...], kind: str
) -> None:
    model, x, y, own = fitted(metric, hidden, kind)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(x), generator=generator).numpy() for _ in range(5)]
    before = model.score(x, y, **own)
    falls = [
        [
            before - model.score(x.assign(**{name: x[name].to_numpy()[order]}), y, **own)
            for order in orders
        ]
        for name in x.columns
    ]
    found = column_importances(
        model.trained_,
        model.preparation_,
        Items(
            model.prepared(x), model.encoded(y), rows={k: torch.tensor(v) for k, v in own.items()}
        ),
    )
    np.testing.assert_allclose(found.means, np.mean(falls, 1), atol=1e-6)
    np.testing.assert_allclose(found.spreads, np.std(falls, 1), atol=1e-6)
    assert (found.rows, found.shuffles) == (300, 5)
    np.testing.assert_array_equal(model.feature_importances_, found.means)
    assert found.means[0] > 0.02


def test_importances_agree_with_those_of_scikit_learn() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = mg.MetricClassifier("auc", hidden=(), **QUICK).fit(x, y)
    reference: Any = permutation_importance(model, x, y, n_repeats=30, random_state=0)
    error = reference.importances_std * (1 / 5 + 1 / 30) ** 0.5
    apart = np.abs(model.feature_importances_ - reference.importances_mean)
    assert (apart < 4 * error + 1e-6).all()
    assert np.corrcoef(model.feature_importances_, reference.importances_mean)[0, 1] > 0.95


def test_a_model_of_any_kind_has_the_same_importances() -> None:
    """Networks have a short cut through their first layer; other models are called as they are."""
    network = perceptron(6, (5,), 1, 0)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    prepared = Preparation().fit(x.numpy())
    metric = mg.metric("auc")
    ours, others = (
        column_importances(
            Trained(model=model, metric=metric, threshold=None), prepared, Items(x, y)
        )
        for model in (network, Wrapped())
    )
    np.testing.assert_allclose(ours.means, others.means, atol=1e-5)
    np.testing.assert_allclose(ours.spreads, others.spreads, atol=1e-5)
    assert np.abs(ours.means).max() > 0.01


def test_a_column_without_a_part_in_the_scores_has_no_importance() -> None:
    x = torch.cat([torch.randn(300, 2), torch.ones(300, 1)], 1)
    network = perceptron(3, (), 1, 0)
    for weight in network.parameters():
        weight.data = torch.tensor([[1.0, 0.0, 5.0]]) if weight.dim() > 1 else weight.data
    trained = Trained(model=network, metric=mg.metric("auc"), threshold=None)
    found = column_importances(
        trained, Preparation().fit(x.numpy()), Items(x, (x[:, 0] > 0).long())
    )
    assert found.means[0] > 0.3
    assert found.means[1:].tolist() == [0.0, 0.0]
    assert found.spreads[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("columns", "rows", "shuffles"), [(3, 2000, 5), (300, 2000, 3), (700, 1428, 2), (9000, 200, 2)]
)
def test_the_work_is_bounded(columns: int, rows: int, shuffles: int) -> None:
    x = torch.randn(2500, columns, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(2500) % 2).long()
    trained = Trained(
        model=perceptron(columns, (), 1, 0), metric=mg.metric("f1"), threshold=torch.tensor(0.0)
    )
    found = column_importances(trained, Preparation().fit(x[:20].numpy()), Items(x, y))
    assert (found.rows, found.shuffles, len(found.means)) == (rows, shuffles, columns)


def test_a_sample_has_every_class() -> None:
    y = torch.zeros(20_000, dtype=torch.int64)
    y[7::500] = 1  # 40 rows, all of which are taken
    y[3::100] = 2  # 200 rows
    x = torch.arange(20_000.0).unsqueeze(-1)
    found = sampled(Items(x, y, rows={"amount": x[:, 0]}), 1)
    counts = found.y.bincount().tolist()
    assert counts == [round(0.988 * 2000), 40, 50]
    places = found.x[:, 0].long()
    assert torch.equal(y[places], found.y)
    assert torch.equal(found.rows["amount"].long(), places)
    assert len(places.unique()) == len(places)
    assert len(sampled(Items(x, y[:, None].expand(-1, 3) > 0), 1)) == 2000  # labels


def test_a_sample_of_queries_has_whole_ones_with_something_relevant() -> None:
    where = torch.arange(9).expand(1000, 9) < torch.arange(1, 1001).remainder(9).add(1)[:, None]
    y = torch.zeros(1000, 9)
    y[::2, 0] = 1
    y[1::2, 8] = 1  # is padding for most
    x = torch.arange(1000.0)[:, None, None].expand(-1, 9, 2)
    found = sampled(Items(x, y, where), 2)
    assert found.where is not None
    assert 1990 < int(found.where.sum()) <= 2000
    assert (found.where & (found.y > 0)).any(-1).all()
    assert torch.equal(found.where, where[found.x[:, 0, 0].long()])


def test_rankers() -> None:
    generator = np.random.default_rng(0)
    x = pd.DataFrame(generator.normal(size=(600, 3)), columns=["noise", "good", "same"])
    x["same"] = 1.0
    queries = np.repeat(np.arange(60), 10)
    grades = np.digitize(x["good"] + 0.3 * generator.normal(size=600), [0.5, 1.5])
    grades[:10] = 0  # a query with nothing relevant, which has no value
    ranker = mg.MetricRanker(hidden=(), **{**QUICK, "method": "list_net", "epochs": 8})
    ranker.fit(x, grades, groups=queries)
    noise, good, same = ranker.feature_importances_
    assert good > 0.2 > 0.02 > abs(noise)
    assert same == 0
    kept = slice(10, None)
    order = np.random.default_rng(0).permutation(590)
    before = ranker.score(x[kept], grades[kept], groups=queries[kept])
    shuffled = x[kept].assign(good=x["good"].to_numpy()[kept][order])
    one = before - ranker.score(shuffled, grades[kept], groups=queries[kept])
    measured = ranker._importances
    assert measured is not None
    assert abs(one - good) < 5 * measured.spreads[1]
    assert measured.rows == 590


def test_importances_are_measured_when_asked_for_and_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*parts: Any) -> Any:
        calls.append(parts)
        return column_importances(*parts)

    monkeypatch.setattr("metricgrad.estimators.importances.column_importances", counted)
    x, y = table()[["one", "two", "three"]], table()["label"]
    model = mg.MetricClassifier("f1", hidden=(), positive="yes", **QUICK)
    assert not hasattr(model, "feature_importances_")
    model.fit(x, y)
    assert not calls
    first = model.feature_importances_
    assert model.feature_importances_ is first
    assert len(calls) == 1
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).feature_importances_, first)
    model.fit(x[["one", "two"]], y)
    assert len(model.feature_importances_) == 2
    model.save(tmp_path / "model.safetensors")
    loaded = MetricClassifier.load(tmp_path / "model.safetensors")
    assert not hasattr(loaded, "feature_importances_")
    with pytest.raises(AttributeError, match="a loaded model has none; pass rows to sklearn"):
        _ = loaded.feature_importances_


def test_scikit_learn_selects_columns_by_importance() -> None:
    x = table()[["two", "one", "three"]]
    model = mg.MetricClassifier("f1", hidden=(), positive="yes", **QUICK)
    chosen = SelectFromModel(model).fit(x, table()["label"])
    assert chosen.get_feature_names_out().tolist() == ["one"]


def test_a_streamed_table_is_measured_on_validation_rows(tmp_path: Path) -> None:
    data = dataset_of(write_folder(mixed_table(4000), tmp_path / "table", group=500))
    model = mg.MetricClassifier("f1", hidden=(), **QUICK).fit(data, "target")
    names = list(model.feature_names_in_)
    found = dict(zip(names, model.feature_importances_, strict=True))
    assert max(found, key=lambda name: found[name]) == "one"
    assert found["same"] == 0
    assert model._kept_rows is not None
    assert len(model._kept_rows) < 1000  # a fifth of the rows
