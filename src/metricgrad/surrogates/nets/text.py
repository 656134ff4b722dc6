r"""Networks of learned losses for text: as for classes, with attention over places.

A metric of text is decided by whole sequences, so every place first learns of the others. What a
place shows:

    Sequence   softmax(s)_y, the probability of the target's token there; of several references,
               that of the likeliest token
    Spans      its probabilities to be the answer's start and end, whether it is, and whether it
               lies between
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import whole
from metricgrad.surrogates.nets.base import LossNet, drawn_from, elu_layers
from metricgrad.surrogates.nets.places import positions, span_inputs, token_inputs, visible


class Attention(nn.Module):
    """Self-attention and a perceptron, each added to what comes in after a normalisation."""

    def __init__(self, width: int, heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        with drawn_from(generator):
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = elu_layers((width, width, width), generator)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, places: Tensor, hidden: Tensor) -> Tensor:
        """`[B, T, width]` from the same; `hidden` `[B, T]` is True where nobody looks."""
        normal = self.first(places)
        # Weights are asked for (the default): the kernels without them have no second derivative.
        places = places + self.attention(normal, normal, normal, key_padding_mask=hidden)[0]
        return places + self.perceptron(self.second(places))


class TextNet(LossNet):
    """A mean over items of a mean over their places, each of which learns of the others."""

    features: ClassVar[int]  # numbers that a place shows

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        blocks: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width=width, heads=heads, blocks=blocks)
        for name, value in (("width", width), ("heads", heads), ("blocks", blocks)):
            whole(name, value, 1)
        if width % (2 * heads):
            raise ValueError(
                f"width must be a multiple of twice the heads; got width={width} and heads={heads}"
            )
        self.enter = elu_layers((self.features, width, width), generator)
        self.blocks = nn.ModuleList([Attention(width, heads, generator) for _ in range(blocks)])
        self.leave = elu_layers((width, width, 1), generator)

    def value(self, features: Tensor, where: Tensor) -> Tensor:
        """`[...]` from features `[..., N, T, F]` of the places that count `[..., N, T]`."""
        inner = nn.functional.elu(self.enter(features))
        inner = (inner + positions(*inner.shape[-2:], like=inner)).flatten(0, -3)
        live = where.flatten(0, -2)
        # Items without any place count nowhere, but must not be NaN.
        hidden = ~live & live.any(-1, keepdim=True)
        for block in self.blocks:
            inner = block(inner, hidden)
        places = self.leave(inner).squeeze(-1).unflatten(0, features.shape[:-2])
        return ops.masked_mean(ops.masked_mean(places, where), where.any(-1))


class Sequence(TextNet):
    """For sequences of tokens: scores `[..., N, T, V]` and target ids `[..., N, T]`.

    Negative ids mark places without a token. With R references, target ids `[..., N, R, T]`, a
    place shows the probability of the likeliest of their tokens.

    Args:
        width: Width of a place inside the network.

    Example:
        >>> import metricgrad as mg
        >>> loss = mg.ReLoss("bleu", net=mg.nets.Sequence(width=16, heads=2))

    Reference:
        ReLoss, Appendix A.1; the released code for translation has two blocks, and raw logits for
        probabilities.
    """

    features = 1

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores of tokens, and the ids of all references."""
        return token_inputs(metric, scores, target, where)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The value of every set."""
        scores, ids, where = inputs
        assert where is not None
        chances = scores.softmax(-1).gather(-1, ids.clamp(min=0))
        return self.value(torch.where(ids >= 0, chances, 0.0).amax(-1, keepdim=True), where)


class Spans(TextNet):
    """For answers in a text: start and end scores `[..., N, T, 2]`.

    The target holds positions, as `mg.decode_spans` gives them; of several answers `[..., N, R,
    L]`, the likeliest is seen.

    Args:
        width: Width of a place inside the network.

    Example:
        >>> import metricgrad as mg
        >>> metric = mg.metric("span_f1", decode=mg.decode_spans)
        >>> loss = mg.ReLoss(metric, net=mg.nets.Spans(width=16, heads=2))

    Reference:
        ReLoss, Sec. 5.2 and Appendix A.1, machine reading comprehension.
    """

    features = 5

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Start and end scores, and which places belong to the answer, `[..., N, T]`."""
        return span_inputs(metric, scores, target, where)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The value of every set."""
        scores, answer, where = inputs
        assert where is not None
        chances = visible(scores, where).softmax(-2)
        inside = answer.to(scores.dtype)
        before = nn.functional.pad(inside, (1, 0))[..., :-1]
        after = nn.functional.pad(inside, (0, 1))[..., 1:]
        shown = [*chances.unbind(-1), inside * (1 - before), inside * (1 - after), inside]
        return self.value(torch.stack(shown, -1), where)
