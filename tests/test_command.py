"""The command line: train, predict and compare; what it refuses, what it keeps, what it never looks at."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_rel
from sklearn.datasets import dump_svmlight_file
from typer.testing import CliRunner

import metricgrad as mg
from metricgrad.cli import app
from metricgrad.cli.comparing import differences, method_list
from metricgrad.cli.evidence import gather
from metricgrad.cli.reading import bundled, read_table
from metricgrad.cli.training import seconds, widths

QUICK = ("--hidden", "none", "--epochs", "2")


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def table(number: int = 300, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(number, 3))
    kind = generator.choice(["a", "b"], number)
    y = np.where(x[:, 0] + (kind == "a") + 0.5 * generator.normal(size=number) > 1.2, "yes", "no")
    return pd.DataFrame({"one": x[:, 0], "two": x[:, 1], "three": x[:, 2], "kind": kind, "label": y})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    table().to_csv(path, index=False)
    return path


def train(data: Path, *arguments: Any) -> Any:
    return run("train", data, "--target", "label", "--positive", "yes", *QUICK, *arguments)


# ------------------------------------------------------------------------------------------------------------ train


def test_train_leaves_a_model_and_its_result(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = train(data, "--out", out)
    assert found.exit_code == 0, found.output
    assert "cross-entropy, threshold tuned" in found.output
    result = json.loads((out / "result.json").read_text())
    assert result["rows"] == {"train": 225, "test": 75, "without_target": 0}
    assert result["finalists"]["cross_entropy"]["test"] > 0.6
    kept = ["config.json", "evidence.npz", "figures", "model.safetensors", "report.html", "result.json"]
    assert sorted(path.name for path in out.iterdir()) == kept
    assert {entry["method"] for entry in result["tried"]} >= {"cross_entropy", "uniloss (slope 2)", "soft_f_beta"}
    assert len(result["finalists"]["challenger"]["curve"]) == 2
    config = json.loads((out / "config.json").read_text())
    assert config["asked"]["metric"] == "f1"
    assert "torch" in config["versions"]


def test_the_model_predicts_what_was_measured(data: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    table(seed=5).to_csv(test, index=False)
    train(data, "--test", test, "--out", tmp_path / "run", "--method", "cross_entropy")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    found = run("predict", tmp_path / "run", test, "--out", tmp_path / "found.csv", "--target", "label")
    assert found.exit_code == 0, found.output
    predictions = pd.read_csv(tmp_path / "found.csv")
    truth = table(seed=5)["label"]
    value = mg.metric("f1")(2.0 * (predictions["prediction"] == "yes") - 1, (truth == "yes").to_numpy())
    assert float(value) == pytest.approx(result["finalists"]["cross_entropy"]["test"], abs=1e-6)
    assert f"f1: {result['finalists']['cross_entropy']['test']:.4f} on 300 rows" in found.output
    assert list(predictions.columns) == ["prediction", "probability of no", "probability of yes"]
    again = run("predict", tmp_path / "run", test, "--out", tmp_path / "found.csv")
    assert again.exit_code == 2
    assert "is there already" in again.output


def test_a_second_start_shows_the_result_and_another_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(data, "--out", out, "--method", "cross_entropy")
    before = {path.name: path.read_bytes() for path in out.rglob("*.*")}
    second = train(data, "--out", out, "--method", "cross_entropy")
    assert second.exit_code == 0
    assert "this run is there already" in second.output
    other = train(data, "--out", out, "--method", "cross_entropy", "--metric", "mcc")
    assert other.exit_code == 2
    assert "has a run with metric = 'f1', and this one has 'mcc'" in other.output
    changed = data.read_bytes()
    data.write_bytes(changed + changed.splitlines(keepends=True)[-1])
    another = train(data, "--out", out, "--method", "cross_entropy")
    assert another.exit_code == 2
    assert "a file has changed since" in another.output
    assert {path.name: path.read_bytes() for path in out.rglob("*.*")} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    foreign = train(data, "--out", tmp_path / "mine")
    assert foreign.exit_code == 2
    assert "files in it that are no run" in foreign.output


def test_test_data_never_influences_the_model(data: Path, tmp_path: Path) -> None:
    """Labels of test data are turned round: values on test data change, the model does not by a bit."""
    clean, poisoned = table(seed=5), table(seed=5)
    poisoned["label"] = np.where(poisoned["label"] == "yes", "no", "yes")
    for name, each in (("clean", clean), ("poisoned", poisoned)):
        each.to_csv(tmp_path / f"{name}.csv", index=False)
        train(data, "--test", tmp_path / f"{name}.csv", "--out", tmp_path / name)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("clean", "poisoned")]
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("clean", "poisoned")]
    assert models[0] == models[1]
    assert results[0]["chosen"] == results[1]["chosen"]
    assert results[0]["tried"] == results[1]["tried"]
    tests = [[each["test"] for each in result["finalists"].values()] for result in results]
    assert tests[0] != tests[1]


def test_json_is_for_machines(data: Path, tmp_path: Path) -> None:
    found = train(data, "--out", tmp_path / "run", "--method", "focal", "--json")
    assert json.loads(found.stdout)["finalists"]["challenger"]["method"].startswith("focal")


def test_a_run_that_was_killed_goes_on_and_ends_the_same(data: Path, tmp_path: Path) -> None:
    def command(out: str) -> list[str]:
        main = ["-m", "metricgrad", "train", str(data), "--target", "label", "--out", str(tmp_path / out)]
        return [sys.executable, *main, *QUICK, "--method", "uniloss"]

    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command("whole"), check=True, capture_output=True, env=surroundings)
    process = subprocess.Popen(
        command("killed"), env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    for _ in range(1200):
        if checkpoints.is_dir() and len(list(checkpoints.glob("challengers*.safetensors"))) >= 1:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    subprocess.run(command("killed"), check=True, capture_output=True, env=surroundings)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]


# ---------------------------------------------------------------------------------------------------------- files


def test_tables_of_every_kind_are_the_same(tmp_path: Path) -> None:
    expected = table()
    expected.to_csv(tmp_path / "a.csv", index=False)
    expected.to_csv(tmp_path / "b.csv.gz", index=False)
    expected.to_csv(tmp_path / "c.tsv", index=False, sep="\t")
    expected.to_csv(tmp_path / "d.csv", index=False, sep=";")
    expected.to_parquet(tmp_path / "e.parquet", index=False)
    (tmp_path / "g.parquet.gz").write_bytes(gzip.compress((tmp_path / "e.parquet").read_bytes()))
    for path in sorted(tmp_path.iterdir()):
        pd.testing.assert_frame_equal(read_table(path), expected, check_dtype=False)
    x = expected[["one", "two", "three"]].to_numpy()
    dump_svmlight_file(x, (expected["label"] == "yes").astype(int), str(tmp_path / "f.svm"), zero_based=False)
    found = read_table(tmp_path / "f.svm")
    np.testing.assert_allclose(found[["x1", "x2", "x3"]], x, rtol=1e-10)
    assert (found["target"] == (expected["label"] == "yes")).all()


def spoiled(tmp_path: Path, kind: str) -> tuple[Path, tuple[str, ...]]:
    path, frame = tmp_path / "data.csv", table()
    options: tuple[str, ...] = ("--target", "label")
    match kind:
        case "missing column":
            options = ("--target", "lable")
        case "constant target":
            frame["label"] = "no"
        case "three classes":
            frame["label"] = np.arange(len(frame)) % 3
            options += ("--metric", "eer")
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
            options += ("--metric", "f7")
    frame.to_csv(path, index=False)
    return path, options


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing column", "there is no column 'lable' among one, two, three, kind, label. Did you mean 'label'?"),
        ("constant target", "column 'label' is 'no' in all 300 rows"),
        ("text among numbers", "column 'one' is numbers but for 1 rows, such as 'a lot' in row 17"),
        ("empty file", "data.csv is empty"),
        ("no rows", "has columns but no rows"),
        ("broken parquet", "data.parquet cannot be read as parquet"),
        ("another kind", "is of no kind that can be read; pass CSV"),
        ("one of a class", "class 'yes' of column 'label' is in 1 rows only"),
        ("positive", "--positive must be one of no, yes; got maybe"),
        ("hidden", "--hidden must be widths such as 100,30,10, or none; got 'big'"),
        ("budget", "--budget must be a time such as 90s, 2m or 1h; got 'soon'"),
        ("method", "there is no method 'magic'"),
        ("metric", "no metric named 'f7'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(kind: str, message: str, tmp_path: Path) -> None:
    path, options = spoiled(tmp_path, kind)
    found = run("train", path, *options, "--out", tmp_path / "run")
    assert found.exit_code == 2, found.output
    assert message in found.output.replace("\n", "")
    assert "Traceback" not in found.output
    assert not (tmp_path / "run" / "result.json").exists()


def test_three_classes_for_a_binary_metric(tmp_path: Path) -> None:
    frame = table().assign(label=np.arange(300) % 3)
    frame.to_csv(tmp_path / "data.csv", index=False)
    found = run(
        "train", tmp_path / "data.csv", "--target", "label", "--metric", "recall_at_k", "--out", tmp_path / "run"
    )
    assert found.exit_code == 2
    assert "for two classes, and the target has 3" in found.output.replace("\n", " ")


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
    assert (unseen.exit_code, "classes that training did not: 'perhaps'" in unseen.output) == (2, True)


def test_rows_without_a_target_are_left_out_and_told(tmp_path: Path) -> None:
    frame = table()
    frame.loc[:9, "label"] = None
    frame.to_csv(tmp_path / "data.csv", index=False)
    train(tmp_path / "data.csv", "--out", tmp_path / "run", "--method", "focal")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rows"]["without_target"] == 10


def test_widths_and_times() -> None:
    assert widths("100, 30") == [100, 30]
    assert widths("none") == []
    assert [seconds(text) for text in ("90s", "2m", "1h", "7", None)] == [90, 120, 3600, 7, None]


def test_bundled_data_is_imbalanced() -> None:
    assert 0.05 < bundled()["target"].mean() < 0.15


# ---------------------------------------------------------------------------------------------------------- compare


def test_compare_tells_what_is_significant_and_goes_on_where_it_stopped(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    arguments = ("compare", data, "--target", "label", *QUICK, "--methods", "focal", "--splits", 3, "--out", out)
    found = run(*arguments)
    assert found.exit_code == 0, found.output
    assert "no difference shown" in found.output
    result = json.loads((out / "result.json").read_text())
    assert [len(values) for values in result["values"].values()] == [3, 3]
    values = json.loads((out / "values.json").read_text())
    values["focal"][:] = [0.1, 0.2]  # as if it had been stopped before the last split, with other values
    (out / "values.json").write_text(json.dumps(values))
    again = run(*arguments, "--json")
    assert json.loads(again.stdout)["values"]["focal"] == [0.1, 0.2, result["values"]["focal"][2]]


def test_differences_are_paired_corrected_for_overlap_and_for_many() -> None:
    generator = np.random.default_rng(0)
    usual = generator.normal(0.7, 0.02, 10)
    values = {
        "cross_entropy": usual,
        "good": usual + generator.normal(0.05, 0.01, 10),
        "same": usual + 1e-3 * generator.normal(size=10),
    }
    listed = {name: list(each) for name, each in values.items()}
    found = differences(listed, True, 0.25)
    assert found["good"]["mean"] == pytest.approx((values["good"] - usual).mean())
    each = values["good"] - usual
    assert found["good"]["error"] == pytest.approx(each.std(ddof=1) * np.sqrt(1 / 10 + 1 / 3))
    assert found["good"]["p"] < 0.01
    assert found["same"]["p"] > 0.1
    assert found["good"]["p"] > ttest_rel(values["good"], usual).pvalue
    worse = differences(listed, False, 0.25)
    assert worse["good"]["mean"] == -found["good"]["mean"]


def test_compare_keeps_the_sign_of_a_value(tmp_path: Path) -> None:
    """MCC of labels that say nothing is around 0, on either side of it."""
    frame = table().assign(label=np.random.default_rng(3).permutation(np.arange(300) % 2))
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", "--metric", "mcc", *QUICK, "--methods", "focal", "--splits", 6, "--json")
    values = json.loads(run("compare", tmp_path / "data.csv", *options, "--out", tmp_path / "run").stdout)["values"]
    assert min(values["focal"] + values["cross_entropy"]) < 0


def test_compare_refuses_methods_it_does_not_know(data: Path, tmp_path: Path) -> None:
    found = run("compare", data, "--target", "label", "--methods", "auto,magic", "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "no method 'magic'; there are all, auto, approx_ndcg" in found.output.replace("\n", " ")


def test_compare_takes_all_methods_that_there_are_for_such_targets(tmp_path: Path) -> None:
    classes = pd.Series(np.arange(300) % 3)
    binary = method_list("all", mg.metric("f1"), classes % 2, None)
    assert {"uniloss", "reloss", "bilevel", "smooth_ap", "auto"} < set(binary)
    assert "heatmap_mse" not in binary
    several = method_list("all", mg.metric("accuracy"), classes, None)
    assert set(several) < set(binary)
    assert "smooth_ap" not in several
    table().assign(label=classes).to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", "--metric", "accuracy", *QUICK, "--methods", "all", "--splits", 2, "--json")
    found = run("compare", tmp_path / "data.csv", *options, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    assert list(json.loads(found.stdout)["values"]) == several


# ----------------------------------------------------------------------------------------------------------- report


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    table().to_csv(folder / "data.csv", index=False)
    found = train(folder / "data.csv", "--out", folder / "run")
    assert found.exit_code == 0, found.output
    return folder / "run"


def test_a_report_needs_nothing_but_itself(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "://" not in page  # no address: `:` is not among the letters that pictures are written in
    assert page.count("data:image/png;base64,") == 6
    result = json.loads((finished / "result.json").read_text())
    assert result["verdict"].split(":")[0] in page
    for each in result["finalists"].values():
        assert f"{each['test']:.4f}" in page
    assert len(list((finished / "figures").glob("*.png"))) == 6


def test_a_report_is_drawn_again(finished: Path) -> None:
    before = (finished / "report.html").read_bytes()
    (finished / "report.html").unlink()
    assert run("report", finished).exit_code == 0
    assert (finished / "report.html").read_bytes() == before
    nowhere = run("report", finished / "figures")
    assert (nowhere.exit_code, "has no config.json and result.json" in nowhere.output.replace("\n", " ")) == (2, True)


@pytest.mark.parametrize("kind", ["classes", "order"])
def test_reports_of_other_tasks(kind: str, tmp_path: Path) -> None:
    frame = table()
    if kind == "classes":
        frame["label"] = np.digitize(frame["one"], [-0.5, 0.5])
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("--metric", "accuracy") if kind == "classes" else ("--metric", "average_precision")
    found = run("train", tmp_path / "data.csv", "--target", "label", *QUICK, *options, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    pictures = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    common = {"comparison", "curves", "alignment"}  # a metric of order asks for no decision
    assert pictures == common | ({"confusion"} if kind == "classes" else {"roc_pr"})
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("threshold tuned" in page, "best threshold" in page) == (False, False)


def test_losses_that_cannot_be_ranked_are_left_out_of_the_evidence() -> None:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1].square() > 1.5).long()
    found = mg.fit(torch.nn.Linear(2, 1), (x, y), metric="auc", method="cross_entropy", rate=0.1, epochs=2, folds=1)
    assert "aligned_names" in gather(replace(found, score_sets=found.score_sets * 4), x, y)
    one_class = [sets._replace(target=torch.zeros_like(sets.target)) for sets in found.score_sets * 4]
    assert "aligned_names" not in gather(replace(found, score_sets=one_class), x, y)


def test_a_refused_command_does_not_block_its_folder(data: Path, tmp_path: Path) -> None:
    options = ("train", data, "--target", "label", *QUICK, "--out", tmp_path / "run")
    refused = run(*options, "--method", "nope")
    assert (refused.exit_code, "no method 'nope'" in refused.output.replace("\n", " ")) == (2, True)
    assert run(*options, "--method", "cross_entropy").exit_code == 0
    (tmp_path / "file").write_text("")
    taken = run("train", data, "--target", "label", "--out", tmp_path / "file")
    assert (taken.exit_code, "is a file; name a folder" in taken.output.replace("\n", " ")) == (2, True)


def test_columns_can_be_left_out(tmp_path: Path) -> None:
    frame = table()
    frame["id"] = [f"customer {number}" for number in range(len(frame))]
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("train", tmp_path / "data.csv", "--target", "label", *QUICK, "--method", "cross_entropy")
    refused = run(*options, "--out", tmp_path / "run")
    assert (refused.exit_code, "--drop id" in refused.output.replace("\n", " ")) == (2, True)
    found = run(*options, "--drop", "id", "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    wrong = run(*options, "--drop", "ids", "--out", tmp_path / "other")
    assert (wrong.exit_code, "--drop names 'ids'" in wrong.output.replace("\n", " ")) == (2, True)


def test_true_and_false_with_gaps_are_the_same_categories(tmp_path: Path) -> None:
    """Read without gaps they are of type bool, with gaps objects, which must not become 1.0 and 0.0."""
    frame = table()
    frame["flag"] = frame["label"].astype(bool)  # all that matters
    frame.to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", *QUICK, "--method", "cross_entropy", "--out", tmp_path / "run")
    assert run("train", tmp_path / "data.csv", *options).exit_code == 0
    gaps = frame.astype({"flag": object})
    gaps.loc[0, "flag"] = None
    values = []
    for number, each in enumerate((frame, gaps)):
        each.to_csv(tmp_path / f"new{number}.csv", index=False)
        found = run("predict", tmp_path / "run", tmp_path / f"new{number}.csv", "--out", tmp_path / f"p{number}.csv")
        assert found.exit_code == 0, found.output
        values.append(pd.read_csv(tmp_path / f"p{number}.csv")["prediction"].to_numpy())
    assert (values[0] == values[1]).mean() > 0.99


def test_a_model_that_was_trained_on_an_array_predicts_a_table(tmp_path: Path) -> None:
    frame: Any = table()[["one", "label"]]
    model = mg.MetricClassifier("f1", "cross_entropy", hidden=(), epochs=1, rate=0.1, random_state=0)
    model.fit(frame[["one"]].to_numpy(), frame["label"].to_numpy()).save(tmp_path / "model.safetensors")
    frame.to_csv(tmp_path / "new.csv", index=False)
    options = ("predict", tmp_path / "model.safetensors", tmp_path / "new.csv")
    found = run(*options, "--target", "label", "--out", tmp_path / "p.csv")
    assert found.exit_code == 0, found.output
    expected = model.predict(frame[["one"]].to_numpy())
    assert (pd.read_csv(tmp_path / "p.csv")["prediction"].to_numpy() == expected).all()
    wrong = run(*options)
    assert (wrong.exit_code, "has 2 columns; the model was trained on 1" in wrong.output.replace("\n", " ")) == (
        2,
        True,
    )


def test_a_damaged_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "result.json").write_text("{}")
    found = run("report", tmp_path)
    assert (found.exit_code, "is no whole run" in found.output.replace("\n", " ")) == (2, True)


def shown(path: Path) -> dict[str, Any]:
    """What a browser of a telephone's width makes of a page."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        errors: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        found = {
            "errors": errors,
            "asked": asked,
            "widths": page.evaluate("[...document.images].map(image => image.complete ? image.naturalWidth : 0)"),
            "overflow": page.evaluate("document.documentElement.scrollWidth - window.innerWidth"),
            "title": page.title(),
        }
        browser.close()
    return found


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium, which .ci/run installs")
@pytest.mark.parametrize(
    ("command", "pictures"),
    [((), 6), (("train", "--metric", "average_precision"), 4), (("compare", "--splits", 2, "--methods", "focal"), 1)],
    ids=["decisions", "order", "comparison"],
)
def test_a_browser_shows_the_report(
    command: tuple[Any, ...], pictures: int, finished: Path, data: Path, tmp_path: Path
) -> None:
    """No errors, no network, all pictures there, and nothing wider than a telephone."""
    place = tmp_path / "run" if command else finished
    if command:
        found = run(command[0], data, "--target", "label", *QUICK, *command[1:], "--out", place)
        assert found.exit_code == 0, found.output
    page = shown(place / "report.html")
    assert page["errors"] == []
    assert all(url.startswith(("file:", "data:")) for url in page["asked"])
    assert len(page["widths"]) == pictures
    assert min(page["widths"]) > 300
    assert page["overflow"] <= 0
    assert " on " in page["title"]


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)  # a longer file fails as on a full disk
from metricgrad.cli import app
app(["train", "--epochs", "2", "--method", "cross_entropy", "--hidden", "none", "--out", sys.argv[2]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the length of files by the operating system")
def test_a_full_disk_is_told_in_a_sentence_and_the_run_goes_on_later(tmp_path: Path) -> None:
    def start(length: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", FULL_DISK, str(length), str(tmp_path / "run")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = start(4000)
    assert found.returncode == 2
    assert "could not be written" in found.stderr
    assert "Traceback" not in found.stderr
    assert start(10_000_000).returncode == 0
    assert (tmp_path / "run" / "report.html").exists()
