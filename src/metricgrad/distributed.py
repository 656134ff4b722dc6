"""Sets that do not fit into one process, or into one forward pass: the same loss, exactly.

The metric of a set is not the mean over its parts, so a set may not be cut like a batch of
cross-entropy. But only its scores have to be together. They are small, and all that a loss needs:

    across_ranks    gathers scores and targets of all processes; activations stay where they are
                    (`surrogates/union.py`)
    in_chunks       computes all scores first, without a graph, then the gradient of the loss by
                    them, and runs the model a second time, chunk by chunk, to pass that on

Adding up the losses of small batches (gradient accumulation) is another loss: that of the small
sets.

The second pass of `in_chunks` begins when the user calls `backward()`: a hook on the scores catches
their gradient, with whatever factor it comes. It must repeat the first pass, so the state of random
numbers and of autocast is kept for every chunk.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metricgrad.metrics.checks import shape, whole
from metricgrad.surrogates.base import Surrogate
from metricgrad.surrogates.union import AcrossRanks

Features = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_REPEATED = 0.01  # how far, in their own length, repeated scores may be from the first ones


def across_ranks(loss: Surrogate) -> AcrossRanks:
    r"""The same loss on the sets of all processes together (`torch.distributed`).

    .. math:: \ell(s_1 \cup \dots \cup s_W, \; y_1 \cup \dots \cup y_W)

    It is called like the loss itself, with the part of the set that this process has. Each process
    gets the value of the union and, with the gradients averaged over processes as
    `DistributedDataParallel` does it, the gradient of the union. Without a process group it is the
    loss itself.

    Tensors are joined along the first dimension: items of a flat set, or several sets. Parts
    may differ in size and may be empty. Items of one id in `groups` belong together, whichever
    process they are on. Padded sets `[B, L]` may differ in L if `where` has their shape.

    Every process must call the loss equally often, in `eval()` mode as well. If one process makes a
    different call, all processes raise the same error. A loss that draws at random must draw the
    same everywhere: give it a generator with the same seed.

    Args:
        loss: The surrogate to compute. Other wrappers go inside: `across_ranks(with_memory(loss))`.

    Returns:
        A surrogate. Its `per_set` gives the sets of all processes, by rank.

    Example:
        >>> import torch, metricgrad as mg
        >>> loss = mg.across_ranks(mg.UniLoss("average_precision"))
        >>> scores = torch.randn(8, requires_grad=True)
        >>> value = loss(scores, torch.arange(8) % 4 == 0)  # of all processes' scores
        >>> value.backward()
    """
    return AcrossRanks(loss)


def in_chunks(model: nn.Module, loss: Surrogate, chunk: int = 256) -> "InChunks":
    r"""The exact gradient, in two passes, of a set whose activations do not fit into memory.

    .. math:: \frac{d\ell}{dw} = \sum_c \frac{\partial \ell}{\partial s_c} \frac{ds_c}{dw}

    The first pass computes the scores of all chunks without a graph. The loss of all scores gives
    the gradient of each of them. `backward()` runs the model again, chunk by chunk, and passes that
    gradient on, so only the activations of one chunk are ever in memory.

    Dropout draws the same masks in both passes, and autocast has the same settings. Batch
    normalisation in training mode is refused: its statistics would be those of a chunk, and be
    updated twice. With
    `DistributedDataParallel`, gradients are exchanged once, in the last chunk.

    Args:
        model: Returns scores `[n, ...]` for n rows of x.
        loss: The surrogate of all scores; `across_ranks(loss)` if there are several processes.
        chunk: Number of rows of x that the model gets at once, which bounds the memory.

    Returns:
        A function `(x, target, where=None, groups=None, **rows)` that returns the loss, a 0-dim
        tensor to call `.backward()` on; the arguments after x are those of the loss. x is a tensor,
        a tuple of tensors for `model(*x)` or a dictionary for `model(**x)`, with one row for each
        row of the target.

    Example:
        >>> import metricgrad as mg
        >>> model = torch.nn.Linear(20, 1)
        >>> step = mg.in_chunks(model, mg.UniLoss("average_precision"), chunk=256)
        >>> value = step(torch.randn(2000, 20), torch.arange(2000) % 50 == 0)
        >>> value.backward()
        >>> model.weight.grad.shape
        torch.Size([1, 20])

    Reference:
        Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021),
        for contrastive losses.
    """
    return InChunks(model, loss, chunk)


class InChunks:
    """A loss that runs its model in two passes; made by `in_chunks`."""

    def __init__(self, model: nn.Module, loss: Surrogate, chunk: int) -> None:
        whole("chunk", chunk, 1)
        if not isinstance(model, nn.Module) or not isinstance(loss, Surrogate):
            raise TypeError(
                "in_chunks takes a module and a surrogate, such as mg.UniLoss('f1'); got "
                f"{type(model).__name__} and {type(loss).__name__}"
            )
        self.model = model
        self.loss = loss
        self.chunk = chunk

    def __call__(
        self, x: Features, target: Tensor, where: Any = None, groups: Any = None, **rows: Any
    ) -> Tensor:
        """The loss of all scores, whose `backward()` runs the second pass."""
        _refuse_batch_norm(self.model)
        size = _number_of_rows(x, target)
        # Without items there is one empty chunk, so that processes exchange equally often.
        starts = range(0, max(size, 1), self.chunk)
        chunks = [_rows(x, start, start + self.chunk) for start in starts]
        states = _States(self.model, x, len(chunks))
        first = self._first_pass(chunks, states, size)
        scores = first.detach()  # a tensor of its own, as the hook that it keeps has the first one
        if torch.is_grad_enabled():
            scores.requires_grad_()
            scores.register_hook(lambda by: self._second_pass(chunks, states, first, by))
        return self.loss(scores, target, where, groups, **rows)

    @torch.no_grad()
    def _first_pass(self, chunks: list[Features], states: "_States", size: int) -> Tensor:
        """All scores, without a graph."""
        first = torch.empty(0)
        for place, chunk in enumerate(chunks):
            states.keep(place)
            with states.autocast():
                found = self._scores(chunk)
            if not place:
                first = found.new_empty(size, *found.shape[1:])
            start = place * self.chunk
            first[start : start + self.chunk] = found
        return first

    def _scores(self, chunk: Features) -> Tensor:
        """Scores of one chunk."""
        if isinstance(chunk, Tensor):
            found = self.model(chunk)
        elif isinstance(chunk, Mapping):
            found = self.model(**chunk)
        else:
            found = self.model(*chunk)
        if not isinstance(found, Tensor):
            raise TypeError(
                f"the model must give its scores as a tensor; got {type(found).__name__}. Wrap it "
                "in a module that returns the scores alone"
            )
        rows = len(_tensors(chunk)[0])
        if not found.dim() or len(found) != rows:
            raise ValueError(
                f"the model must give scores for each row of x; got {shape(found)} for {rows} rows"
            )
        return found

    def _second_pass(
        self, chunks: list[Features], states: "_States", first: Tensor, gradient: Tensor
    ) -> None:
        """Adds what the gradient by the scores means for the parameters, chunk by chunk."""
        before = first.split(self.chunk)
        gradients = gradient.split(self.chunk)
        for place, chunk in enumerate(chunks):
            last = place == len(chunks) - 1
            with self._unsynchronised(last), torch.enable_grad():
                with states.restored(place):
                    found = self._scores(chunk)
                _check_repeated(before[place], found.detach())
                found.backward(gradients[place])

    @contextmanager
    def _unsynchronised(self, last: bool) -> Iterator[None]:
        """Keeps gradients of all chunks but the last within this process."""
        with ExitStack() as stack:
            for each in self.model.modules():  # one of them, if a module of the user's is around it
                if isinstance(each, DistributedDataParallel) and not last:
                    stack.enter_context(each.no_sync())
            yield


class _States:
    """What decides the scores of every chunk besides the weights: random numbers and autocast.

    One tensor for each device holds the states of all chunks, because small tensors that outlive a
    chunk would cut up the memory in which the next one has to find a place.
    """

    def __init__(self, model: nn.Module, x: Features, chunks: int) -> None:
        devices = {each.device for each in (*_tensors(x), *model.parameters())}
        devices.add(torch.device("cpu"))
        self._random: dict[torch.device, Tensor] = {}
        for device in devices:
            now = _random_state(device)
            self._random[device] = now.new_empty(chunks, len(now))
        self._precision = {
            kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in {device.type for device in devices}
        }

    def keep(self, place: int) -> None:
        """Notes the random numbers that the chunk at this place will get."""
        for device, states in self._random.items():
            states[place] = _random_state(device)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Autocast as it was, without its cache of weights.

        Up to torch 2.9 the cache keeps copies from the first pass, which have no gradient.
        """
        with ExitStack() as stack:
            for kind, dtype in self._precision.items():
                on = dtype is not None
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=on, cache_enabled=False)
                )
            yield

    @contextmanager
    def restored(self, place: int) -> Iterator[None]:
        """Random numbers and autocast as that chunk had them; afterwards as they are now."""
        present = {device: _random_state(device) for device in self._random}
        for device, states in self._random.items():
            _set_random_state(device, states[place].clone())  # torch reads past a view
        try:
            with self.autocast():
                yield
        finally:
            for device, state in present.items():
                _set_random_state(device, state)


