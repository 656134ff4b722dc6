"""Time in a search: what is late, what is ended, and how many epochs fit into a budget."""

import importlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.training import budget as budgets
from metricgrad.training.budget import TimePlan, time_plan
from metricgrad.training.candidates import RATES, Candidate, candidates_of, challengers
from metricgrad.training.decision import Decision
from metricgrad.training.group_kinds import JointTrialGroup, TrialInTurns
from metricgrad.training.search import planned_groups, successive_halving
from metricgrad.training.stack import Descent
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial
from tests.fitting import linear, made, quick
from tests.searches import group_of, made_up, trial_of


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
    found.trials = [trial_of(PlannedTrial(Candidate("cross_entropy"), 0.1), 0.5)]
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


@pytest.mark.parametrize("folds", [1, 5])
def test_something_is_always_trained(folds: int) -> None:
    """The first group of every round until there is a trial on all folds, and nothing else."""
    found = made_up(deadline=1e-9, folds=folds)
    trials = successive_halving(found, "challengers", candidates_of("uniloss"), list(RATES))
    assert [trial.folds for trial in trials[:1]] == [1]  # as made-up trials have it
    assert len(found.asked) == (3 if len(found.split.screening().folds) < folds else 1)
    assert not successive_halving(found, "challengers", [Candidate("focal")], list(RATES))


