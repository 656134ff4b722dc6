"""`metricgrad predict --id`: columns that predictions begin with, as the file has them."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import dump_svmlight_file

import metricgrad as mg
from tests.commands import run, table, train
from tests.parquet import mixed_table, write_folder
from tests.test_queries import documents

SETTINGS: dict[str, Any] = {"method": "cross_entropy", "hidden": (), "epochs": 1, "rate": 0.1}
IDS = [
    "007",
    "08",
    "1.50",
    "NA",
    "",
    " x",
    "a,b",
    "1e3",
    *(f"{number:04}" for number in range(292)),
]


def classifier(place: Path, x: Any, y: Any) -> Path:
    """A model in a file."""
    path = place / "model.safetensors"
    positive = "yes" if "yes" in set(y) else None
    model = mg.MetricClassifier("f1", **SETTINGS, positive=positive, random_state=0)
    model.fit(x, y).save(path)
    return path


def predicted(*arguments: Any) -> str:
    found = run("predict", *arguments)
    assert found.exit_code == 0, found.output
    return found.stdout


def as_text(output: str) -> Any:
    return pd.read_csv(io.StringIO(output), dtype=str, keep_default_na=False)


def test_ids_of_text_files_are_copied_letter_by_letter(tmp_path: Path) -> None:
    frame = table()
    model = classifier(tmp_path, frame.drop(columns="label"), frame["label"])
    frame.assign(customer=IDS, number=range(300)).to_csv(tmp_path / "new.csv", index=False)
    plain = as_text(predicted(model, tmp_path / "new.csv"))
    for ids in (("--id", "customer,one"), ("--id", "customer", "--id", " one, customer")):
        found = as_text(predicted(model, tmp_path / "new.csv", *ids))
        assert list(found) == ["customer", "one", *plain]
        assert found["customer"].tolist() == IDS
        assert found["one"].tolist() == as_text((tmp_path / "new.csv").read_text())["one"].tolist()
        pd.testing.assert_frame_equal(found[list(plain)], plain)
    packed = gzip.compress((tmp_path / "new.csv").read_bytes())
    (tmp_path / "new.csv.gz").write_bytes(packed)
    options = ("--id", "customer,number", "--target", "label", "--json")
    rows = json.loads(predicted(model, tmp_path / "new.csv.gz", *options))["predictions"]
    assert [(row["customer"], row["number"]) for row in rows] == list(
        zip(IDS, range(300), strict=True)
    )
    assert list(rows[0])[2:] == list(plain)


def test_ids_that_cannot_be_copied_are_refused_before_anything_is_written(
    data: Path, tmp_path: Path
) -> None:
    train(data, "--out", tmp_path / "run", "--method", "cross_entropy")
    table().assign(prediction=1).to_csv(tmp_path / "new.csv", index=False)
    for name, told in (
        ("custmer", "new.csv: there is no column 'custmer' among one, two, three, kind, label, "),
        ("lable", "Did you mean 'label'?"),
        ("prediction", "new.csv: the predictions already have a column 'prediction'; rename"),
    ):
        options = ("--id", f"one,{name}", "--out", tmp_path / "found.csv")
        found = run("predict", tmp_path / "run", tmp_path / "new.csv", *options)
        assert found.exit_code == 2
        assert told in " ".join(found.output.split())
        assert not (tmp_path / "found.csv").exists()


@pytest.mark.parametrize("streamed", [False, True])
def test_ids_of_parquet_files_keep_their_type(
    streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole number with gaps would be a float in pandas, and lose its last digits."""
    frame = mixed_table(900)
    model = classifier(tmp_path, frame.drop(columns="target"), frame["target"])
    large = pd.Series(2**60 + np.arange(900), dtype="Int64")
    large[::7] = pd.NA
    write_folder(frame.assign(customer=large), tmp_path / "year=2024")
    monkeypatch.setattr("metricgrad.studies.large_tables.RUN_MEMORY", 1024 if streamed else 2**31)
    expected = ["" if each is pd.NA else str(each) for each in large]
    for path in (tmp_path / "year=2024", tmp_path / "year=2024" / "part-0.parquet"):
        found = as_text(predicted(model, path, "--id", "customer,one,day"))
        assert found["customer"].tolist() == expected[: len(found)]
        assert found["one"].astype(float).tolist() == frame["one"].tolist()[: len(found)]
        assert found["day"][0] == str(frame["day"][0])[:10]
    named = as_text(predicted(model, tmp_path, "--id", "year"))
    assert (len(named), set(named["year"])) == (900, {"2024"})
    refused = run("predict", model, tmp_path, "--id", "yaer", "--out", tmp_path / "no.csv")
    assert refused.exit_code == 2
    assert "there is no column 'yaer' among one, gaps" in " ".join(refused.output.split())
    assert not (tmp_path / "no.csv").exists()


def test_ids_of_gzipped_parquet_files(tmp_path: Path) -> None:
    frame = table()
    model = classifier(tmp_path, frame.drop(columns="label"), frame["label"])
    content = io.BytesIO()
    numbers = pa.array([None, *range(2**60, 2**60 + 299)], type=pa.int64())
    whole = pa.Table.from_pandas(frame, preserve_index=False).append_column("customer", numbers)
    parquet.write_table(whole, content)
    (tmp_path / "new.parquet.gz").write_bytes(gzip.compress(content.getvalue()))
    found = as_text(predicted(model, tmp_path / "new.parquet.gz", "--id", "customer"))
    assert found["customer"].tolist() == ["", *map(str, range(2**60, 2**60 + 299))]


def test_a_model_of_an_array_takes_an_id_beside_its_columns(tmp_path: Path) -> None:
    frame: Any = table()[["one", "two", "label"]]
    model = classifier(tmp_path, frame[["one", "two"]].to_numpy(), frame["label"])
    frame.drop(columns="label").assign(customer=IDS).to_csv(tmp_path / "new.csv", index=False)
    assert (
        as_text(predicted(model, tmp_path / "new.csv", "--id", "customer"))["customer"][0] == "007"
    )
    frame.drop(columns="label").to_csv(tmp_path / "less.csv", index=False)
    assert as_text(predicted(model, tmp_path / "less.csv", "--id", "two")).columns[0] == "two"


def test_ids_of_rankings_and_svmlight_files(tmp_path: Path) -> None:
    frame = documents()
    ranker = mg.MetricRanker(method="list_net", hidden=(), epochs=1, rate=0.1, random_state=0)
    ranker.fit(frame[["one", "two"]].to_numpy(), frame["grade"], groups=frame["query"])
    ranker.save(tmp_path / "model.safetensors")
    query = pd.factorize(frame["query"])[0]
    order = np.argsort(query, kind="stable")
    x = frame[["one", "two"]].to_numpy()[order]
    path = tmp_path / "new.svm"
    dump_svmlight_file(x, frame["grade"].to_numpy()[order], str(path), query_id=query[order])
    options = ("--group", "qid", "--target", "target", "--id", "qid,target")
    for given in (options, options[4:]):
        found = as_text(predicted(tmp_path / "model.safetensors", path, *given))
        assert list(found)[:3] == ["qid", "target", "score"]
        assert found["qid"].astype(int).tolist() == query[order].tolist()
