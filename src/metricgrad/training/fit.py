"""A complete, honest training run: from a model, data and a metric to a trained model and a plain answer.

Everything is chosen on validation data: the loss, its settings, the learning rate, the epoch, the
threshold. With few items of the rarest class one cut misleads, so validation is then by five folds,
and the winner is trained again on everything. Test data has no place here; validation the result on data
that `fit` never saw.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.checks import shape, whole
from metricgrad.metrics.registry import metric_config
from metricgrad.progress import progress as to_progress
from metricgrad.surrogates import Surrogate
from metricgrad.surrogates.score_sets import ScoreSets
from metricgrad.surrogates.wrappers import WithMemory
from metricgrad.training.algorithm import modes_kept
from metricgrad.training.candidates import (
    RATES,
    Candidate,
    candidates_of,
    challengers,
    ordinary_candidate,
    takes,
)
from metricgrad.training.data import (
    Drawing,
    Fold,
    Items,
    Loader,
    cut_dataset,
    fingerprint,
    one_class_each,
    to_feed,
)
from metricgrad.training.search import (
    Decision,
    Search,
    decide,
    remembered,
    schedule,
    successive_halving,
)
from metricgrad.training.split import Split, SplitPlan, ValidationData, everything, split_data
from metricgrad.training.trained import Fit, Trained
from metricgrad.training.trials import Trial, TrialSettings
from metricgrad.training.validation import ValidationItems, binary_scores

_SETS, _SET = 512, 128  # score sets that are kept, and their items
_SHORTEST = 4  # epochs
_TRIED = 64  # items that tell whether a loss takes such targets
_ATTEMPTS = 3  # trainings on everything, until one is as good as its folds
_AFTER = 4  # trainings of one model after the tournament: two that meet again, two on everything


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
        valid: the same, in the same order each time; None takes a part of `train`, which must not
            be a loader then. Of more than 50,000 items in memory so many are looked at, drawn at
            random.
        metric: a name, a `Metric` or a callable.
        method: `"auto"`, a method's name (`cross_entropy`, `uniloss`, `reloss`, `soft_f_beta`, ...)
            or a surrogate.
        options: of the loss, for a method by name.
        epochs: passes through the data; of items in memory an epoch has 25 to 150 batches.
        batch: items of a batch.
        rate: Adam's learning rate, which falls to 0; None tries several.
        decay: of the weights, as in AdamW.
        clip: the longest gradient; None leaves it as it is.
        balanced: gives every class an equal share of a batch.
        memory: past items that join every batch (`mg.with_memory`); 0 for none.
        folds: of cross-validation; 1 is one cut, None decides by the number of items of the rarest
            class. Not with `valid`, nor with a `Dataset`, which is cut once.
        share: of the training data that is cut off for validation, where there is one cut.
        patience: epochs without a better value after which a training ends; None makes all.
        budget: seconds, about; fewer epochs, and fewer challengers, where it would take longer. A
            training that goes on has as many again.
        tune_threshold: chooses the threshold on validation data, where the metric has one.
        seed: of everything random.
        folder: for checkpoints after every epoch: called again with the same folder, and a model
            with the weights that it began with, it goes on where it stopped.
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
    if isinstance(method, WithMemory):
        method, memory = method.loss, memory or method.size
    _check(model, method, options, epochs=epochs, batch=batch, folds=folds, patience=patience, rate=rate, clip=clip,
           budget=budget, share=share, decay=decay, memory=memory)  # fmt: skip
    if valid is None:
        train, valid = cut_dataset(train, share, seed)
    trained = one_class_each(to_feed("train", train, batch), chosen)
    if balanced and not isinstance(trained, Items):
        raise ValueError(
            "balanced batches are drawn from items in memory; give the loader a sampler instead"
        )
    if valid is not None:
        valid = one_class_each(to_feed("valid", valid, batch), chosen)
    plan = SplitPlan(chosen, tune_threshold, batch, balanced, folds, share)
    cuts, split = split_data(trained, valid, plan, seed)
    place, known = None if folder is None else Path(folder), {}
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        known = _known(plan, method, fingerprint(trained, valid), model)
    search = Search(
        model,
        split,
        TrialSettings(seed, decay, clip, memory, patience, known),
        epochs,
        place,
        budget,
    )
    rates, alone = list(RATES) if rate is None else [rate], method != "auto"
    usual = ordinary_candidate(chosen, split.validation.sets)
    example = _tried(model, trained, chosen)
    sides = {"ordinary": [usual], "challengers": _taking(challengers(chosen), chosen, *example)}
    if alone:
        sides = {
            "ordinary" if method == usual.method else "challengers": candidates_of(
                method, chosen, options
            )
        }

    def groups(length: int) -> list[tuple[int, int]]:
        return [group for each in sides.values() for group in schedule(search, each, rates, length)]

    if budget is not None:
        search.epochs = remembered(
            place, "epochs", lambda: _affordable(search, groups, len(rates), budget)
        )
    total = sum(length for _, length in groups(search.epochs))
    with to_progress(f"training for {chosen.name}", total, progress) as search.tell:
        left = {name: successive_halving(search, name, each, rates) for name, each in sides.items()}
        others = None
        if len(left) == 2 and valid is None:
            _, others = split_data(trained, None, replace(plan, folds=len(cuts)), seed + 1)
        decision = decide(search, left.get("ordinary", []), left.get("challengers", []), others)
    finalists = _finalists(search, decision, trained, cuts, plan)
    winner, sets = decision.winner, _score_sets(search.trials, split.validation.items, seed)
    for trial in search.trials:
        if trial not in (decision.ordinary, decision.challenger):
            trial.forget()
    assert winner.value is not None
    return Fit(
        model=model,
        metric=chosen,
        threshold=winner.threshold,
        value=winner.value,
        decision=decision,
        finalists=finalists,
        trials=search.trials,
        validation=split.validation.items,
        score_sets=sets,
        folds=len(cuts),
        seconds=time.monotonic() - started,
        stopped=search.stopped,
        contested=not alone,
    )


def _check(
    model: nn.Module, method: str | Surrogate, options: Mapping[str, Any] | None, **numbers: Any
) -> None:
    """ValueError for what cannot be trained, or would have no effect."""
    for name in ("epochs", "batch", "folds", "patience"):
        if numbers[name] is not None:
            whole(name, numbers[name], 1)
    whole("memory", numbers["memory"], 0)
    for name in ("rate", "clip", "budget"):
        if numbers[name] is not None and not numbers[name] > 0:
            unit = " seconds" if name == "budget" else ""
            raise ValueError(f"{name} must be above 0{unit}; got {numbers[name]}")
    if not 0 < numbers["share"] < 1:
        raise ValueError(f"share must be between 0 and 1; got {numbers['share']}")
    if not numbers["decay"] >= 0:
        raise ValueError(f"decay must be 0 or more; got {numbers['decay']}")
    if options and not (isinstance(method, str) and method != "auto"):
        told = "auto chooses them itself" if method == "auto" else "a surrogate has its own"
        raise ValueError(
            f"options are for a method by name, such as 'uniloss'; {told}. Got {dict(options)}"
        )
    if next(model.parameters(), None) is None:
        raise ValueError(f"the model has no parameters to train; got {model!r}")


def _known(plan: SplitPlan, method: str | Surrogate, data: str, model: nn.Module) -> dict[str, Any]:
    """What a training that goes on must agree in, besides what its groups know: ready for JSON."""
    loss: Any = method
    if isinstance(method, Surrogate):
        loss = method.description() | {"weights": fingerprint(method.state_dict())}
    return {
        "metric": metric_config(plan.metric), "balanced": plan.balanced, "tune_threshold": plan.tune,
        "batch": plan.batch, "method": loss, "data": data, "model": fingerprint(model.state_dict()),
    }  # fmt: skip


def _tried(model: nn.Module, trained: Items | Loader, metric: Metric) -> tuple[Tensor, Tensor]:
    """Scores and targets of a few items; ValueError where the model does not take them."""
    batch = (
        trained.take(torch.arange(min(len(trained), _TRIED)))
        if isinstance(trained, Items)
        else trained.first()
    )
    try:
        with torch.no_grad(), modes_kept(model):
            model.eval()
            scores = model(batch.x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        hint = (
            ""
            if batch.x.is_floating_point()
            else ". Whole numbers stay so, for embeddings; x.float() is features"
        )
        raise ValueError(
            f"the model fails on x {shape(batch.x)} of {batch.x.dtype}: {error}{hint}"
        ) from error
    return binary_scores(metric, scores) if scores.dim() == batch.y.dim() + 1 else scores, batch.y


def _taking(
    found: list[Candidate], metric: Metric, scores: Tensor, target: Tensor
) -> list[Candidate]:
    """The candidates that have a loss of such scores and targets."""
    able = {each.method: takes(each.method, metric, scores, target) for each in found}
    return [each for each in found if able[each.method]]


def _score_sets(trials: list[Trial], items: ValidationItems, seed: int) -> list[ScoreSets]:
    """A few sets of each entrant's validation scores, drawn at random."""
    if items.where is not None:
        return []
    generator, found = torch.Generator().manual_seed(seed), []
    number = max(1, _SETS // len(trials))
    for trial in trials:
        if trial.value is not None:
            fold = int(torch.randint(len(items.live), (), generator=generator))
            known = items.live[fold].nonzero().squeeze(-1)
            drawn = known[
                torch.randint(len(known), (number, min(_SET, len(known))), generator=generator)
            ]
            found.append(ScoreSets(trial.scores[fold][drawn], items.target[fold][drawn]))
    return found


def _finalists(
    search: Search, decision: Decision, trained: Items | Loader, cuts: list[Fold], plan: SplitPlan
) -> dict[str, Trained]:
    """The models of those who met at the end; the winner's is the user's own."""
    found: dict[str, Trained] = {}
    for name, trial in (("cross_entropy", decision.ordinary), ("challenger", decision.challenger)):
        if trial is not None:
            own = search.model if trial is decision.winner else copy.deepcopy(search.model)
            own.load_state_dict(_state(search, trained, trial, cuts, plan))
            found[name] = Trained(model=own.eval(), metric=plan.metric, threshold=trial.threshold)
    return found


def _state(
    search: Search, items: Items | Loader, winner: Trial, cuts: list[Fold], plan: SplitPlan
) -> dict[str, Tensor]:
    """The state of an entrant's model: of several folds, that of a training on all items up to its best epoch.

    A short training of few items may fail by an unlucky order of batches. A model that does worse
    on what it was trained on than others of its kind did on what they never saw has failed, and is
    trained again with another order.
    """
    if len(cuts) == 1:
        return winner.state
    assert isinstance(items, Items)
    assert winner.value is not None
    index = torch.arange(len(items)).unsqueeze(0)
    taken = items.take(index)
    validation = replace(
        search.split.validation,
        items=ValidationItems(taken.y, torch.ones_like(index, dtype=torch.bool), taken.where),
    )
    found: list[tuple[float, dict[str, Tensor]]] = []
    for attempt in range(_ATTEMPTS):
        seed = search.settings.seed + attempt
        feed = Drawing(items, everything(items), plan.batch, plan.balanced, seed)
        again = replace(
            search,
            split=Split(feed, ValidationData(items, index), validation),
            settings=replace(search.settings, seed=seed),
        )
        state, scores = again.prepare([(winner.candidate, winner.rate)], winner.epochs).train_only(
            winner.epoch
        )
        value = validation.value(scores, winner.threshold) if scores.isfinite().all() else math.nan
        if not math.isnan(value) and not validation.better(winner.value, value):
            return state
        found.append(
            (
                -math.inf
                if math.isnan(value)
                else value * (1 if validation.metric.higher_is_better else -1),
                state,
            )
        )
    return max(found, key=lambda each: each[0])[1]


def _affordable(
    search: Search, groups: Callable[[int], list[tuple[int, int]]], rates: int, budget: float
) -> int:
    """The epochs of a training with which all groups fit into the budget, by the time that one epoch of one takes."""
    timed = replace(search, folder=None, trials=[])
    start = time.monotonic()
    validation = search.split.validation
    timed.run(
        "trial", [(ordinary_candidate(validation.metric, validation.sets), RATES[0])] * rates, 1
    )
    if timed.stopped:
        raise KeyboardInterrupt  # there is nothing to keep yet
    each = 1.3 * (time.monotonic() - start)  # most losses take a little longer than cross-entropy

    def taken(epochs: int) -> float:
        # Heats of more entrants than were tried take longer in proportion; those of one, the second
        # meeting and the training on everything, about half.
        return each * (
            sum(max(1.0, planned / rates) * length for planned, length in groups(epochs))
            + 0.5 * _AFTER * epochs
        )

    return next(
        (epochs for epochs in range(search.epochs, _SHORTEST, -1) if taken(epochs) < budget),
        _SHORTEST,
    )
