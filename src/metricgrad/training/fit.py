"""A complete, honest training run: from a model, data and a metric to a trained model and a plain answer.

Everything is chosen on validation data: the loss, its settings, the learning rate, the epoch, the threshold. With few
items of the rarest class one cut misleads, so validation is then by five folds, and the winner is trained again on
everything. Test data has no place here; judge the result on data that `fit` never saw.
"""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import whole
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates import Surrogate
from metricgrad.surrogates.elements import is_multilabel
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.training.algorithm import modes_kept
from metricgrad.training.entrants import ORDINARY, RATES, challengers, contenders, ordinary
from metricgrad.training.feeding import Drawing, Fold, Items, Loader, cut, to_feed
from metricgrad.training.heat import Entry, Settings, View
from metricgrad.training.judging import Judge, Seen, at_threshold, binary_scores
from metricgrad.training.tournament import Arena, Decision, Ground, bracket, decide, heat_epochs, remembered

_ENOUGH = 1000  # items of the rarest class, above which one cut will do
_FOLDS = 5
_LOOKED_AT = 50_000  # validation items, at most
_CHUNK = 16384
_SETS, _SET = 512, 128  # score sets that are kept, and their items
_SHORTEST = 4  # epochs


@dataclass(kw_only=True)
class Trained:
    """A model and where it decides.

    Attributes:
        model: in `eval()` mode.
        metric: what it was trained for.
        threshold: a score above it is a positive decision; None where the metric has none.
    """

    model: nn.Module
    metric: Metric
    threshold: Tensor | None

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """Raw scores of items.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]` for binary scores, `[items, C]` otherwise.
        """
        x = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        x = x.float() if x.is_floating_point() else x
        with modes_kept(self.model):
            self.model.eval()
            found = torch.cat([self.model(part) for part in x.split(_CHUNK)])
        return found if found.dim() == 1 or is_multilabel(self.metric) else binary_scores(self.metric, found)

    def predict(self, x: Any) -> Tensor:
        """Decisions: 0 or 1 by the threshold, for binary scores and labels; the class of the highest score otherwise.

        Args:
            x: `[items, ...]`, an array or a tensor.

        Returns:
            `[items]`, or `[items, C]` for labels.
        """
        scores = self.scores(x)
        if scores.dim() == 1 or is_multilabel(self.metric):
            return (scores > (0.0 if self.threshold is None else self.threshold)).long()
        return scores.argmax(-1)

    def measure(self, x: Any, y: Any) -> float:
        """The metric of items, at the threshold.

        Args:
            x: `[items, ...]`.
            y: their targets.

        Returns:
            The metric.
        """
        metric, scores = at_threshold(self.metric, self.threshold, self.scores(x))
        return float(metric(scores, y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))))


@dataclass(kw_only=True)
class Fit(Trained):
    """What `mg.fit` leaves behind: the model, and how it came about.

    Attributes:
        value: the metric on validation data.
        decision: who won, against whom, by how much.
        finalists: the models of `cross_entropy` and of the best `challenger`, as far as they took part; the model is
            one of them.
        entries: everything that was tried.
        seen: the validation items, of which the entrants' scores are.
        score_sets: sets of validation items as the entrants scored them, good and bad, to check losses on.
        folds: of validation; 1 is one cut.
        seconds: it took.
        stopped: whether Ctrl-C ended it: this is the best so far.
    """

    value: float
    decision: Decision
    finalists: dict[str, Trained]
    entries: list[Entry]
    seen: Seen
    score_sets: list[ScoreSets]
    folds: int
    seconds: float
    stopped: bool = False

    @property
    def method(self) -> str:
        """The loss that it was trained on, with its settings."""
        return str(self.decision.winner.contender)

    def verdict(self) -> str:
        """Who won and by how much, in a sentence."""
        name, found = self.metric.name, self.decision
        how = f"by {self.folds}-fold cross-validation" if self.folds > 1 else "on validation data"
        if found.ordinary is None or found.challenger is None:
            return f"{self.method}: {name} {self.value:.4f} {how}"
        plain = found.ordinary.contender.method
        usual = "cross-entropy" if plain == ORDINARY else plain
        told = f"{name} {found.challenger.value:.4f} against {usual}'s {found.ordinary.value:.4f} {how}"
        told += f"; on other cuts the gain is {found.gain:.4f}" if found.again else ""
        told += f"; {found.luck:.4f} would be luck"
        if found.winner is found.challenger:
            return f"{self.method} is better: {told}"
        return f"{usual} is as good here: the best challenger, {found.challenger.contender}, has {told}"


