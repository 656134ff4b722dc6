"""Watching a metric run: which comparisons of scores decide it, and what it would be had they turned out otherwise.

A metric in plain torch depends on scores through operations without a gradient: `>`, `argmax`,
`sort`. A `Recorder` stands between the function and torch while it runs. What depends on the scores
smoothly stays a tensor with a gradient. Where such a tensor meets a discrete operation, that is
taken apart into comparisons c, each decided by a bit [c > 0]:

    a > b            c = a - b                               the bit
    a == b           c = a - b and b - a                     neither bit
    argmax == k      c = x_k - the highest other             the bit
    round, floor     c = x - each step                       the last step reached
    argmax, sort     what its use tells apart                `choices.py`

Every operation on the way leaves a step in a script. A `Replayer` runs the function once more and
follows the script: smooth results are taken from the recording, decisions and choices from other
bits, all else is computed anew.
"""

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2])
)
_CALLER = str(Path(__file__).with_name("recording.py"))


class WatchError(RuntimeError):
    """What a function does with scores cannot be taken apart; the message says where, and the way out.

    Not a TypeError, which torch's operators would swallow.

    Args:
        message: all of it.
        what: the cause alone.
    """

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what or message


class Origin(NamedTuple):
    """A line of the user's function and the operation on it."""

    file: str
    line: int
    code: str
    operation: str


def origin(operation: str) -> Origin:
    """The line that runs now: the innermost one that is neither torch's nor ours; line 0 where there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = None if frame.f_code.co_filename == _CALLER else frame.f_back
    if frame is None:
        return Origin("", 0, "", operation)
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Origin(file, line, linecache.getline(file, line).strip(), operation)


def refusal(what: str, way_out: str) -> WatchError:
    """The error for the line that runs now."""
    file, line, code, _ = origin("")
    place = f"{file}, line {line}: `{code}` " if line else "the function "
    return WatchError(f"{place}{what}; {way_out}", what)


class Decision(NamedTuple):
    """Comparisons that one operation or choice made.

    Attributes:
        origin: where in the user's function.
        values: `[m]`, differentiable, above 0 just where they are won.
        bits: `[m]`, bool, how they turned out.
        live: `[m]`, bool, False where something infinite was compared.
    """

    origin: Origin
    values: Tensor
    bits: Tensor
    live: Tensor


def decision(where: Origin, values: Tensor, bits: Tensor) -> Decision:
    """Comparisons and how they turned out; one of exactly 0 that was won gets the smallest value above 0."""
    values, bits = values.reshape(-1), bits.reshape(-1)
    live = values.isfinite()
    if not torch.equal(values > 0, bits) or not live.all():
        least = bits.to(values.dtype) * torch.finfo(values.dtype).tiny
        values = torch.where(live, values, least)
        values = values + torch.where((values > 0) == bits, 0.0, least - values).detach()
    return Decision(where, values, bits, live)


@dataclass
class Given:
    """What a run decides: bits `[m]` of each decision, indices `[R, k]` and ranks `[R, n]` of each choice.

    With `attached`, smooth operations are computed again instead of taken from the recording, with
    their gradient.
    """

    bits: list[Tensor] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    ranks: list[Tensor] = field(default_factory=list)
    attached: bool = False


Step = Callable[[Given, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Constant:
    """A step whose result does not depend on the scores' values, such as that of `zeros_like`."""

    value: Any

    def __call__(self, *_: Any) -> Any:
        """The result."""
        return self.value


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested arguments."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return found
    for each in value:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list, dict)):
            found += tensors_in(each)
    return found


class Watch(TorchFunctionMode):
    """Knows which tensors depend on the scores; they are kept, so that no other tensor takes their ids."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Tensor] = {}

    def _keep(self, out: Any) -> None:
        for tensor in tensors_in(out):
            self._kept[id(tensor)] = tensor


def positional(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the first one in front, where torch calls it `input`."""
    if args or "input" not in kwargs:
        return args, kwargs
    return (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}


class Replayer(Watch):
    """Runs a recorded function with given decisions.

    Args:
        script: the recording's steps, each with the name of its operation.
        scores: the recorded scores, as the function got them.
        given: what to decide.
    """

    def __init__(self, script: list[tuple[str, Step]], scores: Tensor, given: Given) -> None:
        super().__init__()
        self._script, self._given = iter(script), given
        self._keep(scores)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation: done as the script has it if it depends on the scores."""
        kwargs = kwargs or {}
        if not any(id(tensor) in self._kept for tensor in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        name, step = next(self._script, ("", None))
        if step is None or name != func.__name__:
            raise refusal(
                "takes another way when bits turn out otherwise: the way depends on how many items scores have picked",
                "keep all items, and use torch.where, a product with the mask, or clamp(min=1) for a zero denominator",
            )
        out = step(self._given, *positional(args, kwargs))
        if not isinstance(step, Constant):
            self._keep(out)
        return out
