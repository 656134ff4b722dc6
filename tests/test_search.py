"""The search behind mg.fit: rounds of trials, what replaces cross-entropy, and what is told."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import metricgrad as mg
from metricgrad.training import budget, search, trial_group
from metricgrad.training.budget import affordable_epochs
from metricgrad.training.candidates import RATES, Candidate, candidates_of, challengers
from metricgrad.training.data import Items
from metricgrad.training.joint_trials import JointTrialGroup
from metricgrad.training.search import Search, decide, schedule, successive_halving
from metricgrad.training.split import Split, SplitPlan, split_data
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from metricgrad.training.validation import Validation
from tests.fitting import linear, made, quick, same
from tests.trainings import seeded

# ---------------------------------------------------------------------------
# rounds of trials, on made-up values


def split_of(metric: Any = "f1", folds: int = 1) -> Split:
    plan = SplitPlan(mg.metric(metric), tune=True, batch=64, balanced=False, folds=folds, share=0.2)
    return split_data(Items(*made()), None, plan, 0)


Valued = Callable[[PlannedTrial, int], float | None]


@dataclass
class MadeUp(Search):
    """A search whose trials have made-up values and are never trained."""

    valued: Valued = lambda planned, epochs: planned.rate
    asked: list[tuple[str, list[PlannedTrial], int, int | None]] = field(default_factory=list)

    def run(
        self, name: str, planned: list[PlannedTrial], epochs: int, only: int | None = None
    ) -> list[Trial]:
        self.asked.append((name, planned, epochs, only))
        found = [trial_of(each, self.valued(each, epochs), epochs) for each in planned]
        self.trials += found
        return found


def trial_of(planned: PlannedTrial, value: float | None, epochs: int = 4, epoch: int = 2) -> Trial:
    scores = torch.zeros(1, 80)
    return Trial(*planned, epochs, epoch, value, None, scores, {}, torch.zeros(epochs, 2))


def made_up(
    valued: Valued | None = None, epochs: int = 20, metric: Any = "f1", folds: int = 1, **more: Any
) -> MadeUp:
    given = {} if valued is None else {"valued": valued}
    return MadeUp(linear(), split_of(metric, folds), TrialSettings(), epochs, **given, **more)


def slope(planned: PlannedTrial) -> float:
    return planned.candidate.options["slope"]


def test_rounds_are_a_quarter_half_and_all_of_the_epochs() -> None:
    found = made_up()
    successive_halving(found, "challengers", [Candidate("focal") for _ in range(9)], list(RATES))
    assert sorted({epochs for _, _, epochs, _ in found.asked}) == [5, 10, 20]


@pytest.mark.parametrize(
    ("epochs", "rounds"),
    [(100, [25, 50, 100]), (20, [5, 10, 20]), (10, [4, 5, 10]), (4, [4, 4, 4]), (2, [2, 2, 2])],
)
def test_no_round_is_shorter_than_four_epochs(epochs: int, rounds: list[int]) -> None:
    assert [search._round_epochs(number, 9, epochs) for number in range(3)] == rounds


def test_two_trials_need_no_choice() -> None:
    assert [search._round_epochs(number, 2, 20) for number in range(3)] == [None, None, 20]
    assert [search._round_epochs(number, 3, 20) for number in range(3)] == [5, 10, 20]


@pytest.mark.parametrize(("candidates", "kept"), [(1, 2), (6, 2), (7, 3), (8, 3), (9, 3), (10, 4)])
def test_the_best_third_continue_with_two_rates_and_then_two_with_one(
    candidates: int, kept: int
) -> None:
    assert search._promotion(candidates, 0) == (kept, 2)
    assert search._promotion(candidates, 1) == (2, 1)


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
        for length in (5, 10, 20)
    ]  # fmt: skip
    assert len(rounds[0]) == 16
    assert rounds[1] == [(2.0, 0.03), (2.0, 0.1), (8.0, 0.01), (8.0, 0.03)]
    assert rounds[2] == [(2.0, 0.1), (8.0, 0.03)]
    assert len(trials) == 22
    assert (trials[0].rate, trials[0].epochs) == (0.03, 20)
    values = [trial.value for trial in trials]
    assert values == sorted(values, reverse=True, key=lambda value: value or 0.0)


def test_a_short_trial_can_be_the_best() -> None:
    found = made_up(lambda planned, epochs: planned.rate / epochs)
    trials = successive_halving(found, "challengers", [Candidate("focal")], list(RATES))
    assert (trials[0].rate, trials[0].epochs) == (0.1, 5)


def test_lower_values_come_first_where_lower_is_better() -> None:
    found = made_up(metric="error_rate")
    trials = successive_halving(found, "challengers", [Candidate("focal")], list(RATES))
    assert trials[0].rate == 0.003
    assert [planned for _, planned, epochs, _ in found.asked if epochs == 20][0][0].rate == 0.003


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
    assert sizes == [("uniloss", False, 16), ("uniloss", True, 8), ("soft_f_beta", False, 4)]


@pytest.mark.parametrize(("folds", "size"), [(1, 128), (2, 64), (5, 25), (50, 2)])
def test_at_most_128_models_are_trained_together(folds: int, size: int) -> None:
    alike = Candidate("focal")
    found = made_up(folds=folds)
    groups = found.groups([PlannedTrial(alike, 0.1)] * (size + 1))
    assert [len(group) for group in groups] == [size, 1]


def test_bilevel_losses_are_trained_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metricgrad.training.joint_trials._UNIVERSAL_STEPS", 2)
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
# time


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ([36, 36, 36], None),
        ([34, 61, 61], 5),
        ([34, 59, 86], 10),
        ([34, 59, 84], 20),
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
    trials = successive_halving(found, "challengers", tried, [0.1])
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
        planned = schedule(found, tried, list(RATES), 20)
        successive_halving(found, "challengers", tried, list(RATES))
        done = [(len(group), epochs) for _, group, epochs, _ in found.asked]
        assert sum(n * length for n, length in planned) == sum(n * length for n, length in done)
    groups = schedule(made_up(), candidates_of("uniloss"), list(RATES), 20)
    assert groups[0] == (16, 5)  # four slopes from scratch, with four rates each


@dataclass
class Clock:
    """Every reading is a second after the last."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("seconds", "expected"), [(1e9, 20), (85.0, 20), (84.0, 19), (80.0, 18), (0.1, 4)]
)
def test_a_budget_shortens_the_epochs(
    seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """One loss at four rates, E epochs: a round of a quarter, one of all, and half of 4 E after.

    An epoch takes 1.3 s, so 20 epochs take 1.3 (5 + 20 + 40) = 84.5 s.
    """
    costs = {epochs: 1.3 * (max(4, round(epochs / 4)) + 3 * epochs) for epochs in range(4, 21)}
    fitting = [epochs for epochs, cost in costs.items() if cost < seconds]
    found = made_up(folder=tmp_path)
    monkeypatch.setattr(budget, "_timed", lambda *_: 1.0)
    got = affordable_epochs(found, [[Candidate("focal")]], list(RATES), seconds)
    assert got == expected == max(fitting, default=4)
    # A resumed run has the same number of epochs.
    assert affordable_epochs(found, [[Candidate("focal")]], list(RATES), 1e9) == got


def test_a_budget_never_adds_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_timed", lambda *_: 1.0)
    assert affordable_epochs(made_up(epochs=2), [[Candidate("focal")]], list(RATES), 0.1) == 2


def test_groups_of_many_trials_cost_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up()
    cost = budget._cost(found, [candidates_of("uniloss")], list(RATES), 20)
    groups = schedule(found, candidates_of("uniloss"), list(RATES), 20)
    assert groups == [(16, 5), (8, 5), (4, 10), (2, 20)]
    assert cost == 0.5 * 4 * 20 + 4 * 5 + 2 * 5 + 1 * 10 + 1 * 20
    both = budget._cost(found, [candidates_of("uniloss"), [Candidate("focal")]], list(RATES), 20)
    assert both == cost + 5 + 20


def test_one_epoch_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up(metric="f1")
    monkeypatch.setattr("time.monotonic", Clock())
    assert budget._timed(found, 3) == 1.0
    ((_, planned, epochs, _),) = found.asked
    assert len(planned) == 3
    assert epochs == 1
    assert {each.candidate.method for each in planned} == {"cross_entropy"}
    assert found.trials == []


def test_ctrl_c_while_an_epoch_is_timed_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUp, "run", lambda self, *_: setattr(self, "stopped", True))
    with pytest.raises(KeyboardInterrupt):
        budget._timed(made_up(), 3)


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


