"""The tape: what is written down while a user's function runs on one set of scores.

Every operation on a value that depends on the scores leaves a step on the tape, in the order of the
function's operations. A replay runs the function once more and takes each result from its step.
How a value depends on the scores decides what its steps do:

    SMOOTH    with a gradient             a replay takes the recorded result
    DECIDED   only through bits           a replay computes it again, from other bits
    MIXED     both                        a replay computes it again
    OPAQUE    unknown: such as indices of a median; using it is refused

Comparisons are written down once: if an operation makes the same ones again, it shares their bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Torch has no public way to look inside the tensors of vmap.
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from metricgrad.metrics.watching.comparisons import Comparisons, compared, origin, watch_error

_VALUE_FREE = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_tensor", "isnan", "isfinite", "isinf",
}  # fmt: skip


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested arguments."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    if not isinstance(value, (tuple, list)):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]


def is_mask(index: Any) -> bool:
    """Whether an index is a boolean mask."""
    return isinstance(index, Tensor) and index.dtype == torch.bool


class Operation(NamedTuple):
    """A call of a torch function; `name` is without underscores, and the same in place or not."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in the arguments."""
        return tensors_in((self.args, self.kwargs))

    def run(self) -> Any:
        """What torch computes."""
        return self.func(*self.args, **self.kwargs)


@dataclass
class Outcomes:
    """What a run decides: bits of all comparisons, and what all choices return."""

    bits: list[Tensor] = field(default_factory=list)  # [m] for each recorded operation
    indices: list[Tensor] = field(default_factory=list)  # [R, k] for each choice
    ranks: list[Tensor] = field(default_factory=list)  # [R, n] for each choice
    attached: bool = False  # computes smooth operations again, to get their gradient


Step = Callable[[Outcomes, tuple[Any, ...], dict[str, Any]], Any]  # from outcomes and arguments
Read = Callable[[Outcomes], Tensor]


class Dependence(Enum):
    """How a value depends on the scores."""

    SMOOTH = "smooth"
    MIXED = "mixed"
    DECIDED = "decided"
    OPAQUE = "opaque"


