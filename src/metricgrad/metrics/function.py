"""Any callable as a metric: NumPy, scikit-learn, torchmetrics, plain torch.

A function gets one set at a time, `fn(scores, target)`, and answers with a number; sets are looped
over for it. It is called with tensors and, should that raise, with NumPy arrays. Three kinds of
callables need more than that, and get it:

    scikit-learn functions   take (y_true, y_pred) or (y_true, y_score): the order is turned around; y_pred becomes
                             decisions (score > 0, or the highest class), y_score the scores
                             (softmax for classes)
    scikit-learn scorers     stand for their function, options, response method and sign
    torchmetrics             takes scores in [0, 1] for probabilities, so it gets their sigmoid or softmax, and integer
                             targets; an object is copied and reset, so that its own state is left
                             alone
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs, Layout, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape

Call = Callable[[Any, Any], Any]


def from_function(
    fn: Callable[..., Any],
    higher_is_better: bool = True,
    *,
    best: float | None = None,
    worst: float | None = None,
    multilabel: bool = False,
    set_dims: tuple[int, int] | None = None,
    arrays: bool | None = None,
    name: str | None = None,
) -> "FunctionMetric":
    """A metric from any callable `(scores, target) -> number`.

    Args:
        fn: called with one set; scikit-learn functions and scorers, torchmetrics functionals and
            objects are taken as they stand. NaN is passed on: it says that the function is
            undefined on a set.
        higher_is_better: the direction.
        best: the value of an ideal model; unbounded by default.
        worst: the value at the other end; unbounded by default.
        multilabel: a set is scores and target `[N, C]`; by default `[N]` each, or `[N, C]` and
            class indices `[N]`.
        set_dims: how many trailing dimensions of scores and target make one set, for other kinds of
            data.
        arrays: True calls with NumPy arrays, False with tensors; None tries tensors, then arrays.
        name: what to call it; the function's own name by default.

    Returns:
        The metric.

    Example:
        >>> import metricgrad as mg
        >>> from sklearn.metrics import fbeta_score
        >>> f2 = mg.from_function(lambda s, y: fbeta_score(y, s > 0, beta=2))
        >>> f2(torch.tensor([[2.0, -1.0, 0.5], [2.0, 1.0, -1.0]]), torch.tensor([[1, 0, 0], [1, 1, 0]]))
        tensor([0.8333, 1.0000])
    """
    if not callable(fn):
        raise TypeError(
            f"from_function takes a callable (scores, target) -> number; got {type(fn).__name__}: {fn!r:.80}"
        )
    call, stated = _adapt(fn)
    name = name or _name(fn)
    if stated is not None and stated != higher_is_better:
        raise ValueError(
            f"{name} says of itself that {'higher' if stated else 'lower'} is better; pass higher_is_better={stated}"
        )
    top, bottom = (torch.inf, -torch.inf) if higher_is_better else (-torch.inf, torch.inf)
    return FunctionMetric(
        call=call,
        name=name,
        higher_is_better=higher_is_better,
        best=top if best is None else best,
        worst=bottom if worst is None else worst,
        set_dims=(2, 2) if multilabel and set_dims is None else set_dims,
        arrays=arrays,
    )


@dataclass(frozen=True, kw_only=True)
class FunctionMetric(Metric):
    """A metric that calls a function for every set; made by `from_function`, which describes the fields."""

    families = ("any",)
    takes_classes = True
    ties = "own"
    undefined = "what the function gives"
    reference = "the function itself"

    call: Call
    name: str
    higher_is_better: bool
    best: float
    worst: float
    set_dims: tuple[int, int] | None
    arrays: bool | None

    @property
    def layout(self) -> Layout:
        """Labels where it is said; otherwise anything that the function takes."""
        return "labels" if self.set_dims == (2, 2) else "any"

    @property
    def has_threshold(self) -> bool:
        """A function of binary scores decides at 0; moving the scores moves that."""
        return self.set_dims in (None, (1, 1))

    @property
    def portable(self) -> bool:
        """A function cannot be written to a file."""
        return False

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores; one flag per item."""
        lead = self.set_dimensions(scores, target)
        where = expand_where(where, target.shape[: lead + 1], lead + 1)
        if scores.is_floating_point():
            flags = (
                None
                if where is None
                else where.reshape(where.shape + (1,) * (scores.dim() - where.dim()))
            )
            scores = real_scores(scores, flags)
        return Inputs(scores, target, where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """One call per set, on the items that count."""
        lead = self.set_dimensions(scores, target)
        sets = scores.shape[:lead].numel()
        flat_scores, flat_target = (
            scores.reshape(sets, *scores.shape[lead:]),
            target.reshape(sets, *target.shape[lead:]),
        )
        flags = None if where is None else where.reshape(sets, -1)
        values, arrays = [], self.arrays
        for index in range(sets):
            one_scores, one_target = flat_scores[index], flat_target[index]
            if flags is not None:
                one_scores, one_target = one_scores[flags[index]], one_target[flags[index]]
            value, arrays = self._one(one_scores, one_target, arrays, f"set {index + 1} of {sets}")
            values.append(value)
        return (
            torch.tensor(values, dtype=torch.float64).reshape(scores.shape[:lead]).to(scores.device)
        )

    def set_dimensions(self, scores: Tensor, target: Tensor) -> int:
        """Number of leading dimensions that are sets; ValueError where the shapes do not fit."""
        if self.set_dims is not None:
            lead = scores.dim() - self.set_dims[0]
            fits = lead >= 0 and lead == target.dim() - self.set_dims[1]
        else:
            lead = target.dim() - 1
            fits = target.shape in (scores.shape, scores.shape[:-1])
        if not fits or scores.shape[: lead + 1] != target.shape[: lead + 1]:
            wanted = (
                "scores and target [..., N], or scores [..., N, C] with classes [..., N]; other kinds need set_dims"
                if self.set_dims is None
                else f"sets of {self.set_dims[0]} dimensions of scores and {self.set_dims[1]} of target"
            )
            raise ValueError(
                f"{self.name} takes {wanted}; got scores {shape(scores)} and target {shape(target)}"
            )
        return lead

    def _one(
        self, scores: Tensor, target: Tensor, arrays: bool | None, place: str
    ) -> tuple[float, bool]:
        """The value of one set, and whether it was called with arrays."""
        first: Exception | None = None
        where = f"{place} (scores {shape(scores)}, target {shape(target)})"
        for kind in (False, True) if arrays is None else (arrays,):
            try:
                own = scores.clone(), target.clone()  # the function may do with them what it likes
                result = self.call(*(x.cpu().numpy() for x in own)) if kind else self.call(*own)
            except Exception as error:
                first = first or error
                continue
            return _number(result, f"{self.name} on {where}"), kind
        assert first is not None
        raise RuntimeError(
            f"{self.name} raised {type(first).__name__} on {where}: {first}"
        ) from first


def _number(result: Any, place: str) -> float:
    sized = isinstance(result, Tensor | np.ndarray | np.generic)
    value = result.item() if sized and math.prod(result.shape) == 1 else result
    if isinstance(value, int | float):
        return float(value)
    got = (
        f"{type(result).__name__} of shape {list(result.shape)}"
        if sized
        else f"{type(result).__name__} {result!r:.80}"
    )
    raise TypeError(f"{place} must give one number; got {got}")


def _name(fn: Callable[..., Any]) -> str:
    fn = getattr(fn, "_score_func", fn)
    name = getattr(
        inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn),
        "__name__",
        type(fn).__name__,
    )
    return "function" if name == "<lambda>" else name


