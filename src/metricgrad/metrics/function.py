"""Any callable as a metric: NumPy, scikit-learn, torchmetrics, plain torch.

A function gets one set at a time, `fn(scores, target)`, and answers with a number; sets are looped
over for it. It is called with tensors and, should that raise, with NumPy arrays. Further parameters
are data of the items (`rows.py`). Three kinds of callables need more than that, and get it:

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
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from metricgrad.metrics.adapters import OfProbabilities, Resetting, torchmetrics_call
from metricgrad.metrics.base import Inputs, Layout, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape
from metricgrad.metrics.rows import NO_NAMES, OneSet, RowNames, Rows, WithRows, check_rows, to_rows

Call = Callable[..., Any]


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
        fn: Called with one set; scikit-learn functions and scorers, torchmetrics functionals and
            objects are taken as they are. NaN is passed on: it says that the function is undefined
            on a set. Parameters after the first two, such as `amount`, are data of the items, which
            calls pass by name: `metric(scores, target, amount=amount)`.
        higher_is_better: Whether a larger value means a better model.
        best: The value of an ideal model; unbounded by default.
        worst: The value at the other end; unbounded by default.
        multilabel: Whether a set is scores and target `[N, C]`; by default it is `[N]` each, or
            `[N, C]` and class indices `[N]`.
        set_dims: How many trailing dimensions of scores and target make one set, for other kinds of
            data.
        arrays: True calls with NumPy arrays, False with tensors; None tries tensors, then arrays.
        name: What to call it; the function's own name by default.

    Example:
        >>> import metricgrad as mg
        >>> from sklearn.metrics import fbeta_score
        >>> f2 = mg.from_function(lambda s, y: fbeta_score(y, s > 0, beta=2))
        >>> scores = torch.tensor([[2.0, -1.0, 0.5], [2.0, 1.0, -1.0]])
        >>> f2(scores, torch.tensor([[1, 0, 0], [1, 1, 0]]))
        tensor([0.8333, 1.0000])
    """
    if not callable(fn):
        raise TypeError(
            "from_function takes a callable (scores, target) -> number; got "
            f"{type(fn).__name__}: {fn!r:.80}"
        )
    call, stated = _adapt(fn)
    name = name or _name(fn)
    if stated is not None and stated != higher_is_better:
        raise ValueError(
            f"{name} says of itself that {'higher' if stated else 'lower'} is better; pass "
            f"higher_is_better={stated}"
        )
    top = torch.inf if higher_is_better else -torch.inf
    return FunctionMetric(
        call=call,
        name=name,
        higher_is_better=higher_is_better,
        best=top if best is None else best,
        worst=-top if worst is None else worst,
        set_dims=(2, 2) if multilabel and set_dims is None else set_dims,
        arrays=arrays,
        takes=_takes(call, name),
    )


