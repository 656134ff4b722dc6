"""Models that do not fit into memory side by side: groups of fewer trials, folds in turns."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from metricgrad.training import group_kinds
from metricgrad.training.candidates import RATES, Candidate, candidates_of
from metricgrad.training.group_kinds import TrialInTurns, models_that_fit
from metricgrad.training.search import _TOGETHER, successive_halving
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, Trial
from tests.fitting import linear, made, quick, same
from tests.searches import group_of, made_up


def alike(one: Trial, other: Trial) -> None:
    torch.testing.assert_close(one.curve, other.curve, equal_nan=True)
    torch.testing.assert_close(one.scores, other.scores)
    assert one.epoch == other.epoch
    assert one.folds == other.folds == 3


@pytest.mark.parametrize(
    ("candidate", "settings"),
    [
        (Candidate("cross_entropy"), {}),
        (Candidate("metric_loss"), {"decay": 0.1}),
        (Candidate("uniloss", {"slope": 2.0}, warm_start=True), {"memory": 40}),
        (Candidate("focal"), {"optimizer": lambda p, rate: torch.optim.SGD(p, rate, 0.9)}),
    ],
    ids=["plain", "metric loss", "memory", "optimizer"],
)
def test_folds_in_turns_give_what_folds_side_by_side_give(
    candidate: Candidate, settings: dict[str, Any], tmp_path: Path
) -> None:
    planned = ((candidate, 0.1),)
    (beside,) = group_of(*planned, folds=3, epochs=2, **settings).run()
    group = group_of(*planned, folds=3, epochs=2, cls=TrialInTurns, **settings)
    (trial,) = group.run()
    alike(trial, beside)
    # Stopped after one epoch, it goes on exactly.
    path = tmp_path / "checkpoint.safetensors"
    group_of(*planned, folds=3, epochs=2, cls=TrialInTurns, **settings).run(path, only=1)
    again = group_of(*planned, folds=3, epochs=2, cls=TrialInTurns, **settings)
    (resumed,) = again.run(path)
    assert torch.equal(resumed.curve[1:], trial.curve[1:])


def test_patience_and_ctrl_c_end_all_folds() -> None:
    group = group_of((Candidate("focal"), 1e-9), folds=3, epochs=9, cls=TrialInTurns, patience=1)
    (trial,) = group.run()
    assert trial.curve[:, 0].isfinite().sum() < 9

    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    group = group_of((Candidate("focal"), 0.1), folds=3, cls=TrialInTurns)
    (trial,) = group.run(tell=lambda *told: pressed() if told[0] == 1 else None)
    assert group.stopped
    assert trial.value is not None


def test_few_large_models_fit() -> None:
    model = linear(100, 1000)  # 0.4 MB
    assert models_that_fit(model) == 2**29 // (8 * 4 * 100 * 1001)
    assert models_that_fit(nn.Linear(1000, 100, dtype=torch.float64)) == models_that_fit(model) // 2
    assert models_that_fit(linear()) > _TOGETHER
    model.register_buffer("large", torch.zeros(2**27, dtype=torch.uint8))
    assert models_that_fit(model) == 1


@pytest.mark.parametrize(("fitting", "folds", "sizes"), [(8, 2, [4]), (5, 2, [2, 2]), (1, 2, [1])])
def test_groups_are_as_large_as_fits(
    fitting: int, folds: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_kinds, "SIDE_BY_SIDE", fitting * 8 * 6 * 4)
    search = made_up(folds=folds)
    planned = [PlannedTrial(Candidate("focal"), rate) for rate in RATES]
    planned = [each._replace(candidate=planned[0].candidate) for each in planned]
    assert search.together == fitting
    groups = search.groups(planned)
    assert [len(group) for group in groups][: len(sizes)] == sizes
    assert sum(map(len, groups)) == len(RATES)
    group = search.group(groups[0], 4)
    assert type(group) is (TrialInTurns if fitting < folds else TrialGroup)


def test_a_search_in_turns_is_told_and_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "metricgrad")
    options = {"rate": None, "epochs": 1, "method": "cross_entropy"}
    plain = quick(linear(), made(), **options)
    assert "in turns" not in caplog.text
    monkeypatch.setattr(group_kinds, "SIDE_BY_SIDE", 1)
    found = quick(linear(), made(), **options)
    assert "models train in turns, 1 of 20 at a time" in caplog.text
    assert [each.rate for each in found.trials] == [each.rate for each in plain.trials]
    assert found.value == pytest.approx(plain.value, abs=1e-6)
    assert same(found, plain)  # the winner is trained again on all items, alone


def test_only_the_best_trial_keeps_its_model() -> None:
    """Those of all others would take as much memory as the training itself."""
    made_of: list[Trial] = []

    def valued(planned: PlannedTrial, epochs: int) -> float | None:
        return None if planned.rate == 0.1 else -planned.rate

    search = made_up(valued)
    run = search.run

    def remembering(*arguments: Any) -> list[Trial]:
        found = run(*arguments)
        for trial in found:
            trial.state = {"weight": torch.zeros(1)}
        made_of.extend(found)
        return found

    search.run = remembering  # pyright: ignore[reportAttributeAccessIssue]
    trials = successive_halving(search, "challengers", candidates_of("uniloss"), list(RATES))
    assert len(made_of) > 20
    assert [trial for trial in made_of if trial.state] == trials[:1]


def test_folds_keep_no_models() -> None:
    group = group_of((Candidate("focal"), 0.1), folds=3)
    (trial,) = group.run()
    assert trial.state == {}
    assert set(group._kept) == {"scores", "threshold"}
