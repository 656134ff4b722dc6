"""Networks of sets of items: of each item alone, of all at once, and of heatmaps."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import one_of, whole
from metricgrad.surrogates.base import wrong_shapes
from metricgrad.surrogates.baselines import HeatmapMSE
from metricgrad.surrogates.nets.base import LossNet, elu_layers, set_inputs, to_elements

Sees = Literal["probability", "margin"]


class Classification(LossNet):
    r"""A mean over items of a function of the probability that the target's class has.

    .. math:: \ell = \frac{1}{N} \sum_i f(p_i), \quad p = softmax(s)_y

    f has 4 layers and 33,409 parameters with the default width. Accuracy is decided by the
    strongest rival of the target's class, which :math:`p` does not show: a target with 0.4 wins
    over nine classes with 0.07 each, and loses to one with 0.6. With `sees="margin"` f sees
    :math:`asinh(s_y - \max_{c \ne y} s_c)`, and accuracy is decided at 0. Such a loss can have the
    metric's order almost exactly, and is then nearly as flat: use it beside the ordinary one.

    Args:
        layers: Number of layers of weights, in all.
        sees: `"probability"` of the target's class, as in the paper, or its `"margin"` over the
            strongest rival.
        monotone: Whether f can only fall as the probability rises. A correlation over sets does not
            ask for that item by item, and f may rise a little where few items are, which would push
            them the wrong way.
        absolute: Whether it is the mean of :math:`|f|`, as in the released code.

    Example:
        >>> import metricgrad as mg
        >>> net = mg.nets.Classification(width=16, sees="margin")
        >>> loss = mg.ReLoss("accuracy", net=net)

    Reference:
        ReLoss, Appendix A.1, Eqn. 10; the released code has the softmax.
    """

    def __init__(
        self,
        width: int = 128,
        layers: int = 4,
        sees: Sees = "probability",
        monotone: bool = True,
        absolute: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            width=width, layers=layers, sees=sees, monotone=monotone, absolute=absolute
        )
        whole("width", width, 2)
        whole("layers", layers, 2)
        one_of("sees", sees, get_args(Sees))
        self.layers = elu_layers((1, *[width] * (layers - 1), 1), generator)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The mean of f over the items that count."""
        scores, target, where = inputs
        if scores.shape != target.shape and scores.shape[:-1] != target.shape:
            takes = "scores [..., N, C] with classes [..., N], or binary scores and target [..., N]"
            raise wrong_shapes(f"nets.Classification takes {takes}", metric, scores, target)
        shown = seen(scores, target, self.options["sees"]).unsqueeze(-1)
        values = falling(self.layers, shown) if self.options["monotone"] else self.layers(shown)
        values = values.squeeze(-1)
        values = values.abs() if self.options["absolute"] else values
        return values.mean(-1) if where is None else ops.masked_mean(values, where)


class SetNetwork(LossNet):
    r"""A network of the whole set, whatever the order of its items.

    .. math:: \ell = h\Big(\frac{1}{N} \sum_i g(y_i, s_i, c)\Big),
        \quad c = \frac{1}{N} \sum_i e(y_i, s_i)

    The context c tells g of the other items, so that it can say where an item stands among them, as
    ranks do. Scores enter as asinh(s), which is s near 0 and a logarithm far from it.

    Args:
        context: Width of c; 0 leaves it out.
        standardise: Whether the scores of a set enter with mean 0 and spread 1, for metrics of
            their order alone.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.ReLoss("auc", net=mg.nets.SetNetwork(width=16, standardise=True))

    Reference:
        Learning Surrogate Losses, Eqn. 2, without the context.
    """

    def __init__(
        self,
        width: int = 32,
        context: int = 16,
        standardise: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width=width, context=context, standardise=standardise)
        whole("width", width, 1)
        whole("context", context, 0)
        self.e = elu_layers((2, width, context), generator) if context else None
        self.g = elu_layers((2 + context, width, width), generator)
        self.h = elu_layers((width, width, 1), generator)

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """As the metric takes them; scores of tokens as they are."""
        return set_inputs(metric, scores, target, where)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """h of the mean, and its mean over labels or classes."""
        elements = to_elements(metric, inputs, next(self.parameters()).dtype)
        target, scores = elements.items.unbind(-1)
        if self.options["standardise"]:
            scores = ops.standardise(scores, elements.weights.squeeze(-2))
        items = torch.stack([2 * target - 1, scores.asinh()], -1)
        if self.e is not None:
            context = elements.weights @ nn.functional.elu(self.e(items))
            items = torch.cat([items, context.expand(*items.shape[:-1], -1)], -1)
        indicators = elements.weights @ nn.functional.elu(self.g(items))
        return elements.mean_of_labels(self.h(indicators).squeeze((-1, -2)))


