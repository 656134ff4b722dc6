"""Metrics of text as comparisons: the highest-scored token of every place decides.

A place t is won if the token of the target, y, beats every other one:

    f   c_t = s[t, y_t] - max over v != y_t of s[t, v]
    h   b_t = [c_t > 0]
    g   the metric of the tokens y_t where b_t is won, and of the highest others where it is lost

A flip changes one token of one item, so its gain is what the metric gains by that token, with the
rest of the text as it is: BLEU's n-grams around it, an edit less, an exact match or none.

The highest other token is that of the scores whose comparisons were asked for last. Without any,
lost places have a token that no reference has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad.metrics.base import Inputs, Layout, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape
from metricgrad.metrics.margins import soft_own_margin
from metricgrad.metrics.reexpression import ComparisonMetric, Reexpression
from metricgrad.metrics.tokens import TextMetric, token_ids

_FLIPPED_TOKENS = 1 << 22  # tokens held at once while flips are tried
_FACTS = (
    "name",
    "families",
    "higher_is_better",
    "best",
    "worst",
    "ties",
    "undefined",
    "reference",
    "is_total",
    "padding",
    "end",
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenDecisions(ComparisonMetric):
    """A metric of text whose tokens are the highest-scored ones, as comparisons of token scores.

    Args:
        metric: The metric, without a decoder of its own.
    """

    metric: TextMetric

    def __post_init__(self) -> None:
        if self.metric.decode is not None:
            raise TypeError(
                f"UniLoss compares the scores of tokens, and {self.metric.name} has a custom "
                f"decoder, {self.metric.decode!r}; train on a learned surrogate such as mg.ReLoss"
            )
        for fact in _FACTS:
            object.__setattr__(self, fact, getattr(self.metric, fact))

    def __repr__(self) -> str:
        """As the metric itself."""
        return repr(self.metric)

    @property
    def described(self) -> Metric:
        """The metric itself."""
        return self.metric

    @property
    def layout(self) -> Layout:
        """Token scores."""
        return "tokens"

    @property
    def portable(self) -> bool:
        """As the metric itself."""
        return self.metric.portable

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Scores `[..., N, T, V]` and a token of the target for each place."""
        several = target.dim() == scores.dim()
        goal = target[..., 0, :] if several else target
        if scores.dim() < 3 or goal.shape != scores.shape[:-1] or scores.shape[-1] < 2:
            raise ValueError(
                f"a loss of {self.name} takes scores [..., N, T, V] and a target token for each "
                "place, [..., N, T], or [..., N, R, T] with R references; got scores "
                f"{shape(scores)} and target {shape(target)}"
            )
        where = expand_where(where, scores.shape[:-1], scores.dim() - 2)
        scores = real_scores(scores, None if where is None else where.unsqueeze(-1))
        if where is not None:
            scores = scores.masked_fill(~where.unsqueeze(-1), 0.0)
        return Inputs(scores, token_ids(target, None if several else where), where)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The metric of the highest-scored tokens."""
        return self.metric.evaluate(*self.metric.check(scores, target, where))

    def reexpress(
        self, shape: Sequence[int], target: Tensor, where: Tensor | None, dtype: torch.dtype
    ) -> Reexpression:
        """A bit for each place that has a target token."""
        several = target.dim() == len(shape)
        goal = target[..., 0, :] if several else target
        where = torch.ones_like(goal, dtype=torch.bool) if where is None else where
        live = where & (goal >= 0) & (goal < shape[-1])
        return Places(self.metric, target, goal, where, live, shape[-1], dtype)


@dataclass
class Places(Reexpression):
    """One target's metric of text, as places that are won or lost."""

    metric: TextMetric
    target: Tensor  # [..., N, T], or [..., N, R, T]
    goal: Tensor  # [..., N, T], the tokens that win their places: the first reference
    where: Tensor  # [..., N, T]
    live: Tensor  # [..., N, T], places that count and have a goal
    vocabulary: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.others = torch.full_like(self.goal, self.vocabulary)

    def comparisons(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The target's token minus the highest other one, `[..., N * T]`."""
        index = self.goal.clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
        rest, others = scores.scatter(-1, index, -torch.inf).max(-1)
        self.others = torch.where(self.live, others, scores.detach().argmax(-1))
        won_by = scores.gather(-1, index).squeeze(-1) - rest
        return won_by.flatten(-2), self.live.flatten(-2)

    @property
    def among_classes(self) -> bool:
        """Yes: the tokens of the vocabulary are the classes of a place."""
        return True

    def softened(self, scores: Tensor, slope: float) -> Tensor:
        """The target's token minus the soft maximum of all others."""
        goal = self.goal.clamp(0, scores.shape[-1] - 1)
        return soft_own_margin(scores, slope, target=goal).flatten(-2)

    def from_bits(self, bits: Tensor) -> Tensor:
        """The metric of the tokens that are won, and of the others where they are lost."""
        items, number = self._contributions(self._tokens(bits))
        return self.metric.of_sums(items.sum(-2), number).to(self.dtype)

    def flip_gains(self, bits: Tensor) -> Tensor:
        """The metric with a place won minus the metric with it lost: one item differs."""
        tokens = self._tokens(bits)
        items, number = self._contributions(tokens)
        sums = items.sum(-2)
        rest = (sums.unsqueeze(-2) - items).unsqueeze(-2)
        flipped = self._tokens(~bits)
        places = torch.arange(tokens.shape[-1], device=bits.device)
        chunk = max(1, _FLIPPED_TOKENS // max(1, tokens.numel()))
        changed = []
        for some in places.split(chunk):
            at = places == some.unsqueeze(-1)
            tried = torch.where(at, flipped.unsqueeze(-2), tokens.unsqueeze(-2))
            theirs, _ = self._contributions(tried, versions=True)
            changed.append(self.metric.of_sums(rest + theirs, number[..., None, None]))
        values = torch.cat(changed, -1).flatten(-2)
        before = self.metric.of_sums(sums, number).unsqueeze(-1)
        gains = torch.where(bits, before - values, values - before)
        return torch.where(self.live.flatten(-2), gains, 0.0).to(self.dtype)

    def defined(self) -> Tensor:
        """Sets with a place that counts."""
        return self.live.flatten(-2).any(-1)

    def scale(self) -> Tensor | None:
        """For an unbounded metric, what lies between all places lost and all won."""
        if math.isfinite(self.metric.worst):
            return None
        lost = torch.zeros_like(self.live).flatten(-2)
        between = (self.from_bits(lost) - self.from_bits(~lost)).abs()
        return torch.where(between > 0, between, 1.0)

    def _tokens(self, bits: Tensor) -> Tensor:
        """Token ids `[A, ..., N, T]` of bits `[A, ..., N * T]`."""
        won = bits.unflatten(-1, self.goal.shape[-2:]) & self.live
        return torch.where(won, self.goal, self.others)

    def _contributions(self, tokens: Tensor, *, versions: bool = False) -> tuple[Tensor, Tensor]:
        """What the items contribute, `[A, ..., N, C]`, and how many count, `[A, ...]`.

        With several versions of every item, tokens are `[A, ..., N, versions, T]`, and so on.
        """
        target = self.target
        where = self.where
        if versions:
            place = self.goal.dim() - 1
            target = target.unsqueeze(place)
            where = where.unsqueeze(place)
        target = target.expand(*tokens.shape[:-1], *target.shape[where.dim() - 1 :])
        where = where.expand(tokens.shape)
        hypothesis, against, counted = self.metric.check(tokens, target, where)
        assert counted is not None
        items = self.metric.of_items(hypothesis.flatten(0, -2), against.flatten(0, -3))
        items = items.reshape(*counted.shape, items.shape[-1])
        return torch.where(counted.unsqueeze(-1), items, 0.0), counted.sum(-1).to(items.dtype)
