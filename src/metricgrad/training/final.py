"""The final models: after cross-validation, the winner is trained again, on all items."""

import copy
import math
from dataclasses import replace

from torch import Tensor

from metricgrad.training.data import FoldBatches, Items, Loader
from metricgrad.training.search import Decision, Search
from metricgrad.training.split import (
    Split,
    SplitPlan,
    ValidationData,
    everything,
    validation_items,
)
from metricgrad.training.trained import Trained
from metricgrad.training.trials import PlannedTrial, Trial

_ATTEMPTS = 3  # trainings on all items, until one is as good as those of its folds


def train_finalists(
    search: Search, decision: Decision, trained: Items | Loader, plan: SplitPlan
) -> dict[str, Trained]:
    """The models that were compared at the end; the winner's is the user's own."""
    found: dict[str, Trained] = {}
    for name, trial in (("cross_entropy", decision.ordinary), ("challenger", decision.challenger)):
        if trial is not None:
            own = search.model if trial is decision.winner else copy.deepcopy(search.model)
            own.load_state_dict(_final_state(search, trained, trial, plan))
            found[name] = Trained(model=own.eval(), metric=plan.metric, threshold=trial.threshold)
    return found


def _final_state(
    search: Search, items: Items | Loader, trial: Trial, plan: SplitPlan
) -> dict[str, Tensor]:
    """A trial's model; after cross-validation, trained on all items up to the trial's best epoch.

    A short training on few items may fail because of an unlucky order of batches. A model that does
    worse on the items it was trained on than the models of the folds did on items they had never
    seen has failed, and is trained again with another order.
    """
    if len(search.split.folds) == 1:
        return trial.state
    assert isinstance(items, Items)
    assert trial.value is not None
    folds = everything(items)
    data = ValidationData(items, folds[0].train.unsqueeze(0))
    validation = replace(search.split.validation, items=validation_items(data))
    best = -math.inf
    state: dict[str, Tensor] = {}
    for attempt in range(_ATTEMPTS):
        seed = search.settings.seed + attempt
        batches = FoldBatches(items, folds, plan.batch, plan.balanced, seed)
        again = replace(
            search,
            split=Split(folds, batches, data, validation),
            settings=replace(search.settings, seed=seed),
        )
        group = again.group([PlannedTrial(trial.candidate, trial.rate)], trial.epochs)
        found, scores = group.train_only(trial.epoch)
        value = validation.value(scores, trial.threshold) if scores.isfinite().all() else math.nan
        gain = -math.inf if math.isnan(value) else validation.gain(value, trial.value)
        if gain >= 0:
            return found
        if gain > best or not state:
            best = gain
            state = found
    return state
