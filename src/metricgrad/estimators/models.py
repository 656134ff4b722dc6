"""The models of the estimators: linear, a network, boosted trees, or whichever is best.

`model="boosted,linear"` trains several kinds on the same splits, and `model="auto"` all of them.
The first one is taken unless another is better by more than chance would give, on validation data:
the same rule by which a loss has to beat the ordinary one (`training/decision.py`).

A search over losses takes several times as long as training on the ordinary loss. So all kinds but
the first are trained on the ordinary loss first, and those that are not better than the first kind
then are not searched any further.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metricgrad.boosting.growing import TreeTask, installed_engine
from metricgrad.estimators.features import Preparation
from metricgrad.estimators.kinds import ModelKind, model_kinds
from metricgrad.estimators.networks import drawn_seed, perceptron, trained_network, widths
from metricgrad.estimators.sparse import prepared_features
from metricgrad.estimators.warm_start import Start
from metricgrad.metrics import Metric
from metricgrad.processes import clock
from metricgrad.training import Fit
from metricgrad.training.candidates import method_names, ordinary_candidate
from metricgrad.training.data import Items
from metricgrad.training.decision import Decision, compare_trials
from metricgrad.training.fit_trees import ENGINES, TreeFit, fits_trees
from metricgrad.training.row_space import WIDE
from metricgrad.training.trained import ComparedModel
from metricgrad.training.tree_trials import TreeData
from metricgrad.training.trials import best_first
from metricgrad.training.validation import Validation

_CATEGORIES = 250  # of a column, that trees are given; scikit-learn's take no more
# Of the time, where several kinds are tried one after the other.
_SHARES: dict[ModelKind, float] = {"boosted": 0.35, "linear": 0.2, "network": 0.45}
_PLAIN = 0.3  # of a kind's time, for training on the ordinary loss


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

    def into(self, name: str) -> "Work":
        """The same with a folder of its own for checkpoints."""
        return self if self.folder is None else self._replace(folder=Path(self.folder) / name)


class FittedModel(NamedTuple):
    """A trained model, how its columns are prepared, and its items."""

    name: str
    fit: Fit
    preparation: Preparation
    items: Items  # that it was trained on, prepared


def hidden_of(estimator: Any) -> tuple[int, ...]:
    """The hidden layers of an estimator's network; a linear model has none."""
    return () if estimator.model == "linear" else widths(estimator.hidden)


def fitted_model(estimator: Any, work: Work) -> FittedModel:
    """The model that an estimator asks for, trained; of several, the best on validation data."""
    kinds = model_kinds(estimator.model)
    widths(estimator.hidden)  # refuses what is none, whichever model it is
    seed = drawn_seed(estimator)
    if len(kinds) == 1:
        return _trained(estimator, kinds[0], work, seed, estimator.budget)
    started = clock()
    found: list[FittedModel] = []
    tried = _tried(estimator, work, kinds)
    for number, each in enumerate(tried):
        budget = None
        if estimator.budget is not None:
            left = estimator.budget - (clock() - started)
            if found and left <= 0:
                break
            shares = [_SHARES[kind] for kind in tried[number:]]
            budget = max(left, 0.01) * shares[0] / sum(shares)
        first = found[0] if found and estimator.method == "auto" else None
        found.append(_searched(estimator, each, work, seed, budget, first))
        if found[-1].fit.stopped:
            break
    return _best(found, seed)


def _searched(
    estimator: Any,
    kind: ModelKind,
    work: Work,
    seed: int,
    budget: float | None,
    first: FittedModel | None,
) -> FittedModel:
    """A kind of model, trained; on the ordinary loss only if it is no better than the first."""
    if first is not None:
        started = clock()
        plain = copy.copy(estimator)
        plain.method = ordinary_candidate(work.metric, sets=work.task == "grades").method
        share = None if budget is None else budget * _PLAIN
        found = _trained(plain, kind, work.into(f"{kind}-ordinary"), seed, share)
        if found.fit.stopped or _compared(first, [found], seed).gain <= 0:
            return found
        budget = None if budget is None else max(budget - (clock() - started), 0.01)
    return _trained(estimator, kind, work.into(kind), seed, budget)


def _tried(estimator: Any, work: Work, kinds: tuple[ModelKind, ...]) -> list[ModelKind]:
    """Of several kinds of models those that data and loss are for."""
    plain = not work.balanced and not estimator.options
    trees = plain and work.task is not None and fits_trees(estimator.method, work.task)
    if trees and estimator.method not in ("auto", *method_names()):  # no loss of networks
        return ["boosted"]
    left_out: list[ModelKind] = [] if trees and not work.wide else ["boosted"]
    if not hidden_of(estimator):
        left_out.append("network")
    return [kind for kind in kinds if kind not in left_out] or ["linear"]


def _trained(
    estimator: Any, name: ModelKind, work: Work, seed: int, budget: float | None
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
    decision = _compared(usual, others, seed)
    taken = by_trial[decision.winner]
    models = [taken.fit.models[0], *(each.fit.models[0] for each in found if each is not taken)]
    seconds = sum(each.fit.seconds for each in found)
    fit = replace(taken.fit, models=models, models_luck=decision.luck, seconds=seconds)
    return taken._replace(fit=fit)


def _compared(usual: FittedModel, others: list[FittedModel], seed: int) -> Decision:
    """Whether the best of other models is better than the usual one, on validation data."""
    metric = usual.fit.metric
    ranked = best_first([each.fit.decision.winner for each in others], metric)
    validation = Validation(metric, usual.fit.validation)
    return compare_trials(validation, seed, usual.fit.decision.winner, ranked)