def test_trainings_of_a_side_end_with_their_rounds() -> None:
    ends: list[float] = []
    found = made_up(deadline=100.0, started=0.0, folds=1, after=20.0, share=0.5)

    def noted(planned: PlannedTrial, epochs: int) -> float:
        ends.append(found.until)
        return -planned.rate

    found.valued = noted
    found.late = lambda share: False
    successive_halving(found, "ordinary", candidates_of("uniloss"), list(RATES))
    assert list(dict.fromkeys(ends)) == [12.0, 20.0, 40.0]  # 0.3, 0.5 and all of half of 80


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
    """Every reading is a second after the last, unless another tick is given."""

    now: float = 0.0
    tick: float = 1.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1e9, 20), (18.3, 20), (18.1, 19), (7.9, 4), (7.7, 3), (0.1, 1)],
)
def test_a_budget_shortens_the_epochs(
    seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """One loss at four rates, E epochs: a round of a fifth, and half as many trials for all.

    An epoch takes 1.3 s, so 20 epochs take 1.3 (4 + 10) = 18.2 s, and 4 of them 1.3 (4 + 2).
    """
    found = made_up(folder=tmp_path)
    monkeypatch.setattr(budgets, "_timed", lambda *_: 1.0)
    sides = [[Candidate("focal")]]
    assert time_plan(found, sides, list(RATES), seconds) == (expected, 0.0)
    # A resumed run has the same number of epochs.
    assert time_plan(found, sides, list(RATES), 1e9).epochs == expected


def test_a_budget_never_adds_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_timed", lambda *_: 1.0)
    assert time_plan(made_up(epochs=2), [[Candidate("focal")]], list(RATES), 9.0).epochs == 2


def test_candidates_are_left_out_before_an_epoch_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of UniLoss would need one epoch; its first candidate fits with four."""
    monkeypatch.setattr(budgets, "_timed", lambda *_: 1.0)
    plan = time_plan(made_up(), [candidates_of("uniloss")], list(RATES), 10.0)
    assert plan.epochs == 4


def test_time_is_kept_for_what_follows_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sides are compared again and trained on all items, each a quarter of what was timed."""
    monkeypatch.setattr(budgets, "_timed", lambda *_: 1.0)
    sides = [[Candidate("cross_entropy")], [Candidate("focal")]]

    def planned(folds: int, budget: float, number: int = 2) -> TimePlan:
        found = made_up(folds=folds, epochs=8)
        return time_plan(found, sides[:number], list(RATES), budget)

    assert planned(5, 1e3) == (8, pytest.approx(1.3 * 4 * 8 * 0.25))
    assert planned(1, 1e3) == (8, pytest.approx(1.3 * 2 * 8 * 0.25))
    assert planned(5, 1e3, 1) == (8, pytest.approx(1.3 * 8 * 0.25))
    short = planned(5, 6.0)
    assert short.after == pytest.approx(0.35 * 6.0)  # a third at most
    assert short.epochs < 8


def test_models_that_are_not_stacked_take_as_long_as_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def timed(_: Any, candidate: Any, trials: int, seconds: float) -> float:
        asked.append(trials)
        return 1.0

    monkeypatch.setattr(budgets, "_timed", timed)
    found = made_up(folds=5)
    pace = budgets._pace(found, Candidate("bilevel"), 4, 1.0)
    assert pace == (4.0, 0.2, 0.0)
    assert budgets._pace(found, Candidate("focal"), 4, 1.0) == (1.0, 0.25, 0.4)
    assert asked == [1, 4]
    monkeypatch.setattr("metricgrad.training.group_kinds.SIDE_BY_SIDE", 1)
    assert budgets._pace(found, Candidate("focal"), 4, 1.0) == pace


def test_an_epoch_is_timed_or_a_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is read twice for the validation, once a step of 25, and once at the end."""
    found = made_up(metric="f1")
    monkeypatch.setattr("time.monotonic", Clock())
    whole = budgets._timed(found, Candidate("cross_entropy"), 3, 1e9)
    assert whole == 1 + 26
    part = budgets._timed(found, Candidate("cross_entropy"), 3, 12.0)
    assert part == pytest.approx(whole, abs=8)
    assert found.trials == []


@pytest.mark.parametrize("content", ["", "21", "0", "null", '"4"'])
def test_a_damaged_number_of_epochs_is_refused(tmp_path: Any, content: str) -> None:
    (tmp_path / "epochs.json").write_text(content)
    with pytest.raises(ValueError, match=r"epochs\.json (must hold 1 to 20 epochs|is not a whole)"):
        time_plan(made_up(folder=tmp_path), [[Candidate("focal")]], list(RATES), 9.0)


# ---------------------------------------------------------------------------
# trainings that take too long


@pytest.mark.parametrize("cls", [TrialGroup, TrialInTurns])
def test_a_training_ends_when_its_time_is_over(
    cls: type[TrialGroup], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """It is validated where it ends; its checkpoint is that of the last whole epoch."""
    path = tmp_path / "checkpoint.safetensors"
    monkeypatch.setattr("time.monotonic", Clock())
    group = group_of((Candidate("focal"), 0.1), folds=2, epochs=9, cls=cls)
    group.until = 110.0
    (trial,) = group.run(path)
    trained = int(trial.curve[:, 0].isfinite().sum())
    assert 2 <= trained < 6
    assert group._done < 1
    assert trial.value is not None
    again = group_of((Candidate("focal"), 0.1), folds=2, epochs=9, cls=cls)
    (resumed,) = again.run(path)
    assert torch.equal(resumed.curve[: trained - 1], trial.curve[: trained - 1])
    assert resumed.curve.isfinite().all()


@pytest.mark.parametrize("cls", [TrialGroup, TrialInTurns])
def test_one_step_is_made_at_least(cls: type[TrialGroup]) -> None:
    group = group_of((Candidate("focal"), 0.1), folds=2, cls=cls)
    group.until = 0.0
    (trial,) = group.run()
    assert group._done == 1 / 25
    assert trial.epoch == 1
    assert trial.value is not None
    alone = group_of((Candidate("focal"), 0.1))
    alone.until = 0.0
    alone.train_only(4)
    assert alone._epoch == 1


def test_an_epoch_to_be_compared_again_is_whole_or_has_no_value() -> None:
    group = group_of((Candidate("focal"), 0.1))
    group.until = 0.0
    (trial,) = group.run(only=1)
    assert trial.value is None


def test_joint_trainings_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.group_kinds.UNIVERSAL_STEPS", 3)
    group = group_of((Candidate("bilevel"), 0.1), folds=3, cls=JointTrialGroup)
    assert isinstance(group, JointTrialGroup)
    group.until = 0.0
    group.run()
    assert {run.iteration for run in group._runs} == {1}
    assert group._done == 1 / 9


@pytest.mark.parametrize(
    ("method", "budget", "step"),
    [
        ("auto", 100.0, 1.0),
        ("cross_entropy", 1.0, 1.0),
        ("uniloss", 60.0, 1.0),
        ("bilevel", 60.0, 0.1),
    ],
)
def test_a_fit_keeps_to_its_budget(
    method: str, budget: float, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes with steps alone; 20 joint trainings make 13 of them in a step of all."""
    clock = Clock(tick=0.0)
    descend = Descent.descend

    def slow(self: Descent, value: Tensor, share: float = 1.0) -> None:
        clock.now += step
        descend(self, value, share)

    loss: Any = method
    if method == "bilevel":
        loss = mg.BilevelLoss("f1", generator=torch.Generator().manual_seed(0))
        loss.learn_universal(steps=10, pool=640, progress=False)
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr(Descent, "descend", slow)
    found = quick(linear(), made(), method=loss, budget=budget, epochs=1000, rate=None)
    least = 20 * 13 * step if method == "bilevel" else 12.0
    assert found.seconds <= 1.2 * budget + least
    assert found.value > 0


def test_finalists_share_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is over after 80 of 100 s, so the first has 15 s and the second what remains."""
    until: list[float] = []
    clock = Clock(tick=0.0)
    train = TrialGroup.train_only

    def noted(self: TrialGroup, epochs: int) -> Any:
        until.append(self.until)
        clock.now += 20.0
        return train(self, epochs)

    def finished(*_: Any, **__: Any) -> Decision:
        clock.now = 80.0
        sides = [Candidate("cross_entropy"), Candidate("focal")]
        one, other = (trial_of(PlannedTrial(side, 0.1), 0.1) for side in sides)
        return Decision(one, one, other)

    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr(TrialGroup, "train_only", noted)
    monkeypatch.setattr(importlib.import_module("metricgrad.training.fit"), "decide", finished)
    found = quick(linear(), made(), budget=100.0, epochs=1)
    assert None not in found.finalists
    assert until == pytest.approx([95.0, 110.0])


@pytest.mark.parametrize(("folds", "sides", "trainings"), [(1, 2, 2), (2, 2, 4), (5, 1, 1)])
def test_both_sides_are_compared_again_and_trained_on_all_items_after_folds(
    folds: int, sides: int, trainings: int
) -> None:
    several = [[Candidate("cross_entropy")], [Candidate("focal")]][:sides]
    assert budgets._trainings_after(made_up(folds=folds), several) == trainings
