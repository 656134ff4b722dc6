"""Trials: which epoch is best, on made-up curves."""

import pytest
import torch

from metricgrad.training.candidates import Candidate
from metricgrad.training.trials import BestEpochs, Trial


def followed(
    values: list[float], warm_up: int = 0, higher_is_better: bool = True
) -> tuple[BestEpochs, list[bool]]:
    """A trial with these values, epoch by epoch, and which epochs were the best so far."""
    best = BestEpochs(len(values), 1, warm_up, higher_is_better)
    return best, [best.record(0, number + 1, 0.0, value) for number, value in enumerate(values)]


def test_the_mean_of_three_epochs_decides_which_is_best() -> None:
    """The fourth epoch stands out; the sixth ends the best three in a row."""
    best, was_best = followed([0.1, 0.2, 0.1, 0.9, 0.5, 0.6, 0.5, 0.4])
    assert was_best == [True, True, False, True, True, True, False, False]
    assert best.epoch.item() == 6
    assert best.value.item() == 0.6
    assert best.recent.item() == pytest.approx((0.9 + 0.5 + 0.6) / 3)


def test_the_mean_is_of_three_epochs_and_no_more() -> None:
    best, _ = followed([0.0, 0.6, 0.6, 0.6])
    assert best.epoch.item() == 4
    assert best.recent.item() == pytest.approx(0.6)
    best, _ = followed([0.9, 0.3, 0.3, 0.9])  # 0.9, 0.6, 0.5, 0.5
    assert best.epoch.item() == 1


def test_of_equal_epochs_the_first_is_best() -> None:
    best, was_best = followed([0.5, 0.5, 0.5])
    assert was_best == [True, False, False]
    assert best.epoch.item() == 1


def test_lower_may_be_better() -> None:
    best, was_best = followed([0.5, 0.3, 0.9], higher_is_better=False)
    assert was_best == [True, True, False]
    assert best.value.item() == pytest.approx(0.3)
    assert best.best_value() == pytest.approx(0.3)


def test_an_epoch_of_the_warm_up_cannot_win_nor_enter_the_mean() -> None:
    best, was_best = followed([0.9, 0.9, 0.1, 0.2], warm_up=2)
    assert was_best == [False, False, True, True]
    assert best.epoch.item() == 4
    assert best.recent.item() == pytest.approx(0.15)
    assert best.curve[:, 0, 1].tolist() == [0.9, 0.9, 0.1, 0.2]


def test_epochs_that_were_not_measured_do_not_enter_the_mean() -> None:
    best = BestEpochs(3, 1, 0, True)
    assert best.record(0, 1, 0.0, 0.4)
    assert best.record(0, 3, 0.0, 0.6)  # the second diverged
    assert best.recent.item() == pytest.approx(0.5)


def test_trials_are_followed_each_on_its_own() -> None:
    best = BestEpochs(2, 2, 0, True)
    best.record(0, 1, 3.0, 0.5)
    best.record(1, 1, 4.0, 0.7)
    best.record(1, 2, 5.0, 0.8)
    assert best.epoch.tolist() == [1, 2]
    assert best.value.tolist() == [0.5, 0.8]
    assert best.curve[:, 1].tolist() == [[4.0, 0.7], [5.0, 0.8]]
    assert best.curve[0, 0].tolist() == [3.0, 0.5]
    assert best.curve[1, 0].isnan().all()
    assert best.best_value() == 0.8


def test_patience_counts_from_the_best_epoch() -> None:
    best, _ = followed([0.1, 0.5, 0.4, 0.3, 0.2])  # the mean of three is best at epoch 4
    assert best.epoch.item() == 4
    assert [best.gave_up(epoch, 2) for epoch in (4, 5, 6, 7)] == [False, False, True, True]
    assert not best.gave_up(100, None)


def test_patience_counts_from_the_end_of_the_warm_up() -> None:
    best = BestEpochs(8, 1, 3, True)
    assert [best.gave_up(epoch, 2) for epoch in range(1, 7)] == [False] * 4 + [True] * 2
    best.record(0, 4, 0.0, 0.1)
    assert [best.gave_up(epoch, 2) for epoch in (5, 6)] == [False, True]
    assert not BestEpochs(8, 1, 3, True).gave_up(3, 0)


def test_patience_is_that_of_the_trial_that_improved_last() -> None:
    best = BestEpochs(8, 2, 0, True)
    best.record(0, 1, 0.0, 0.9)
    best.record(1, 4, 0.0, 0.1)
    assert not best.gave_up(5, 2)
    assert best.gave_up(6, 2)


def test_trials_without_a_value_have_no_best() -> None:
    best = BestEpochs(2, 2, 0, True)
    assert best.best_value() is None
    assert best.value.isnan().all()
    assert best.epoch.tolist() == [0, 0]


def test_curves_go_on_from_a_checkpoint() -> None:
    values = [0.1, 0.2, 0.1, 0.9, 0.5, 0.6, 0.5, 0.4]
    whole, _ = followed(values)
    half = BestEpochs(8, 1, 0, True)
    for number, value in enumerate(values[:4]):
        half.record(0, number + 1, 0.0, value)
    resumed = BestEpochs(8, 1, 0, True)
    resumed.restore({name: each.clone() for name, each in half.state().items()})
    for number, value in enumerate(values[4:]):
        resumed.record(0, number + 5, 0.0, value)
    for name, each in whole.state().items():
        torch.testing.assert_close(resumed.state()[name], each, equal_nan=True, rtol=0, atol=0)
    assert set(whole.state()) == {"best.value", "best.recent", "best.epoch", "curve"}


def test_a_trial_forgets_what_takes_room() -> None:
    kept = torch.ones(3, 4)
    trial = Trial(Candidate("focal"), 0.1, 4, 2, 0.5, None, kept, {"w": kept}, torch.zeros(4, 2))
    trial.forget()
    assert trial.scores.numel() == 0
    assert trial.state == {}
    assert trial.value == 0.5