def test_a_gain_must_exceed_luck(lucks: list[tuple[int, float, int]]) -> None:
    (usual,) = trials_of(0.5)
    for value, wins in ((0.7, True), (0.59, False), (0.4, False)):
        best, *others = trials_of(value, *[0.3] * 20)
        decision = decide(made_up(), [usual], [best, *others], None)
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
    assert decide(made_up(), [usual], [best], None).winner is usual


def test_a_gain_is_one_where_lower_is_better(lucks: list[tuple[int, float, int]]) -> None:
    (usual,), (best,) = trials_of(0.5), trials_of(0.3)
    decision = decide(made_up(metric="error_rate"), [usual], [best], None)
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
        decision = decide(found, [usual], [best, *trials_of(0.6, 0.6)], others)
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
    decision = decide(found, [usual], [best], split_of())
    assert decision.winner is usual
    assert not decision.again
    assert found.asked == []


def test_a_second_comparison_that_fails_leaves_the_ordinary_loss(
    lucks: list[tuple[int, float, int]],
) -> None:
    (usual,), (best,) = trials_of(0.5), trials_of(0.7)
    decision = decide(made_up(lambda *_: None), [usual], [best], split_of())
    assert decision.winner is usual
    assert decision.gain > decision.luck
    assert not decision.again
    stopped = made_up()
    stopped.stopped = True
    decision = decide(stopped, [usual], [best], split_of())
    assert decision.winner is best  # there is no time to compare again
    assert stopped.asked == []