def _adapt(fn: Callable[..., Any]) -> tuple[Call, bool | None]:
    """How to call fn with (scores, target), and the direction that it states, if it does."""
    kind = next(
        (
            c.__module__
            for c in inspect.getmro(type(fn))
            if c.__module__.startswith("torchmetrics.")
        ),
        None,
    )
    if kind is not None:
        return _torchmetrics(_Resetting(copy.deepcopy(fn)), type(fn).__module__), getattr(
            fn, "higher_is_better", None
        )
    if type(fn).__module__ == "sklearn.metrics._scorer":
        return _scorer(fn)
    function = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    if module.startswith("torchmetrics.functional"):
        return _torchmetrics(fn, module), None
    if module.startswith("sklearn.metrics"):
        stated = (
            False
            if name.endswith(("_loss", "_error", "_deviance"))
            else True
            if name.endswith("_score")
            else None
        )
        return _Sklearn(fn, _wants(module, name, _parameters(fn)), name), stated
    first = next(iter(_parameters(fn)), "")
    if first in ("y_true", "target", "targets", "label", "labels"):
        raise ValueError(
            f"{_name(fn)} takes {first!r} first, but a metric is called with (scores, target); "
            f"wrap it, for example: lambda scores, target: {_name(fn)}(target, scores > 0)"
        )
    return fn, None


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except ValueError:  # a builtin without a signature
        return []


