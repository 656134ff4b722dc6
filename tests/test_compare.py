"""`metricgrad compare`: paired splits, corrected for overlap and for many methods."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel
from sklearn.metrics import matthews_corrcoef

import metricgrad as mg
from metricgrad import studies
from metricgrad.studies import ComparisonSettings, comparison, measuring, splits
from metricgrad.studies.comparison import methods_to_compare, paired_differences
from metricgrad.studies.splits import TableRows
from tests.cells import Losing
from tests.commands import QUICK, run, table


def test_compare_tells_what_is_significant_and_goes_on_where_it_stopped(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "compared"
    arguments = (
        "compare",
        data,
        "--target",
        "label",
        *QUICK,
        "--methods",
        "focal",
        "--splits",
        3,
        "--out",
        out,
    )
    found = run(*arguments, drawn=True)
    assert found.exit_code == 0, found.output
    assert "no difference shown" in found.output
    result = json.loads((out / "result.json").read_text())
    assert [len(values) for values in result["values"].values()] == [3, 3]
    values = json.loads((out / "values.json").read_text())
    values["focal"][:] = [
        0.1,
        0.2,
    ]  # as if it had been stopped before the last split, with other values
    (out / "values.json").write_text(json.dumps(values))
    again = run(*arguments, "--json")
    assert json.loads(again.stdout)["values"]["focal"] == [0.1, 0.2, result["values"]["focal"][2]]
    # One of 75 test rows more in every split shows nothing.
    usual = [0.5, 0.6, 0.7]
    values = {"cross_entropy": usual, "focal": [value + 1 / 75 for value in usual]}
    (out / "values.json").write_text(json.dumps(values))
    equal = json.loads(run(*arguments, "--json").stdout)["differences"]["focal"]
    assert equal["error"] == pytest.approx((1 / 3 + 1 / 3) ** 0.5 / 75)
    assert equal["p"] > 0.3
    for damaged in ({"focal": [0.1, "0.2"]}, {"fokal": [0.1]}, {"focal": 3}, [1]):
        (out / "values.json").write_text(json.dumps(damaged))
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert "is damaged" in refused.output


def test_lost_cells_end_the_command_with_1_and_the_next_start_trains_only_them(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(executor: Losing, *out: Any) -> Any:
        monkeypatch.setattr(studies, "executor_for", lambda on, jobs: executor)
        asked = ("--methods", "focal", "--splits", 3, "--json", "--out", *out)
        return run("compare", data, "--target", "label", *QUICK, *asked)

    first = ended(Losing(2, 3), tmp_path / "lost")
    assert first.exit_code == 1
    assert first.output == (
        "cross_entropy on split 2: its process was killed, 3 times; focal on split 2: its process "
        "was killed, 3 times. All other values are stored; the same command tries these again.\n"
    )
    stored = json.loads((tmp_path / "lost" / "values.json").read_text())
    assert [values[1] for values in stored.values()] == [None, None]
    rest = Losing()
    second = ended(rest, tmp_path / "lost")
    assert rest.computed == [("cross_entropy", 1), ("focal", 1)]
    whole = ended(Losing(), tmp_path / "whole")
    assert json.loads(second.stdout) == json.loads(whole.stdout)


def test_differences_are_paired_corrected_for_overlap_and_for_many() -> None:
    generator = np.random.default_rng(0)
    usual = generator.normal(0.7, 0.02, 10)
    values = {
        "cross_entropy": usual,
        "good": usual + generator.normal(0.05, 0.01, 10),
        "fair": usual + generator.normal(0.02, 0.03, 10),
        "same": usual + 1e-3 * generator.normal(size=10),
    }
    listed = {name: list(each) for name, each in values.items()}
    found = paired_differences(listed, True, 0.25)
    assert found["good"].mean == pytest.approx((values["good"] - usual).mean())
    each = values["good"] - usual
    assert found["good"].error == pytest.approx(each.std(ddof=1) * np.sqrt(1 / 10 + 1 / 3))
    assert found["good"].p < 0.01
    overlap = np.sqrt(
        (1 / 10 + 1 / 3) / (1 / 10)
    )  # by how much splits that share rows spread less than others
    tests = {
        name: ttest_rel(each, usual) for name, each in values.items() if name != "cross_entropy"
    }
    alone = {name: 2 * student.sf(abs(test.statistic) / overlap, 9) for name, test in tests.items()}
    first, second, third = sorted(alone, key=lambda name: alone[name])
    assert (first, third) == ("good", "same")
    assert found[first].p == pytest.approx(3 * alone[first])
    assert found[second].p == pytest.approx(max(3 * alone[first], 2 * alone[second]))
    assert found[third].p == pytest.approx(max(2 * alone[second], alone[third]))
    worse = paired_differences(listed, False, 0.25)
    assert worse["good"].mean == -found["good"].mean


def test_intervals_and_tests_of_independent_values_are_those_of_scipy() -> None:
    usual = [0.5, 0.6, 0.55, 0.7]
    theirs = [0.52, 0.61, 0.59, 0.69]
    found = paired_differences({"cross_entropy": usual, "focal": theirs}, True, 0.0)["focal"]
    expected = ttest_rel(theirs, usual)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert not found.significant
    lower = paired_differences({"cross_entropy": usual, "focal": theirs}, False, 0.0)["focal"]
    assert lower.interval == pytest.approx((-found.interval[1], -found.interval[0]))


def test_differences_are_not_known_better_than_to_one_item() -> None:
    """One item more in each of three tests of 100 could be one coin that fell thrice the same."""
    usual = [0.90, 0.91, 0.89]
    more = [0.91, 0.92, 0.90]
    values = {"cross_entropy": usual, "same": usual, "more": more}
    found = paired_differences(values, True, 0.25, resolution=0.01)
    error = 0.01 * (1 / 3 + 1 / 3) ** 0.5
    assert found["more"].error == pytest.approx(error)
    assert found["more"].p == pytest.approx(2 * 2 * student.sf(0.01 / error, 2))
    assert (found["same"].p, found["same"].error) == (1.0, pytest.approx(error))
    # A spread above the floor is left alone.
    values = {"cross_entropy": [0.5, 0.6, 0.4], "focal": [0.52, 0.65, 0.50]}
    assert paired_differences(values, True, 0.25, resolution=0.01) == paired_differences(
        values, True, 0.25
    )


def test_differences_without_a_spread_have_only_their_signs_to_show() -> None:
    """Decimal fractions differ in their last bits, which is no spread either."""
    values = {"cross_entropy": [0.6, 0.7, 0.1], "same": [0.6, 0.7, 0.1], "more": [0.7, 0.8, 0.2]}
    found = paired_differences(values, True, 0.25)
    assert (found["same"].p, found["same"].error, found["same"].interval) == (1.0, 0.0, (0.0, 0.0))
    assert found["more"].p == 0.5  # 2 / 2^3, twice for two methods
    assert found["more"].mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [("mcc", [0.5, 0.6], 2 / 25), (lambda scores, target: 0.0, [-30.0, 20.0], 30 / 25)],
)
def test_one_item_of_a_test_is_worth_its_share_of_the_range(
    metric: Any, values: list[float], expected: float
) -> None:
    """The largest value stands for the range of a metric that has none."""
    found = comparison.resolution(mg.metric(metric), {"cross_entropy": values}, 25)
    assert found == pytest.approx(expected)


def test_a_value_is_the_metric_of_the_test_rows_with_its_sign() -> None:
    """Labels of the test rows are turned round, so MCC is as bad as it was good."""
    frame = table()
    x, y = frame.drop(columns="label"), frame["label"]
    train, test = splits.stratified_split(x, y, 0.25, 0)
    settings = ComparisonSettings(metric="mcc", hidden=(), epochs=2, positive="yes")
    value = measuring._test_value(settings, train, test, "cross_entropy", 7)
    turned = TableRows(x, pd.Series(np.where(y == "yes", "no", "yes")), test.rows)
    assert measuring._test_value(settings, train, turned, "cross_entropy", 7) == -value
    model = settings.classifier(x, y, "cross_entropy", 7, progress=False)
    model.fit(x, y, rows=train.rows)
    found = model.predict(x.iloc[test.rows])
    assert value == pytest.approx(matthews_corrcoef(test.target, found), abs=1e-6)
    assert value > 0.3


def test_compare_refuses_methods_it_does_not_know(data: Path, tmp_path: Path) -> None:
    found = run(
        "compare", data, "--target", "label", "--methods", "auto,magic", "--out", tmp_path / "run"
    )
    assert found.exit_code == 2
    assert "no method 'magic'; choose from all, auto, approx_ndcg" in found.output.replace(
        "\n", " "
    )


def test_compare_takes_all_methods_that_there_are_for_such_targets() -> None:
    classes = pd.Series(np.arange(300) % 3)
    binary = methods_to_compare("all", mg.metric("f1"), classes % 2, None)
    assert binary[0] == "cross_entropy"
    assert {"uniloss", "reloss", "bilevel", "smooth_ap", "auto"} < set(binary)
    assert "heatmap_mse" not in binary
    several = methods_to_compare(" all ", mg.metric("accuracy"), classes, None)
    assert set(several) < set(binary)
    assert "smooth_ap" not in several
    usual = methods_to_compare(None, mg.metric("f1"), classes % 2, None)
    assert usual == [
        *("cross_entropy", "soft_f_beta", "focal"),
        *("metric_loss", "uniloss", "reloss", "bilevel", "auto"),
    ]
    assert methods_to_compare("focal, auto,focal", mg.metric("f1"), classes, None) == [
        *("cross_entropy", "focal", "auto")
    ]


def test_splits_have_seeds_of_their_own_and_share_none_with_the_next_seed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[tuple[int, int]] = []
    split = splits.stratified_split

    def splitting(x: Any, y: Any, share: float, seed: int) -> Any:
        seeds.append((seed, -1))
        return split(x, y, share, seed)

    def training(settings: Any, train: Any, test: Any, method: str, seed: int) -> float:
        seeds[-1] = (seeds[-1][0], seed)
        return float(seed)

    monkeypatch.setattr(splits, "stratified_split", splitting)
    monkeypatch.setattr(measuring, "_test_value", training)
    for seed in (0, 1):
        options = (
            "--methods",
            "cross_entropy",
            "--splits",
            2,
            "--seed",
            seed,
            "--out",
            tmp_path / f"run{seed}",
        )
        assert run("compare", data, "--target", "label", *QUICK, *options).exit_code == 0
    trained = [each for each in seeds if each[1] != -1]  # columns are looked at in one split more
    assert all(of_split == of_training for of_split, of_training in trained)
    assert len(set(trained)) == 4
