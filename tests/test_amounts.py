"""`--metric own.py:profit --amount COLUMN`: functions in files, columns for their parameters."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score

import metricgrad as mg
from metricgrad.cli import options
from metricgrad.studies import splits
from metricgrad.studies.own_metrics import AmountColumns, named_metric, own_file, without_file
from tests.commands import run

OWN = """
calls = []

def profit(scores, target, amount):
    return ((scores > 0) * (target * amount - 1.0)).mean()

def net(scores, target, amount, cost=1.0):
    return ((scores > 0) * (target * amount - cost)).mean()

def weighted(scores, target, weight):
    return (((scores > 0) == target.bool()) * weight).sum() / weight.sum()

def spent(scores, target, amount):
    return -profit(scores, target, amount)

def share(scores, target):
    return ((scores > 0) == target.bool()).double().mean()
"""
QUICK = ("--hidden", "none", "--epochs", "1", "--target", "buys")


def customers(number: int = 120, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(number, 2))
    buys = (x[:, 0] + generator.normal(size=number) > 0.5).astype(int)
    amount = np.exp(x[:, 1] + 0.3 * generator.normal(size=number)).round(3)
    table = {"one": x[:, 0], "two": x[:, 1], "value": amount, "price": 0.5 + x[:, 1] ** 2}
    return pd.DataFrame({**table, "buys": buys})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    customers().to_csv("customers.csv", index=False)
    return tmp_path


def train(metric: str, *given: Any) -> Any:
    return run("train", "customers.csv", *QUICK, "--metric", metric, *given)


def told(found: Any) -> str:
    assert found.exit_code == 2, found.output
    return " ".join(found.output.split())


def profit_of(decided: np.ndarray, table: Any) -> float:
    return float((decided * (table["buys"] * table["value"] - 1)).mean())


def test_train_report_and_predict_know_the_amounts(place: Path) -> None:
    customers(seed=1).to_csv("test.csv", index=False)
    asked = ("--amount", "value", "--test", "test.csv", "--method", "cross_entropy")
    found = train("own.py:profit", *asked)
    assert found.exit_code == 0, found.output
    folder = place / "runs" / "customers-profit"
    result = json.loads((folder / "result.json").read_text())
    assert result["columns"] == ["one", "two", "price"]
    # The test value is the profit of the decisions with the amounts of the test file.
    table = customers(seed=1)
    predicted = run("predict", folder, "test.csv", "--json")
    assert predicted.exit_code == 0, predicted.output
    rows = json.loads(predicted.output)["predictions"]
    value = profit_of(np.asarray([each["prediction"] for each in rows]), table)
    finalist = result["finalists"]["cross_entropy"]
    assert finalist["test"] == pytest.approx(value, abs=1e-6)
    low, high = finalist["interval"]
    assert low < value < high
    page = (folder / "report.html").read_text()
    assert "<h1>profit on customers.csv</h1>" in page
    assert "amount of each row from column value" in page
    assert "Where to cut" in page
    curve = np.load(folder / "evidence.npz")["curve_cross_entropy"]
    assert curve[1].max() == pytest.approx(finalist["validation"], abs=0.01)
    (place / "own.py").unlink()  # drawing again needs no function
    assert run("report", folder).exit_code == 0
    assert run("predict", folder, "test.csv").exit_code == 0


def test_predict_measures_with_the_function_and_its_columns(place: Path) -> None:
    assert train("own.py:profit", "--amount", "value", "--method", "cross_entropy").exit_code == 0
    folder = place / "runs" / "customers-profit"
    table = customers(seed=1)
    table.assign(buys=table["buys"].astype(float).where(np.arange(len(table)) > 20)).to_csv(
        "new.csv", index=False
    )
    measure = ("predict", folder, "new.csv", "--target", "buys", "--json")
    metric = ("--metric", "own.py:profit")
    found = json.loads(run(*measure, *metric, "--amount", "value").output)
    decided = np.asarray([each["prediction"] for each in found["predictions"]])
    assert found["rows_with_truth"] == 99
    assert found["value"] == pytest.approx(profit_of(decided[21:], table.iloc[21:]), abs=1e-6)
    assert "--metric own.py:profit with the file that has it" in told(run(*measure))
    assert "takes amount besides scores and target; pass --amount COLUMN" in told(
        run(*measure, *metric)
    )
    assert "pass --target COLUMN with them" in told(
        run("predict", folder, "new.csv", "--amount", "value")
    )
    plain = place / "runs" / "f1"
    assert train("f1", "--method", "cross_entropy", "--out", plain).exit_code == 0
    asked = ("predict", plain, "new.csv", "--target", "buys")
    assert "was trained for f1; leave out --metric own.py:profit" in told(run(*asked, *metric))
    assert "f1 has no parameter amount, which --amount value is for" in told(
        run(*asked, "--amount", "value")
    )


def test_the_threshold_is_tuned_with_the_amounts(place: Path) -> None:
    """The same scores have another best cut where everybody spends a tenth."""
    table = customers(200)
    table.assign(less=table["value"] / 10, more=table["value"] * 10).to_csv(
        "customers.csv", index=False
    )
    shares = []
    for column in ("less", "more"):
        asked = ("--amount", column, "--drop", "less,more,value", "--method", "cross_entropy")
        assert train("own.py:profit", *asked, "--out", column).exit_code == 0
        rows = json.loads(run("predict", column, "customers.csv", "--json").output)
        shares.append(np.mean([each["prediction"] for each in rows["predictions"]]))
    assert shares[0] < 0.05 < 0.6 < shares[1]


def test_a_column_of_weights_weighs_the_rows(place: Path) -> None:
    customers(seed=1).to_csv("test.csv", index=False)
    asked = ("--amount", "sample_weight=value", "--test", "test.csv", "--method", "cross_entropy")
    found = train("f1", *asked, "--out", "weighed")
    assert found.exit_code == 0, found.output
    result = json.loads((place / "weighed" / "result.json").read_text())
    assert result["columns"] == ["one", "two", "price"]
    test = customers(seed=1)
    rows = json.loads(run("predict", "weighed", "test.csv", "--json").output)["predictions"]
    decided = [each["prediction"] for each in rows]
    value = f1_score(test["buys"], decided, sample_weight=test["value"])
    assert result["finalists"]["cross_entropy"]["test"] == pytest.approx(value, abs=1e-5)


def test_several_parameters_and_columns_that_are_features_too(place: Path) -> None:
    asked = ("--amount", "value", "--amount", "cost=price", "--keep", "value")
    found = train("own.py:net", *asked, "--method", "metric_loss")
    assert found.exit_code == 0, found.output
    result = json.loads((place / "runs" / "customers-net" / "result.json").read_text())
    assert result["columns"] == ["one", "two", "value"]
    assert (
        train("own.py:weighted", "--amount", "weight=price", "--method", "cross_entropy").exit_code
        == 0
    )


def test_a_run_resumes_only_with_the_same_columns_and_function(place: Path) -> None:
    asked = ("--method", "cross_entropy", "--amount")
    assert train("own.py:profit", *asked, "value").exit_code == 0
    again = train("own.py:profit", *asked, "value")
    assert "finished already" in again.output
    assert "has a run with amounts = {'amount': 'value'}, and this one has {'amount': 'price'}" in (
        told(train("own.py:profit", *asked, "price"))
    )
    assert "has a run with keep = None" in told(
        train("own.py:profit", *asked, "value", "--keep", "value")
    )
    (place / "own.py").write_text(OWN.replace("1.0)).mean()", "2.0)).mean()"))
    assert "a file has changed since" in told(train("own.py:profit", *asked, "value"))


def test_compare_measures_with_the_amounts(place: Path) -> None:
    asked = ("--metric", "own.py:net", "--amount", "value", "--amount", "cost=price")
    methods = ("--methods", "focal", "--splits", 2, "--json")
    found = run("compare", "customers.csv", *QUICK, *asked, *methods)
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    assert (result["metric"], result["columns"]) == ("net", ["one", "two"])
    table = customers()
    columns = AmountColumns({"amount": "value", "cost": "price"})
    split = splits.load_split(place / "customers.csv", "buys", amounts=columns)
    model = mg.MetricClassifier(
        named_metric("own.py:net"), "focal", hidden=(), epochs=1, random_state=0
    )
    rows = {"amount": table["value"].to_numpy(), "cost": table["price"].to_numpy()}
    model.fit(split.train.x, split.train.y, rows=split.train.rows, **rows)
    chosen = table.iloc[split.test.rows]
    gains = model.predict(chosen[["one", "two"]]) * (
        chosen["buys"] * chosen["value"] - chosen["price"]
    )
    assert result["values"]["focal"][0] == pytest.approx(gains.mean(), abs=1e-6)
    page = (place / "runs" / "customers-net-compared" / "report.html").read_text()
    assert "2 splits; amount of each row from column value; cost of each row from" in page


@pytest.mark.parametrize(
    ("metric", "given", "message"),
    [
        (
            "own.py:profit",
            (),
            "profit takes amount besides scores and target; pass --amount COLUMN,",
        ),
        ("own.py:weighted", (), "pass --amount weight=COLUMN,"),
        (
            "own.py:weighted",
            ("--amount", "value"),
            "weighted has no parameter amount, which --amou",
        ),
        (
            "own.py:profit",
            ("--amount", "cost=price"),
            "which --amount cost=price is for; it takes a",
        ),
        (
            "f1",
            ("--amount", "value"),
            "f1 has no .*; it takes sample_weight: pass --amount sample_",
        ),
        (
            "exact_match",
            ("--amount", "value"),
            "exact_match takes scores and target alone; leave o",
        ),
        ("own.py:profit", ("--amount", "valu"), "no column 'valu' .* Did you mean 'value'"),
        ("own.py:profit", ("--amount", "buys"), "must be two columns; got 'buys' for both"),
        ("own.py:profit", ("--amount", "one", "--amount", "two"), "two columns, 'one' and 'two'"),
        ("own.py:profit", ("--amount", "value", "--keep", "one"), "--keep names 'one', which --am"),
        (
            "own.py:profit",
            ("--amount", "value", "--group", "one"),
            "--group is for metrics of rank",
        ),
        ("own.py:proft", (), "own.py has no function proft; did you mean profit"),
        ("own.py:nothing", (), "no function nothing; it has profit, net, weighted, spent, share"),
        ("own.py:calls", (), "own.py has no function calls"),
        ("own.py", (), "--metric own.py: name a function in the file, as in own.py:profit"),
        ("other.py:profit", (), "--metric other.py:profit: there is no file other.py"),
        ("broken.py:profit", (), "broken.py raises ZeroDivisionError: division by zero"),
        ("own.py:profit:beta=2", (), "a function has no option beta; it takes higher_is_better, b"),
        ("own.py:profit:best=high", (), "best must be a number; got 'high'"),
        ("own.py:spent", ("--amount", "value"), "own.py:spent:higher_is_better=false"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    place: Path, metric: str, given: tuple[str, ...], message: str
) -> None:
    (place / "broken.py").write_text("1 / 0\n")
    found = train(metric, *given, "--method", "uniloss")
    assert re.search(message, told(found)), found.output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "column 'value', which --amount names, is empty in row 8;"),
        ("n/k", "column 'value', which --amount names, is 'n/k' in row 8;"),
        ("inf", "column 'value', which --amount names, is 'inf' in row 8;"),
    ],
)
def test_amounts_that_are_no_numbers_are_refused(place: Path, wrong: str, message: str) -> None:
    table = customers().astype({"value": object})
    table.loc[7, "value"] = wrong
    table.to_csv("customers.csv", index=False)
    assert message in told(train("own.py:profit", "--amount", "value"))
    table.loc[[3, 9], "value"] = "?"
    table.to_csv("customers.csv", index=False)
    assert "is '?' in row 4 (of 3 rows without a number)" in told(
        train("own.py:profit", "--amount", "value")
    )
    # What has no target is left out, and needs no amount.
    table.loc[[3, 7, 9], "buys"] = np.nan
    table.to_csv("customers.csv", index=False)
    asked = ("--amount", "value", "--method", "cross_entropy", "--json")
    assert json.loads(train("own.py:profit", *asked).output)["rows"]["without_target"] == 3


def test_the_file_whose_amounts_are_no_numbers_is_named(place: Path) -> None:
    table = customers(seed=1).astype({"value": object})
    table.loc[4, "value"] = "?"
    table.to_csv("test.csv", index=False)
    asked = ("--amount", "value", "--test", "test.csv")
    assert told(train("own.py:profit", *asked)).startswith(
        "test.csv: column 'value', which --amount names, is '?' in row 5;"
    )


def test_dates_are_no_amounts() -> None:
    days = pd.DataFrame({"y": [0, 1], "day": pd.to_datetime(["2024-01-31", "2024-02-01"])})
    with pytest.raises(ValueError, match="is '2024-01-31 00:00:00' in row 1"):
        AmountColumns({"amount": "day"}).read(days, "y")
    counts = pd.DataFrame({"y": [0, 1], "n": pd.array([1, 2], dtype="Int64")})
    (found,) = AmountColumns({"amount": "n"}).read(counts, "y").values()
    assert (found.dtype, found.tolist()) == (np.float64, [1.0, 2.0])


def test_texts_name_functions_columns_and_parameters(place: Path) -> None:
    assert options.amount_columns(["value", "cost = price"]) == {"amount": "value", "cost": "price"}
    assert options.amount_columns(["a b=c"]) == {"amount": "a b=c"}  # no parameter has such a name
    assert options.amount_columns(None) is None
    metric = named_metric("own.py:share:best=1,worst=0")
    assert (metric.name, metric.best, metric.higher_is_better) == ("share", 1, True)
    assert not named_metric("own.py:spent:higher_is_better=false").higher_is_better
    scores, target = torch.tensor([1.0, -1.0]), torch.tensor([1, 1])
    assert metric(scores, target) == 0.5
    assert (own_file("a/own.py:share"), own_file("fbeta:beta=2")) == (Path("a/own.py"), None)
    assert without_file("a/own.py:share:best=1") == "share:best=1"
    assert without_file("fbeta:beta=2") == "fbeta:beta=2"
    text = (place / "own.py").read_text()
    (place / "own.py").write_text(text.replace("==", "!="))  # a changed file is read again
    assert named_metric("own.py:share")(scores, target) == 0.5
    assert named_metric("own.py:share")(scores, torch.tensor([1, 0])) == 0.0


def test_parameters_that_mean_something_else_are_refused(place: Path) -> None:
    (place / "odd.py").write_text("def f(s, t, y):\n    return ((s > 0) * y).mean()\n")
    assert "has a parameter 'y', which has another meaning here" in told(
        train("odd.py:f", "--amount", "y=value")
    )