# What follows are classes and not closures, as what is fitted for a metric must pickle.


@dataclass(frozen=True)
class _Resetting:
    """A torchmetrics object of one's own that forgets each set before the next."""

    own: Any

    def __call__(self, scores: Tensor, target: Tensor) -> Any:
        self.own.reset()
        try:
            return self.own(scores, target)
        finally:
            self.own.reset()


@dataclass(frozen=True)
class _OfProbabilities:
    """torchmetrics takes scores between 0 and 1 for probabilities: it gets probabilities, and integer targets."""

    fn: Callable[..., Any]

    def __call__(self, scores: Any, target: Any) -> Any:
        values, truth = torch.as_tensor(scores).double(), torch.as_tensor(target).to(torch.int64)
        return self.fn(
            values.softmax(-1) if values.dim() == truth.dim() + 1 else values.sigmoid(), truth
        )


def _torchmetrics(fn: Callable[..., Any], module: str) -> Call:
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


def _scorer(fn: Any) -> tuple[Call, bool]:
    """A scorer's function takes (y_true, what the estimator's response method gives), whatever its arguments' names."""
    function, response = functools.partial(fn._score_func, **fn._kwargs), fn._response_method
    wants: Wants = (
        "decisions"
        if response == "predict"
        else "probabilities"
        if response == "predict_proba"
        else "scores"
    )
    module, name = fn._score_func.__module__ or "", fn._score_func.__name__
    if module.startswith("sklearn.metrics"):
        wants = _wants(module, name, _parameters(fn._score_func))
    return _Sklearn(function, wants, name), fn._sign > 0


def _wants(module: str, name: str, parameters: list[str]) -> Wants:
    """What a scikit-learn function takes beside the target: told by the name of its second parameter."""
    if parameters[:1] not in (["y_true"], ["y1"]):
        raise ValueError(
            f"{name} takes ({', '.join(parameters[:2])}, ...), not a target and what a classifier says of it; "
            "wrap it in a lambda (scores, target) -> number"
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

    def __call__(self, scores: Any, target: Any) -> Any:
        values, truth = torch.as_tensor(scores), torch.as_tensor(target)
        classes = values.dim() == truth.dim() + 1
        if self.wants == "decisions":
            values = values.argmax(-1) if classes else values > 0
        elif self.wants != "raw" and classes:
            values = values.double().softmax(-1)
        elif self.wants == "probabilities":
            values = values.double().sigmoid()
        if self.name in _LISTS and truth.dim() == 1:
            values, truth = values.unsqueeze(0), truth.unsqueeze(0)
        return self.fn(truth.cpu().numpy(), values.cpu().numpy())
