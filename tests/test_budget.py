"""Time in a search: challengers that are late, Ctrl-C, and how many epochs fit into a budget."""

from dataclasses import dataclass
from typing import Any

import pytest

import metricgrad as mg
from metricgrad.training import search
from metricgrad.training.candidates import RATES, Candidate, candidates_of, challengers
from metricgrad.training.search import affordable_epochs, planned_groups, successive_halving
from metricgrad.training.trials import PlannedTrial
from tests.searches import MadeUp, made_up


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ([31, 31, 31], None),
        ([29, 51, 51], 4),
        ([29, 49, 86], 8),
        ([29, 49, 84], 20),
    ],
)
def test_challengers_that_are_late_are_left_out(
    times: list[float], longest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round may start a tenth of the budget after its share of it; the last at 85 %."""
    clock = iter(times)
    now = 0.0
    found = made_up(deadline=100.0, started=0.0)
    groups = found.groups

    def ticking(planned: list[PlannedTrial]) -> list[list[PlannedTrial]]:
        nonlocal now
        now = next(clock)
        return groups(planned)

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(found, "groups", ticking)
    tried = [Candidate("focal") for _ in range(9)]
    trials = successive_halving(found, "challengers", tried, [0.03, 0.1])
    assert max((trial.epochs for trial in trials), default=None) == longest


def test_the_ordinary_loss_has_all_the_time_it_needs() -> None:
    found = made_up(deadline=1e-9)
    assert successive_halving(found, "ordinary", [Candidate("focal")], list(RATES))
    assert not successive_halving(found, "challengers", [Candidate("focal")], list(RATES))


def test_time_is_over_only_if_there_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not made_up().late(0.0)
    found = made_up(deadline=10.0, started=0.0)
    monkeypatch.setattr("time.monotonic", lambda: 5.0)
    assert found.late(0.49)
    assert not found.late(0.5)


def test_ctrl_c_ends_the_rounds() -> None:
    found = made_up()
    found.stopped = True
    assert successive_halving(found, "ordinary", [Candidate("focal")], list(RATES)) == []

    def pressed(planned: PlannedTrial, epochs: int) -> float:
        half.stopped = True
        return planned.rate

    half = made_up(pressed)
    trials = successive_halving(half, "ordinary", candidates_of("uniloss"), list(RATES))
    assert len(half.asked) == 1
    assert len(trials) == 16


def test_a_schedule_is_what_the_rounds_do() -> None:
    for tried in (
        challengers(mg.metric("f1")),
        challengers(mg.metric("auc")),
        [Candidate("focal")],
    ):
        found = made_up(lambda planned, _: -planned.rate)
        planned = planned_groups(found, tried, list(RATES), 20)
        successive_halving(found, "challengers", tried, list(RATES))
        done = [(len(group), epochs) for _, group, epochs, _ in found.asked]
        assert sum(n * length for n, length in planned) == sum(n * length for n, length in done)
    groups = planned_groups(made_up(), candidates_of("uniloss"), list(RATES), 20)
    assert groups[0] == (16, 4)  # four slopes from scratch, with four rates each


@dataclass
class Clock:
    """Every reading is a second after the last."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("seconds", "expected"), [(1e9, 20), (84.0, 20), (83.0, 19), (79.0, 18), (0.1, 4)]
)
def test_a_budget_shortens_the_epochs(
    seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """One loss at four rates, E epochs: a round of a fifth, one of all, and half of 4 E after.

    An epoch takes 1.3 s, so 20 epochs take 1.3 (4 + 20 + 40) = 83.2 s.
    """
    costs = {epochs: 1.3 * (max(4, round(epochs / 5)) + 3 * epochs) for epochs in range(4, 21)}
    fitting = [epochs for epochs, cost in costs.items() if cost < seconds]
    found = made_up(folder=tmp_path)
    monkeypatch.setattr(search, "_timed", lambda *_: 1.0)
    got = affordable_epochs(found, [[Candidate("focal")]], list(RATES), seconds)
    assert got == expected == max(fitting, default=4)
    # A resumed run has the same number of epochs.
    assert affordable_epochs(found, [[Candidate("focal")]], list(RATES), 1e9) == got


def test_a_budget_never_adds_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_timed", lambda *_: 1.0)
    assert affordable_epochs(made_up(epochs=2), [[Candidate("focal")]], list(RATES), 0.1) == 2


def test_groups_of_many_trials_cost_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up()
    cost = search._cost(found, [candidates_of("uniloss")], list(RATES), 20)
    groups = planned_groups(found, candidates_of("uniloss"), list(RATES), 20)
    assert groups == [(16, 4), (8, 4), (4, 8), (1, 20)]
    assert cost == 0.5 * 4 * 20 + 4 * 4 + 2 * 4 + 1 * 8 + 1 * 20
    both = search._cost(found, [candidates_of("uniloss"), [Candidate("focal")]], list(RATES), 20)
    assert both == cost + 20  # two rates are left to a challenger, so it has one round


def test_one_epoch_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up(metric="f1")
    monkeypatch.setattr("time.monotonic", Clock())
    assert search._timed(found, 3) == 1.0
    ((_, planned, epochs, _),) = found.asked
    assert len(planned) == 3
    assert epochs == 1
    assert {each.candidate.method for each in planned} == {"cross_entropy"}
    assert found.trials == []


def test_ctrl_c_while_an_epoch_is_timed_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUp, "run", lambda self, *_: setattr(self, "stopped", True))
    with pytest.raises(KeyboardInterrupt):
        search._timed(made_up(), 3)


@pytest.mark.parametrize("content", ["", "21", "0", "null", '"4"'])
def test_a_damaged_number_of_epochs_is_refused(tmp_path: Any, content: str) -> None:
    (tmp_path / "epochs.json").write_text(content)
    with pytest.raises(ValueError, match=r"epochs\.json (must hold 1 to 20 epochs|is not a whole)"):
        affordable_epochs(made_up(folder=tmp_path), [[Candidate("focal")]], list(RATES), 9.0)
