r"""LS-ED: a loss that is the distance between embeddings of what is predicted and of the target.

    classes   e(p), with p = softmax(s), against e(y), for every item
    tokens    e(p_1, ..., p_T), of all places of a text at once, against e(y_1, ..., y_T)

The distance is trained to approximate the metric's value (Patel et al., 2020), such as the edit
distance of two words. A soft token p_t is a mixture of tokens, and its embedding has a gradient
where the edit distance has none. A text is embedded as the metric reads it:

    w_t = (1 - p_t[padding] - p_t[end]) * (1 - p_1[end]) * ... * (1 - p_{t-1}[end])

is how much of a token there is at place t. Places without any add nothing, so padding changes
nothing. What the others add depends on the place, and on its neighbours, by convolutions.
"""

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import expand_where, real_scores, whole
from metricgrad.metrics.counts import one_hot
from metricgrad.metrics.tokens import token_ids
from metricgrad.surrogates.base import wrong_shapes
from metricgrad.surrogates.nets.base import LossNet, drawn_from, elu_layers
from metricgrad.surrogates.nets.places import positions
from metricgrad.surrogates.wrappers import has_token


class Embeddings(LossNet):
    r"""The distance between embeddings of the predicted probabilities and of the target.

    .. math:: \ell = \frac{1}{N} \sum_i \| e(softmax(s_i)) - e(y_i) \|_2

    Items are classes, or texts, whose tokens are embedded place by place, then mixed with their
    neighbours and added up. It is the sum over items where the metric is one, as the edit distance
    is; of several references, the nearest counts.

    Args:
        classes: Number of classes; for text, of tokens in the vocabulary.
        width: Width of the layers that embed a class or token.
        embedding: Number of values that an item is embedded into.
        blocks: Number of convolutions over the places of a text; classes do not need them.

    Example:
        >>> import metricgrad as mg
        >>> net = mg.nets.Embeddings(classes=30)
        >>> loss = mg.ReLoss("edit_distance", net=net, objective="approximation")

    Reference:
        LS-ED (Patel et al., Learning Surrogates via Deep Embedding, 2020), as ReLoss describes it
        in Sec. 2 and compares it in Table 7.
    """

    def __init__(
        self,
        classes: int,
        width: int = 128,
        embedding: int = 32,
        blocks: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(classes=classes, width=width, embedding=embedding, blocks=blocks)
        whole("classes", classes, 2)
        whole("blocks", blocks, 0)
        self.embed = elu_layers((classes, width, width, embedding), generator)
        with drawn_from(generator):
            self.mix = nn.ModuleList(
                [nn.Conv1d(embedding, embedding, 3, padding=1) for _ in range(blocks)]
            )

    def check(self, metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Classes as the metric takes them, tokens with the ids of all references."""
        text = metric.layout == "tokens"
        inputs = text_inputs(metric, scores, target, where) if text else None
        if inputs is None and metric.layout != "spans":
            inputs = metric.check(scores, target, where)
        number = self.options["classes"]
        right = inputs is not None and (text or inputs.scores.shape[:-1] == inputs.target.shape)
        if inputs is not None and right and inputs.scores.shape[-1] == number:
            return inputs
        takes = (
            f"nets.Embeddings(classes={number}) takes scores [..., N, {number}] and classes "
            f"[..., N], or scores [..., N, T, {number}] and tokens [..., N, T]"
        )
        raise wrong_shapes(takes, metric, scores, target)

    def forward(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The mean, or total, distance over the items that count."""
        scores, target, where = inputs
        if metric.layout == "tokens":
            apart = self._texts_apart(metric, inputs)
            where = None if where is None else where.any(-1)
        else:
            truth = one_hot(target, scores.shape[-1]).to(scores.dtype)
            apart = distance(self.embed(scores.softmax(-1)), self.embed(truth))
        add = ops.masked_sum if metric.is_total else ops.masked_mean
        return add(apart, where)

    def _texts_apart(self, metric: Metric, inputs: Inputs) -> Tensor:
        """The distance of every text from the nearest of its references, `[..., N]`."""
        scores, ids, where = inputs
        chances = scores.softmax(-1)
        left = chances.new_ones(()) if where is None else where.to(chances.dtype)
        if metric.end is not None:
            going_on = (1 - left * chances[..., metric.end]).cumprod(-1)
            left = left * nn.functional.pad(going_on, (1, 0), value=1.0)[..., :-1]
        silent = [each for each in (metric.padding, metric.end) if each is not None]
        tokens = chances.index_fill(-1, torch.tensor(silent, dtype=torch.int64), 0.0)
        found = self._of_text(self.embed(tokens), left * tokens.sum(-1))
        table = self.embed(torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device))
        real = ids >= 0
        truth = self._of_text(table[ids.clamp(min=0)], real.to(scores.dtype))
        filled = real.any(-1)
        there = filled | ~filled.any(-1, keepdim=True)
        return distance(found.unsqueeze(-2), truth).masked_fill(~there, torch.inf).amin(-1)

    def _of_text(self, places: Tensor, weights: Tensor) -> Tensor:
        """Embeddings `[..., E]` of texts, from those of their places and how much is there."""
        waves = positions(*places.shape[-2:], like=places)[..., : places.shape[-1]]
        inner = weights.unsqueeze(-1) * (places + waves)
        for convolution in self.mix:
            beside = convolution(inner.flatten(0, -3).mT).mT.reshape(inner.shape)
            inner = weights.unsqueeze(-1) * (inner + nn.functional.elu(beside))
        return inner.sum(-2)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Euclidean distances along the last dimension, with a gradient where they are 0 too."""
    squares = (one - other).square().sum(-1)
    return (squares + torch.finfo(squares.dtype).tiny).sqrt()


def text_inputs(metric: Metric, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
    """Scores of tokens, and the tokens of all references `[..., N, R, T]`, -1 for none."""
    places = scores.shape[:-1]
    several = target.dim() == scores.dim()
    ids = target if several else target.unsqueeze(-2)
    fits = scores.dim() >= 3 and scores.is_floating_point() and ids.dim() == scores.dim()
    if not fits or ids.shape[:-2] != places[:-1] or not ids.shape[-2]:
        takes = "scores [..., N, T, V] and target ids [..., N, T], or those of R references"
        raise wrong_shapes(f"nets.Embeddings takes {takes} [..., N, R, T]", metric, scores, target)
    where = expand_where(where, places, len(places) - 1)
    masked = None if where is None or where.shape != target.shape else where.unsqueeze(-2)
    ids = token_ids(ids, masked)
    real = has_token(metric, ids)
    if metric.end is not None:
        real &= (ids == metric.end).cumsum(-1) == 0
    if masked is not None:
        real &= masked
    largest = int(torch.where(real, ids, -1).max()) if ids.numel() else -1
    if largest >= scores.shape[-1]:
        raise ValueError(
            f"target ids must be below {scores.shape[-1]}, the number of tokens that the scores "
            f"have; got {largest}"
        )
    scores = real_scores(scores, None if where is None else where.unsqueeze(-1))
    return Inputs(scores, torch.where(real, ids, -1), where)
