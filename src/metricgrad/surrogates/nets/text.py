r"""Networks of learned losses for text: as for classes, and attention over the places of a sequence.

A metric of text is decided by whole sequences, so every place first learns of the others. What a
place shows:

    Sequence   the probability of the target's token there, softmax(s)_y; of several references, the likeliest token's
    Spans      its probabilities to be the answer's start and its end, and whether it is, and whether it lies between
"""

import math

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import expand_where, real_scores, shape, whole
from metricgrad.surrogates.nets.base import LossNet, drawn_from, perceptron


class Attention(nn.Module):
    """Self-attention and a perceptron, each added to what comes in after a normalisation.

    Args:
        width: of a place.
        heads: of the attention.
        generator: source of randomness for the weights.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        with drawn_from(generator):
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = perceptron((width, width, width), generator)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, places: Tensor, hidden: Tensor) -> Tensor:
        """`[B, T, width]` from the same; `hidden` `[B, T]` is True where nobody looks."""
        normal = self.first(places)
        # Weights are asked for because the fused kernels, which give none, have no second
        # derivative.
        places = (
            places
            + self.attention(normal, normal, normal, key_padding_mask=hidden, need_weights=True)[0]
        )
        return places + self.perceptron(self.second(places))


class TextNet(LossNet):
    """A mean over items of a mean over their places, each seen in the light of the others.

    Args:
        features: numbers that a place shows.
        width: of a place inside.
        heads: of the attention.
        blocks: of attention.
        generator: source of randomness for the weights.
    """

    def __init__(
        self,
        features: int,
        width: int,
        heads: int,
        blocks: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width=width, heads=heads, blocks=blocks)
        for name, value in (("width", width), ("heads", heads), ("blocks", blocks)):
            whole(name, value, 1)
        if width % (2 * heads):
            raise ValueError(
                f"width must be a multiple of twice the heads; got width={width} and heads={heads}"
            )
        self.enter = perceptron((features, width, width), generator)
        self.blocks = nn.ModuleList([Attention(width, heads, generator) for _ in range(blocks)])
        self.leave = perceptron((width, width, 1), generator)

    def value(self, features: Tensor, where: Tensor) -> Tensor:
        """`[...]` from features `[..., N, T, F]` of the places that count `[..., N, T]`."""
        inner = nn.functional.elu(self.enter(features))
        inner = (inner + positions(*inner.shape[-2:], like=inner)).flatten(0, -3)
        counted = where.flatten(0, -2)
        hidden = ~counted & counted.any(
            -1, keepdim=True
        )  # items without any place count nowhere, but must not be NaN
        for block in self.blocks:
            inner = block(inner, hidden)
        places = self.leave(inner).squeeze(-1).unflatten(0, features.shape[:-2])
        return ops.masked_mean(ops.masked_mean(places, where), where.any(-1))


class Sequence(TextNet):
    """For sequences of tokens: scores `[..., N, T, V]`, target ids `[..., N, T]`, negative where there is none.

    With R references, target ids `[..., N, R, T]`, a place shows the probability of the likeliest
    of their tokens.

    Args:
        width: of a place inside.
        heads: of the attention.
        blocks: of attention.
        generator: source of randomness for the weights.

    Reference:
        ReLoss, Appendix A.1; the released code for translation has two blocks, and raw logits for
        probabilities.
    """

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        blocks: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(1, width, heads, blocks, generator)

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores of tokens, and for each place the ids of all references, `[..., N, T, R]`, -1 where there is none."""
        places = scores.shape[:-1]
        several = target.dim() == scores.dim() >= 3 and target.shape[:-2] == places[:-1]
        ids = target.movedim(-2, -1) if several else target.unsqueeze(-1)
        if scores.dim() < 3 or not scores.is_floating_point() or ids.shape[:-1] != places:
            raise ValueError(
                "nets.Sequence takes scores [..., N, T, V] and one target id for each place [..., N, T], or those of R "
                f"references [..., N, R, T]; got scores {shape(scores)} and target {shape(target)} for {metric.name}"
            )
        where = expand_where(where, places, len(places) - 1)
        known = ids >= 0
        padding = getattr(metric, "padding", None)
        known = known if padding is None else known & (ids != padding)
        counted = known.any(-1) if where is None else known.any(-1) & where
        return Inputs(
            real_scores(scores, counted.unsqueeze(-1)), torch.where(known, ids.long(), -1), counted
        )

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The value of every set."""
        scores, ids, where = inputs
        assert where is not None
        chances = scores.softmax(-1).gather(-1, ids.clamp(min=0))
        return self.value(torch.where(ids >= 0, chances, 0.0).amax(-1, keepdim=True), where)


class Spans(TextNet):
    """For answers in a text: start and end scores `[..., N, T, 2]`, target positions as `mg.decode_spans` gives them.

    Args:
        width: of a place inside.
        heads: of the attention.
        blocks: of attention.
        generator: source of randomness for the weights.

    Reference:
        ReLoss, Sec. 5.2 and Appendix A.1, machine reading comprehension.
    """

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        blocks: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(5, width, heads, blocks, generator)

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Start and end scores, and which places belong to the answer, `[..., N, T]`."""
        if scores.dim() < 3 or scores.shape[-1] != 2 or target.shape[:-1] != scores.shape[:-2]:
            raise ValueError(
                "nets.Spans takes start and end scores [..., N, T, 2] and positions [..., N, L], padded with -1; "
                f"got scores {shape(scores)} and target {shape(target)} for {metric.name}"
            )
        length = scores.shape[-2]
        if target.numel() and int(target.max()) >= length:
            raise ValueError(f"target must hold positions below {length}; got {int(target.max())}")
        where = expand_where(where, scores.shape[:-1], scores.dim() - 2)
        counted = (
            torch.ones(scores.shape[:-1], dtype=torch.bool, device=scores.device)
            if where is None
            else where
        )
        places = torch.where(target >= 0, target.long(), length)
        answer = torch.zeros(*target.shape[:-1], length + 1, dtype=torch.bool, device=scores.device)
        answer = answer.scatter(-1, places, torch.ones_like(places, dtype=torch.bool))[..., :length]
        return Inputs(real_scores(scores, counted.unsqueeze(-1)), answer, counted)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The value of every set."""
        scores, answer, where = inputs
        assert where is not None
        hidden = (~where & where.any(-1, keepdim=True)).unsqueeze(-1)
        chances = scores.masked_fill(hidden, torch.finfo(scores.dtype).min / 4).softmax(-2)
        inside = answer.to(scores.dtype)
        before, after = (
            nn.functional.pad(inside, (1, 0))[..., :-1],
            nn.functional.pad(inside, (0, 1))[..., 1:],
        )
        shown = [*chances.unbind(-1), inside * (1 - before), inside * (1 - after), inside]
        return self.value(torch.stack(shown, -1), where)


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of every place, `[T, width]`: any length will do, none has to be learned."""
    places = torch.arange(length, device=like.device, dtype=like.dtype).unsqueeze(-1)
    waves = torch.exp(
        -math.log(10_000) * torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width
    )
    return torch.stack([(places * waves).sin(), (places * waves).cos()], -1).flatten(-2)