class Heatmaps(LossNet):
    r"""The mean squared distance between embeddings of the predicted map and of the target's.

    .. math:: \ell = \frac{1}{NK} \sum_{ik}
        \| e(s_{ik}) - e(\exp(-\|p - j_{ik}\|^2 / 2\sigma^2)) \|_2^2 / E

    Args:
        size: Height and width of the maps.
        embedding: Number of values that each map is embedded into, E.
        sigma: Width of the Gaussian around a joint, in pixels.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.ReLoss("pck", net=mg.nets.Heatmaps((64, 48)))

    Reference:
        ReLoss, Appendix A.1, human pose estimation.
    """

    def __init__(
        self,
        size: Sequence[int],
        width: int = 64,
        embedding: int = 32,
        sigma: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(size=tuple(size), width=width, embedding=embedding, sigma=sigma)
        if len(size) != 2:
            raise ValueError(f"size must be the height and width of the maps; got {size!r}")
        self.embed = elu_layers((size[0] * size[1], width, embedding), generator)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The mean over the joints that count."""
        scores, target, where = inputs
        size = self.options["size"]
        if scores.shape[-2:] != tuple(size) or target.shape[:-1] != scores.shape[:-2]:
            maps = f"maps [..., N, K, {size[0]}, {size[1]}]"
            takes = f"nets.Heatmaps(size={size}) takes {maps} and joints [..., N, K, 2]"
            raise wrong_shapes(takes, metric, scores, target)
        joints = target[..., :2].to(scores.dtype)
        wanted = HeatmapMSE.target_maps(joints, size, self.options["sigma"])
        gap = self.embed(scores.flatten(-2)) - self.embed(wanted.flatten(-2))
        counted = None if where is None else where.flatten(-2)
        return ops.masked_mean(gap.square().mean(-1).flatten(-2), counted)


def seen(scores: Tensor, target: Tensor, sees: Sees) -> Tensor:
    """What f sees of an item, `[..., N]`: the target's probability, or its margin over the rest."""
    if scores.shape == target.shape:
        margin = torch.where(target > 0, scores, -scores)
        return torch.sigmoid(margin) if sees == "probability" else margin.asinh()
    target = target.unsqueeze(-1)
    if sees == "probability":
        return scores.softmax(-1).gather(-1, target).squeeze(-1)
    rival = scores.scatter(-1, target, -torch.inf).amax(-1)
    return (scores.gather(-1, target).squeeze(-1) - rival).asinh()


def falling(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Minus a perceptron with the weights' absolute values, which can only rise with x.

    ELU is convex, and a sum of convex functions cannot bend both ways; so half of the units are
    -ELU(-z), concave.
    """
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear[:-1]:
        convex, concave = nn.functional.linear(x, layer.weight.abs(), layer.bias).chunk(2, -1)
        x = torch.cat([nn.functional.elu(convex), -nn.functional.elu(-concave)], -1)
    return -nn.functional.linear(x, linear[-1].weight.abs(), linear[-1].bias)
