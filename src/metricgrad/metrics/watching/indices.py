"""Following indices: where those of argmax, sort and topk go tells what must be compared.

Such an operation becomes a `Choice` (`comparisons.py`). Its indices are followed through views and
casts, each with its slot in the choice, until the function

    compares them with a class        argmax == k is one comparison: x_k against the best other
    gathers labels by them            only items with different labels need comparing
    inverts them to ranks             argsort of an argsort
    uses them as numbers              the choice itself is compared
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.watching.comparisons import Choice, origin
from metricgrad.metrics.watching.tape import Dependence, Operation, Outcomes, Read, Tape, tensors_in

CHOOSING = {  # with the order of their arguments
    "argmax": ("input", "dim", "keepdim"), "argmin": ("input", "dim", "keepdim"),
    "max": ("input", "dim", "keepdim"), "min": ("input", "dim", "keepdim"),
    "sort": ("input", "dim", "descending"), "argsort": ("input", "dim", "descending"),
    "topk": ("input", "k", "dim", "largest", "sorted"),
}  # fmt: skip
_VIEWING = {
    "getitem", "unsqueeze", "squeeze", "reshape", "view", "flatten", "ravel", "expand", "expand_as",
    "clone", "permute", "t", "T", "mT", "transpose", "swapaxes", "flip", "narrow", "select",
    "contiguous", "movedim", "unbind", "split", "chunk", "unflatten", "iter", "view_as",
    "reshape_as", "broadcast_to",
}  # fmt: skip
_CASTING = {"to", "long", "int", "float", "double", "type_as", "cpu"}
_GATHERING = {"getitem", "gather", "take_along_dim", "index_select", "take"}
_MAX_GATHERS = 64  # how often a gather is repeated to learn the labels of all items


class Chosen(NamedTuple):
    """Indices of a choice: its number, and the slots row * n + position that they come from."""

    number: int
    slots: Tensor


class Indices:
    """The choices of one run, and the tensors that hold their indices."""

    def __init__(self, tape: Tape, numbers: set[int]) -> None:
        self.choices: list[Choice] = []
        self.asked: set[int] = set()  # choices of which an == was taken apart
        self._tape = tape
        self._numbers = numbers  # choices that are known to be used as numbers
        self._chosen: dict[int, Chosen] = {}  # by the id of the tensor that holds the indices
        self._sources: dict[int, set[int]] = {}  # choices by the id of the tensor chosen from

    def chooses(self, operation: Operation) -> bool:
        """Whether an operation is a choice; max and min over all elements have no indices."""
        if operation.name in ("max", "min"):
            return isinstance(_bind(operation)["dim"], int)
        return operation.name in CHOOSING

    def choose(self, operation: Operation) -> Any:
        """Records a choice: its indices are decided, the values that come with them are smooth."""
        name, func, args, kwargs = operation
        out = operation.run()
        indices = out if isinstance(out, Tensor) else out[1]
        rows, taken, dim = _rows(operation, indices)
        given = taken.reshape(len(rows), -1).detach()
        choice = Choice(origin(name), rows, given, ordered=dim is not None)
        number = len(self.choices)
        self.choices.append(choice)
        self._tape.outcomes.indices.append(given)
        self._tape.outcomes.ranks.append(torch.empty(0))
        self._sources.setdefault(id(args[0]), set()).add(number)

        def shaped(flat: Tensor) -> Tensor:
            found = flat.reshape(taken.shape)
            return found if dim is None else found.movedim(-1, dim)

        def step(given: Outcomes, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
            index = shaped(given.indices[number])
            if isinstance(out, Tensor):
                return index
            values = func(*new_args, **new_kwargs)[0] if given.attached else out[0]
            return type(out)((values, index))

        self._tape.note(step)
        result = step(self._tape.outcomes, args, kwargs)
        index = tensors_in(result)[-1]
        self._tape.mark(result, Dependence.SMOOTH)  # the values, if there are any
        self._tape.mark(index, Dependence.DECIDED)
        start = torch.arange(len(rows), device=rows.device).unsqueeze(-1) * rows.shape[-1]
        slots = start + torch.arange(given.shape[-1], device=rows.device)
        self._chosen[id(index)] = Chosen(number, shaped(slots))
        return result

    def follow(self, operation: Operation) -> Any:
        """Records an operation on indices; None without any, or if it uses them as numbers."""
        chosen = [self._chosen[id(each)] for each in operation.tensors if id(each) in self._chosen]
        if not chosen:
            return None
        tracked = [each for each in operation.tensors if self._tape.depends(each)]
        only = len(tracked) == 1
        if operation.name in ("eq", "ne") and only and tracked[0] is not operation.args[0]:
            operation = operation._replace(args=operation.args[::-1])
        first = operation.args[0] if operation.args else None
        if only and tracked[0] is first:
            found = self._follow_alone(chosen[0], operation)
            if found is not None:
                return found
        number, slots = chosen[0]
        choice = self.choices[number]
        if operation.name in _GATHERING:
            if len(tracked) == 2 and number in self._sources.get(id(first), ()):
                return self._tape.smooth(operation.run(), operation)  # scores in their own order
            follows = only and choice.ordered
            labels = self._labels(chosen[0], tracked[0], operation) if follows else None
            if labels is not None:
                choice.labels.append(labels)
                choice.extend_span(slots)
                return self._tape.run(operation)
        for each, where in chosen:
            self.choices[each].as_numbers = True
            self.choices[each].extend_span(where)
        return None

    def _follow_alone(self, chosen: Chosen, operation: Operation) -> Any:
        """Records an operation on indices and constants; None if it uses or gathers by them."""
        name, _, args, _ = operation
        number, slots = chosen
        choice = self.choices[number]
        if name in _VIEWING:
            return self._view(number, operation, operation._replace(args=(slots, *args[1:])).run())
        if name in _CASTING and operation.run().dtype != torch.bool:
            return self._view(number, operation, slots)
        if not choice.ordered and number not in self._numbers:
            if name in ("eq", "ne"):
                read = self._equals(chosen, *args)
                return self._tape.emit(read if name == "eq" else lambda given: ~read(given))
            if name == "one_hot":
                classes = torch.arange(operation.run().shape[-1], device=slots.device)
                column = Chosen(number, slots.unsqueeze(-1))
                read = self._equals(column, args[0].unsqueeze(-1), classes)
                return self._tape.emit(lambda given: read(given).long())
        whole = slots.numel() == choice.scores.numel()
        if name == "argsort" and choice.ordered and whole and not _bind(operation)["descending"]:
            choice.ranked = True
            self._tape.outcomes.ranks[number] = choice.position
            shape = args[0].shape
            return self._tape.emit(lambda given: given.ranks[number].reshape(shape))
        return None

    def _view(self, number: int, operation: Operation, slots: Any) -> Any:
        """Records the same indices in another shape or type, or some of them, with their slots."""
        out = self._tape.run(operation)
        for tensor, where in zip(tensors_in(out), tensors_in(slots), strict=True):
            self._chosen[id(tensor)] = Chosen(number, where)
        return out

    def _equals(self, chosen: Chosen, indices: Tensor, wanted: Any) -> Read:
        """argmax == k: the score of k against the best other one."""
        choice = self.choices[chosen.number]
        self.asked.add(chosen.number)
        size = choice.scores.shape[-1]
        outcome = indices == wanted
        if size < 2:
            return lambda _: outcome
        rows = (chosen.slots // size).expand(outcome.shape).reshape(-1)
        items = torch.as_tensor(wanted, device=rows.device).expand(outcome.shape).reshape(-1)
        known = (items >= 0) & (items < size) & (items == items.long())
        items = torch.where(known, items, 0).long()
        margins = torch.where(known, choice.margins(rows, items), -torch.inf)
        margins = margins.reshape(outcome.shape)
        known = known.reshape(outcome.shape)  # a class that does not exist never wins
        name = f"{choice.origin.operation} =="
        soften = partial(choice.soft_margins, rows, items)
        read = self._tape.compare(margins, outcome, name, share_opposite=size == 2, soften=soften)
        return lambda given: read(given) & known

    def _labels(self, chosen: Chosen, index: Tensor, operation: Operation) -> Tensor | None:
        """What each item would be gathered as, `[R, n, ...]`; None where that cannot be told.

        The gather is repeated with other indices until every item of every row was gathered.
        """
        number, slots = chosen
        if not slots.numel():
            return None
        rows, size = self.choices[number].scores.shape
        position = slots % size
        first = int(position.min())
        width = int(position.max()) - first + 1
        if math.ceil(size / width) > _MAX_GATHERS:
            return None
        labels = None
        covered = torch.zeros(rows, size, dtype=torch.bool, device=slots.device)
        for shift in range(0, size, width):
            items = (position - first + shift) % size
            args, kwargs = _replaced((operation.args, operation.kwargs), index, items)
            gathered = operation.func(*args, **kwargs)
            if gathered.shape[: items.dim()] != items.shape:
                return None
            if labels is None:
                labels = gathered.new_zeros(rows, size, *gathered.shape[items.dim() :])
            labels = labels.index_put((slots // size, items), gathered)
            covered[slots // size, items] = True
        return labels if covered.all() else None


def _bind(operation: Operation) -> dict[str, Any]:
    """Arguments of a choice by name; `dim` is always there, None by default."""
    bound = {"dim": operation.kwargs.get("axis"), "descending": False, "largest": True}
    positional = zip(CHOOSING[operation.name], operation.args, strict=False)
    return {**bound, **dict(positional), **operation.kwargs}


def _rows(operation: Operation, indices: Tensor) -> tuple[Tensor, Tensor, int | None]:
    """Rows of a choice, the highest first; indices, those of a row last; an order's dimension."""
    name = operation.name
    bound = _bind(operation)
    values = bound["input"]
    dim = bound["dim"]
    ordered = name in ("sort", "argsort", "topk")
    if dim is not None or ordered:
        dim = (-1 if dim is None else dim) % max(values.dim(), 1)
    moved = values.reshape(-1) if dim is None else values.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    option = "largest" if name == "topk" else "descending"
    highest_first = "max" in name or bool(bound[option])
    rows = rows if highest_first else -rows
    if dim is None or not ordered:
        return rows, indices, None
    return rows, indices.movedim(dim, -1) if indices.dim() else indices, dim


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    """Nested arguments with one tensor in place of another."""
    if value is old:
        return new
    if isinstance(value, dict):
        return {name: _replaced(each, old, new) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(each, old, new) for each in value)
    return value