def test_one_side_alone_wins() -> None:
    trials = trials_of(0.5, 0.4)
    plain = decide(made_up(), trials, [], None)
    assert plain.winner is plain.ordinary is trials[0]
    assert plain.challenger is None
    other = decide(made_up(), [], trials, None)
    assert other.winner is other.challenger is trials[0]
    assert other.ordinary is None
    with pytest.raises(RuntimeError, match="every training diverged; pass a lower rate"):
        decide(made_up(), [], [], None)
    stopped = made_up()
    stopped.stopped = True
    with pytest.raises(KeyboardInterrupt):
        decide(stopped, [], [], None)


# ---------------------------------------------------------------------------
# whole searches


def test_cross_entropy_that_wins_is_the_one_that_is_asked_for() -> None:
    """On labels that no loss can do better on, auto ends where training on cross-entropy ends, bit by bit."""
    x = torch.randn(300, 5, generator=seeded())
    y = (torch.rand(300, generator=seeded(1)) < 0.3).long()
    auto, plain = (
        quick(linear(), (x, y), metric="auc", method=method, rate=None)
        for method in ("auto", "cross_entropy")
    )
    assert auto.decision.winner is auto.decision.ordinary
    assert "cross-entropy is as good here as the best challenger" in auto.verdict()
    assert same(auto, plain)
    assert auto.value == plain.value


def random_labels(seed: int) -> tuple[Tensor, Tensor]:
    labels = (torch.rand(400, generator=seeded(100 + seed)) < 0.2).long()
    return torch.randn(400, 5, generator=seeded(seed)), labels


@pytest.mark.parametrize("seed", range(5))
def test_random_labels_show_no_gain(seed: int) -> None:
    found = quick(linear(), random_labels(seed), metric="average_precision", seed=seed)
    assert found.decision.winner is found.decision.ordinary


def test_random_labels_show_no_gain_on_validation_data_that_was_passed() -> None:
    """There is no second meeting; the best of forty trainings is lucky, and must not count."""
    wins = 0
    for seed in range(12):
        valid, options = (
            random_labels(1000 + seed),
            {"metric": "average_precision", "rate": None, "seed": seed},
        )
        found = quick(linear(), random_labels(seed), valid, **options)
        wins += found.decision.winner is found.decision.challenger
    assert wins == 0  # by the rule for two meetings it would be two of these


