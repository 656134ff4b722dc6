"""The search behind mg.fit: rounds of trials, and what replaces cross-entropy."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.training import search
from metricgrad.training.candidates import RATES, Candidate, candidates_of, challengers
from metricgrad.training.data import Items
from metricgrad.training.decision import Decision, decide
from metricgrad.training.group_kinds import JointTrialGroup
from metricgrad.training.search import (
    Search,
    other_splits,
    planned_groups,
    rates_beside,
    successive_halving,
)
from metricgrad.training.split import Split, SplitPlan, split_data
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from metricgrad.training.validation import Validation
from tests.fitting import linear, made
from tests.searches import MadeUp, made_up, split_of, trial_of

# ---------------------------------------------------------------------------
# rounds of trials


def slope(planned: PlannedTrial) -> float:
    return planned.candidate.options["slope"]


def test_rounds_are_a_fifth_two_fifths_and_all_of_the_epochs() -> None:
    found = made_up()
    successive_halving(found, "challengers", [Candidate("focal") for _ in range(9)], list(RATES))
    assert sorted({epochs for _, _, epochs, _ in found.asked}) == [4, 8, 20]


@pytest.mark.parametrize(
    ("epochs", "rounds"),
    [(100, [20, 40, 100]), (20, [4, 8, 20]), (10, [4, 4, 10]), (4, [4, 4, 4]), (2, [2, 2, 2])],
)
def test_no_round_is_shorter_than_four_epochs(epochs: int, rounds: list[int]) -> None:
    assert [search._round_epochs(number, 9, epochs) for number in range(3)] == rounds


def test_two_trials_need_no_choice() -> None:
    assert [search._round_epochs(number, 2, 20) for number in range(3)] == [None, None, 20]
    assert [search._round_epochs(number, 3, 20) for number in range(3)] == [4, 8, 20]


@pytest.mark.parametrize(
    ("folds", "items", "first"), [(5, 400, 2), (5, 100, 5), (2, 400, 2), (1, 400, 1)]
)
def test_the_first_rounds_have_two_of_many_folds_unless_items_are_few(
    folds: int, items: int, first: int
) -> None:
    plan = SplitPlan(mg.metric("f1"), True, 64, False, folds, 0.2)
    split = split_data(Items(made(items)[0], torch.arange(items) % 2), None, plan, 0)
    sizes: list[int] = []

    class Counting(MadeUp):
        def groups(self, planned: list[PlannedTrial]) -> list[list[PlannedTrial]]:
            sizes.append(len(self.split.folds))
            return super().groups(planned)

    counting = Counting(linear(), split, TrialSettings(), 20)
    trials = successive_halving(counting, "challengers", candidates_of("reloss"), list(RATES))
    assert (sizes[0], sizes[-1]) == (first, folds)
    assert {trial.epochs for trial in trials} == ({20} if first < folds else {4, 8, 20})
    groups = planned_groups(counting, candidates_of("reloss"), list(RATES), 20)
    assert groups[0] == (4 * first / folds, 4)
    assert groups[-1] == (1, 20)


def test_two_candidates_continue_with_two_rates_and_then_one_trial() -> None:
    assert search._promotion(0) == (2, 2)
    assert search._promotion(1) == (1, 1)


@pytest.mark.parametrize(
    ("suited", "same", "lower"),
    [
        ([0.03, 0.01], [0.01, 0.03], [0.003, 0.01]),
        ([0.1, 0.03], [0.03, 0.1], [0.01, 0.03]),
        ([0.003, 0.01], [0.003, 0.01], [0.003, 0.01]),
        ([], list(RATES), list(RATES)),
    ],
)
def test_rates_of_challengers_follow_those_of_the_ordinary_loss(
    suited: list[float], same: list[float], lower: list[float]
) -> None:
    """What a long training says counts before what a short one says."""
    short = trial_of(PlannedTrial(Candidate("cross_entropy"), 0.1), 0.9, epochs=4)
    usual = [
        trial_of(PlannedTrial(Candidate("cross_entropy"), rate), 0.5, epochs=20) for rate in suited
    ]
    usual = [short, *usual] if suited else []
    rates = list(RATES)
    assert rates_beside(Candidate("metric_loss"), usual, rates) == same
    assert rates_beside(Candidate("uniloss"), usual, rates) == lower
    assert rates_beside(Candidate("uniloss"), usual, [0.5]) == [0.5]


def test_the_best_candidates_continue_with_their_best_rates() -> None:
    """Slope 8 is best at 0.03, slope 2 at 0.1; the others fall behind."""
    worth = {0.5: 0.1, 2.0: 0.5, 8.0: 0.6, 30.0: 0.2}
    best_rate = {0.5: 0.1, 2.0: 0.1, 8.0: 0.03, 30.0: 0.003}

    def valued(planned: PlannedTrial, epochs: int) -> float:
        off = abs(math.log10(planned.rate / best_rate[slope(planned)]))
        return worth[slope(planned)] - 0.01 * off + 0.0001 * epochs

    found = made_up(valued)
    tried = [Candidate("uniloss", {"slope": each}) for each in worth]
    trials = successive_halving(found, "challengers", tried, list(RATES))
    rounds = [
        sorted((slope(each), each.rate) for _, planned, epochs, _ in found.asked if epochs == length
               for each in planned)
        for length in (4, 8, 20)
    ]  # fmt: skip
    assert len(rounds[0]) == 16
    assert rounds[1] == [(2.0, 0.03), (2.0, 0.1), (8.0, 0.01), (8.0, 0.03)]
    assert rounds[2] == [(8.0, 0.03)]
    assert len(trials) == 21
    assert (trials[0].rate, trials[0].epochs) == (0.03, 20)
    values = [trial.value for trial in trials]
    assert values == sorted(values, reverse=True, key=lambda value: value or 0.0)


def test_a_short_trial_can_be_the_best() -> None:
    found = made_up(lambda planned, epochs: planned.rate / epochs)
    trials = successive_halving(found, "challengers", [Candidate("focal")], list(RATES))
    assert (trials[0].rate, trials[0].epochs) == (0.1, 4)


def test_lower_values_come_first_where_lower_is_better() -> None:
    found = made_up(metric="error_rate")
    trials = successive_halving(found, "challengers", [Candidate("focal")], list(RATES))
    assert trials[0].rate == 0.003
    _, last, epochs, _ = found.asked[-1]
    assert epochs == 20
    assert last[0].rate == 0.003


def test_trials_that_diverged_are_left_out() -> None:
    found = made_up(lambda planned, _: None if planned.rate > 0.01 else planned.rate)
    trials = successive_halving(found, "challengers", [Candidate("focal")], list(RATES))
    assert {trial.rate for trial in trials} == {0.003, 0.01}
    nothing = made_up(lambda *_: None)
    assert successive_halving(nothing, "challengers", [Candidate("focal")], list(RATES)) == []
    assert len(nothing.asked) == 1  # no second round


def test_names_of_checkpoints_tell_round_and_group() -> None:
    found = made_up()
    tried = [*candidates_of("uniloss"), Candidate("soft_f_beta")]
    successive_halving(found, "challengers", tried, list(RATES))
    names = [name for name, *_ in found.asked]
    assert names[:3] == ["challengers-0-0", "challengers-0-1", "challengers-0-2"]
    assert len(names) == len(set(names))
    assert {name.split("-")[1] for name in names} == {"0", "1", "2"}


def test_slopes_share_a_group_and_other_settings_do_not() -> None:
    found = made_up()
    planned = [PlannedTrial(each, rate) for each in challengers(mg.metric("f1")) for rate in RATES]
    sizes = [
        (str(group[0].candidate.method), group[0].candidate.warm_start, len(group))
        for group in found.groups(planned)
    ]
    assert sizes == [
        ("metric_loss", False, 4),
        ("uniloss", False, 16),
        ("uniloss", True, 8),
        ("soft_f_beta", False, 4),
    ]


@pytest.mark.parametrize(("folds", "size"), [(1, 128), (2, 64), (5, 25), (50, 2)])
def test_at_most_128_models_are_trained_together(folds: int, size: int) -> None:
    alike = Candidate("focal")
    found = made_up(folds=folds)
    groups = found.groups([PlannedTrial(alike, 0.1)] * (size + 1))
    assert [len(group) for group in groups] == [size, 1]


def test_bilevel_losses_are_trained_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.group_kinds.UNIVERSAL_STEPS", 2)
    found = made_up()
    assert isinstance(found.group([PlannedTrial(Candidate("bilevel"), 0.1)], 4), JointTrialGroup)
    plain = found.group([PlannedTrial(Candidate("focal"), 0.1)], 4)
    assert not isinstance(plain, JointTrialGroup)
    assert plain.epochs == 4


def test_a_search_keeps_its_trials_and_their_checkpoints(tmp_path: Any) -> None:
    found = Search(linear(), split_of(), TrialSettings(), 20, tmp_path)
    trials = found.run("some", [PlannedTrial(Candidate("focal"), 0.1)], 2, only=1)
    assert found.trials == trials
    assert trials[0].epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["some.safetensors"]
    assert not found.stopped


# ---------------------------------------------------------------------------
# the decision


def trials_of(*values: float) -> list[Trial]:
    return [trial_of(PlannedTrial(Candidate("focal"), 0.1), each) for each in values]


@pytest.fixture
def lucks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float, int]]:
    """What luck is asked about: how many are compared, at which quantile; it is always 0.1."""
    asked: list[tuple[int, float, int]] = []

    def luck(
        _: Validation,
        scores: Sequence[Tensor],
        thresholds: Sequence[Tensor | None],
        generator: torch.Generator,
        quantile: float,
    ) -> float:
        assert len(scores) == len(thresholds)
        asked.append((len(scores), quantile, generator.initial_seed()))
        return 0.1

    monkeypatch.setattr(Validation, "luck", luck)
    return asked


def decided(
    found: Search, ordinary: list[Trial], challengers: list[Trial], split: Split | None
) -> Decision:
    """The decision of a search, with another split of its data."""
    others = None if split is None else other_splits(found, split)
    validation = found.split.validation
    seed = found.settings.seed
    return decide(validation, seed, ordinary, challengers, others, stopped=found.stopped)


def test_a_gain_must_exceed_luck(lucks: list[tuple[int, float, int]]) -> None:
    (usual,) = trials_of(0.5)
    for value, wins in ((0.7, True), (0.59, False), (0.4, False)):
        best, *others = trials_of(value, *[0.3] * 20)
        decision = decided(made_up(), [usual], [best, *others], None)
        assert decision.winner is (best if wins else usual)
        assert decision.ordinary is usual
        assert decision.challenger is best
        assert decision.gain == pytest.approx(value - 0.5)
        assert decision.luck == 0.1
        assert not decision.again
    # Without a second comparison: the luckiest of twelve challengers, in one of twenty cases.
    assert lucks == [(13, 0.95, 0)] * 3


def test_a_gain_that_equals_luck_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Validation, "luck", lambda *_: 0.25)
    (usual,), (best,) = trials_of(0.5), trials_of(0.75)
    assert decided(made_up(), [usual], [best], None).winner is usual
    # Nor in the second comparison.
    usual = trial_of(PlannedTrial(Candidate("cross_entropy"), 0.01), 0.5)
    best = trial_of(PlannedTrial(Candidate("focal"), 0.1), 0.9)
    again = made_up(lambda planned, _: 0.5 if planned.rate == 0.01 else 0.75)
    decision = decided(again, [usual], [best], split_of())
    assert decision.again
    assert decision.winner is usual


def test_a_gain_is_one_where_lower_is_better(lucks: list[tuple[int, float, int]]) -> None:
    (usual,), (best,) = trials_of(0.5), trials_of(0.3)
    decision = decided(made_up(metric="error_rate"), [usual], [best], None)
    assert decision.winner is best
    assert decision.gain == pytest.approx(0.2)


@pytest.mark.parametrize(("second", "wins"), [(0.65, True), (0.55, False)])
def test_a_gain_must_be_shown_again_on_other_splits(
    second: float, wins: bool, lucks: list[tuple[int, float, int]]
) -> None:
    usual = trial_of(PlannedTrial(Candidate("cross_entropy"), 0.01), 0.5, epochs=20, epoch=7)
    best = trial_of(PlannedTrial(Candidate("focal"), 0.1), 0.7, epochs=10, epoch=3)
    found = made_up(lambda planned, _: 0.5 if planned.rate == 0.01 else second)
    found.settings = replace(found.settings, seed=9)
    others = split_of(folds=2)
    splits: list[Split] = []
    run = MadeUp.run

    def watching(self: MadeUp, *arguments: Any) -> list[Trial]:
        splits.append(self.split)
        return run(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MadeUp, "run", watching)
        decision = decided(found, [usual], [best, *trials_of(0.6, 0.6)], others)
    assert decision.again
    assert decision.gain == pytest.approx(second - 0.5)
    assert decision.winner is (best if wins else usual)
    assert decision.challenger is best
    # Both are trained as they were chosen, up to the epoch they were chosen at, on the new splits.
    assert [
        (name, planned[0].rate, epochs, only) for name, planned, epochs, only in found.asked
    ] == [
        ("again-0", 0.01, 20, 7),
        ("again-1", 0.1, 10, 3),
    ]
    assert all(each is others for each in splits)
    assert found.trials == []
    # The better of two challengers, then one; at one standard error.
    assert lucks == [(3, 0.8413, 9), (2, 0.8413, 9)]


def test_there_is_no_second_comparison_without_a_gain(
    lucks: list[tuple[int, float, int]],
) -> None:
    (usual,), (best,) = trials_of(0.5), trials_of(0.55)
    found = made_up()
    decision = decided(found, [usual], [best], split_of())
    assert decision.winner is usual
    assert not decision.again
    assert found.asked == []


def test_a_second_comparison_that_fails_leaves_the_ordinary_loss(
    lucks: list[tuple[int, float, int]],
) -> None:
    (usual,), (best,) = trials_of(0.5), trials_of(0.7)
    decision = decided(made_up(lambda *_: None), [usual], [best], split_of())
    assert decision.winner is usual
    assert decision.gain > decision.luck
    assert not decision.again
    stopped = made_up()
    stopped.stopped = True
    decision = decided(stopped, [usual], [best], split_of())
    assert decision.winner is best  # there is no time to compare again
    assert stopped.asked == []


def test_one_side_alone_wins() -> None:
    trials = trials_of(0.5, 0.4)
    plain = decided(made_up(), trials, [], None)
    assert plain.winner is plain.ordinary is trials[0]
    assert plain.challenger is None
    other = decided(made_up(), [], trials, None)
    assert other.winner is other.challenger is trials[0]
    assert other.ordinary is None
    with pytest.raises(RuntimeError, match="every training diverged; pass a lower rate"):
        decided(made_up(), [], [], None)
    stopped = made_up()
    stopped.stopped = True
    with pytest.raises(KeyboardInterrupt):
        decided(stopped, [], [], None)