@dataclass(frozen=True, kw_only=True)
class FunctionMetric(Metric):
    """A metric that calls a function for every set; `from_function` describes the fields."""

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
    takes: RowNames = field(default=NO_NAMES, repr=False)
    rows: Rows = field(default_factory=dict, repr=False, compare=False)

    @property
    def row_names(self) -> RowNames:
        """The parameters of the function after its first two."""
        return self.takes

    def with_rows(self, rows: Mapping[str, Any]) -> Self:
        """The same function with data of the items; `Metric.with_rows` describes it."""
        super().with_rows(rows)
        bound = copy.copy(self)  # what was found out about the function stays shared
        object.__setattr__(bound, "rows", to_rows(rows))
        return bound

    @property
    def layout(self) -> Layout:
        """Labels if `multilabel` said so; otherwise whatever the function takes."""
        return "labels" if self.set_dims == (2, 2) else "any"

    @property
    def has_threshold(self) -> bool:
        """A function of binary scores decides at 0, so moving the scores moves the threshold."""
        return self.set_dims in (None, (1, 1))

    @property
    def portable(self) -> bool:
        """A function cannot be written to a file."""
        return False

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Finite scores; one flag per item."""
        lead = self.set_dimensions(scores, target)
        self.takes.complete(list(self.rows))
        where = expand_where(where, target.shape[: lead + 1], lead + 1)
        check_rows(self.rows, target.shape[: lead + 1], where)
        if scores.is_floating_point():
            each = (..., *[None] * (scores.dim() - lead - 1))  # one flag for all entries of an item
            scores = real_scores(scores, None if where is None else where[each])
        return Inputs(scores, target, where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """One call per set, on the items that count."""
        leading = scores.shape[: self.set_dimensions(scores, target)]
        sets = leading.numel()
        values = []
        arrays = self.arrays
        for index, each in enumerate(self.each_set(scores, target, where)):
            value, arrays = self._one(each, arrays, f"set {index + 1} of {sets}")
            values.append(value)
        return torch.tensor(values, dtype=torch.float64).reshape(leading).to(scores.device)

    def each_set(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Iterator[OneSet]:
        """Scores, target and rows of every set, without the items that do not count."""
        lead = self.set_dimensions(scores, target)
        sets = scores.shape[:lead].numel()
        parts = (scores, target, *self.rows.values())
        flat = [part.reshape(sets, *part.shape[lead:]) for part in parts]
        flags = None if where is None else where.reshape(sets, -1)
        for index in range(sets):
            counted = slice(None) if flags is None else flags[index]
            one, truth, *own = (part[index][counted] for part in flat)
            yield OneSet(one, truth, dict(zip(self.rows, own, strict=True)))

    def set_dimensions(self, scores: Tensor, target: Tensor) -> int:
        """Number of leading dimensions that are sets; ValueError where the shapes do not fit."""
        if self.set_dims is not None:
            lead = scores.dim() - self.set_dims[0]
            fits = lead >= 0 and lead == target.dim() - self.set_dims[1]
            wanted = "sets of {} dimensions of scores and {} of target".format(*self.set_dims)
        else:
            lead = target.dim() - 1
            fits = target.shape in (scores.shape, scores.shape[:-1])
            wanted = (
                "scores and target [..., N], or scores [..., N, C] with classes [..., N]; "
                "other kinds need set_dims"
            )
        if not fits or scores.shape[: lead + 1] != target.shape[: lead + 1]:
            raise ValueError(
                f"{self.name} takes {wanted}; got scores {shape(scores)} and target {shape(target)}"
            )
        return lead

    def _one(self, given: OneSet, arrays: bool | None, place: str) -> tuple[float, bool]:
        """The value of one set, and whether it was called with arrays."""
        first: Exception | None = None
        scores, target, rows = given
        where = f"{place} (scores {shape(scores)}, target {shape(target)})"
        for kind in (False, True) if arrays is None else (arrays,):
            try:
                result = WithRows(self.call, rows, kind)(scores, target)
            except Exception as error:
                first = first or error
                continue
            return _one_number(result, f"{self.name} on {where}"), kind
        assert first is not None
        raise RuntimeError(
            f"{self.name} raised {type(first).__name__} on {where}: {first}"
        ) from first


def _takes(call: Call, name: str) -> RowNames:
    """What a function takes besides scores and target; of scikit-learn's functions, weights."""
    if isinstance(call, _Sklearn):
        weighted = "sample_weight" in _parameters(call.fn)
        return RowNames(name, ("sample_weight",) if weighted else ())
    own = not isinstance(call, Resetting | OfProbabilities)
    return RowNames.of(name, call) if own else RowNames(name)


def _one_number(result: Any, place: str) -> float:
    """What a function gave, as a float; TypeError unless it is one number."""
    sized = isinstance(result, Tensor | np.ndarray | np.generic)
    value = result.item() if sized and math.prod(result.shape) == 1 else result
    if isinstance(value, int | float):
        return float(value)
    detail = f"of shape {list(result.shape)}" if sized else f"{result!r:.80}"
    raise TypeError(f"{place} must give one number; got {type(result).__name__} {detail}")


def _name(fn: Callable[..., Any]) -> str:
    """What to call a function of the user's."""
    fn = getattr(fn, "_score_func", fn)
    name = getattr(_inner(fn), "__name__", type(fn).__name__)
    return "function" if name == "<lambda>" else name


def _inner(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function within a partial or a decorator."""
    return inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)


def _adapt(fn: Callable[..., Any]) -> tuple[Call, bool | None]:
    """How to call fn with (scores, target), and the direction that it states, if it does."""
    if any(base.__module__.startswith("torchmetrics.") for base in inspect.getmro(type(fn))):
        call = torchmetrics_call(Resetting(copy.deepcopy(fn)), type(fn).__module__)
        return call, getattr(fn, "higher_is_better", None)
    if type(fn).__module__ == "sklearn.metrics._scorer":
        return _scorer(fn)
    module = getattr(_inner(fn), "__module__", None) or ""
    name = getattr(_inner(fn), "__name__", "")
    if module.startswith("torchmetrics.functional"):
        return torchmetrics_call(fn, module), None
    if module.startswith("sklearn.metrics"):
        stated = True if name.endswith("_score") else None
        if name.endswith(("_loss", "_error", "_deviance")):
            stated = False
        return _Sklearn(fn, _wants(module, name, _parameters(fn)), name), stated
    first = next(iter(_parameters(fn)), "")
    if first in ("y_true", "target", "targets", "label", "labels"):
        raise ValueError(
            f"{_name(fn)} takes {first!r} first, but a metric is called with (scores, target); "
            f"wrap it, for example: lambda scores, target: {_name(fn)}(target, scores > 0)"
        )
    return fn, None


def _parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters."""
    try:
        return list(inspect.signature(fn).parameters)
    except ValueError:  # a builtin without a signature
        return []


# The adapters are classes and not closures, because what is fitted for a metric must pickle.


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
