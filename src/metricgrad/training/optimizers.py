"""Training with an optimizer and a schedule of the user's own.

Models that are stacked share one Adam (`stack.py`), so with another optimizer each model is trained
on its own, by what the user's factories make:

    optimizer(parameters, rate)   a torch.optim.Optimizer at that learning rate
    schedule(optimizer, steps)    one of torch.optim.lr_scheduler, moved on after every step

A checkpoint holds the state of both, tensors as tensors and the rest as JSON, never as pickle.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metricgrad.processes import alone, sum_over_processes
from metricgrad.training.checkpoint import State, named, part_of
from metricgrad.training.stack import take_weights

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]
ScheduleFactory = Callable[[Optimizer, int], LRScheduler]


class Separate:
    """R modules of one architecture, each with an optimizer and a schedule; used as a `Stack` is.

    Without a schedule the rate is what the optimizer began with, times the `share` of a step.
    """

    together = False
    shared = False  # whether every process has a part of the gradients, and all are summed

    def __init__(
        self,
        modules: Sequence[nn.Module],
        rates: Sequence[float],
        clip: float | None,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory | None,
    ) -> None:
        self._modules = modules
        self._clip = clip
        self._schedule = schedule
        self._schedules: list[LRScheduler] = []
        self._optimizers: list[Optimizer] = []
        for module, rate in zip(modules, rates, strict=True):
            moving = [each for each in module.parameters() if each.requires_grad]
            made = optimizer(moving, rate)
            if not isinstance(made, Optimizer):
                raise TypeError(
                    "optimizer must be a function (parameters, rate) -> torch.optim.Optimizer, "
                    "such as lambda parameters, rate: torch.optim.SGD(parameters, rate); it "
                    f"returned {type(made).__name__}"
                )
            self._optimizers.append(made)
        self._rates = [[group["lr"] for group in each.param_groups] for each in self._optimizers]

    def begin(self, steps: int) -> None:
        """Starts the schedules of so many steps, from the rates that the optimizers began with."""
        self._share(1.0)
        if self._schedule is None:
            return
        self._schedules = [self._schedule(each, steps) for each in self._optimizers]
        made = self._schedules[0]
        if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
            raise TypeError(
                "schedule must be a function (optimizer, steps) -> LRScheduler that needs no "
                "value to step, such as lambda optimizer, steps: "
                "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps); it returned "
                f"{type(made).__name__}"
            )

    def __call__(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """What each module gives for its own part of x: `[R, ...]` from `[R, ...]`."""
        return torch.stack([module(part) for module, part in zip(self._modules, x, strict=True)])

    def descend(self, value: Tensor, share: float = 1.0) -> None:
        """One step down the gradients of R values, one for each module."""
        for each in self._optimizers:
            each.zero_grad()
        value.sum().backward()
        if self.shared:
            _sum_gradients([each for module in self._modules for each in module.parameters()])
        if self._clip is not None:
            for module in self._modules:
                clip_grad_norm_(module.parameters(), self._clip)
        if self._schedule is None:
            self._share(share)
        for each in self._optimizers:
            each.step()
        for each in self._schedules:
            each.step()

    def _share(self, share: float) -> None:
        for each, rates in zip(self._optimizers, self._rates, strict=True):
            for group, rate in zip(each.param_groups, rates, strict=True):
                group["lr"] = share * rate

    def tensors(self) -> list[Tensor]:
        """All that the modules hold, in place."""
        return [
            each.detach()
            for module in self._modules
            for each in (*module.parameters(), *module.buffers())
        ]

    def join(self) -> None:
        """Does nothing: the parameters are those of the modules."""

    def part(self) -> None:
        """Does nothing: the parameters are those of the modules."""

    @torch.no_grad()
    def weights(self) -> State:
        """The parameters as vectors `[R, P]` and the buffers `[R, ...]`, copied."""
        rows = [torch.cat([e.flatten() for e in each.parameters()]) for each in self._modules]
        stored = [dict(module.named_buffers()) for module in self._modules]
        buffers = {name: torch.stack([each[name] for each in stored]) for name in stored[0]}
        return {"vector": torch.stack(rows), **named("buffer.", buffers)}

    def description(self) -> str:
        """Kinds and options of optimizer and schedule, by which a resumed run is recognised."""
        first = self._optimizers[0]
        schedule = f", {type(self._schedules[0]).__name__}" if self._schedules else ""
        return f"{type(first).__name__} {first.defaults}{schedule}"

    def state(self, name: str) -> State:
        """Weights, and the state of optimizers and schedules, under names that begin so."""
        tensors: list[Tensor] = []
        states = [each.state_dict() for each in (*self._optimizers, *self._schedules)]
        text = json.dumps(_encoded(states, tensors)).encode()
        kept = {str(number): each for number, each in enumerate(tensors)}
        own = {"states": torch.tensor(list(text), dtype=torch.uint8), **named("state.", kept)}
        return named(f"{name}.", {**self.weights(), **own})

    def restore(self, state: State, name: str) -> None:
        """Goes back to an earlier state; `begin` must have been called for its schedule."""
        stored = part_of(state, f"{name}.")
        for row, module in enumerate(self._modules):
            take_weights(module, stored, row)
        text = bytes(stored["states"].tolist())
        states = _decoded(json.loads(text), part_of(stored, "state."))
        for each, own in zip((*self._optimizers, *self._schedules), states, strict=True):
            each.load_state_dict(own)


def _sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Adds up the gradients of all processes; a parameter that no process uses keeps none."""
    if alone():
        return
    moving = [each for each in parameters if each.requires_grad]
    used = torch.stack([each.new_tensor(float(each.grad is not None)) for each in moving])
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in moving]
    whole = torch.cat([used, *(each.flatten() for each in found)])
    sum_over_processes(whole)
    sizes = [len(moving), *(each.numel() for each in moving)]
    counts, *sums = whole.split(sizes)
    for each, count, total in zip(moving, counts.tolist(), sums, strict=True):
        each.grad = total.view_as(each) if count else None


