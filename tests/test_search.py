"""The search behind mg.fit: how the metric judges, what luck would give, and who replaces cross-entropy."""

from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor

import metricgrad as mg
from metricgrad.training import search, trial_group
from metricgrad.training.candidates import RATES, candidates_of
from metricgrad.training.data import Items
from metricgrad.training.split import SplitPlan, split_data
from metricgrad.training.trials import TrialSettings
from metricgrad.training.validation import Validation, ValidationItems
from tests.fitting import linear, made, quick, same
from tests.trainings import seeded

# -----------------------------------------------------------------------------------------------------
# the validation


def judged(metric: Any, number: int = 300, folds: int = 3) -> tuple[Validation, Tensor, Tensor]:
    target = (torch.rand(folds, number, generator=seeded()) < 0.3).long()
    scores = torch.randn(folds, number, generator=seeded(1)) + target
    live = torch.ones(folds, number, dtype=torch.bool)
    live[0, -7:] = False
    return Validation(mg.metric(metric), ValidationItems(target, live)), scores, target


def test_decisions_are_pooled_and_orders_are_averaged() -> None:
    validation, scores, target = judged("f1")
    value, threshold = validation.look(scores)
    live = validation.items.live
    assert threshold is not None
    assert value == pytest.approx(f1_score(target[live], scores[live] > threshold))
    validation, scores, target = judged("average_precision")
    value, threshold = validation.look(scores)
    each = [average_precision_score(target[k][live[k]], scores[k][live[k]]) for k in range(3)]
    assert threshold is None
    assert value == pytest.approx(sum(each) / 3, abs=1e-5)
    perfect = torch.tensor(
        [[4.0, 3, 2, 1], [0.4, 0.3, 0.2, 0.1]]
    )  # of two models, each with a scale of its own
    seen = ValidationItems(
        torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]]), torch.ones(2, 4, dtype=torch.bool)
    )
    assert Validation(mg.metric("recall_at_k", k=2), seen).look(perfect).value == 1


def test_luck_is_a_standard_error_for_one_challenger_and_more_for_many() -> None:
    """Two models that differ in whether items are right: the standard error of the difference is known."""
    validation, _, target = judged("accuracy", 2000, 1)
    right = torch.where(torch.rand(6, 1, 2000, generator=seeded(2)) < 0.8, 1, -1)
    scores = list((2 * target - 1) * right.float())
    zero = torch.zeros(())
    pair = [(each > 0).long() == target for each in scores[:2]]
    exact = (pair[1].double() - pair[0].double())[
        validation.items.live
    ].std() / validation.items.live.sum() ** 0.5
    one = validation.luck(scores[:2], [zero, zero], seeded())
    many = validation.luck(scores, [zero] * 6, seeded())
    assert one == pytest.approx(exact.item(), rel=0.25)
    assert many > 1.3 * one


# ---------------------------------------------------------------------------------------------------
# the search


def test_cross_entropy_that_wins_is_the_one_that_is_asked_for() -> None:
    """On labels that no loss can do better on, auto ends where training on cross-entropy ends, bit by bit."""
    x = torch.randn(300, 5, generator=seeded())
    y = (torch.rand(300, generator=seeded(1)) < 0.3).long()
    auto, plain = (
        quick(linear(), (x, y), metric="auc", method=method, rate=None)
        for method in ("auto", "cross_entropy")
    )
    assert auto.decision.winner is auto.decision.ordinary
    assert "cross-entropy is as good here" in auto.verdict()
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
    assert "is better" in found.verdict()
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
    monkeypatch.setattr(search.Search, "late", lambda *_: True)
    found = quick(linear(), made(), folds=1)
    assert found.decision.challenger is None
    assert "no time for a challenger" in found.verdict()
    assert "challenger" not in quick(linear(), made(), method="cross_entropy", folds=1).verdict()


def test_time_that_runs_out_after_the_first_round_leaves_its_challengers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search.Search, "late", lambda _, share: share > 0.5)
    found = quick(linear(), made(), folds=1, epochs=8)
    assert found.decision.challenger is not None
    assert {
        trial.epochs for trial in found.trials if trial.candidate.method != "cross_entropy"
    } == {4}


def search_of(x: Tensor, y: Tensor) -> search.Search:
    plan = SplitPlan(mg.metric("f1"), tune=True, batch=64, balanced=False, folds=1, share=0.2)
    _, split = split_data(Items(x, y), None, plan, 0)
    return search.Search(linear(), split, TrialSettings(), 20)


def test_a_budget_counts_the_trials_of_a_group() -> None:
    """Sixteen trials take longer than the four that are timed."""
    x, y = made()
    groups = search.schedule(
        search_of(x, y), candidates_of("uniloss", mg.metric("f1")), list(RATES), 20
    )
    assert groups[0] == (16, 5)  # four slopes from scratch, with four rates each
    assert sum(length for _, length in groups) < sum(
        planned / 4 * length for planned, length in groups
    )


# ------------------------------------------------------------------------------------------ the
# second meeting


def test_patience_does_not_decide_the_second_meeting() -> None:
    """There the epoch is known, and nothing is looked at before it."""
    found = quick(linear(features=2), ring(), epochs=12, patience=3)
    assert found.decision.again
    assert found.decision.winner is found.decision.challenger


def test_ctrl_c_in_the_second_meeting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, train = search.Search.run, trial_group.TrialGroup._train

    def pressed(_: trial_group.TrialGroup) -> Tensor:
        trial_group.TrialGroup._train = train
        raise KeyboardInterrupt

    def interrupted(self: search.Search, name: str, *arguments: Any) -> Any:
        if name == "again-0":
            monkeypatch.setattr(trial_group.TrialGroup, "_train", pressed)
        return whole(self, name, *arguments)

    monkeypatch.setattr(search.Search, "run", interrupted)
    found = quick(linear(features=2), ring(), epochs=8)
    assert found.stopped
    assert found.decision.winner is found.decision.ordinary
    assert "may be better, which no second meeting on other cuts has shown" in found.verdict()


def test_ctrl_c_while_a_budget_is_made_out_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_: trial_group.TrialGroup) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_group.TrialGroup, "_train", pressed)
    with pytest.raises(KeyboardInterrupt):
        quick(linear(), made(), budget=100.0)
