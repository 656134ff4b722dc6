"""`metricgrad train --group`: documents of queries, from a file to a model that ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

import metricgrad as mg
from metricgrad.studies.comparison import methods_to_rank
from metricgrad.studies.queries import load_queries
from tests.commands import QUICK, run


def documents(queries: int = 40, seed: int = 0) -> pd.DataFrame:
    """Queries of 3 to 9 documents, whose rows are mixed."""
    generator = np.random.default_rng(seed)
    query = np.repeat(np.arange(queries), generator.integers(3, 10, queries))
    x = generator.normal(size=(len(query), 2))
    grade = np.digitize(x[:, 0] + 0.4 * generator.normal(size=len(query)), [0.3, 1.2])
    table = pd.DataFrame({"one": x[:, 0], "two": x[:, 1], "grade": grade, "query": query})
    return table.assign(query="q" + table["query"].astype(str)).sample(frac=1, random_state=seed)


@pytest.fixture
def searches(tmp_path: Path) -> Path:
    path = tmp_path / "searches.csv"
    documents().to_csv(path, index=False)
    return path


def rank(path: Path, *options: Any, drawn: bool = False) -> Any:
    asked = ("--target", "grade", "--metric", "ndcg:k=5", *QUICK)
    return run("train", path, *asked, *options, drawn=drawn)


def test_train_ranks_the_documents_of_queries(searches: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    documents(seed=5).to_csv(test, index=False)
    out = tmp_path / "run"
    found = rank(searches, "--group", "query", "--test", test, "--out", out, drawn=True)
    assert found.exit_code == 0, found.output
    assert "ListNet" in found.output
    assert "NDCG" in found.output
    result = json.loads((out / "result.json").read_text())
    assert result["columns"] == ["one", "two"]
    assert (result["classes"], result["positive_share"]) == ([], None)
    chosen = result["finalists"][result["chosen"]]
    low, high = chosen["interval"]
    assert low < chosen["test"] < high
    assert chosen["test"] > 0.8
    page = (out / "report.html").read_text()
    assert "NDCG (k=5) on" in page
    # The model ranks as it was measured, by the library's own ranker.
    table = documents(seed=5)
    ranker = mg.MetricRanker.load(out / "model.safetensors")
    value = ranker.score(table[["one", "two"]], table["grade"], groups=table["query"])
    assert value == pytest.approx(chosen["test"])
    place = tmp_path / "ranked.csv"
    options = ("--target", "grade", "--group", "query", "--out", place)
    told = run("predict", out, test, *options)
    assert told.exit_code == 0, told.output
    assert f"ndcg: {value:.4f} on {len(table)} rows" in told.output
    ranked = pd.read_csv(place)
    assert list(ranked.columns) == ["score", "rank"]
    for _, each in ranked.groupby(pd.read_csv(test)["query"]):
        assert each.sort_values("rank")["score"].is_monotonic_decreasing
        assert sorted(each["rank"]) == list(range(1, len(each) + 1))


def test_a_query_is_never_cut(searches: Path) -> None:
    split = load_queries(searches, "grade", "query", test_share=0.3, seed=3)
    table = documents()
    kept, tested = set(split.train.queries), set(split.test.queries)
    assert not kept & tested
    assert len(tested) == 12
    assert len(split.train) + len(split.test) == len(table)
    assert list(split.train.x.columns) == ["one", "two"]
    other = load_queries(searches, "grade", "query", test_share=0.3, seed=4)
    assert set(other.test.queries) != tested
    # Rows keep their grade and their query.
    numbers = pd.factorize(table["query"])[0]
    by_feature = {
        one: (g, q) for one, g, q in zip(table["one"], table["grade"], numbers, strict=True)
    }
    for part in (split.train, split.test):
        for one, grade, query in zip(part.x["one"], part.grades, part.queries, strict=True):
            nearest = min(by_feature, key=lambda each, one=one: abs(each - one))
            assert by_feature[nearest] == (grade, query)


def test_query_ids_of_svmlight_files(tmp_path: Path) -> None:
    table = documents().sort_values("query")
    path = tmp_path / "letor.svm"
    query = pd.factorize(table["query"])[0]
    dump_svmlight_file(table[["one", "two"]].to_numpy(), table["grade"], str(path), query_id=query)
    split = load_queries(path, "target", "qid", test_share=0.5)
    assert len(np.unique(np.append(split.train.queries, split.test.queries))) == 40
    assert list(split.train.x.columns) == ["x1", "x2"]


def test_rows_without_a_grade_are_left_out(tmp_path: Path) -> None:
    table = documents()
    table.iloc[:4, 2] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    split = load_queries(tmp_path / "data.csv", "grade", "query")
    assert split.left_out == 4
    assert len(split.train) + len(split.test) == len(table) - 4


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, (), "ndcg ranks the documents of each query; pass --group COLUMN"),
        ({}, ("--group", "quary"), "there is no column 'quary' among one, two, grade, query. Did"),
        ({}, ("--group", "grade"), "--target and --group must be two columns; got 'grade'"),
        ({}, ("--group", "query", "--metric", "f1"), "--group is for metrics of ranked documents"),
        ({}, ("--group", "query", "--positive", "1"), "leave out --positive 1"),
        ({"grade": -1}, ("--group", "query"), "column 'grade' must have grades, numbers from 0 on"),
        (
            {"grade": "good"},
            ("--group", "query"),
            "must have grades, numbers from 0 on; got 'good'",
        ),
        ({"query": None}, ("--group", "query"), "column 'query' names no query in"),
        ({"query": "one"}, ("--group", "query"), "column 'query' has 1 queries, too few"),
    ],
)
def test_what_cannot_be_ranked_is_refused_before_anything_is_written(
    change: dict[str, Any], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    documents().assign(**change).to_csv(tmp_path / "data.csv", index=False)
    found = rank(tmp_path / "data.csv", *options, "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert message in found.output.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_the_bundled_digits_are_no_queries() -> None:
    found = run("train", "--metric", "ndcg", "--group", "query")
    assert found.exit_code == 2
    assert "have no column 'query'; pass a file of queries" in found.output.replace("\n", " ")


def test_predictions_of_rankings(searches: Path, tmp_path: Path) -> None:
    options = ("--group", "query", "--method", "list_net", "--out", tmp_path / "run")
    assert rank(searches, *options).exit_code == 0
    again = rank(searches, *options)
    assert "finished already" in again.output
    plain = run("predict", tmp_path / "run", searches, "--json")
    assert list(json.loads(plain.stdout)["predictions"][0]) == ["score"]
    missing = run("predict", tmp_path / "run", searches, "--target", "grade")
    assert missing.exit_code == 2
    assert "pass --group COLUMN beside --target" in missing.output.replace("\n", " ")
    compared = run("compare", searches, "--target", "grade", "--metric", "ndcg")
    assert compared.exit_code == 2
    assert "pass --group COLUMN, which says what query" in compared.output.replace("\n", " ")


def test_a_model_of_classes_takes_no_group(data: Path, tmp_path: Path) -> None:
    mg.MetricClassifier(hidden=(), epochs=1, rate=0.1, method="cross_entropy").fit(
        np.arange(40.0).reshape(-1, 1), np.arange(40) % 2
    ).save(tmp_path / "model.safetensors")
    found = run("predict", tmp_path / "model.safetensors", data, "--group", "kind")
    assert found.exit_code == 2
    assert "does not rank documents; leave out --group kind" in found.output.replace("\n", " ")


def test_compare_splits_queries_and_compares_with_list_net(searches: Path, tmp_path: Path) -> None:
    asked = ("--target", "grade", "--metric", "ndcg:k=5", "--group", "query", "--hidden", "none")
    options = ("--epochs", 1, "--splits", 2, "--methods", "lambda_loss", "--out", tmp_path / "run")
    found = run("compare", searches, *asked, *options)
    assert found.exit_code == 0, found.output
    assert "Gains are over tuned ListNet." in " ".join(found.output.split())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["ordinary"], result["columns"]) == ("list_net", ["one", "two"])
    assert list(result["differences"]) == ["lambda_loss"]
    split = load_queries(searches, "grade", "query", test_share=0.25, seed=0)
    quick = {"hidden": (), "epochs": 1, "random_state": 0}
    ranker = mg.MetricRanker(mg.metric("ndcg", k=5), "list_net", **quick)
    train, test = split.train, split.test
    ranker.fit(train.x, train.grades, groups=train.queries)
    value = ranker.score(test.x, test.grades, groups=test.queries)
    assert result["values"]["list_net"][0] == pytest.approx(value)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "No difference from tuned ListNet is shown: LambdaLoss." in page
    assert "has a run with group = 'query'" in " ".join(
        run("compare", searches, *asked, "--group", "two", *options).output.split()
    )


def test_methods_for_queries_are_those_that_are_trained_on_them(searches: Path) -> None:
    grades = np.asarray([0.0, 1.0, 2.0])
    usual = methods_to_rank(None, mg.metric("ndcg"), grades)
    assert usual == ["list_net", "lambda_loss", "metric_loss", "uniloss", "auto"]
    every = methods_to_rank("all", mg.metric("ndcg"), grades)
    assert {"approx_ndcg", "reloss"} < set(every)
    assert not {"bilevel", "cross_entropy"} & set(every)
    assert "smooth_ap" in methods_to_rank(None, mg.metric("map"), grades[:2])
    assert "smooth_ap" not in methods_to_rank(None, mg.metric("map"), grades)
    for command, option in (("train", "--method"), ("compare", "--methods")):
        asked = ("--target", "grade", "--metric", "ndcg", "--group", "query", option, "bilevel")
        found = run(command, searches, *asked)
        assert found.exit_code == 2
        assert "bilevel trains model and loss in turns" in " ".join(found.output.split())


def test_queries_are_not_tested_on_what_was_trained_on(searches: Path, tmp_path: Path) -> None:
    documents().to_parquet(tmp_path / "copy.parquet")
    for test in (searches, tmp_path / "copy.parquet"):
        found = rank(searches, "--group", "query", "--test", test, "--out", tmp_path / "run")
        assert found.exit_code == 2
        assert f"--test {test} has the rows of the training file" in found.output.replace("\n", "")


def test_documents_without_a_query_have_no_rank(searches: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    rank(searches, "--group", "query", "--method", "list_net", "--out", out)
    table = documents(seed=5)
    table.loc[3, "query"] = None
    table.to_csv(tmp_path / "new.csv", index=False)
    found = run("predict", out, tmp_path / "new.csv", "--group", "query")
    assert found.exit_code == 2
    assert "new.csv: column 'query' names no query in 1 rows" in found.output.replace("\n", "")