def _encoded(value: Any, tensors: list[Tensor]) -> Any:
    """A state as JSON; its tensors are appended to a list, and keys and tuples keep their types."""
    match value:
        case Tensor():
            tensors.append(value.detach())
            return {"tensor": len(tensors) - 1}
        case dict():
            pairs = [[_encoded(part, tensors) for part in pair] for pair in value.items()]
            return {"pairs": pairs}
        case tuple():
            return {"tuple": [_encoded(each, tensors) for each in value]}
        case list():
            return [_encoded(each, tensors) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(
                "a checkpoint holds tensors, numbers and text; the state of the optimizer or of "
                f"its schedule has a {type(value).__name__}. Leave out folder"
            )


def _decoded(value: Any, tensors: State) -> Any:
    """What `_encoded` encoded."""
    match value:
        case {"tensor": number}:
            return tensors[str(number)]
        case {"pairs": pairs}:
            return {_decoded(key, tensors): _decoded(each, tensors) for key, each in pairs}
        case {"tuple": parts}:
            return tuple(_decoded(each, tensors) for each in parts)
        case list():
            return [_decoded(each, tensors) for each in value]
        case _:
            return value


def adam(parameters: list[nn.Parameter], rate: float, decay: float) -> Optimizer:
    """The optimizer of trials that have only a schedule of their own."""
    return torch.optim.AdamW(parameters, rate, weight_decay=decay)


def on_device(model: nn.Module, device: str | torch.device | None) -> None:
    """Moves a model to a device, where it is trained; None leaves it where it is."""
    chosen = next(model.parameters()).device if device is None else device
    try:
        place = torch.device(chosen)
        usable = place.type != "meta" and bool(torch.zeros(1, device=place).sum() == 0)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {chosen!r} cannot be used: {reason}. Pass 'cpu'") from None
    if not usable:
        raise ValueError("device 'meta' holds no numbers to train; pass 'cpu', 'cuda' or 'mps'")
    model.to(place)
