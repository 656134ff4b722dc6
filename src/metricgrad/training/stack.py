"""All parameters of a module as one vector: one step of Adam, one norm, whatever the number of layers.

With networks as small as those of Learning Surrogate Losses a step is all overhead, and most of
that is paid for each parameter. While they are joined, parameters are views of one vector and their
gradients views of another; the numbers stay the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap


class Descent(ABC):
    """Adam on one vector, or on R of them at once.

    Args:
        vector: `[P]` or `[R, P]`, what is moved.
        rate: the learning rate; `[R, 1]` for one each.
        clip: the longest gradient, by its norm; None leaves it as it is.

    Attributes:
        slope: the gradient, in the vector's shape.
        decay: the share of the vector that a step takes away, in units of the learning rate, as
            AdamW does.
    """

    decay = 0.0
    _moving: float | Tensor = 1.0  # `[P]`, 0 for parameters that stay as they are

    def __init__(self, vector: Tensor, rate: float | Tensor, clip: float | None) -> None:
        self.vector, self.rate, self._clip = vector, rate, clip
        self.slope = torch.zeros_like(vector)
        self._mean, self._square, self._step = torch.zeros_like(vector), torch.zeros_like(vector), 0

    @abstractmethod
    def join(self) -> None:
        """Takes the parameters as they are now, before the first step."""

    @abstractmethod
    def part(self) -> None:
        """Gives them back after the last."""

    @abstractmethod
    def freeze(self, frozen: bool) -> None:
        """Whether the parameters stay as they are for now: then no gradient is computed for them."""

    def descend(self, value: Tensor, share: float = 1.0) -> None:
        """One step down the gradient of a 0-dim value, or of R values at once, each its own vector's.

        Args:
            value: 0-dim, or `[R]`.
            share: of the learning rate.
        """
        self.slope.zero_()
        value.sum().backward()
        if self._clip is not None:
            norm = torch.linalg.vector_norm(self.slope, dim=-1, keepdim=True)
            self.slope.mul_((self._clip / (norm + 1e-6)).clamp_(max=1.0))  # as clip_grad_norm_ does
        self._adam(share)

    @torch.no_grad()
    def _adam(
        self, share: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        """What `torch.optim.Adam` does, without its overhead, which is a good part of a step here."""
        self._step += 1
        self._mean.lerp_(self.slope, 1 - beta1)
        self._square.mul_(beta2).addcmul_(self.slope, self.slope, value=1 - beta2)
        spread = self._square.sqrt().div_((1 - beta2**self._step) ** 0.5).add_(eps)
        if self.decay:
            self.vector.mul_(1 - share * self.decay * self.rate * self._moving)
        if isinstance(self.rate, Tensor):
            spread.div_(self.rate)
        else:
            share = share * self.rate
        self.vector.addcdiv_(self._mean, spread, value=-share / (1 - beta1**self._step))

    def state(self) -> dict[str, Tensor]:
        """Adam's memory."""
        return {"mean": self._mean, "square": self._square, "step": torch.tensor(self._step)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes the memory of an earlier moment."""
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._step = int(state["step"])


class Flat(Descent):
    """A module's parameters as one vector.

    Args:
        parameters: what to join; those that need no gradient are left alone.
        rate: the learning rate.
        clip: the longest gradient, by its norm; None leaves it as it is.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, clip: float | None) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        if not self._parameters:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        kinds = sorted({str(each.dtype) for each in self._parameters})
        if len(kinds) > 1:
            raise ValueError(
                f"all parameters must have one dtype; got {' and '.join(kinds)}. Pass model.float()"
            )
        super().__init__(
            torch.cat([each.detach().flatten() for each in self._parameters]), rate, clip
        )

    def join(self) -> None:
        """Makes the parameters, as they are now, views of the vector."""
        sizes = [each.numel() for each in self._parameters]
        for each, values, slopes in zip(
            self._parameters, self.vector.split(sizes), self.slope.split(sizes), strict=True
        ):
            values.copy_(each.detach().flatten())
            each.data, each.grad = values.view_as(each), slopes.view_as(each)

    def part(self) -> None:
        """Gives the parameters tensors of their own again."""
        for each in self._parameters:
            each.data, each.grad = each.data.clone(), None

    def freeze(self, frozen: bool) -> None:
        """Whether the parameters stay as they are for now: then no gradient is computed for them."""
        for each in self._parameters:
            each.requires_grad_(not frozen)


