"""How many epochs fit into a time budget, by the time that one epoch of the ordinary loss takes."""

import json
import time
from dataclasses import replace

from metricgrad.storage import write_json
from metricgrad.training.candidates import RATES, Candidate, ordinary_candidate
from metricgrad.training.search import Search, schedule
from metricgrad.training.trials import PlannedTrial

_SHORTEST = 4  # epochs, however short the budget is
_SLOWER = 1.3  # most losses take a little longer than the ordinary one
_AFTER = 4  # trainings of one model after the search: two compared again, two on everything
_ALONE = 0.5  # one model takes about half as long as the trials that were timed


def affordable_epochs(
    search: Search, sides: list[list[Candidate]], rates: list[float], budget: float
) -> int:
    """The epochs with which all trials fit into a budget; from a file, if the run is resumed."""
    path = None if search.folder is None else search.folder / "epochs.json"
    if path is not None and path.exists():
        return json.loads(path.read_text())
    each = _SLOWER * _timed(search, len(rates))
    epochs = search.epochs
    while epochs > _SHORTEST and each * _cost(search, sides, rates, epochs) >= budget:
        epochs -= 1
    if path is not None:
        write_json(path, epochs)
    return epochs


def _cost(search: Search, sides: list[list[Candidate]], rates: list[float], epochs: int) -> float:
    """The cost of a fit, in epochs of as many trials as there are rates.

    Groups of more trials take longer in proportion.
    """
    cost = _ALONE * _AFTER * epochs
    for candidates in sides:
        for trials, length in schedule(search, candidates, rates, epochs):
            cost += max(1.0, trials / len(rates)) * length
    return cost


def _timed(search: Search, trials: int) -> float:
    """The seconds that one epoch of the ordinary loss takes with so many trials."""
    validation = search.split.validation
    usual = ordinary_candidate(validation.metric, validation.sets)
    timed = replace(search, folder=None, trials=[])
    start = time.monotonic()
    timed.run("timed", [PlannedTrial(usual, RATES[0])] * trials, 1)
    if timed.stopped:
        raise KeyboardInterrupt  # there is nothing to keep yet
    return time.monotonic() - start