class Tape:
    """Steps and comparisons of one run on `scores`, a tensor with a gradient."""

    def __init__(self, scores: Tensor) -> None:
        # Each step with the torch function's name, and whether the result depends on the scores.
        self.steps: list[tuple[str, Step, bool]] = []
        self.comparisons: list[Comparisons] = []
        self.outcomes = Outcomes()
        self.largest = 0  # number of elements of the largest tensor
        self.function = ""  # the name of the torch function that runs now
        self._scores = scores
        self._known: dict[int, tuple[Tensor, Dependence]] = {}  # holds tensors, so ids stay theirs
        self._ragged: set[int] = set()
        self._alike: dict[tuple[int, float], list[int]] = {}
        self.mark(scores, Dependence.SMOOTH)

    def dependence(self, value: Any) -> Dependence | None:
        """How a value depends on the scores; None if it does not."""
        known = self._known.get(id(value))
        return None if known is None else known[1]

    def hidden(self, tensors: list[Tensor]) -> bool:
        """Whether torch.vmap or torch.func holds a value of these that depends on the scores."""
        for tensor in tensors:
            while is_functorch_wrapped_tensor(tensor):
                tensor = get_unwrapped(tensor)
                if id(tensor) in self._known:
                    return True
        return False

    def depends(self, value: Any) -> bool:
        """Whether any tensor in nested arguments depends on the scores."""
        return any(id(tensor) in self._known for tensor in tensors_in(value))

    def ragged(self, tensors: list[Tensor]) -> bool:
        """Whether any of the tensors holds scores that a comparison of scores has picked."""
        return any(id(tensor) in self._ragged for tensor in tensors)

    def mark(self, out: Any, dependence: Dependence) -> None:
        """Notes how tensors depend on the scores."""
        for tensor in tensors_in(out):
            self._known[id(tensor)] = (tensor, dependence)
            self.largest = max(self.largest, tensor.numel())

    def note(self, step: Step, depends: bool = True) -> None:
        """Adds the step of the torch function that runs now."""
        self.steps.append((self.function, step, depends))

    def emit(self, read: Read) -> Tensor:
        """Adds a result that outcomes decide, and returns it as it is in this run."""
        self.note(lambda outcomes, _, __: read(outcomes))
        out = read(self.outcomes)
        self.mark(out, Dependence.DECIDED)
        return out

    def smooth(self, out: Any, operation: Operation) -> Any:
        """Adds a smooth result, which replays take from here unless they are after its gradient."""
        again = self._again(operation, len(operation.args) > 1)
        self.note(lambda given, *new: again(given, *new) if given.attached else out)
        self.mark(out, Dependence.SMOOTH)
        return out

    def run(self, operation: Operation) -> Any:
        """Runs an operation that compares nothing, and adds its result."""
        if operation.name in ("detach", "data"):
            self.note(lambda _, new_args, __: new_args[0])
            return operation.args[0]
        sources = {self.dependence(tensor) for tensor in operation.tensors}
        smooth = sources <= {None, Dependence.SMOOTH}
        operation = self._without_constant_masks(operation)
        out = operation.run()
        if smooth and operation.name in _VALUE_FREE:
            self.note(lambda *_: out, depends=False)
            return out
        made = tensors_in(out)
        attached = [tensor for tensor in made if tensor.requires_grad]
        detached = [tensor for tensor in made if not tensor.requires_grad]
        if smooth and made:
            if not attached:
                raise watch_error(
                    f"uses scores in torch.{operation.name}, which has no gradient and is not an "
                    "operation that is taken apart",
                    "use comparisons, argmax, sort, topk, round or bucketize",
                )
            self.smooth(out, operation)
            self.mark(detached, Dependence.OPAQUE)
            return out
        self.note(self._again(operation, operation.name == "getitem"))
        self.mark(detached, Dependence.DECIDED)
        self.mark(attached, Dependence.MIXED)
        if self._picks(operation) or self.ragged(tensors_in(operation.args)):
            self._ragged |= {id(tensor) for tensor in attached}
        return out

    def compare(
        self,
        values: Tensor,
        outcome: Tensor,
        operation: str,
        *,
        share_opposite: bool = True,
        soften: Callable[[float], Tensor] | None = None,
    ) -> Read:
        """Adds comparisons with their outcomes, and returns what reads their bits.

        Equal ones share their bits; so do opposite ones without ties, if that is allowed.
        """
        shape = values.shape
        found = compared(origin(operation), values, outcome, soften)
        values = found.values
        alike = self._alike.setdefault((values.numel(), abs(float(values.detach().sum()))), [])
        for index in alike:
            old = self.comparisons[index].values
            if torch.equal(old, values) and self._same_slope(old, values):
                return lambda outcomes: outcomes.bits[index].reshape(shape)
            opposite = share_opposite and torch.equal(old, -values) and not (values == 0).any()
            if opposite and self._same_slope(old, -values):
                return lambda outcomes: ~outcomes.bits[index].reshape(shape)
        number = len(self.comparisons)
        alike.append(number)
        self.comparisons.append(found)
        self.outcomes.bits.append(found.bits)
        return lambda outcomes: outcomes.bits[number].reshape(shape)

    def _same_slope(self, one: Tensor, other: Tensor) -> bool:
        """Whether equal values are one function of the scores: two items may have equal scores."""
        source = torch.Generator().manual_seed(0)
        weight = torch.rand(one.shape, generator=source, dtype=one.dtype).to(one.device)
        difference = (weight * (one - other)).sum()
        (slope,) = torch.autograd.grad(difference, self._scores, retain_graph=True)
        return bool(slope.abs().max() <= 1e-6)

    def _again(self, operation: Operation, keep: bool) -> Step:
        """A step that runs the operation again; `keep` keeps constant arguments after the first."""
        func = operation.func
        kept = operation.args[1:] if keep and not self.depends(operation.args[1:]) else None

        def step(_: Outcomes, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
            return func(*(new_args if kept is None else (new_args[0], *kept)), **new_kwargs)

        return step

    def _without_constant_masks(self, operation: Operation) -> Operation:
        """Indexing by numbers instead of constant masks, which vmap cannot handle."""
        if operation.name != "getitem" or self.depends(operation.args[1:]):
            return operation
        values, index = operation.args
        plain: list[Any] = []
        for each in index if isinstance(index, tuple) else (index,):
            plain += each.nonzero().unbind(-1) if is_mask(each) else (each,)
        return operation._replace(args=(values, tuple(plain)))

    def _picks(self, operation: Operation) -> bool:
        """Whether the number of items depends on the scores: a comparison of scores picks them."""
        masks = [each for each in tensors_in(operation.args[1:]) if is_mask(each)]
        return operation.name in ("getitem", "masked_select") and self.depends(masks)
