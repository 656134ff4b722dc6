"""The models that are left at the end of a search, trained on everything.

With one split, the trial's own model is taken. After cross-validation there is one model for each
fold, so the winner is trained again on all items, up to the epoch that was best.
"""

import copy
import math
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from metricgrad.processes import clock, from_first, passed
from metricgrad.training.data import Items, Loader
from metricgrad.training.decision import Decision
from metricgrad.training.row_space import Space
from metricgrad.training.search import Search
from metricgrad.training.split import SplitPlan, unsplit
from metricgrad.training.trained import Finalists
from metricgrad.training.trials import PlannedTrial, Trial

_OVERTIME = 1.1  # of the budget, when the last training must end
_ATTEMPTS = 3  # trainings on all items, until one is as good as those of its folds


def train_finalists(
    model: nn.Module,
    search: Search,
    decision: Decision,
    trained: Items | Loader,
    plan: SplitPlan,
    space: Space,
) -> Finalists:
    """The models that were compared at the end; the winner's is the user's own.

    They share the time that is left.
    """
    left = [each for each in (decision.ordinary, decision.challenger) if each is not None]
    ends = math.inf
    if search.deadline is not None:
        ends = search.started + _OVERTIME * search.deadline

    def trained_again(trial: Trial) -> nn.Module:
        now = clock()
        search.until = now + (ends - now) / len(left)
        left.remove(trial)
        state = _final_state(search, trained, trial, plan, space)
        own = model if trial is decision.winner else copy.deepcopy(model)
        own.load_state_dict(state)
        return own.eval()

    return Finalists.of(decision, plan.metric, trained_again)


def _final_state(
    search: Search,
    items: Items | Loader,
    trial: Trial,
    plan: SplitPlan,
    space: Space,
) -> dict[str, Tensor]:
    """A trial's model; after cross-validation, trained on all items up to the trial's best epoch.

    A short training on few items may fail because of an unlucky order of batches. A model that does
    worse on the items it was trained on than the models of the folds did on items they had never
    seen has failed, and is trained again with another order.
    """
    if len(search.split.folds) == 1:
        return space.outside(trial.state, items, search.split.folds[0].train)
    assert isinstance(items, Items)
    assert trial.value is not None
    best = -math.inf
    state: dict[str, Tensor] = {}
    for attempt in range(_ATTEMPTS):
        if attempt and passed(search.until):
            break
        settings = replace(search.settings, seed=search.settings.seed + attempt)
        split = space.split(unsplit(items, plan, settings.seed))
        again = replace(search, split=split, settings=settings)
        group = again.group([PlannedTrial(trial.candidate, trial.rate)], trial.epochs)
        group.until = search.until
        found, scores = group.train_only(trial.epoch)
        found = space.outside(found, items, split.folds[0].train)
        validation = again.split.validation
        value = math.nan
        if scores.isfinite().all():
            value = from_first(partial(validation.value, scores, trial.threshold))
        gain = -math.inf if math.isnan(value) else validation.gain(value, trial.value)
        if gain >= 0:
            return found
        if gain > best or not state:
            best = gain
            state = found
    return state
