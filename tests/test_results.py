"""Results and settings as files have them: keys never change, and older files are read."""

import json
from typing import Any

import pytest

from metricgrad.studies.results import ComparisonResult, Difference, RunResult
from metricgrad.studies.settings import ComparisonSettings, RunConfig, RunSettings

FINALIST: dict[str, Any] = {
    "method": "cross_entropy", "validation": 0.5, "test": 0.6, "interval": [0.4, 0.7],
    "threshold": 0.1,
    "rate": 0.03, "epoch": 2, "curve": [[0.7, 0.4], [None, 0.5]], "step": 1,
}  # fmt: skip
RUN: dict[str, Any] = {
    "command": "metricgrad train", "metric": "f1", "higher_is_better": True,
    "metric_config": {"name": "f1", "options": {}}, "classes": ["no", "yes"],
    "positive_share": 0.25,
    "finalists": {
        "cross_entropy": FINALIST, "challenger": FINALIST | {"method": "focal", "test": 0.7}
    },
    "chosen": "challenger", "gain": 0.1, "test_gain_interval": [0.05, 0.2], "luck": 0.02,
    "again": True,
    "folds": 5, "verdict": "focal is better",
    "tried": [{"method": "focal", "rate": 0.1, "epochs": 4, "epoch": 2, "value": None}],
    "seconds": 1.5, "stopped": False, 
    "rows": {"train": 75, "test": 25, "without_target": 0, "validation": None},
    "columns": ["amount", "age"],
    "models": [{"name": "a network", "method": "focal", "value": 0.5}],
    "models_verdict": "Chosen among 2 kinds", "unit": "epoch",
    "dropped": [{"name": "id", "reason": "--drop"}, {"name": "fraud", "reason": "--target"}],
    "suspicious": [{"name": "age", "kind": "leak", "reason": "it is the target under other names"}],
    "importances": {
        "names": ["age", "amount"], "means": [0.3, 0.0], "spreads": [0.02, 0.01], "rows": 25,
        "shuffles": 5,
    },
}  # fmt: skip
ASKED: dict[str, Any] = {
    "data": "fraud.csv", "target": "fraud", "metric": "f1", "model": "boosted",
    "engine": "xgboost", "hidden": [8], "test_share": 0.25,
    "positive": None, "epochs": 3, "budget": None, "seed": 1, "drop": "id", "sha256": ["abc", None],
    "group": "query", "amounts": {"amount": "paid"}, "keep": "paid",
}  # fmt: skip


def test_results_of_runs() -> None:
    result = RunResult.from_json(RUN)
    written = json.loads(json.dumps(result.to_json()))
    assert written == RUN
    assert list(written) == list(RUN)
    assert [each.label for each in result.finalists] == ["cross-entropy", "focal loss"]
    assert result.winner is result.finalists[1]
    assert result.test_gain == pytest.approx(0.1)
    lower = RunResult.from_json(RUN | {"higher_is_better": False})
    assert lower.test_gain == pytest.approx(-0.1)
    assert [each.label for each in result.suspicious] == ["gives the target away"]
    told = ("columns", "dropped", "suspicious", "importances")
    newer = ("models", "models_verdict", "unit")
    optional = ("command", "positive_share", "test_gain_interval", *told, *newer)
    older = RunResult.from_json({name: RUN[name] for name in RUN if name not in optional})
    assert (older.command, older.positive_share, older.test_gain_interval) == (None, None, None)
    assert [getattr(older, name) for name in told] == [[], [], [], None]


@pytest.mark.parametrize(
    ("interval", "verdict", "told"),
    [
        ([0.05, 0.2], "better", "focal loss is better than cross-entropy on the test rows: the"),
        ([-0.2, -0.05], "worse", "focal loss is worse than cross-entropy on the test rows: the"),
        ([-0.2, 0.05], "no difference shown", "No difference between focal loss and cross-entropy"),
    ],
)
def test_the_verdict_is_what_the_interval_of_test_data_says(
    interval: list[float], verdict: str, told: str
) -> None:
    """Also where validation data said otherwise: it chose the challenger in all three."""
    result = RunResult.from_json(RUN | {"test_gain_interval": interval})
    assert result.test_verdict == verdict
    assert result.told().startswith(told)
    assert f"95 % interval {interval[0]:+.4f} to {interval[1]:+.4f}" in result.told()
    assert "The choice of focal loss was made on validation data alone." in result.told()
    alone = RunResult.from_json(RUN | {"test_gain_interval": None})
    assert (alone.test_verdict, alone.told()) == (None, "focal is better")