class Stack(Descent):
    """The parameters and buffers of R modules of one architecture, stacked.

    Args:
        modules: the R modules.
        rate: the learning rate; `[R, 1]` for one each.
        clip: the longest gradient of each, by its norm; None leaves them as they are.
        together: runs all modules in one batched pass; False runs one after the other, for modules
            that cannot.

    Attributes:
        buffers: by name, `[R, ...]`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        rate: float | Tensor,
        clip: float | None,
        together: bool = True,
    ) -> None:
        self._modules, self.together = modules, together
        self._shapes = {name: each.shape for name, each in modules[0].named_parameters()}
        self._frozen = _frozen(modules[0])
        self.buffers: dict[str, Tensor] = {}
        for number, module in enumerate(modules):
            shapes = {name: each.shape for name, each in module.named_parameters()}
            if shapes != self._shapes or _frozen(module) != self._frozen:
                raise ValueError(
                    f"stacked modules must be alike; number {number} has other parameters than the first"
                )
        size = sum(shape.numel() for shape in self._shapes.values())
        example = next(modules[0].parameters())
        super().__init__(
            example.new_zeros(len(modules), size).detach().requires_grad_(), rate, clip
        )
        self.vector.grad = self.slope
        if self._frozen:
            moving = [
                example.new_full((each.numel(),), float(each.requires_grad))
                for each in modules[0].parameters()
            ]
            self._moving = torch.cat(moving)
        self.join()

    @torch.no_grad()
    def join(self) -> None:
        """Takes parameters and buffers as they are in the modules."""
        for row, module in zip(self.vector, self._modules, strict=True):
            row.copy_(torch.cat([each.flatten() for each in module.parameters()]))
        stored = [dict(module.named_buffers()) for module in self._modules]
        self.buffers = {name: torch.stack([each[name] for each in stored]) for name in stored[0]}

    @torch.no_grad()
    def part(self) -> None:
        """Gives them back to the modules."""
        stacked = self.parameters()
        for number, module in enumerate(self._modules):
            for name, each in module.named_parameters():
                each.copy_(stacked[name][number])
            for name, each in module.named_buffers():
                each.copy_(self.buffers[name][number])

    def parameters(self) -> dict[str, Tensor]:
        """Views of the vector by name, `[R, ...]`, through which gradients flow."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = self.vector.split(sizes, -1)
        count = len(self._modules)
        return {
            name: (part.detach() if name in self._frozen else part).view(
                count, *cast(torch.Size, shape)
            )
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def __call__(self, x: Tensor) -> Tensor:
        """What each module gives for its own part of x: `[R, ...]` from `[R, ...]`."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], part: Tensor) -> Tensor:
            return functional_call(self._modules[0], (parameters, buffers), (part,))

        if not self.together:
            stacked, buffers = self.parameters(), self.buffers
            rows = range(len(self._modules))
            return torch.stack(
                [one(_row(stacked, row), _row(buffers, row), x[row]) for row in rows]
            )
        return vmap(one, randomness="different")(self.parameters(), self.buffers, x)

    def freeze(self, frozen: bool) -> None:
        """Whether the parameters stay as they are for now: then no gradient is computed for them."""
        self.vector.requires_grad_(not frozen)

    def state(self) -> dict[str, Tensor]:
        """Adam's memory, the parameters and the buffers."""
        held = {
            "vector": self.vector.detach(),
            **{f"buffer.{name}": value for name, value in self.buffers.items()},
        }
        return {**super().state(), **held}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes all that of an earlier moment."""
        super().restore(state)
        self.vector.copy_(state["vector"])
        for name, value in self.buffers.items():
            value.copy_(state[f"buffer.{name}"])


def _row(stacked: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One module's part of stacked tensors, as views."""
    return {name: each[row] for name, each in stacked.items()}


def _frozen(module: nn.Module) -> set[str]:
    """Names of the parameters that need no gradient, which stay as they are."""
    return {name for name, each in module.named_parameters() if not each.requires_grad}
