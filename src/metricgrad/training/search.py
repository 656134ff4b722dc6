r"""Which loss to train on: successive halving, cross-entropy always among the entrants, decided on validation data.

All contenders train briefly with every learning rate; the best third goes on for twice as long with
its best two rates, and of those the best two to the end with one. Cross-entropy has a bracket of
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

from metricgrad.training.candidates import Contender
from metricgrad.training.entry import Entry, Place, Settings
from metricgrad.training.ground import Ground
from metricgrad.training.heat import Heat, Tell
from metricgrad.training.joint_heat import JointHeat
from metricgrad.training.judging import ONE_SIGMA

_SHARES = (0.25, 0.5, 1.0)  # of the epochs, in each round
_FEWEST = 4  # epochs
_TOGETHER = 128  # models of a heat, at most
# The best of so many challengers could have been lucky, and a gain must exceed this quantile of
# what luck gives them:
_TWICE = (2, ONE_SIGMA)  # where it must do so again on other cuts
_ONCE = (12, 0.95)  # where there are none


@dataclass
class Arena:
    """Where heats take place: the model, the data, the metric, the settings of all.

    Attributes:
        model: where every training starts.
        ground: data and metric.
        settings: of all heats.
        epochs: of a whole training.
        folder: of the checkpoints; None keeps none.
        deadline: in seconds from now; None takes the time it takes.
        tell: is told after every epoch of a heat.
        entries: everything that was trained.
        started: when, by a clock that only goes forward.
        stopped: whether the user has had enough (Ctrl-C): what there is then decides.
    """

    model: nn.Module
    ground: Ground
    settings: Settings
    epochs: int
    folder: Path | None = None
    deadline: float | None = None
    tell: Tell = lambda *_: None
    entries: list[Entry] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False

    def heat(
        self, name: str, places: list[Place], epochs: int, only: int | None = None
    ) -> list[Entry]:
        """One heat, from its file if it has been run before."""
        heat = self.prepare(places, epochs)
        found = heat.run(
            None if self.folder is None else self.folder / f"{name}.safetensors", self.tell, only
        )
        self.stopped |= heat.stopped
        self.entries += found
        return found

    def prepare(self, places: list[Place], epochs: int) -> Heat:
        """A heat that has not begun."""
        kind = JointHeat if places[0][0].method == "bilevel" else Heat
        return kind(self.model, places, self.ground, epochs, self.settings)

    def late(self, share: float) -> bool:
        """Whether a share of the time is over."""
        return self.deadline is not None and time.monotonic() - self.started > share * self.deadline

    def key(self, entry: Entry) -> float:
        """Higher is better; a training that diverged is worst."""
        if entry.value is None:
            return -math.inf
        return entry.value if self.ground.judge.metric.higher_is_better else -entry.value

    def heats(self, places: list[Place]) -> list[list[Place]]:
        """Places that can be trained together, side by side."""
        judge, kin = self.ground.judge, {}
        for contender, rate in places:
            kin.setdefault(contender.kin(judge.metric), []).append((contender, rate))
        size = max(1, _TOGETHER // len(judge.seen.live))
        return [
            group[start : start + size]
            for group in kin.values()
            for start in range(0, len(group), size)
        ]


def bracket(
    arena: Arena, name: str, contenders: list[Contender], rates: list[float]
) -> list[Entry]:
    """Successive halving among contenders.

    Args:
        arena: where.
        name: of the bracket, for its files.
        contenders: the losses.
        rates: the learning rates that each enters with.

    Returns:
        All entrants of all rounds, the best first: a short training can be the best on few items.
        Those of the first rounds alone, if time runs out.
    """
    places = [(contender, rate) for contender in contenders for rate in rates]
    everyone: list[Entry] = []
    for number, share in enumerate(_SHARES):
        last = number == len(_SHARES) - 1
        if not last and len(places) <= 2:
            continue  # nothing to decide
        epochs = arena.epochs if last else _short(arena.epochs, share)
        found: list[Entry] = []
        for order, group in enumerate(arena.heats(places)):
            if arena.stopped or (name != "ordinary" and arena.late(0.85 if last else share + 0.1)):
                break
            found += arena.heat(f"{name}-{number}-{order}", group, epochs)
        found = sorted(
            (entry for entry in found if entry.value is not None), key=arena.key, reverse=True
        )
        everyone += found
        if last or arena.stopped or not found:
            break
        places = _promoted(found, len(contenders), number)
    return sorted(everyone, key=arena.key, reverse=True)


def _promoted(found: list[Entry], contenders: int, round_: int) -> list[Place]:
    """The entrants of the next round, from those of this one, the best first."""
    several = {
        entry.contender: [each.rate for each in found if each.contender is entry.contender]
        for entry in found
    }
    kept, width = _promotion(contenders, round_)
    return [
        (contender, rate)
        for contender, rates in list(several.items())[:kept]
        for rate in rates[:width]
    ]


def _promotion(contenders: int, round_: int) -> tuple[int, int]:
    """How many contenders go on from a round, and with how many learning rates each."""
    return (max(2, math.ceil(contenders / 3)), 2) if round_ == 0 else (2, 1)


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

    winner: Entry
    ordinary: Entry | None
    challenger: Entry | None
    gain: float = 0.0
    luck: float = 0.0
    again: bool = False


def decide(
    arena: Arena, ordinary: list[Entry], challengers: list[Entry], others: Ground | None
) -> Decision:
    """Cross-entropy, unless a challenger's gain is more than luck, twice.

    Args:
        arena: where they were trained.
        ordinary: what is left of cross-entropy's bracket.
        challengers: what is left of the others'.
        others: other cuts of the data, for the second meeting; None where there are none.

    Returns:
        The decision.
    """
    if not ordinary and not challengers:
        if arena.stopped:
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
    gain, luck = _gain(arena, usual, challengers, *(_ONCE if others is None else _TWICE))
    decision = Decision(best if gain > luck else usual, usual, best, gain, luck)
    if decision.winner is usual or others is None or arena.stopped:
        return decision
    second, met = replace(arena, ground=others, entries=[]), []
    for number, entry in enumerate((usual, best)):
        met += second.heat(
            f"again-{number}", [(entry.contender, entry.rate)], entry.epochs, entry.epoch
        )
        if second.stopped or met[-1].value is None:
            arena.stopped = second.stopped
            return replace(decision, winner=usual)  # not shown twice
    gain, luck = _gain(second, met[0], met[1:], *_TWICE)
    return Decision(best if gain > luck else usual, usual, best, gain, luck, again=True)


def _gain(
    arena: Arena, usual: Entry, challengers: list[Entry], rivals: int, quantile: float
) -> tuple[float, float]:
    """The gain of the first challenger, and what luck would give the best of its rivals."""
    luck = arena.ground.judge.luck(
        [usual.scores, *(entry.scores for entry in challengers[:rivals])],
        [usual.threshold, *(entry.threshold for entry in challengers[:rivals])],
        torch.Generator().manual_seed(arena.settings.seed),
        quantile,
    )
    return arena.key(challengers[0]) - arena.key(usual), luck


def schedule(
    arena: Arena, contenders: list[Contender], rates: list[float], epochs: int
) -> list[tuple[int, int]]:
    """Entrants and epochs of every heat of a bracket, at most."""
    heats, places = [], [(contender, rate) for contender in contenders for rate in rates]
    for number, share in enumerate(_SHARES):
        last = number == len(_SHARES) - 1
        if not last and len(places) <= 2:
            continue
        length = epochs if last else _short(epochs, share)
        heats += [(len(group), length) for group in arena.heats(places)]
        kept, width = _promotion(len(contenders), number)
        places = [(contender, rate) for contender in contenders[:kept] for rate in rates[:width]]
    return heats


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
