"""Recording what a metric does with indices: those of argmax, sort and topk become a `Choice` (`choices.py`).

Where indices go decides what must be compared. So they are followed through views and casts, each
with its place in the choice, until they are compared with a class, gather labels, are inverted to
ranks, or are used as numbers.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from metricgrad.metrics.watching.choices import Choice
from metricgrad.metrics.watching.interception import Given, origin, tensors_in
from metricgrad.metrics.watching.operations import CASTS, GATHERS, VIEWS, bind, replace
from metricgrad.metrics.watching.recorder import Kind, Read, StepRecorder

_MAX_FETCHES = 64


class Chosen(NamedTuple):
    """Indices that a choice gave: which choice, and the place of each of them there, row * n + position."""

    number: int
    places: Tensor


class Recorder(StepRecorder):
    """Runs a function and records what it compares.

    Args:
        scores: what is watched; a tensor with a gradient.
        target: the ground truth.
        numbers: choices, by number, that are known to be used as numbers.
    """

    def __init__(
        self, scores: Tensor, target: Tensor, numbers: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(scores, target)
        self.choices: list[Choice] = []
        self.asked: set[int] = set()  # choices, by number, of which an == has been taken apart
        self._numbers = numbers
        self._chosen: dict[int, Chosen] = {}
        self._sources: dict[int, set[int]] = {}

    def _choose(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """argmax, argmin, max, min, sort, argsort, topk: indices become a choice, values stay smooth."""
        bound, out = bind(name, args, kwargs), func(*args, **kwargs)
        values, ordered = bound["input"], name in ("sort", "argsort", "topk")
        dim, indices = bound["dim"], out if isinstance(out, Tensor) else out[1]
        dim = (values.dim() - 1 if ordered else None) if dim is None else dim % max(values.dim(), 1)
        highest_first = (
            bool(bound.get("descending"))
            if name in ("sort", "argsort")
            else (bound.get("largest") is not False if name == "topk" else "max" in name)
        )
        moved = values.reshape(-1) if dim is None else values.movedim(dim, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        taken = indices.movedim(dim or 0, -1) if ordered and indices.dim() else indices
        given = taken.reshape(len(rows), -1)
        choice = Choice(origin(name), rows if highest_first else -rows, given.detach(), ordered)
        number = len(self.choices)
        self.choices.append(choice)
        self._actual.indices.append(choice.given)
        self._actual.ranks.append(torch.empty(0))
        self._sources.setdefault(id(values), set()).add(number)

        def shaped(flat: Tensor) -> Tensor:
            return (
                flat.reshape(taken.shape).movedim(-1, dim or 0)
                if ordered
                else flat.reshape(indices.shape)
            )

        def step(state: Given, new_args: tuple[Any, ...], new_kwargs: dict[str, Any]) -> Any:
            index = shaped(state.indices[number])
            if isinstance(out, Tensor):
                return index
            first = func(*new_args, **new_kwargs)[0] if state.attached else out[0]
            return type(out)((first, index))

        self._note(step)
        result = step(self._actual, args, kwargs)
        index = result if isinstance(result, Tensor) else result[1]
        if not isinstance(result, Tensor):
            self._mark(result[0], Kind.SMOOTH)
        self._mark(index, Kind.DECIDED)
        at = torch.arange(len(rows), device=rows.device).unsqueeze(-1) * rows.shape[-1]
        self._chosen[id(index)] = Chosen(
            number, shaped(at + torch.arange(given.shape[-1], device=rows.device))
        )
        return result

    def _with_indices(
        self,
        tensors: list[Tensor],
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """An operation on indices; None where there are none, or where it uses them as numbers, which is noted."""
        chosen = [self._chosen[id(tensor)] for tensor in tensors if id(tensor) in self._chosen]
        if not chosen:
            return None
        tracked = [tensor for tensor in tensors if self.kind(tensor) is not None]
        number, places = chosen[0]
        choice = self.choices[number]
        if name in ("eq", "ne") and len(tracked) == 1 and tracked[0] is not args[0]:
            args = args[::-1]
        alone = len(tracked) == 1 and bool(args) and tracked[0] is args[0]
        if alone and (found := self._alone(chosen[0], name, func, args, kwargs)) is not None:
            return found
        if (
            len(tracked) == 2
            and args
            and number in self._sources.get(id(args[0]), ())
            and name in GATHERS
        ):
            return self._smooth(
                func(*args, **kwargs), func, args, kwargs
            )  # the scores, in their own order
        if len(tracked) == 1 and choice.ordered and name in GATHERS:
            labels = self._labels(choice, places, tracked[0], func, args, kwargs)
            if labels is not None:
                choice.labels.append(labels)
                choice.reach(places)
                return self._pass(name, func, args, kwargs)
        for each, where in chosen:
            self.choices[each].used = True
            self.choices[each].reach(where)
        return None

    def _alone(
        self, chosen: Chosen, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation on indices and constants; None where it uses them as numbers, or gathers by them."""
        number, places = chosen
        choice = self.choices[number]
        if name in VIEWS or (name in CASTS and func(*args, **kwargs).dtype != torch.bool):
            return self._view(name, func, args, kwargs)
        if not choice.ordered and number not in self._numbers:
            if name in ("eq", "ne"):
                return self._emit(self._is(name, chosen, args[0], args[1]))
            if name == "one_hot":
                out = func(*args, **kwargs)
                classes = torch.arange(out.shape[-1], device=out.device)
                column = Chosen(number, places.unsqueeze(-1))
                read = self._is("eq", column, args[0].unsqueeze(-1), classes)
                return self._emit(lambda given: read(given).to(out.dtype))
        whole = places.numel() == choice.scores.numel()
        if (
            name == "argsort"
            and choice.ordered
            and whole
            and not bind(name, args, kwargs)["descending"]
        ):
            choice.ranked = True
            shape = args[0].shape
            self._actual.ranks[number] = choice.place
            return self._emit(lambda given: given.ranks[number].reshape(shape))
        return None

    def _view(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same indices in another shape, or some of them."""
        number, places = self._chosen[id(args[0])]
        out = self._pass(name, func, args, kwargs)
        seen = places if name in CASTS else func(places, *args[1:], **kwargs)
        for tensor, where in zip(tensors_in(out), tensors_in(seen), strict=True):
            self._chosen[id(tensor)] = Chosen(number, where)
        return out

    def _is(self, name: str, chosen: Chosen, indices: Tensor, wanted: Any) -> Read:
        """argmax == k: k's score against the best other one."""
        choice = self.choices[chosen.number]
        self.asked.add(chosen.number)
        size = choice.scores.shape[-1]
        outcome = indices == wanted
        rows = (chosen.places // size).expand(outcome.shape).reshape(-1)
        entries = torch.as_tensor(wanted, device=rows.device).expand(outcome.shape).reshape(-1)
        known = (entries >= 0) & (entries < size) & (entries == entries.long())
        if size < 2:
            return lambda _: outcome if name == "eq" else ~outcome
        values = choice.against(rows, torch.where(known, entries, 0).long())
        values = torch.where(known, values, -torch.inf)  # a class that there is not never wins
        sign, known = f"{choice.origin.operation} ==", known.reshape(outcome.shape)
        read = self._decide(values.reshape(outcome.shape), outcome, sign, turned=size == 2)
        if name == "eq":
            return lambda given: read(given) & known
        return lambda given: ~(read(given) & known)

    def _labels(
        self,
        choice: Choice,
        places: Tensor,
        index: Tensor,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor | None:
        """What each entry would be gathered as, `[R, n, ...]`; None where that cannot be told."""
        rows, size = choice.scores.shape
        position = places % size
        if not position.numel():
            return None
        first, last = int(position.min()), int(position.max())
        width = last - first + 1
        if -(-size // width) > _MAX_FETCHES:
            return None
        labels, covered = None, torch.zeros(rows, size, dtype=torch.bool, device=places.device)
        for shift in range(0, size, width):
            entries = (position - first + shift) % size
            fetched = func(*replace(args, index, entries), **replace(kwargs, index, entries))
            if fetched.shape[: entries.dim()] != entries.shape:
                return None
            if labels is None:
                labels = fetched.new_zeros(rows, size, *fetched.shape[entries.dim() :])
            labels = labels.index_put((places // size, entries), fetched)
            covered[places // size, entries] = True
        return labels if covered.all() else None