def ring() -> tuple[Tensor, Tensor]:
    """Positives on two sides, which a linear model can only have one of: cross-entropy gives up, F1 does not."""
    x = torch.randn(3000, 2, generator=seeded())
    return x, (
        (x[:, 0] > 1.2) | ((x[:, 0] < -1.5) & (torch.rand(3000, generator=seeded(1)) < 0.8))
    ).long()


def test_a_real_gain_is_taken() -> None:
    x, y = ring()
    found = quick(linear(features=2), (x, y), rate=0.1, epochs=8)
    assert found.decision.gain > found.decision.luck
    assert found.decision.winner is found.decision.challenger
    assert "is better than cross-entropy" in found.verdict()
    plain = quick(linear(features=2), (x, y), method="cross_entropy", rate=0.1, epochs=8)
    loser = found.finalists["cross_entropy"]
    for one, other in zip(loser.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert loser.threshold is not None
    assert plain.threshold is not None
    assert torch.equal(loser.threshold, plain.threshold)


def test_a_budget_shortens_the_training() -> None:
    found = quick(linear(), made(), budget=1.5, epochs=200)
    assert max(trial.epochs for trial in found.trials) < 200
    assert found.seconds < 15


def test_patience_ends_a_training_that_gets_no_better() -> None:
    found = quick(linear(), made(), method="cross_entropy", epochs=60, patience=3, folds=1)
    curve = found.decision.winner.curve
    assert curve[:, 1].isnan().any()
    assert found.decision.winner.epoch + 3 == int((~curve[:, 1].isnan()).sum())


def test_a_training_that_diverges_leaves_the_others_alone() -> None:
    x, y = made()
    found = mg.fit(
        linear(),
        (1e18 * x, y),
        metric="f1",
        method="cross_entropy",
        epochs=3,
        progress=False,
        clip=None,
        folds=1,
    )
    assert found.value > 0.2


def test_memory_joins_small_batches() -> None:
    plain, remembered = (
        quick(linear(), made(), method="smooth_ap", batch=16, memory=size) for size in (0, 128)
    )
    assert remembered.value > 0.7
    assert not same(plain, remembered)


def test_a_budget_too_short_for_challengers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "late", lambda *_: True)
    found = quick(linear(), made(), folds=1)
    assert found.decision.challenger is None
    assert "no time for a challenger" in found.verdict()
    assert "challenger" not in quick(linear(), made(), method="cross_entropy", folds=1).verdict()


def test_time_that_runs_out_after_the_first_round_leaves_its_challengers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Search, "late", lambda _, share: share > 0.5)
    found = quick(linear(), made(), folds=1, epochs=8)
    assert found.decision.challenger is not None
    assert {
        trial.epochs for trial in found.trials if trial.candidate.method != "cross_entropy"
    } == {4}


def test_patience_does_not_decide_the_second_comparison() -> None:
    """There the epoch is known, and nothing is looked at before it."""
    found = quick(linear(features=2), ring(), epochs=12, patience=3)
    assert found.decision.again
    assert found.decision.winner is found.decision.challenger


def test_ctrl_c_in_the_second_comparison_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, train = Search.run, trial_group.TrialGroup._train

    def pressed(_: trial_group.TrialGroup) -> Tensor:
        trial_group.TrialGroup._train = train
        raise KeyboardInterrupt

    def interrupted(self: Search, name: str, *arguments: Any) -> Any:
        if name == "again-0":
            monkeypatch.setattr(trial_group.TrialGroup, "_train", pressed)
        return whole(self, name, *arguments)

    monkeypatch.setattr(Search, "run", interrupted)
    found = quick(linear(features=2), ring(), epochs=8)
    assert found.stopped
    assert found.decision.winner is found.decision.ordinary
    assert "may be better, but it was not compared again on other splits" in found.verdict()


def test_ctrl_c_while_a_budget_is_made_out_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_: trial_group.TrialGroup) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_group.TrialGroup, "_train", pressed)
    with pytest.raises(KeyboardInterrupt):
        quick(linear(), made(), budget=100.0)
