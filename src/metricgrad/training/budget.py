"""How long a fit may take: what an epoch costs is timed, and epochs are left out to fit a budget.

Seconds are kept for what follows the search: both finalists are compared again, and trained on
everything. An estimate may be wrong, and even one epoch may be too long, so every training also has
a moment at which it ends, whatever it has reached (`Search.ends`). It is checked after every step.
"""

from typing import NamedTuple

from metricgrad.processes import clock, from_first, is_first
from metricgrad.storage import write_json
from metricgrad.training.candidates import RATES, Candidate
from metricgrad.training.checkpoint import planned_number
from metricgrad.training.search import Search, all_groups
from metricgrad.training.trials import PlannedTrial

_FEWEST = 4  # epochs, unless fewer are asked for, or not even one candidate fits
_SLOWER = 1.3  # most losses take a little longer than the one that is timed
_LEAST = 0.4  # the share of a stack's time that a stack of few models takes,
_ALONE = 0.25  # and that a single model takes
_TIMING = 0.05  # the share of the budget that timing may take,
_MOST_AFTER = 0.35  # and that is kept for what follows the search, at most;
_RESUMED_AFTER = 0.2  # a resumed run, whose epochs are known, is not timed


class TimePlan(NamedTuple):
    """The epochs of a complete training, and the seconds that are kept for after the search."""

    epochs: int
    after: float


class _Pace(NamedTuple):
    """The seconds of an epoch: of a trial at every rate, and of one model alone."""

    trials: float
    alone: float
    least: float = 0.0  # the share of `trials` that the smallest group takes


def time_plan(
    search: Search, sides: list[list[Candidate]], rates: list[float], budget: float
) -> TimePlan:
    """The epochs with which all trials fit into a budget; from a file, if the run is resumed."""
    path = None if search.folder is None else search.folder / "epochs.json"
    known = None
    if path is not None:
        known = from_first(lambda: planned_number(path, search.epochs, "epochs"))
    if known is not None:
        return TimePlan(known, _RESUMED_AFTER * budget)
    pace = _pace(search, sides[0][0], len(rates), _TIMING * budget)
    left = budget - (clock() - search.started)
    epochs = search.epochs
    while epochs > _FEWEST and _SLOWER * _cost(search, sides, rates, epochs, pace) >= left:
        epochs -= 1
    # Candidates are left out rather than more epochs, but one of them has to be trained.
    first = [sides[0][:1]]
    while epochs > 1 and _SLOWER * _cost(search, first, rates, epochs, pace) >= left:
        epochs -= 1
    if path is not None and is_first():
        write_json(path, epochs)
    after = min(
        _MOST_AFTER * budget, _SLOWER * epochs * _trainings_after(search, sides) * pace.alone
    )
    return TimePlan(epochs, after)


def _cost(
    search: Search, sides: list[list[Candidate]], rates: list[float], epochs: int, pace: _Pace
) -> float:
    """The seconds of a fit; a group takes as long as its number of trials.

    If models are stacked, a few of them take about as long as one.
    """
    cost = epochs * _trainings_after(search, sides) * pace.alone
    for trials, length in all_groups(search, sides, rates, epochs):
        cost += max(trials / len(rates), pace.least) * length * pace.trials
    return cost


def _trainings_after(search: Search, sides: list[list[Candidate]]) -> int:
    """The trainings that follow the search: two sides compared again; after folds, on all items."""
    again = 2 if len(sides) > 1 else 0
    return again + (len(sides) if len(search.split.folds) > 1 else 0)


def _pace(search: Search, candidate: Candidate, rates: int, seconds: float) -> _Pace:
    """The pace of a candidate, found out in about so many seconds."""
    folds = len(search.split.folds)
    stacked = candidate.method != "bilevel" and search.together >= rates * folds
    if stacked:
        spent = _timed(search, candidate, rates, seconds)
        return _Pace(spent, _ALONE * spent, _LEAST)
    spent = _timed(search, candidate, 1, seconds)
    return _Pace(rates * spent, spent / folds)


def _timed(search: Search, candidate: Candidate, trials: int, seconds: float) -> float:
    """The seconds that one epoch takes with so many trials."""
    group = search.group([PlannedTrial(candidate, RATES[0])] * trials, 1)
    return group.epoch_seconds(clock() + seconds)
