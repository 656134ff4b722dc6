r"""Which loss to train on: successive halving, cross-entropy always among the entrants, decided on validation data.

All candidates train briefly with every learning rate; the best third goes on for twice as long with
its best two rates, and of those the best two to the end with one. Cross-entropy has a side of
its own, the same in every fit, so that "cross-entropy is as good here" gives exactly the model that
training on cross-entropy gives.

The best of many looks better than it is. So the best challenger meets cross-entropy once more, both
with the settings and the epoch they were chosen with, on other cuts of the data; it replaces
cross-entropy only where its gain exceeds what luck would give (`judging.py`) both times. By folds,
the items of both meetings are the same: what is new is how they are dealt, and all that is random
in training. Where validation data was passed there are no other cuts, and one meeting has to show
more: a gain that the best of all challengers would reach by luck in one of twenty cases.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from metricgrad.training.candidates import Candidate
from metricgrad.training.joint_trials import JointTrialGroup
from metricgrad.training.split import Split
from metricgrad.training.trial_group import Tell, TrialGroup
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from metricgrad.training.validation import ONE_SIGMA

_SHARES = (0.25, 0.5, 1.0)  # of the epochs, in each round
_FEWEST = 4  # epochs
_TOGETHER = 128  # models of a group, at most
# The best of so many challengers could have been lucky, and a gain must exceed this quantile of
# what luck gives them:
_TWICE = (2, ONE_SIGMA)  # where it must do so again on other cuts
_ONCE = (12, 0.95)  # where there are none


@dataclass
class Search:
    """Where groups take place: the model, the data, the metric, the settings of all.

    Attributes:
        model: where every training starts.
        split: data and metric.
        settings: of all groups.
        epochs: of a whole training.
        folder: of the checkpoints; None keeps none.
        deadline: in seconds from now; None takes the time it takes.
        tell: is told after every epoch of a group.
        trials: everything that was trained.
        started: when, by a clock that only goes forward.
        stopped: whether the user has had enough (Ctrl-C): what there is then decides.
    """

    model: nn.Module
    split: Split
    settings: TrialSettings
    epochs: int
    folder: Path | None = None
    deadline: float | None = None
    tell: Tell = lambda *_: None
    trials: list[Trial] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False

    def run(
        self, name: str, planned: list[PlannedTrial], epochs: int, only: int | None = None
    ) -> list[Trial]:
        """One group, from its file if it has been run before."""
        group = self.prepare(planned, epochs)
        found = group.run(
            None if self.folder is None else self.folder / f"{name}.safetensors", self.tell, only
        )
        self.stopped |= group.stopped
        self.trials += found
        return found

    def prepare(self, planned: list[PlannedTrial], epochs: int) -> TrialGroup:
        """A group that has not begun."""
        kind = JointTrialGroup if planned[0][0].method == "bilevel" else TrialGroup
        return kind(self.model, planned, self.split, epochs, self.settings)

    def late(self, share: float) -> bool:
        """Whether a share of the time is over."""
        return self.deadline is not None and time.monotonic() - self.started > share * self.deadline

    def key(self, trial: Trial) -> float:
        """Higher is better; a training that diverged is worst."""
        if trial.value is None:
            return -math.inf
        return trial.value if self.split.validation.metric.higher_is_better else -trial.value

    def groups(self, planned: list[PlannedTrial]) -> list[list[PlannedTrial]]:
        """Places that can be trained together, side by side."""
        validation, kin = self.split.validation, {}
        for candidate, rate in planned:
            kin.setdefault(candidate.kin(validation.metric), []).append((candidate, rate))
        size = max(1, _TOGETHER // len(validation.items.live))
        return [
            group[start : start + size]
            for group in kin.values()
            for start in range(0, len(group), size)
        ]


def successive_halving(
    search: Search, name: str, candidates: list[Candidate], rates: list[float]
) -> list[Trial]:
    """Successive halving among candidates.

    Args:
        search: where.
        name: of the side, for its files.
        candidates: the losses.
        rates: the learning rates that each enters with.

    Returns:
        All entrants of all rounds, the best first: a short training can be the best on few items.
        Those of the first rounds alone, if time runs out.
    """
    planned = [(candidate, rate) for candidate in candidates for rate in rates]
    everyone: list[Trial] = []
    for number, share in enumerate(_SHARES):
        last = number == len(_SHARES) - 1
        if not last and len(planned) <= 2:
            continue  # nothing to decide
        epochs = search.epochs if last else _short(search.epochs, share)
        found: list[Trial] = []
        for order, group in enumerate(search.groups(planned)):
            if search.stopped or (
                name != "ordinary" and search.late(0.85 if last else share + 0.1)
            ):
                break
            found += search.run(f"{name}-{number}-{order}", group, epochs)
        found = sorted(
            (trial for trial in found if trial.value is not None), key=search.key, reverse=True
        )
        everyone += found
        if last or search.stopped or not found:
            break
        planned = _promoted(found, len(candidates), number)
    return sorted(everyone, key=search.key, reverse=True)


def _promoted(found: list[Trial], candidates: int, round_: int) -> list[PlannedTrial]:
    """The entrants of the next round, from those of this one, the best first."""
    several = {
        trial.candidate: [each.rate for each in found if each.candidate is trial.candidate]
        for trial in found
    }
    kept, width = _promotion(candidates, round_)
    return [
        (candidate, rate)
        for candidate, rates in list(several.items())[:kept]
        for rate in rates[:width]
    ]


def _promotion(candidates: int, round_: int) -> tuple[int, int]:
    """How many candidates go on from a round, and with how many learning rates each."""
    return (max(2, math.ceil(candidates / 3)), 2) if round_ == 0 else (2, 1)


def _short(epochs: int, share: float) -> int:
    return min(epochs, max(_FEWEST, round(share * epochs)))


@dataclass(frozen=True)
class Decision:
    """Who won.

    Attributes:
        winner: the entrant to use.
        ordinary: the best of cross-entropy; None where it did not take part.
        challenger: the best of the others; None where there was none.
        gain: of the challenger over cross-entropy, in the metric, where it was checked last.
        luck: the gain that would be luck there.
        again: whether both met once more, on other cuts.
    """

    winner: Trial
    ordinary: Trial | None
    challenger: Trial | None
    gain: float = 0.0
    luck: float = 0.0
    again: bool = False


def decide(
    search: Search, ordinary: list[Trial], challengers: list[Trial], others: Split | None
) -> Decision:
    """Cross-entropy, unless a challenger's gain is more than luck, twice.

    Args:
        search: where they were trained.
        ordinary: what is left of cross-entropy's side.
        challengers: what is left of the others'.
        others: other cuts of the data, for the second meeting; None where there are none.

    Returns:
        The decision.
    """
    if not ordinary and not challengers:
        if search.stopped:
            raise KeyboardInterrupt  # there is nothing to keep yet
        raise RuntimeError(
            "every training diverged; pass a lower rate, or look for values that are far too large"
        )
    if not ordinary or not challengers:
        best = (ordinary or challengers)[0]
        return Decision(
            best, ordinary[0] if ordinary else None, challengers[0] if challengers else None
        )
    usual, best = ordinary[0], challengers[0]
    gain, luck = _gain(search, usual, challengers, *(_ONCE if others is None else _TWICE))
    decision = Decision(best if gain > luck else usual, usual, best, gain, luck)
    if decision.winner is usual or others is None or search.stopped:
        return decision
    second, met = replace(search, split=others, trials=[]), []
    for number, trial in enumerate((usual, best)):
        met += second.run(
            f"again-{number}", [(trial.candidate, trial.rate)], trial.epochs, trial.epoch
        )
        if second.stopped or met[-1].value is None:
            search.stopped = second.stopped
            return replace(decision, winner=usual)  # not shown twice
    gain, luck = _gain(second, met[0], met[1:], *_TWICE)
    return Decision(best if gain > luck else usual, usual, best, gain, luck, again=True)


def _gain(
    search: Search, usual: Trial, challengers: list[Trial], rivals: int, quantile: float
) -> tuple[float, float]:
    """The gain of the first challenger, and what luck would give the best of its rivals."""
    luck = search.split.validation.luck(
        [usual.scores, *(trial.scores for trial in challengers[:rivals])],
        [usual.threshold, *(trial.threshold for trial in challengers[:rivals])],
        torch.Generator().manual_seed(search.settings.seed),
        quantile,
    )
    return search.key(challengers[0]) - search.key(usual), luck


def schedule(
    search: Search, candidates: list[Candidate], rates: list[float], epochs: int
) -> list[tuple[int, int]]:
    """Entrants and epochs of every group of a side, at most."""
    groups, planned = [], [(candidate, rate) for candidate in candidates for rate in rates]
    for number, share in enumerate(_SHARES):
        last = number == len(_SHARES) - 1
        if not last and len(planned) <= 2:
            continue
        length = epochs if last else _short(epochs, share)
        groups += [(len(group), length) for group in search.groups(planned)]
        kept, width = _promotion(len(candidates), number)
        planned = [(candidate, rate) for candidate in candidates[:kept] for rate in rates[:width]]
    return groups


def remembered(folder: Path | None, name: str, make: Callable[[], int]) -> int:
    """A number that must be the same when a training is resumed: kept in a file."""
    if folder is None:
        return make()
    path = folder / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    value = make()
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(path)
    return value
