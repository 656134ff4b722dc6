r"""The search for the best candidate: successive halving, on validation data.

Successive halving has three rounds. All candidates are trained briefly with several learning
rates; the best two continue for twice as long with their two best rates, and the best trial of
those to the end. Where there are many folds, the first two rounds have two of them: they only have
to tell good from bad, and the last round decides on all. The ordinary loss goes through the same
rounds on its own, in the same way in every fit, so that "no difference is shown" gives exactly the
model that training on cross-entropy gives. What suited it says which two learning rates its
challengers are tried with (`rates_beside`). If there is a time budget (`budget.py`), every round
has a share of it. What is late is left out, and a training that takes too long is ended, but
something is always trained.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from metricgrad.metrics import Metric
from metricgrad.processes import clock, passed
from metricgrad.progress import Tell
from metricgrad.training.candidates import Candidate
from metricgrad.training.decision import OtherSplits
from metricgrad.training.group_kinds import JointTrialGroup, TrialInTurns, models_that_fit
from metricgrad.training.split import Split
from metricgrad.training.trial_group import TrialGroup
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings, best_first

_SHARES = (0.2, 0.4, 1.0)  # the share of the epochs that trials have, in each round
_LAST = len(_SHARES) - 1
_KEPT = 2  # candidates that continue after the first round, and their learning rates
_FEWEST = 4  # epochs of a trial, and of a fit, unless fewer are asked for
_TOGETHER = 128  # models that are trained side by side, at most
# Of the time of a side: trials start and end by then, in each round.
_ROUND_STARTS = (0.3, 0.5, 0.85)
_ROUND_ENDS = (0.3, 0.5, 1.0)


@dataclass
class Search:
    """Runs trials, all of which start from the model as it is, and keeps them."""

    model: nn.Module
    split: Split
    settings: TrialSettings
    epochs: int  # of a complete training
    folder: Path | None = None  # for checkpoints
    deadline: float | None = None  # seconds from the start
    tell: Tell = lambda *_: None  # called after every epoch of a group of trials
    trials: list[Trial] = field(default_factory=list)
    started: float = field(default_factory=clock)
    stopped: bool = False  # by Ctrl-C; the decision is then made with what there is
    after: float = 0.0  # seconds of the time that are kept for what follows the search
    share: float = 1.0  # of the other time, for the side that is searched now
    until: float = math.inf  # when trainings must end, by `clock`

    def run(
        self, name: str, planned: list[PlannedTrial], epochs: int, only: int | None = None
    ) -> list[Trial]:
        """Trains a group of trials, from its checkpoint if there is one."""
        group = self.group(planned, epochs)
        group.until = self.until
        path = None if self.folder is None else self.folder / f"{name}.safetensors"
        found = group.run(path, self.tell, only)
        self.stopped |= group.stopped
        self.trials += found
        return found

    def group(self, planned: list[PlannedTrial], epochs: int) -> TrialGroup:
        """A group of trials that has not begun."""
        cls = JointTrialGroup if planned[0].candidate.method == "bilevel" else TrialGroup
        if self.together < len(self.split.folds):
            return TrialInTurns(self.model, planned, self.split, epochs, self.settings, cls)
        return cls(self.model, planned, self.split, epochs, self.settings)

    @property
    def together(self) -> int:
        """How many models are trained side by side, at most."""
        return min(_TOGETHER, models_that_fit(self.model))

    def groups(self, planned: list[PlannedTrial]) -> list[list[PlannedTrial]]:
        """The trials that can be trained together, in groups that fit into memory."""
        kin: dict[tuple[object, ...], list[PlannedTrial]] = {}
        for each in planned:
            key = each.candidate.kin(self.split.validation.metric)
            kin.setdefault(key, []).append(each)
        size = max(1, self.together // len(self.split.folds))
        return [
            alike[start : start + size]
            for alike in kin.values()
            for start in range(0, len(alike), size)
        ]

    def ends(self, share: float) -> float:
        """The moment at which a share of the time for the search is over."""
        if self.deadline is None:
            return math.inf
        return self.started + share * (self.deadline - self.after)

    def late(self, share: float) -> bool:
        """Whether more than a share of the time is over."""
        return passed(self.ends(share))


def successive_halving(
    search: Search, name: str, candidates: list[Candidate], rates: list[float]
) -> list[Trial]:
    """All trials on all folds, the best first: with few items, a short training can be the best.

    If time runs out or the user stops the search, these are the trials of the rounds so far. What
    is late is not begun, unless there is no other trial yet.
    """
    metric = search.split.validation.metric
    usual = best_first(search.trials, metric)  # those of the ordinary loss, which comes first
    planned = [
        PlannedTrial(each, rate) for each in candidates for rate in rates_beside(each, usual, rates)
    ]
    few = search.split.screening()
    screened = few is not search.split
    trials: list[Trial] = []
    for number in range(len(_SHARES)):
        epochs = _round_epochs(number, len(planned), search.epochs)
        if epochs is None:
            continue
        now = replace(search, split=few) if screened and number != _LAST else search
        now.until = search.ends(search.share * _ROUND_ENDS[number])
        found: list[Trial] = []
        for order, group in enumerate(now.groups(planned)):
            known = usual or trials or found
            if search.stopped or (known and search.late(search.share * _ROUND_STARTS[number])):
                break
            found += now.run(f"{name}-{number}-{order}", group, epochs)
            _keep_best_state(trials + found, metric)
            search.stopped |= now.stopped
        found = best_first(found, metric)
        if now is search:
            trials += found
        if search.stopped or not found:
            break
        planned = _promoted(found, number)
    return best_first(trials, metric)


def _keep_best_state(trials: list[Trial], metric: Metric) -> None:
    """Drops the models of all but the best trial, the only one that may be needed again."""
    best = best_first(trials, metric)[:1]
    for trial in trials:
        if trial not in best:
            trial.state = {}


def rates_beside(candidate: Candidate, usual: list[Trial], rates: list[float]) -> list[float]:
    """The learning rates of a candidate: two, by the trials of the ordinary loss, if there are any.

    A loss whose gradient is as long as the ordinary one takes the two that suited that one best,
    the longest trainings first. A metric alone says less about an item, so other losses take the
    lower of the two and the next one below.
    """
    longest = sorted(usual, key=lambda trial: -trial.epochs)
    best = list(dict.fromkeys(trial.rate for trial in longest))[:_KEPT]
    if not best or len(rates) <= _KEPT:
        return rates
    if candidate.as_ordinary:
        return sorted(best)
    first = max(0, rates.index(min(best)) - 1)
    return rates[first : first + _KEPT]


def planned_groups(
    search: Search, candidates: list[Candidate], rates: list[float], epochs: int
) -> list[tuple[float, int]]:
    """The trials and the epochs of every group of successive halving, if nothing ends it early.

    A trial on two of five folds is two fifths of a trial.
    """
    planned = [PlannedTrial(each, rate) for each in candidates for rate in rates]
    screening = replace(search, split=search.split.screening())
    share = len(screening.split.folds) / len(search.split.folds)
    groups: list[tuple[float, int]] = []
    for number in range(len(_SHARES)):
        length = _round_epochs(number, len(planned), epochs)
        if length is None:
            continue
        if number == _LAST:
            groups += [(len(group), length) for group in search.groups(planned)]
        else:
            groups += [(share * len(group), length) for group in screening.groups(planned)]
        kept, width = _promotion(number)
        planned = [PlannedTrial(each, rate) for each in candidates[:kept] for rate in rates[:width]]
    return groups


def all_groups(
    search: Search, sides: list[list[Candidate]], rates: list[float], epochs: int
) -> list[tuple[float, int]]:
    """The groups of all sides, the ordinary one first; the others have fewer rates."""
    return [
        group
        for number, candidates in enumerate(sides)
        for group in planned_groups(search, candidates, rates[:_KEPT] if number else rates, epochs)
    ]


def _round_epochs(number: int, trials: int, epochs: int) -> int | None:
    """The epochs of a round; None if it is skipped, as two trials are few enough for the last."""
    if number == _LAST:
        return epochs
    if trials <= _KEPT:
        return None
    return min(epochs, max(_FEWEST, round(_SHARES[number] * epochs)))


def _promoted(found: list[Trial], number: int) -> list[PlannedTrial]:
    """The trials of the next round, from those of this one, the best first."""
    rates: dict[Candidate, list[float]] = {}
    for trial in found:
        rates.setdefault(trial.candidate, []).append(trial.rate)
    kept, width = _promotion(number)
    best = list(rates.items())[:kept]
    return [PlannedTrial(candidate, rate) for candidate, own in best for rate in own[:width]]


def _promotion(number: int) -> tuple[int, int]:
    """How many candidates continue after a round, and with how many learning rates each."""
    return (_KEPT, _KEPT) if number == 0 else (1, 1)


def other_splits(search: Search, split: Split) -> OtherSplits:
    """Trains trials again on another split, with the settings and the epoch that they had."""
    second = replace(search, split=split, trials=[], until=search.ends(1.0))

    def again(trials: list[Trial]) -> list[Trial] | None:
        met: list[Trial] = []
        for number, trial in enumerate(trials):
            planned = [PlannedTrial(trial.candidate, trial.rate)]
            met += second.run(f"again-{number}", planned, trial.epochs, trial.epoch)
            if second.stopped or met[-1].value is None:
                search.stopped = second.stopped
                return None
        return met

    return OtherSplits(split.validation, again)