def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    metric: Any,
    method: str | Surrogate = "auto",
    options: Mapping[str, Any] | None = None,
    epochs: int = 20,
    batch: int = 256,
    rate: float | None = None,
    decay: float = 0.0,
    clip: float | None = 1.0,
    balanced: bool = False,
    memory: int = 0,
    folds: int | None = None,
    share: float = 0.2,
    patience: int | None = None,
    budget: float | None = None,
    tune_threshold: bool = True,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = True,
) -> Fit:
    """Trains a model for a metric, and says whether that helped.

    Args:
        model: any module from features to scores; it is trained in place, from the weights it has.
        train: `(x, y)` of arrays or tensors, a `Dataset` or a `DataLoader`.
        valid: the same; None takes a part of `train`, which must then be in memory.
        metric: a name, a `Metric` or a callable.
        method: `"auto"`, a method's name (`cross_entropy`, `uniloss`, `reloss`, `soft_f_beta`, ...) or a surrogate.
        options: of the loss, for a method by name.
        epochs: passes through the data; of items in memory an epoch has 25 to 150 batches.
        batch: items of a batch.
        rate: Adam's learning rate, which falls to 0; None tries several.
        decay: of the weights, as in AdamW.
        clip: the longest gradient; None leaves it as it is.
        balanced: gives every class an equal share of a batch.
        memory: past items that join every batch (`mg.with_memory`); 0 for none.
        folds: of cross-validation; 1 is one cut, None decides by the number of items of the rarest class.
        share: of the training data that is cut off for validation, where there is one cut.
        patience: epochs without a better value after which a training ends; None makes all.
        budget: seconds; fewer epochs, and fewer challengers, where it would take longer.
        tune_threshold: chooses the threshold on validation data, where the metric has one.
        seed: of everything random.
        folder: for checkpoints after every epoch: called again with the same folder, it goes on where it stopped.
        progress: shows a bar with the metric, on a terminal.

    Returns:
        The trained model with its threshold, what was tried and what was decided.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] > 1).long()
        >>> found = mg.fit(torch.nn.Linear(5, 1), (x, y), metric="f1", method="uniloss", rate=0.1, epochs=4)
        >>> found.measure(x, y) > 0.9
        True
    """
    started, chosen = time.monotonic(), to_metric(metric)
    for name, value in (("epochs", epochs), ("batch", batch), *([("folds", folds)] if folds is not None else [])):
        whole(name, value, 1)
    if budget is not None and not budget > 0:
        raise ValueError(f"budget must be above 0 seconds; got {budget}")
    trained = to_feed("train", train, batch)
    cuts, ground = _ground(trained, valid, chosen, tune_threshold, batch, folds, share, balanced, seed)
    place = None if folder is None else Path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    arena = Arena(model, ground, Settings(seed, decay, clip, memory, patience), epochs, place, budget)
    rates, alone = list(RATES) if rate is None else [rate], method != "auto"
    brackets = {"ordinary": [ordinary(chosen)], "challengers": challengers(chosen)}
    if alone:
        brackets = {"ordinary" if method == ORDINARY else "challengers": contenders(method, chosen, options)}

    def work(length: int) -> int:
        return sum(heat_epochs(arena, each, rates, length) for each in brackets.values())

    if budget is not None:
        arena.epochs = remembered(place, "epochs", lambda: _affordable(arena, work, len(rates), budget))
    with to_progress(f"training for {chosen.name}", work(arena.epochs), progress) as arena.tell:
        left = {name: bracket(arena, name, each, rates) for name, each in brackets.items()}
        others = None
        if len(left) == 2 and valid is None:
            _, others = _ground(trained, None, chosen, tune_threshold, batch, len(cuts), share, balanced, seed + 1)
        decision = decide(arena, left.get("ordinary", []), left.get("challengers", []), others)
    winner, finalists = decision.winner, {}
    for name, entry in (("cross_entropy", decision.ordinary), ("challenger", decision.challenger)):
        if entry is not None:
            own = model if entry is winner else copy.deepcopy(model)
            own.load_state_dict(_state(arena, trained, entry, cuts, batch, balanced))
            finalists[name] = Trained(model=own.eval(), metric=chosen, threshold=entry.threshold)
    sets = _score_sets(arena.entries, ground.judge.seen, seed)
    for entry in arena.entries:
        if entry not in (decision.ordinary, decision.challenger):
            entry.forget()
    assert winner.value is not None
    return Fit(
        model=model,
        metric=chosen,
        threshold=winner.threshold,
        value=winner.value,
        decision=decision,
        finalists=finalists,
        entries=arena.entries,
        seen=ground.judge.seen,
        score_sets=sets,
        folds=len(cuts),
        seconds=time.monotonic() - started,
        stopped=arena.stopped,
    )


