"""All parameters of a module as one vector: one step of Adam and one norm, however many layers.

With networks as small as those of Learning Surrogate Losses a step is all overhead, and most of it
is paid once for each parameter. While they are joined, parameters are views of one vector and their
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
        vector: `[P]` or `[R, P]`, the parameters.
        rate: The learning rate, or `[R, 1]` for one each.
        clip: The largest norm of a gradient; None does not clip.

    Attributes:
        gradient: The gradient, in the vector's shape.
        decay: Weight decay as AdamW has it: the share of the vector that a step takes away, in
            units of the learning rate.
    """

    decay = 0.0
    _moving: float | Tensor = 1.0  # `[P]`, 0 for parameters that stay as they are

    def __init__(self, vector: Tensor, rate: float | Tensor, clip: float | None) -> None:
        self.vector = vector
        self.rate = rate
        self.gradient = torch.zeros_like(vector)
        self._clip = clip
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)
        self._step = 0

    @abstractmethod
    def join(self) -> None:
        """Takes the parameters as they are now, before the first step."""

    @abstractmethod
    def part(self) -> None:
        """Gives the parameters back to their modules after the last step."""

    @abstractmethod
    def freeze(self, frozen: bool) -> None:
        """Switches the computation of gradients for the parameters off, or on again."""

    def descend(self, value: Tensor, share: float = 1.0) -> None:
        """One step down the gradient of a 0-dim value, or of R values, each for its own vector.

        The learning rate is multiplied by `share`.
        """
        self.gradient.zero_()
        value.sum().backward()
        if self._clip is not None:
            norm = torch.linalg.vector_norm(self.gradient, dim=-1, keepdim=True)
            self.gradient.mul_(
                (self._clip / (norm + 1e-6)).clamp_(max=1.0)
            )  # as clip_grad_norm_ does
        self._adam(share)

    @torch.no_grad()
    def _adam(
        self, share: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        """A step of `torch.optim.Adam`, without an overhead that is a good part of a step here."""
        self._step += 1
        self._mean.lerp_(self.gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        spread = self._square.sqrt().div_((1 - beta2**self._step) ** 0.5).add_(eps)
        if self.decay:
            self.vector.mul_(1 - share * self.decay * self.rate * self._moving)
        if isinstance(self.rate, Tensor):
            spread.div_(self.rate)
        else:
            share = share * self.rate
        self.vector.addcdiv_(self._mean, spread, value=-share / (1 - beta1**self._step))

    def state(self) -> dict[str, Tensor]:
        """The moments of Adam."""
        return {"mean": self._mean, "square": self._square, "step": torch.tensor(self._step)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes back to the state of an earlier moment."""
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._step = int(state["step"])


class Flat(Descent):
    """A module's parameters as one vector.

    Parameters that need no gradient are left alone.
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
        parts = zip(self.vector.split(sizes), self.gradient.split(sizes), strict=True)
        for each, (values, gradients) in zip(self._parameters, parts, strict=True):
            values.copy_(each.detach().flatten())
            each.data = values.view_as(each)
            each.grad = gradients.view_as(each)

    def part(self) -> None:
        """Gives the parameters tensors of their own again."""
        for each in self._parameters:
            each.data = each.data.clone()
            each.grad = None

    def freeze(self, frozen: bool) -> None:
        """Switches the computation of gradients for the parameters off, or on again."""
        for each in self._parameters:
            each.requires_grad_(not frozen)


class Stack(Descent):
    """The parameters and buffers of R modules of one architecture, stacked.

    Args:
        modules: R modules whose parameters have the same names and shapes.
        rate: The learning rate, or `[R, 1]` for one each.
        clip: The largest norm of each gradient; None does not clip.
        together: Whether all modules run in one batched pass (`torch.vmap`); some cannot, and run
            one after the other.

    Attributes:
        buffers: The modules' buffers by name, `[R, ...]`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        rate: float | Tensor,
        clip: float | None,
        together: bool = True,
    ) -> None:
        self._modules = modules
        self.together = together
        self._shapes = {name: each.shape for name, each in modules[0].named_parameters()}
        self._frozen = _frozen(modules[0])
        self.buffers: dict[str, Tensor] = {}
        for number, module in enumerate(modules):
            shapes = {name: each.shape for name, each in module.named_parameters()}
            if shapes != self._shapes or _frozen(module) != self._frozen:
                raise ValueError(
                    f"stacked modules must be alike; number {number} has other parameters than the "
                    "first"
                )
        size = sum(shape.numel() for shape in self._shapes.values())
        example = next(modules[0].parameters())
        super().__init__(
            example.new_zeros(len(modules), size).detach().requires_grad_(), rate, clip
        )
        self.vector.grad = self.gradient
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
        """Gives parameters and buffers back to the modules."""
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
            stacked = self.parameters()
            buffers = self.buffers
            rows = range(len(self._modules))
            return torch.stack(
                [one(_row(stacked, row), _row(buffers, row), x[row]) for row in rows]
            )
        return vmap(one, randomness="different")(self.parameters(), self.buffers, x)

    def freeze(self, frozen: bool) -> None:
        """Switches the computation of gradients for the parameters off, or on again."""
        self.vector.requires_grad_(not frozen)

    def state(self) -> dict[str, Tensor]:
        """The moments of Adam, the parameters and the buffers."""
        held = {
            "vector": self.vector.detach(),
            **{f"buffer.{name}": value for name, value in self.buffers.items()},
        }
        return {**super().state(), **held}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes back to the state of an earlier moment."""
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