def test_results_of_comparisons() -> None:
    stored = {
        "command": "metricgrad compare", "metric": "f1", "higher_is_better": True, "splits": 2,
        "values": {"cross_entropy": [0.5, 0.6], "focal": [0.6, 0.8]},
        "differences": {"focal": {"mean": 0.15, "error": 0.04, "interval": [-0.3, 0.6], "p": 0.04}},
        "columns": ["amount"], "ordinary": "cross_entropy",
        "dropped": RUN["dropped"], "suspicious": RUN["suspicious"],
    }  # fmt: skip
    result = ComparisonResult.from_json(stored)
    assert json.loads(json.dumps(result.to_json())) == stored
    older = {name: each for name, each in stored.items() if name != "ordinary"}
    assert ComparisonResult.from_json(older) == result
    without = {name: each for name, each in older.items() if name not in ("dropped", "suspicious")}
    assert ComparisonResult.from_json(without).suspicious == []
    assert result.yardstick == "tuned cross-entropy"
    assert result.differences["focal"].significant
    shown = {
        (mean, p): Difference(mean, 0.04, (-0.3, 0.6), p).verdict
        for mean in (0.15, -0.15)
        for p in (0.04, 0.06)
    }
    assert shown == {
        (0.15, 0.04): "better",
        (-0.15, 0.04): "worse",
        (0.15, 0.06): "no difference shown",
        (-0.15, 0.06): "no difference shown",
    }
    assert not result.stopped


@pytest.mark.parametrize("kind", [RunSettings, ComparisonSettings])
def test_settings(kind: type[RunSettings] | type[ComparisonSettings]) -> None:
    own = {"method": "auto", "test": "t.csv", "memory": 2**30}
    if kind is ComparisonSettings:
        own = {"methods": ["cross_entropy", "auto"], "splits": 3}
    asked = {"command": kind.command, **ASKED, **own}
    stored = {"asked": asked, "versions": {"python": "3.11"}}
    config = RunConfig.from_json(stored)
    assert isinstance(config.settings, kind)
    assert json.loads(json.dumps(config.to_json())) == stored
    assert config.settings.source == "fraud.csv"
    del asked["drop"], asked["sha256"]  # settings that early versions did not have
    older = RunConfig.from_json(stored)
    assert (older.settings.drop, older.sha256) == (None, None)
    assert "sha256" not in older.asked()
    assert kind().source == "digits from scikit-learn"
    assert kind(target="odd").folder_name.startswith("digits-odd-f1")


def test_settings_know_the_columns_that_are_no_features() -> None:
    own = {"amount": "paid", "cost": "price"}
    asked = RunSettings(target="grade", drop='id, "a,b"', group="query", amounts=own, keep="price")
    found = [(each.name, each.reason) for each in asked.dropped]
    assert found == [
        *(("id", "--drop"), ("a,b", "--drop"), ("paid", "--amount")),
        *(("query", "--group"), ("grade", "--target")),
    ]
    assert [each.name for each in ComparisonSettings().dropped] == ["target"]


@pytest.mark.parametrize(
    "damage",
    [
        *({"chosen": "nobody"}, {"rows": {"train": 1}}, {"tried": 3}, {"unknown": 1}),
        *({"gain": "0.1"}, {"gain": float("nan")}, {"folds": 2.5}, {"folds": True}),
        *({"luck": 10**400}, {"classes": "ab"}, {"classes": ["a"]}, {"test_gain_interval": [1]}),
        *({"finalists": {"challenger": FINALIST}}, {"columns": [3]}, {"metric_config": []}),
        *({"dropped": [{"name": "id"}]}, {"suspicious": [RUN["suspicious"][0] | {"kind": "odd"}]}),
        *({"importances": RUN["importances"] | {"means": [value]}} for value in (0.3, "0.3")),
    ],
    ids=str,
)
def test_damaged_results_are_told_in_a_sentence(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"result\.json is damaged \(.*delete it to run again"):
        RunResult.from_json(RUN | damage)


def test_damaged_settings_are_refused() -> None:
    stored = {"asked": {"command": "train", **ASKED}, "versions": {"python": "3.11"}}
    for damage in ({"epochs": "3"}, {"hidden": 8}, {"amounts": ["paid"]}, {"data": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(damage))} cannot be "):
            RunConfig.from_json(stored | {"asked": stored["asked"] | damage})