def _ground(
    trained: Items | Loader,
    valid: Any,
    metric: Metric,
    tune: bool,
    batch: int,
    folds: int | None,
    share: float,
    balanced: bool,
    seed: int,
) -> tuple[list[Fold], Ground]:
    """The cuts between training and validation data, and both."""
    if isinstance(trained, Loader) and valid is None:
        raise ValueError("a loader cannot be cut into training and validation; pass valid=")
    if valid is not None:
        everything = _everything(trained)
        feed = trained if isinstance(trained, Loader) else Drawing(trained, everything, batch, balanced, seed)
        view, seen = _viewed(to_feed("valid", valid, batch))
        return everything, Ground(feed, view, Judge(metric, seen, tune))
    assert isinstance(trained, Items)
    counts = trained.classes()
    if counts is not None and len(counts) < 2:
        raise ValueError(f"all {len(trained)} targets are {trained.y[0].item()}: there is nothing to tell apart")
    number = folds or (1 if (counts.min() if counts is not None else len(trained) // 5) >= _ENOUGH else _FOLDS)
    if counts is not None and counts.min() < max(2, number):
        raise ValueError(f"the rarest class has {int(counts.min())} items, too few for {number} folds; pass folds=1")
    cuts = cut(trained, number, share, seed)
    longest = max(len(fold.valid) for fold in cuts)
    index = torch.stack([torch.nn.functional.pad(fold.valid, (0, longest - len(fold.valid))) for fold in cuts])
    live = torch.stack([torch.arange(longest) < len(fold.valid) for fold in cuts])
    taken = trained.take(index)
    judge = Judge(metric, Seen(taken.y, live, taken.where), tune)
    return cuts, Ground(Drawing(trained, cuts, batch, balanced, seed), View(trained, index), judge)


def _everything(trained: Items | Loader) -> list[Fold]:
    """One fold that trains on all items."""
    items = torch.arange(len(trained) if isinstance(trained, Items) else 0)
    return [Fold(items, torch.zeros(0, dtype=torch.int64))]


def _viewed(looked: Items | Loader) -> tuple[View, Seen]:
    """Validation data that the user passed."""
    if isinstance(looked, Items):
        index = torch.arange(len(looked))[:_LOOKED_AT].unsqueeze(0)
        taken = looked.take(index)
        return View(looked, index), Seen(taken.y, torch.ones_like(index, dtype=torch.bool), taken.where)
    target = torch.cat([batch.y for batch in looked.epoch(0, 0, 1)], 1)
    return View(looked), Seen(target, torch.ones(target.shape[:2], dtype=torch.bool))


def _score_sets(entries: list[Entry], seen: Seen, seed: int) -> list[ScoreSets]:
    """A few sets of each entrant's validation scores, drawn at random."""
    if seen.where is not None:
        return []
    generator, found = torch.Generator().manual_seed(seed), []
    number = max(1, _SETS // len(entries))
    for entry in entries:
        if entry.value is not None:
            fold = int(torch.randint(len(seen.live), (), generator=generator))
            known = seen.live[fold].nonzero().squeeze(-1)
            drawn = known[torch.randint(len(known), (number, min(_SET, len(known))), generator=generator)]
            found.append(ScoreSets(entry.scores[fold][drawn], seen.target[fold][drawn]))
    return found


def _state(
    arena: Arena, items: Items | Loader, winner: Entry, cuts: list[Fold], batch: int, balanced: bool
) -> dict[str, Tensor]:
    """The state of an entrant's model: of several folds, that of a training on all items up to its best epoch."""
    if len(cuts) == 1:
        return winner.state
    assert isinstance(items, Items)
    judge = arena.ground.judge
    seen = Seen(judge.seen.target[:1], judge.seen.live[:1], judge.seen.where)
    feed = Drawing(items, _everything(items), batch, balanced, arena.settings.seed)
    ground = Ground(feed, arena.ground.view, replace(judge, seen=seen))
    return (
        replace(arena, ground=ground).prepare([(winner.contender, winner.rate)], winner.epochs).train_only(winner.epoch)
    )


def _affordable(arena: Arena, work: Callable[[int], int], rates: int, budget: float) -> int:
    """The epochs of a training with which all heats fit into the budget, by the time that one epoch of one takes."""
    trial = replace(arena, folder=None, entries=[])
    start = time.monotonic()
    trial.heat("trial", [(ordinary(arena.ground.judge.metric), RATES[0])] * rates, 1)
    each = 1.3 * (time.monotonic() - start)  # most losses take a little longer than cross-entropy
    fitting = (epochs for epochs in range(arena.epochs, _SHORTEST, -1) if work(epochs) * each < budget)
    return next(fitting, _SHORTEST)
