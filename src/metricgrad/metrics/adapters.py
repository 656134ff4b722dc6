"""How callables of other libraries are called with (scores, target).

Most are called as they are. Three kinds need more than that:

    scikit-learn functions   take (y_true, y_pred) or (y_true, y_score): the order is turned around;
                             y_pred becomes decisions (score > 0, or the highest class), y_score the
                             scores (softmax for classes)
    scikit-learn scorers     stand for their function, options, response method and sign
    torchmetrics             takes scores in [0, 1] for probabilities, so it gets their sigmoid or
                             softmax, and integer targets; an object is copied and reset, so that
                             its own state is left alone
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from metricgrad.metrics.rows import RowNames

ScoreFunction = Callable[..., Any]  # with (scores, target), and data of the items by name


def own_name(fn: Callable[..., Any]) -> str:
    """What to call a function of the user's."""
    fn = getattr(fn, "_score_func", fn)
    name = getattr(_inner(fn), "__name__", type(fn).__name__)
    return "function" if name == "<lambda>" else name


def _inner(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function within a partial or a decorator."""
    return inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)


def adapted(fn: Callable[..., Any]) -> tuple[ScoreFunction, bool | None]:
    """How to call fn with (scores, target), and the direction that it states, if it does."""
    if any(base.__module__.startswith("torchmetrics.") for base in inspect.getmro(type(fn))):
        call = _torchmetrics(_Resetting(copy.deepcopy(fn)), type(fn).__module__)
        return call, getattr(fn, "higher_is_better", None)
    if type(fn).__module__ == "sklearn.metrics._scorer":
        return _scorer(fn)
    module = getattr(_inner(fn), "__module__", None) or ""
    name = getattr(_inner(fn), "__name__", "")
    if module.startswith("torchmetrics.functional"):
        return _torchmetrics(fn, module), None
    if module.startswith("sklearn.metrics"):
        stated = True if name.endswith("_score") else None
        if name.endswith(("_loss", "_error", "_deviance")):
            stated = False
        return _Sklearn(fn, _wants(module, name, _parameters(fn)), name), stated
    first = next(iter(_parameters(fn)), "")
    if first in ("y_true", "target", "targets", "label", "labels"):
        raise ValueError(
            f"{own_name(fn)} takes {first!r} first, but a metric is called with (scores, target); "
            f"wrap it, for example: lambda scores, target: {own_name(fn)}(target, scores > 0)"
        )
    return fn, None


def _parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters."""
    try:
        return list(inspect.signature(fn).parameters)
    except ValueError:  # a builtin without a signature
        return []


# The adapters are classes and not closures, because what is fitted for a metric must pickle.


@dataclass(frozen=True)
class _Resetting:
    """A copy of a torchmetrics object that forgets each set before the next."""

    own: Any

    def __call__(self, scores: Tensor, target: Tensor) -> Any:
        self.own.reset()
        try:
            return self.own(scores, target)
        finally:
            self.own.reset()


@dataclass(frozen=True)
class _OfProbabilities:
    """torchmetrics takes scores between 0 and 1 for probabilities, so it gets probabilities."""

    fn: Callable[..., Any]

    def __call__(self, scores: Any, target: Any) -> Any:
        values = torch.as_tensor(scores).double()
        truth = torch.as_tensor(target).to(torch.int64)
        classes = values.dim() == truth.dim() + 1
        return self.fn(values.softmax(-1) if classes else values.sigmoid(), truth)


def _torchmetrics(fn: Callable[..., Any], module: str) -> ScoreFunction:
    """How to call a function of one of torchmetrics' modules."""
    return _OfProbabilities(fn) if ".classification" in module or ".retrieval" in module else fn


Wants = Literal["scores", "probabilities", "decisions", "raw"]
_PROBABILITIES = ("log_loss", "brier_score_loss", "d2_log_loss_score", "d2_brier_score")
_LISTS = (
    "ndcg_score",
    "dcg_score",
    "label_ranking_average_precision_score",
    "label_ranking_loss",
    "coverage_error",
)


def _scorer(fn: Any) -> tuple[ScoreFunction, bool]:
    """How to call a scorer's function, which takes (y_true, what the response method gives)."""
    function = functools.partial(fn._score_func, **fn._kwargs)
    methods: dict[str, Wants] = {"predict": "decisions", "predict_proba": "probabilities"}
    response = fn._response_method
    wants = methods.get(response, "scores") if isinstance(response, str) else "scores"
    module = fn._score_func.__module__ or ""
    name = fn._score_func.__name__
    if module.startswith("sklearn.metrics"):
        wants = _wants(module, name, _parameters(fn._score_func))
    return _Sklearn(function, wants, name), fn._sign > 0


def _wants(module: str, name: str, parameters: list[str]) -> Wants:
    """What a scikit-learn function takes beside the target, told by its second parameter."""
    if parameters[:1] not in (["y_true"], ["y1"]):
        raise ValueError(
            f"{name} takes ({', '.join(parameters[:2])}, ...), not a target and what a classifier "
            "says of it; wrap it in a lambda (scores, target) -> number"
        )
    if module == "sklearn.metrics._regression" or parameters[1] == "pred_decision":
        return "raw"
    if name in _PROBABILITIES or parameters[1] in ("y_prob", "y_proba"):
        return "probabilities"
    return "decisions" if parameters[1] in ("y_pred", "y2") else "scores"


@dataclass(frozen=True)
class _Sklearn:
    """A function of scikit-learn, which takes the target first, called with (scores, target)."""

    fn: Callable[..., Any]
    wants: Wants
    name: str

    def __call__(self, scores: Any, target: Any, **rows: Any) -> Any:
        values = torch.as_tensor(scores)
        truth = torch.as_tensor(target)
        classes = values.dim() == truth.dim() + 1
        if self.wants == "decisions":
            values = values.argmax(-1) if classes else values > 0
        elif self.wants != "raw" and classes:
            values = values.double().softmax(-1)
        elif self.wants == "probabilities":
            values = values.double().sigmoid()
        if self.name in _LISTS and truth.dim() == 1:
            values = values.unsqueeze(0)
            truth = truth.unsqueeze(0)
        weights = {name: torch.as_tensor(row).cpu().numpy() for name, row in rows.items()}
        return self.fn(truth.cpu().numpy(), values.cpu().numpy(), **weights)


def names_of_rows(call: ScoreFunction, name: str) -> RowNames:
    """What a function takes besides scores and target; of scikit-learn's functions, weights."""
    if isinstance(call, _Sklearn):
        weighted = "sample_weight" in _parameters(call.fn)
        return RowNames(name, ("sample_weight",) if weighted else ())
    own = not isinstance(call, _Resetting | _OfProbabilities)
    return RowNames.of(name, call) if own else RowNames(name)


def decides_at_zero(call: ScoreFunction) -> bool:
    """Whether scores become decisions at 0, or probabilities, on the way to another library."""
    if isinstance(call, _Sklearn):
        return call.wants in ("decisions", "probabilities")
    return isinstance(call, _OfProbabilities)