def _random_state(device: torch.device) -> Tensor:
    """What the next random numbers of a device depend on."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, each in model.named_modules():
        if isinstance(each, _BATCH_NORMS) and (each.training or each.running_mean is None):
            raise ValueError(
                f"{name or 'the model'} is batch normalisation that takes its statistics from the "
                "batch; they would be those of a chunk, and be counted twice. Call eval() on it if "
                "it keeps statistics, or take GroupNorm or LayerNorm"
            )


def _tensors(x: Features) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return list(x.values() if isinstance(x, Mapping) else x)


def _number_of_rows(x: Features, target: Tensor) -> int:
    """Rows of x and target; ValueError unless all have as many."""
    parts = _tensors(x)
    if not parts or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        raise TypeError(
            "x must be a tensor, or a tuple or a dictionary of tensors, with a row for each row of "
            f"the target; got {type(x).__name__} of {', '.join(type(p).__name__ for p in parts)}"
        )
    if any(len(part) != len(target) for part in parts):
        shapes = ", ".join(map(shape, parts))
        raise ValueError(f"x must have a row for each of the {len(target)} targets; got {shapes}")
    if any(part.requires_grad for part in parts) and torch.is_grad_enabled():
        raise ValueError(
            "x must not require a gradient, because it would end here; make what "
            "computes x a part of the model, or pass x.detach()"
        )
    return len(target)


def _rows(x: Features, start: int, stop: int) -> Features:
    """The rows of x from start to stop."""
    if isinstance(x, Tensor):
        return x[start:stop]
    if isinstance(x, Mapping):
        return {name: part[start:stop] for name, part in x.items()}
    return [part[start:stop] for part in x]


def _check_repeated(before: Tensor, again: Tensor) -> None:
    """Raises RuntimeError unless the second pass repeats the first, up to rounding."""
    if (again - before).float().norm() > _REPEATED * before.float().norm():
        raise RuntimeError(
            "the model gave other scores in the second pass than in the first, so their gradient "
            "would be wrong. in_chunks takes models that change neither weights nor buffers in "
            "forward() and draw random numbers from torch alone"
        )
