"""All parameters of a module as one vector: one step of Adam and one norm, however many layers.

With networks as small as those of Learning Surrogate Losses a step is all overhead, and most of it
is paid once for each parameter. While they are joined, parameters are views of one vector and their
gradients views of another; the numbers stay the same.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from metricgrad.processes import sum_over_processes
from metricgrad.training.checkpoint import State, named, part_of


class Descent:
    """Adam on one vector `[P]`, or on R of them at once, `[R, P]`; each has its own norm.

    The learning rate is one for all, or `[R, 1]`. `decay` is that of AdamW: the share of the vector
    that a step takes away, in units of the learning rate.
    """

    decay = 0.0
    shared = False  # whether every process has a part of the gradient, and all are summed
    _moving: float | Tensor = 1.0  # `[P]`, 0 for parameters that stay as they are

    def __init__(self, vector: Tensor, rate: float | Tensor, clip: float | None) -> None:
        self.vector = vector
        self.rate = rate
        self.gradient = torch.zeros_like(vector)
        self._clip = clip
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)
        self._step = 0

    def descend(self, value: Tensor, share: float = 1.0) -> None:
        """One step down the gradient of a 0-dim value, or of R values, each for its own vector.

        The learning rate is multiplied by `share`.
        """
        self.gradient.zero_()
        value.sum().backward()
        if self.shared:
            sum_over_processes(self.gradient)
        if self._clip is not None:  # as clip_grad_norm_ does
            norm = torch.linalg.vector_norm(self.gradient, dim=-1, keepdim=True)
            self.gradient.mul_((self._clip / (norm + 1e-6)).clamp_(max=1.0))
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

    def _moments(self) -> State:
        return {"mean": self._mean, "square": self._square, "step": torch.tensor(self._step)}

    def _restore_moments(self, state: State) -> None:
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._step = int(state["step"])


class Flat(Descent):
    """The parameters of one module; those that need no gradient are left alone."""

    def __init__(self, module: nn.Module, rate: float, clip: float | None) -> None:
        self._module = module
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        if not self._parameters:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        kinds = sorted({str(each.dtype) for each in self._parameters})
        if len(kinds) > 1:
            raise ValueError(
                f"all parameters must have one dtype; got {' and '.join(kinds)}. Pass model.float()"
            )
        vector = torch.cat([each.detach().flatten() for each in self._parameters])
        super().__init__(vector, rate, clip)

    def join(self) -> None:
        """Makes the parameters, as they are now, views of the vector, before the first step."""
        sizes = [each.numel() for each in self._parameters]
        parts = zip(self.vector.split(sizes), self.gradient.split(sizes), strict=True)
        for each, (values, gradients) in zip(self._parameters, parts, strict=True):
            values.copy_(each.detach().flatten())
            each.data = values.view_as(each)
            each.grad = gradients.view_as(each)

    def part(self) -> None:
        """Gives the parameters tensors of their own again, after the last step."""
        for each in self._parameters:
            each.data = each.data.clone()
            each.grad = None

    def freeze(self, frozen: bool) -> None:
        """Switches the computation of gradients for the parameters off, or on again."""
        for each in self._parameters:
            each.requires_grad_(not frozen)

    def state(self, name: str) -> State:
        """The module's own state, and Adam's, under names that begin with this one."""
        own = named(f"{name}.", self._module.state_dict())
        return own | named(f"{name}_adam.", self._moments())

    def restore(self, state: State, name: str) -> None:
        """Goes back to the state of an earlier moment."""
        self._module.load_state_dict(part_of(state, f"{name}."))
        self._restore_moments(part_of(state, f"{name}_adam."))


class Stack(Descent):
    """The parameters and buffers of R modules of one architecture, stacked.

    Together, all modules run in one batched pass (`torch.vmap`); some cannot, and run one after the
    other. `buffers` holds the modules' buffers by name, `[R, ...]`.
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
        self._layers = _plain_layers(modules[0])
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
        vector = example.new_zeros(len(modules), size).detach().requires_grad_()
        super().__init__(vector, rate, clip)
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
        """Takes parameters and buffers as they are in the modules, before the first step."""
        for row, module in zip(self.vector, self._modules, strict=True):
            row.copy_(torch.cat([each.flatten() for each in module.parameters()]))
        stored = [dict(module.named_buffers()) for module in self._modules]
        self.buffers = {name: torch.stack([each[name] for each in stored]) for name in stored[0]}

    @torch.no_grad()
    def part(self) -> None:
        """Gives parameters and buffers back to the modules, after the last step."""
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
        return {
            name: (part.detach() if name in self._frozen else part).view(
                len(self._modules), *cast(torch.Size, shape)
            )
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def __call__(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """What each module gives for its own part of x: `[R, ...]` from `[R, ...]`.

        Perceptrons leave out the rows of x that `where` marks as padding; they get 0.
        """

        def one(parameters: State, buffers: State, part: Tensor) -> Tensor:
            return functional_call(self._modules[0], (parameters, buffers), (part,))

        stacked = self.parameters()
        if self._layers is not None and x.dim() > 2:
            items = x.flatten(1, -2)
            if where is None:
                found = _perceptron(self._layers, stacked, items)
            else:
                found = _of_real_rows(self._layers, stacked, items, where.flatten(1))
            return found.unflatten(1, x.shape[1:-1])
        if self.together:
            return vmap(one, randomness="different")(stacked, self.buffers, x)
        rows = range(len(self._modules))
        return torch.stack(
            [one(_row(stacked, row), _row(self.buffers, row), x[row]) for row in rows]
        )

    def freeze(self, frozen: bool) -> None:
        """Switches the computation of gradients for the vector off, or on again."""
        self.vector.requires_grad_(not frozen)

    def state(self, name: str) -> State:
        """The moments of Adam, the vector and the buffers, under names that begin with this one."""
        return named(f"{name}.", {**self._moments(), **self.weights()})

    def weights(self) -> State:
        """The vector `[R, P]` and the buffers `[R, ...]`, not copied."""
        return {"vector": self.vector.detach(), **named("buffer.", self.buffers)}

    def tensors(self) -> list[Tensor]:
        """All that the modules hold, in place."""
        return list(self.weights().values())

    @torch.no_grad()
    def restore(self, state: State, name: str) -> None:
        """Goes back to an earlier state; the modules get their weights when the stack is parted."""
        stored = part_of(state, f"{name}.")
        self._restore_moments(stored)
        for each, value in self.weights().items():
            value.copy_(stored[each])


def _plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a perceptron, linear ones and ReLU in turn; None for any other module.

    A batched product for each layer takes two thirds of the time of `vmap`.
    """
    if type(module) is not nn.Sequential:
        return None
    layers = list(module)
    kinds = [type(layer) for layer in layers]
    hooks = [each._forward_hooks or each._forward_pre_hooks for each in (module, *layers)]
    turns = [nn.Linear, nn.ReLU] * len(kinds)
    known = len(kinds) % 2 == 1 and kinds == turns[: len(kinds)] and len(set(layers)) == len(layers)
    biased = all(layer.bias is not None for layer in layers[::2]) if known else False
    return layers if biased and not any(hooks) else None


def _perceptron(layers: list[nn.Module], stacked: State, x: Tensor) -> Tensor:
    """What R perceptrons give for `[R, B, columns]`, each for its own part."""
    for number, layer in enumerate(layers):
        if isinstance(layer, nn.ReLU):
            x = x.relu()
        else:
            weight = stacked[f"{number}.weight"]
            x = torch.baddbmm(stacked[f"{number}.bias"].unsqueeze(1), x, weight.mT)
    return x


def _of_real_rows(layers: list[nn.Module], stacked: State, x: Tensor, where: Tensor) -> Tensor:
    """`_perceptron` of the rows that count, 0 elsewhere."""
    most = int(where.sum(-1).max())
    first = (
        where.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :most].unsqueeze(-1)
    )
    found = _perceptron(layers, stacked, x.gather(1, first.expand(-1, -1, x.shape[-1])))
    found = found * where.gather(1, first.squeeze(-1)).unsqueeze(-1)
    places = first.expand(-1, -1, found.shape[-1])
    return found.new_zeros(*x.shape[:2], found.shape[-1]).scatter(1, places, found)


def _row(stacked: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One module's part of stacked tensors, as views."""
    return {name: each[row] for name, each in stacked.items()}


def _frozen(module: nn.Module) -> set[str]:
    """Names of the parameters that need no gradient, which stay as they are."""
    return {name for name, each in module.named_parameters() if not each.requires_grad}


def module_state(model: nn.Module, weights: State, row: int) -> State:
    """The state of a model like this one that has a row of such weights as `Stack.weights` gives.

    A copy of the module makes it, as it knows what is tied or not saved.
    """
    module = copy.deepcopy(model)
    take_weights(module, weights, row)
    return dict(module.state_dict())


@torch.no_grad()
def take_weights(module: nn.Module, weights: State, row: int) -> None:
    """Gives a module the weights in a row of what `Stack.weights` gives."""
    parts = weights["vector"][row].split([each.numel() for each in module.parameters()])
    for each, part in zip(module.parameters(), parts, strict=True):
        each.copy_(part.view_as(each))
    for name, buffer in module.named_buffers():
        buffer.copy_(weights[f"buffer.{name}"][row])


def half_cosine(done: float) -> float:
    """The share of a learning rate that falls along half a cosine wave, to 0 when all is done."""
    return 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))


@contextmanager
def modes_kept(network: nn.Module) -> Iterator[None]:
    """Puts every module back into the mode it was in, `train()` or `eval()`, at the end."""
    modes = [(each, each.training) for each in network.modules()]
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training
