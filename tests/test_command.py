"""The command line: train and predict; what it refuses, and what it never looks at."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

import metricgrad as mg
from metricgrad.studies import ComparisonSettings, RunSettings
from metricgrad.studies.settings import named_metric
from tests.commands import QUICK, full_disk, limits_files, run, table, train

# --------------------------------------------------------------------------------------------------
# train


def test_train_leaves_a_model_and_its_result(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = train(data, "--out", out)
    assert found.exit_code == 0, found.output
    assert "cross-entropy, threshold tuned" in found.output
    result = json.loads((out / "result.json").read_text())
    assert result["rows"] == {"train": 225, "test": 75, "without_target": 0, "validation": None}
    assert result["finalists"]["cross_entropy"]["test"] > 0.6
    kept = [
        "config.json",
        "evidence.npz",
        "figures",
        "model.safetensors",
        "report.html",
        "result.json",
    ]
    assert sorted(path.name for path in out.iterdir()) == kept
    assert {entry["method"] for entry in result["tried"]} >= {
        "cross_entropy",
        "uniloss (slope 2)",
        "soft_f_beta",
    }
    assert len(result["finalists"]["challenger"]["curve"]) == 2
    config = json.loads((out / "config.json").read_text())
    assert config["asked"]["metric"] == "f1"
    assert "torch" in config["versions"]


def test_the_model_predicts_what_was_measured(data: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    table(seed=5).to_csv(test, index=False)
    train(data, "--test", test, "--out", tmp_path / "run", "--method", "cross_entropy")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    found = run(
        "predict", tmp_path / "run", test, "--out", tmp_path / "found.csv", "--target", "label"
    )
    assert found.exit_code == 0, found.output
    predictions = pd.read_csv(tmp_path / "found.csv")
    truth = table(seed=5)["label"]
    value = mg.metric("f1")(
        2.0 * (predictions["prediction"] == "yes") - 1, (truth == "yes").to_numpy()
    )
    assert float(value) == pytest.approx(result["finalists"]["cross_entropy"]["test"], abs=1e-6)
    assert f"f1: {result['finalists']['cross_entropy']['test']:.4f} on 300 rows" in found.output
    assert list(predictions.columns) == ["prediction", "probability of no", "probability of yes"]
    again = run("predict", tmp_path / "run", test, "--out", tmp_path / "found.csv")
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_test_data_never_influences_the_model(data: Path, tmp_path: Path) -> None:
    """Labels of test data are turned round: its values change, the model does not by a bit."""
    clean, poisoned = table(seed=5), table(seed=5)
    poisoned["label"] = np.where(poisoned["label"] == "yes", "no", "yes")
    for name, each in (("clean", clean), ("poisoned", poisoned)):
        each.to_csv(tmp_path / f"{name}.csv", index=False)
        train(data, "--test", tmp_path / f"{name}.csv", "--out", tmp_path / name)
    models = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("clean", "poisoned")
    ]
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("clean", "poisoned")
    ]
    assert models[0] == models[1]
    assert results[0]["chosen"] == results[1]["chosen"]
    assert results[0]["tried"] == results[1]["tried"]
    tests = [[each["test"] for each in result["finalists"].values()] for result in results]
    assert tests[0] != tests[1]


def test_json_is_for_machines(data: Path, tmp_path: Path) -> None:
    found = train(data, "--out", tmp_path / "run", "--method", "focal", "--json")
    assert json.loads(found.stdout)["finalists"]["challenger"]["method"].startswith("focal")


# --------------------------------------------------------------------------------------------------
# files


def spoiled(tmp_path: Path, kind: str) -> tuple[Path, tuple[str, ...]]:
    path, frame = tmp_path / "data.csv", table()
    options: tuple[str, ...] = ("--target", "label")
    match kind:
        case "missing column":
            options = ("--target", "lable")
        case "constant target":
            frame["label"] = "no"
        case "continuous target":
            frame["label"] = frame["three"]
        case "text among numbers":
            frame["one"] = frame["one"].astype(object)
            frame.loc[16, "one"] = "a lot"
        case "empty file":
            path.write_text("")
            return path, options
        case "no rows":
            frame = frame[:0]
        case "broken parquet":
            path = tmp_path / "data.parquet"
            path.write_bytes(b"PAR1 and then nothing")
            return path, options
        case "another kind":
            path = tmp_path / "data.xlsx"
            path.write_bytes(b"PK")
            return path, options
        case "one of a class":
            frame["label"] = np.where(np.arange(len(frame)) == 0, "yes", "no")
        case "positive":
            options += ("--positive", "maybe")
        case "hidden":
            options += ("--hidden", "big")
        case "budget":
            options += ("--budget", "soon")
        case "method":
            options += ("--method", "magic")
        case "metric":
            options += ("--metric", "magic")
        case _ if kind.startswith("metric "):
            options += ("--metric", kind.removeprefix("metric "))
    frame.to_csv(path, index=False)
    return path, options


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "missing column",
            "there is no column 'lable' among one, two, three, kind, label. Did you mean 'label'?",
        ),
        ("constant target", "column 'label' is 'no' in all 300 rows"),
        ("continuous target", "column 'label' has 300 values such as"),
        ("text among numbers", "column 'one' is numbers but for 1 rows, such as 'a lot' in row 17"),
        ("empty file", "data.csv is empty"),
        ("no rows", "has columns but no rows"),
        ("broken parquet", "data.parquet cannot be read as parquet"),
        ("another kind", "is not a kind of file that can be read; pass CSV"),
        ("one of a class", "class 'yes' of column 'label' is in 1 rows only"),
        ("positive", "--positive must be one of no, yes; got maybe"),
        ("hidden", "--hidden must be widths such as 100,30,10, or none; got 'big'"),
        ("budget", "--budget must be a time such as 90s, 2m or 1h; got 'soon'"),
        ("method", "there is no method 'magic'"),
        ("metric", "no metric named 'magic'"),
        ("metric fbeta:b=2", "--metric fbeta:b=2: fbeta has no option b; it takes"),
        ("metric fbeta:beta=abc", "--metric fbeta:beta=abc: beta must be a number; got 'abc'"),
        ("metric f1:multilabel=yes", "multilabel must be true or false; got 'yes'"),
        ("metric precision_at_k:k=x", "k must be a number; got 'x'"),
        ("metric precision_at_k:k=1.5", "k must be a whole number; got 1.5"),
        ("metric ndcg:k=x", "--metric ndcg:k=x: k must be a whole number; got 'x'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(kind: str, message: str, tmp_path: Path) -> None:
    path, options = spoiled(tmp_path, kind)
    found = run("train", path, *options, "--out", tmp_path / "run")
    assert found.exit_code == 2, found.output
    assert message in found.output.replace("\n", "")
    assert "Traceback" not in found.output
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("recall_at_k", "recall_at_k is for two classes, and the target has 3"),
        ("f1:multilabel=True", "f1 takes several labels for each item, and column 'label' has one"),
        ("mean_iou", "mean_iou takes label maps, and column 'label' has one class per row; pass"),
        ("pck", "pck takes heatmaps of joints"),
        ("bleu", "bleu takes texts"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_metric_that_does_not_fit_is_refused_before_anything_is_written(
    command: str, metric: str, message: str, tmp_path: Path
) -> None:
    table().assign(label=np.arange(300) % 3).to_csv(tmp_path / "data.csv", index=False)
    place = tmp_path / "run"
    options = ("--target", "label", "--metric", metric, "--out", place)
    found = run(command, tmp_path / "data.csv", *options)
    assert found.exit_code == 2
    assert message in found.output.replace("\n", " ")
    assert not place.exists()


def test_prediction_refuses_what_it_cannot_predict(data: Path, tmp_path: Path) -> None:
    train(data, "--out", tmp_path / "run", "--method", "cross_entropy")
    table().drop(columns="two").to_csv(tmp_path / "less.csv", index=False)
    table().assign(label="perhaps").to_csv(tmp_path / "new.csv", index=False)
    less = run("predict", tmp_path / "run", tmp_path / "less.csv")
    assert (less.exit_code, "has no column 'two'" in less.output) == (2, True)
    nothing = run("predict", tmp_path / "nowhere.safetensors", data)
    assert (nothing.exit_code, "there is no model" in nothing.output) == (2, True)
    mixed = table()
    mixed.loc[:3, "label"] = "perhaps"
    mixed.to_csv(tmp_path / "new.csv", index=False)
    unseen = run("predict", tmp_path / "run", tmp_path / "new.csv", "--target", "label")
    assert (unseen.exit_code, "classes that training did not have: 'perhaps'" in unseen.output) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"two": "2024-01-03"},
            "new.csv: column 'two' was numbers in training and has times now "
            "('2024-01-03 00:00:00+00:00' in row 1); convert it",
        ),
        (
            {"two": ["5"] * 100 + ["much"] * 200},
            "new.csv: column 'two' was numbers in training and has text now ('much' in row 101);",
        ),
        (
            {"two": ["5"] * 299 + ["much"]},
            "new.csv: column 'two' is numbers but for 1 rows, such as 'much' in row 300;",
        ),
        ({"day": 5}, "new.csv: column 'day' was times in training and has numbers now ('5' in row"),
        ({"day": "soon"}, "new.csv: column 'day' was times in training and has text now ('soon'"),
    ],
)
def test_prediction_refuses_columns_of_another_kind(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    frame = table().assign(day=pd.date_range("2024-01-31", periods=300).strftime("%Y-%m-%d"))
    options: dict[str, Any] = {"method": "focal", "hidden": (), "epochs": 1, "rate": 0.1}
    model = mg.MetricClassifier("f1", positive="yes", **options)
    times = frame.assign(day=pd.to_datetime(frame["day"]))
    model.fit(times.drop(columns="label"), frame["label"]).save(tmp_path / "model.safetensors")
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", tmp_path / "model.safetensors", tmp_path / "new.csv").exit_code == 0
    frame.assign(**change).to_csv(tmp_path / "new.csv", index=False)
    found = run("predict", tmp_path / "model.safetensors", tmp_path / "new.csv")
    assert found.exit_code == 2, found.output
    assert message in found.output.replace("\n", "")


def test_prediction_looks_only_at_the_columns_that_it_needs(data: Path, tmp_path: Path) -> None:
    train(data, "--out", tmp_path / "run", "--method", "cross_entropy")
    more = table(seed=5).assign(more=["1,234", "12,500"] * 150)
    more.to_csv(tmp_path / "new.csv", index=False)
    options = ("predict", tmp_path / "run", tmp_path / "new.csv", "--target")
    assert run(*options, "label").exit_code == 0
    wrong = run(*options, "lable")
    assert wrong.exit_code == 2
    assert "there is no column 'lable'" in wrong.output.replace("\n", " ")


def test_rows_without_a_target_are_left_out_and_told(tmp_path: Path) -> None:
    frame = table()
    frame.loc[:9, "label"] = None
    frame.to_csv(tmp_path / "data.csv", index=False)
    train(tmp_path / "data.csv", "--out", tmp_path / "run", "--method", "cross_entropy")
    assert (
        json.loads((tmp_path / "run" / "result.json").read_text())["rows"]["without_target"] == 10
    )


def test_columns_can_be_left_out(tmp_path: Path) -> None:
    frame = table()
    frame["id"] = [f"customer {number}" for number in range(len(frame))]
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = (
        "train",
        tmp_path / "data.csv",
        "--target",
        "label",
        *QUICK,
        "--method",
        "cross_entropy",
    )
    refused = run(*options, "--out", tmp_path / "run")
    assert (refused.exit_code, "--drop id" in refused.output.replace("\n", " ")) == (2, True)
    found = run(*options, "--drop", "id", "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    wrong = run(*options, "--drop", "ids", "--out", tmp_path / "other")
    assert (wrong.exit_code, "--drop names 'ids'" in wrong.output.replace("\n", " ")) == (2, True)


def test_true_and_false_with_gaps_are_the_same_categories(tmp_path: Path) -> None:
    """Without gaps they are of type bool, with gaps objects, which must not become 1.0 and 0.0."""
    frame = table()
    frame["flag"] = frame["label"] == "yes"  # all that matters
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", *QUICK, "--method", "cross_entropy", "--out", tmp_path / "run")
    assert run("train", tmp_path / "data.csv", *options).exit_code == 0
    gaps = frame.astype({"flag": object})
    gaps.loc[0, "flag"] = None
    values = []
    for number, each in enumerate((frame, gaps)):
        each.to_csv(tmp_path / f"new{number}.csv", index=False)
        found = run(
            "predict",
            tmp_path / "run",
            tmp_path / f"new{number}.csv",
            "--out",
            tmp_path / f"p{number}.csv",
        )
        assert found.exit_code == 0, found.output
        values.append(pd.read_csv(tmp_path / f"p{number}.csv")["prediction"].to_numpy())
    assert (values[0] == values[1]).mean() > 0.99


def test_a_model_that_was_trained_on_an_array_predicts_a_table(tmp_path: Path) -> None:
    frame: Any = table()[["one", "label"]]
    model = mg.MetricClassifier(
        "f1", "cross_entropy", hidden=(), epochs=1, rate=0.1, positive="yes", random_state=0
    )
    model.fit(frame[["one"]].to_numpy(), frame["label"].to_numpy()).save(
        tmp_path / "model.safetensors"
    )
    frame.to_csv(tmp_path / "new.csv", index=False)
    options = ("predict", tmp_path / "model.safetensors", tmp_path / "new.csv")
    found = run(*options, "--target", "label", "--out", tmp_path / "p.csv")
    assert found.exit_code == 0, found.output
    expected = model.predict(frame[["one"]].to_numpy())
    assert (pd.read_csv(tmp_path / "p.csv")["prediction"].to_numpy() == expected).all()
    frame.assign(one="2024-01-03").to_csv(tmp_path / "new.csv", index=False)
    dates = run(*options, "--target", "label")
    assert dates.exit_code == 2
    assert "'one' was numbers in training and has times now" in dates.output.replace("\n", " ")
    wrong = run(*options)
    assert (
        wrong.exit_code,
        "has 2 columns; the model was trained on 1" in wrong.output.replace("\n", " "),
    ) == (
        2,
        True,
    )


def test_a_metric_with_options(data: Path, tmp_path: Path) -> None:
    assert named_metric("fbeta:beta=2") == mg.metric("fbeta", beta=2)
    assert named_metric("f1:average=micro") == mg.metric("f1", average="micro")
    settings: dict[str, Any] = {"data": "some/data.csv.gz", "metric": "fbeta:beta=2"}
    assert RunSettings(**settings).folder_name == "data-fbeta-beta-2"
    assert ComparisonSettings(**settings).folder_name == "data-fbeta-beta-2-compared"
    assert RunSettings(metric="f1").folder_name == "digits-f1"
    with pytest.raises(
        ValueError, match="fbeta:2: options are written as in fbeta:beta=2; got '2'"
    ):
        named_metric("fbeta:2")
    found = train(
        data,
        "--metric",
        "fbeta:beta=2",
        "--method",
        "cross_entropy",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert found.exit_code == 0, found.output
    model = mg.MetricClassifier.load(tmp_path / "run" / "model.safetensors")
    assert vars(model.trained_.metric)["beta"] == 2


def test_which_class_is_positive_is_told(data: Path, tmp_path: Path) -> None:
    options = (
        "train",
        data,
        "--target",
        "label",
        *QUICK,
        "--method",
        "cross_entropy",
        "--positive",
    )
    rare = " ".join(run(*options, "yes", "--out", tmp_path / "yes").output.split())
    assert "Positive is yes, 25.3 % of the test rows." in rare
    assert "other class" not in rare
    often = " ".join(run(*options, "no", "--out", tmp_path / "no").output.split())
    assert "of the test rows. Pass --positive yes for the other class." in often
    assert "positive is no, 74.7 %" in (tmp_path / "no" / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda frame: frame.drop(columns="two"),
            "has no column 'two', which the training",
            id="column",
        ),
        pytest.param(
            lambda frame: frame.assign(label="maybe"),
            "classes that the training data does not have",
            id="class",
        ),
        pytest.param(
            lambda frame: frame.assign(two="much"),
            "was numbers in training and has text now",
            id="text",
        ),
    ],
)
def test_test_data_that_does_not_fit_is_refused_before_training(
    change: Any, message: str, data: Path, tmp_path: Path
) -> None:
    change(table(seed=5)).to_csv(tmp_path / "test.csv", index=False)
    refused = train(
        data,
        "--test",
        tmp_path / "test.csv",
        "--method",
        "cross_entropy",
        "--out",
        tmp_path / "run",
    )
    assert (refused.exit_code, message in refused.output.replace("\n", " ")) == (2, True)
    assert not (tmp_path / "run").exists()


def test_the_file_and_row_of_test_data_that_does_not_fit_are_told(
    data: Path, tmp_path: Path
) -> None:
    later = table(seed=5).astype({"one": object, "two": object})
    later.loc[0, "label"] = None  # a row that is left out counts all the same
    later.loc[1:, "two"] = "2024-01-03"
    test = tmp_path / "test.csv"
    later.to_csv(test, index=False)
    refused = train(data, "--test", test, "--out", tmp_path / "run")
    assert refused.exit_code == 2
    message = (
        f"{test}: column 'two' was numbers in training and has times now "
        "('2024-01-03 00:00:00+00:00' in row 2);"
    )
    assert message in refused.output.replace("\n", "")
    later["two"] = table()["two"]
    later.loc[9, "one"] = "a lot"
    later.to_csv(test, index=False)
    refused = train(data, "--test", test, "--out", tmp_path / "run")
    assert f"{test}: column 'one' is numbers but for 1 rows, such as 'a lot' in row 10" in (
        refused.output.replace("\n", "")
    )


def test_test_data_is_not_the_training_data(data: Path, tmp_path: Path) -> None:
    copies = [tmp_path / name for name in ("link.csv", "hard.csv", "copy.csv", "copy.parquet")]
    copies[0].symlink_to(data)
    copies[1].hardlink_to(data)
    copies[2].write_bytes(data.read_bytes())
    table().to_parquet(copies[3])
    for test in (data, *copies):
        refused = train(data, "--test", test, "--out", tmp_path / "run")
        assert refused.exit_code == 2
        assert (
            f"--test {test} has the rows of the training file {data}; pass rows that training does "
            "not see, or leave out --test"
        ) in refused.output.replace("\n", "")
    assert not (tmp_path / "run").exists()


def test_test_data_may_have_other_columns_in_another_order(data: Path, tmp_path: Path) -> None:
    table(seed=5).assign(more=1)[["more", *table().columns[::-1]]].to_csv(
        tmp_path / "test.csv", index=False
    )
    again = train(
        data,
        "--test",
        tmp_path / "test.csv",
        "--method",
        "cross_entropy",
        "--out",
        tmp_path / "run",
    )
    assert again.exit_code == 0, again.output


def test_features_that_are_nowhere_in_an_svmlight_file_are_zero(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 4)).round(3)
    y = (x[:, 0] > 0.5).astype(int)
    dump_svmlight_file(x, y, str(tmp_path / "train.svm"))
    dump_svmlight_file(x[:, :3], y, str(tmp_path / "test.svm"))
    options = (
        "train",
        tmp_path / "train.svm",
        "--test",
        tmp_path / "test.svm",
        *QUICK,
        "--method",
        "cross_entropy",
    )
    assert run(*options, "--out", tmp_path / "run").exit_code == 0
    found = run("predict", tmp_path / "run", tmp_path / "test.svm", "--target", "target", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert told["value"] == pytest.approx(result["finalists"]["cross_entropy"]["test"])
    assert len(told["predictions"]) == told["rows"] == 120


def test_dates_in_text_are_times_and_endings_may_be_capital(tmp_path: Path) -> None:
    frame = table().assign(day=pd.date_range("2024-01-31", periods=300).strftime("%Y-%m-%d"))
    frame.loc[3, "day"] = None
    frame.to_csv(tmp_path / "DATA.CSV", index=False)
    found = train(tmp_path / "DATA.CSV", "--method", "cross_entropy", "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    model = mg.MetricClassifier.load(tmp_path / "run" / "model.safetensors")
    assert [type(each).__name__ for each in model.preparation_.columns][-1] == "Number"


def saved_model(folder: Path) -> Path:
    """A model of three columns, whose table is beside it as data.csv."""
    x = table()[["one", "two", "three"]]
    x.to_csv(folder / "data.csv", index=False)
    options: dict[str, Any] = {"method": "focal", "hidden": (), "epochs": 1, "rate": 0.1}
    model = mg.MetricClassifier("f1", positive="yes", **options)
    model.fit(x.to_numpy(), table()["label"]).save(folder / "model.safetensors")
    return folder / "model.safetensors"


@limits_files
def test_predictions_that_cannot_be_written_leave_no_half_file(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    options = ("predict", saved_model(tmp_path), tmp_path / "data.csv", "--out", out)
    with full_disk(300):
        found = run(*options)
    assert (found.exit_code, "out.csv could not be written" in found.output.replace("\n", "")) == (
        2,
        True,
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.csv", "model.safetensors"]
    (tmp_path / "out.csv.partial").write_text("half of it")  # as a killed process leaves it
    assert run(*options).exit_code == 0
    assert len(pd.read_csv(out)) == 300
    assert not list(tmp_path.glob("*.partial"))


def test_predictions_may_be_gzipped(tmp_path: Path) -> None:
    out = tmp_path / "out.csv.gz"
    assert run("predict", saved_model(tmp_path), tmp_path / "data.csv", "--out", out).exit_code == 0
    assert gzip.decompress(out.read_bytes()).startswith(b"prediction,")
