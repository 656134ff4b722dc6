"""The decision between the ordinary loss and its challengers, on validation data.

The best of many trials looks better than it is. So the best challenger is compared with the
ordinary loss once more, both with the settings and the epoch they were chosen with, on other splits
of the data. It wins only if its gain exceeds what chance would give (`validation.py`) both times.
With folds, the items of both comparisons are the same; what is new is how they are split, and all
that is random in training. Validation data that the user passed cannot be split otherwise, so the
single comparison has to show more: a gain that the luckiest of twelve challengers would reach by
chance in only one of twenty cases.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from metricgrad.processes import from_first
from metricgrad.training.trials import Trial
from metricgrad.training.validation import ONE_SIGMA, Validation

# Chance is judged by the luckiest of so many challengers, at a quantile of its gains.
_TWICE = (2, ONE_SIGMA)  # the gain must be shown again on other splits
_ALONE_TWICE = (1, ONE_SIGMA**0.5)  # the same if others were left behind on fewer folds
_ONCE = (12, 0.95)  # there are no other splits


@dataclass(frozen=True)
class Decision:
    """The outcome of a search; a side that was not tried is None."""

    winner: Trial
    ordinary: Trial | None  # the best trial of the ordinary loss
    challenger: Trial | None  # the best trial of all other losses
    gain: float = 0.0  # by how much the challenger is better, where both were compared last
    luck: float = 0.0  # below this, the gain could be chance
    again: bool = False  # whether both were compared again, on other splits


class OtherSplits(NamedTuple):
    """Other splits of the same data, on which trials are trained again, exactly as they were."""

    validation: Validation
    again: Callable[[list[Trial]], list[Trial] | None]  # None if one of them was not finished


def decide(
    validation: Validation,
    seed: int,
    ordinary: list[Trial],
    challengers: list[Trial],
    others: OtherSplits | None,
    *,
    stopped: bool = False,
) -> Decision:
    """The ordinary loss, unless the best challenger's gain exceeds chance, on other splits too.

    The trials of both sides come with the best first; `others` is None if no other split exists.
    `stopped` says that the user has ended the search, so that nothing is trained again.
    """
    if not ordinary and not challengers:
        if stopped:
            raise KeyboardInterrupt  # there is nothing to keep yet
        raise RuntimeError(
            "every training diverged; pass a lower rate, or check the features for huge values"
        )
    if not challengers:
        return Decision(ordinary[0], ordinary[0], None)
    if not ordinary:
        return Decision(challengers[0], None, challengers[0])
    usual = ordinary[0]
    best = challengers[0]
    twice = _TWICE if len(challengers) > 1 else _ALONE_TWICE
    first = compare_trials(validation, seed, usual, challengers, _ONCE if others is None else twice)
    if first.winner is usual or others is None or stopped:
        return first
    met = others.again([usual, best])
    if met is None:
        return replace(first, winner=usual)  # the gain has not been shown twice
    found = compare_trials(others.validation, seed, met[0], met[1:], _TWICE)
    winner = best if found.gain > found.luck else usual
    return Decision(winner, usual, best, found.gain, found.luck, again=True)


def compare_trials(
    validation: Validation,
    seed: int,
    usual: Trial,
    challengers: list[Trial],
    chance: tuple[int, float] = _TWICE,
) -> Decision:
    """The first challenger against the usual trial.

    Chance is judged by the luckiest of so many challengers, at a quantile of its gains.
    """
    number, quantile = chance
    best = challengers[0]
    compared = [usual, *challengers[:number]]
    assert best.value is not None
    assert usual.value is not None
    gain = validation.gain(best.value, usual.value)
    luck = from_first(
        lambda: validation.luck(
            [trial.scores for trial in compared],
            [trial.threshold for trial in compared],
            torch.Generator().manual_seed(seed),
            quantile,
        )
    )
    return Decision(best if gain > luck else usual, usual, best, gain, luck)
