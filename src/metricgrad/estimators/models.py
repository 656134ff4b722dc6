"""The models of the estimators: linear, a network, boosted trees, or whichever is best.

`model="auto"` trains all of them on the same splits. Boosted trees are taken unless the linear
model or the network is better by more than chance would give, on validation data: the same rule by
which a loss has to beat the ordinary one (`training/decision.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from metricgrad.boosting.growing import TreeTask, installed_engine
from metricgrad.estimators.features import Preparation
from metricgrad.estimators.networks import drawn_seed, perceptron, trained_network, widths
from metricgrad.estimators.sparse import prepared_features
from metricgrad.estimators.warm_start import Start
from metricgrad.metrics import Metric
from metricgrad.metrics.checks import one_of
from metricgrad.processes import clock
from metricgrad.training import Fit
from metricgrad.training.candidates import method_names
from metricgrad.training.data import Items
from metricgrad.training.decision import compare_trials
from metricgrad.training.fit_trees import ENGINES, TreeFit, fits_trees
from metricgrad.training.row_space import WIDE
from metricgrad.training.trained import ComparedModel
from metricgrad.training.tree_trials import TreeData
from metricgrad.training.trials import best_first
from metricgrad.training.validation import Validation

ModelName = Literal["linear", "network", "boosted", "auto"]
_CATEGORIES = 250  # of a column, that trees are given; scikit-learn's take no more
# Of the time that is left, for each of the models that "auto" tries in turn.
_SHARES = {"boosted": 0.35, "linear": 0.3, "network": 1.0}


class Work(NamedTuple):
    """What there is to learn: a table, its target, and how they become items."""

    table: Any
    rows: np.ndarray | None  # numbers of the rows to train on; None takes all
    items: Callable[[Tensor], Items]  # of the prepared columns of these rows
    metric: Metric
    task: TreeTask | None  # what a row has; None if trees cannot learn it
    outputs: int  # scores of an item
    folds: int | None
    balanced: bool
    folder: str | Path | None  # for checkpoints
    start: Start = Start()  # what a second `fit` goes on from

    @property
    def wide(self) -> bool:
        """Whether there are far more columns than rows, on which trees take long for little."""
        rows, columns = self.table.shape
        return columns > WIDE * (rows if self.rows is None else len(self.rows))


class FittedModel(NamedTuple):
    """A trained model, how its columns are prepared, and its items."""

    name: str
    fit: Fit
    preparation: Preparation
    items: Items  # that it was trained on, prepared


def check_model(model: Any) -> ModelName:
    """The name of a kind of model; ValueError for any other."""
    one_of("model", model, get_args(ModelName))
    return model


def hidden_of(estimator: Any) -> tuple[int, ...]:
    """The hidden layers of an estimator's network; a linear model has none."""
    return () if estimator.model == "linear" else widths(estimator.hidden)


def fitted_model(estimator: Any, work: Work) -> FittedModel:
    """The model that an estimator asks for, trained; of several, the best on validation data."""
    name = check_model(estimator.model)
    widths(estimator.hidden)  # refuses what is none, whichever model it is
    seed = drawn_seed(estimator)
    if name != "auto":
        return _trained(estimator, name, work, seed, estimator.budget)
    started = clock()
    found: list[FittedModel] = []
    for each in _tried(estimator, work):
        budget = None
        if estimator.budget is not None:
            left = estimator.budget - (clock() - started)
            if found and left <= 0:
                break
            budget = max(left, 0.01) * _SHARES[each]
        folder = None if work.folder is None else Path(work.folder) / each
        found.append(_trained(estimator, each, work._replace(folder=folder), seed, budget))
        if found[-1].fit.stopped:
            break
    return _best(found, seed)


def _tried(estimator: Any, work: Work) -> list[ModelName]:
    """The kinds of models that "auto" tries, the one that the others have to beat first."""
    plain = not work.balanced and not estimator.options
    trees = plain and work.task is not None and fits_trees(estimator.method, work.task)
    if trees and estimator.method not in ("auto", *method_names()):  # no loss of networks
        return ["boosted"]
    found: list[ModelName] = ["boosted"] if trees and not work.wide else []
    found.append("linear")
    if hidden_of(estimator):
        found.append("network")
    return found


def _trained(
    estimator: Any, name: ModelName, work: Work, seed: int, budget: float | None
) -> FittedModel:
    """One kind of model, trained."""
    if name == "boosted":
        return _boosted(estimator, work, seed, budget)
    preparation = work.start.preparation or Preparation().fit(work.table, work.rows)
    x = torch.from_numpy(prepared_features(preparation, work.table, work.rows))
    hidden = () if name == "linear" else hidden_of(estimator)
    items = work.items(x)
    found = trained_network(
        estimator,
        work.start.network or perceptron(x.shape[1], hidden, work.outputs, seed),
        items,
        metric=work.metric,
        folds=work.folds,
        balanced=work.balanced,
        budget=budget,
        seed=seed,
        folder=work.folder,
    )
    kind = "a network" if hidden else "a linear model"
    return FittedModel("network" if hidden else "linear", _named(found, kind), preparation, items)


def _boosted(estimator: Any, work: Work, seed: int, budget: float | None) -> FittedModel:
    """Boosted trees, grown; ValueError where they cannot be."""
    if work.task is None:
        raise ValueError(
            "boosted trees take one class for each row, and this target has several labels; pass "
            "model='network' or model='linear'"
        )
    if work.balanced:
        raise ValueError("balanced batches are for networks; leave out balanced=True, or model")
    engine = installed_engine(estimator.engine)
    preparation = work.start.preparation
    if preparation is None:
        preparation = Preparation(most=_CATEGORIES, raw=True).fit(work.table, work.rows)
    x = torch.from_numpy(prepared_features(preparation, work.table, work.rows))
    items = work.items(x)
    data = TreeData(items, work.task, work.outputs, preparation.categories, work.metric)
    asked = TreeFit(
        data,
        engine,
        estimator.method,
        estimator.options,
        estimator.rate,
        work.folds,
        budget,
        seed,
        estimator.progress,
        work.start.forest,
    )
    kind = f"boosted trees ({ENGINES[engine]})"
    return FittedModel("boosted", _named(asked.run(), kind), preparation, items)


def _named(found: Fit, kind: str) -> Fit:
    """A fit that says what kind of model it has trained."""
    found.models = [ComparedModel(kind, found.method, found.value)]
    return found


def _best(found: list[FittedModel], seed: int) -> FittedModel:
    """The first model, unless another one is better by more than chance would give."""
    usual, *others = found
    if not others:
        return usual
    by_trial = {each.fit.decision.winner: each for each in found}
    metric = usual.fit.metric
    ranked = best_first([each.fit.decision.winner for each in others], metric)
    validation = Validation(metric, usual.fit.validation)
    decision = compare_trials(validation, seed, usual.fit.decision.winner, ranked)
    taken = by_trial[decision.winner]
    models = [taken.fit.models[0], *(each.fit.models[0] for each in found if each is not taken)]
    seconds = sum(each.fit.seconds for each in found)
    fit = replace(taken.fit, models=models, models_luck=decision.luck, seconds=seconds)
    return taken._replace(fit=fit)
