"""From scores to token sequences: what every metric of text does before it compares.

Scores `[..., N, T, V]` are decoded to token ids (the highest-scored token of each place, or the
user's `decode`); integer scores `[..., N, T]` are ids already. Targets are ids too, with one
reference per item or R of them. Negative ids (such as cross-entropy's -100), the `padding` id,
everything from the `end` id on, and what `where` masks are dropped from both (`where` from the
target only if it has that shape). Items of which `where` masks everything are left out of the set;
with several references, an empty one is absent.

With `detokenize` ids become text first: it maps a list of ids to a string (split into words, or
characters for `edit_distance`) or to a list of tokens of any kind.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape
from metricgrad.metrics.tokens import PADDING, tidy


@dataclass(frozen=True, kw_only=True)
class TextMetric(Metric):
    """A metric of decoded token ids.

    Args:
        decode: from scores `[..., N, T, V]` to integer ids `[..., N, T']`; None takes the
            highest-scored token.
        detokenize: from a list of ids to a string or a list of tokens; None compares ids.
        padding: an id that is padding, besides all negative ones.
        end: the id that ends a sequence; it and what follows is dropped.
    """

    families = ("text",)
    ties = "first"
    undefined = "0 for a set of no items"
    splits_characters = False

    decode: Callable[[Tensor], Tensor] | None = None
    detokenize: Callable[[list[int]], str | Sequence[Hashable]] | None = None
    padding: int | None = None
    end: int | None = None

    @abstractmethod
    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """What the items contribute, float64 `[B, ...]`, from tidy ids `[B, T]` and `[B, R, S]`."""

    @abstractmethod
    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """The value `[...]` from the contributions summed over a set `[..., *]` and its number of items `[...]`."""

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Tidy ids `[..., N, T]` and `[..., N, R, S]`, and which items count."""
        ids, where = self._decode(scores, where)
        several = target.dim() == ids.dim() + 1
        if (
            target.shape[: ids.dim() - 1] != ids.shape[:-1]
            or target.dim() - several != ids.dim()
            or (several and not target.shape[-2])
        ):
            raise ValueError(
                f"{self.name} takes target ids [..., N, T], or [..., N, R, T] with R references, for the decoded "
                f"ids [..., N, T]; got target {shape(target)} and decoded ids {shape(ids)}"
            )
        seen = where if where is not None and where.shape == target.shape else None
        target = _token_ids(target, seen)
        items = None if where is None else where.any(-1)
        references = self._tidy(target, seen)
        hypothesis = self._tidy(ids, where)
        references = references if several else references.unsqueeze(-2)
        if self.detokenize is not None:
            hypothesis, references = self._detokenize(hypothesis, references)
        return Inputs(hypothesis, references, items)

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Contributions of all items at once, summed over each set."""
        lead = scores.shape[:-1]
        items = self.of_items(scores.flatten(0, -2), target.flatten(0, -3))
        items = items.reshape(*lead, items.shape[-1]).mT
        where = torch.ones(lead, dtype=torch.bool, device=scores.device) if where is None else where
        return self.of_sums(
            ops.masked_sum(items, where.unsqueeze(-2)), where.sum(-1).to(items.dtype)
        )

    def _decode(self, scores: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not scores.is_floating_point():
            ids = scores.to(torch.int64)
            if ids.dim() < 2:
                raise ValueError(
                    f"{self.name} takes token ids [..., N, T]; got shape {shape(scores)}"
                )
            return ids, expand_where(where, ids.shape, ids.dim() - 1)
        if scores.dim() < 3:
            raise ValueError(
                f"{self.name} takes scores [..., N, T, V], or integer token ids [..., N, T]; "
                f"got {scores.dtype} of shape {shape(scores)}"
            )
        where = expand_where(where, scores.shape[:-1], scores.dim() - 2)
        scores = real_scores(scores, None if where is None else where.unsqueeze(-1))
        if where is not None:
            scores = scores.masked_fill(~where.unsqueeze(-1), torch.finfo(scores.dtype).min / 4)
        if self.decode is None:
            return scores.argmax(-1), where
        ids = self.decode(scores)
        if (
            not isinstance(ids, Tensor)
            or ids.is_floating_point()
            or ids.shape[:-1] != scores.shape[:-2]
        ):
            got = (
                f"{ids.dtype} of shape {shape(ids)}"
                if isinstance(ids, Tensor)
                else type(ids).__name__
            )
            raise ValueError(
                f"decode must give integer ids [..., N, T] for scores {shape(scores)}; it gave {got}"
            )
        if where is not None and where.shape != ids.shape:
            # A decoder may change the length; a mask of the scores' places then only says which
            # items count.
            where = where.any(-1, keepdim=True).expand(ids.shape)
        return ids.to(torch.int64), where

    def _tidy(self, ids: Tensor, where: Tensor | None) -> Tensor:
        keep = ids >= 0
        if self.padding is not None:
            keep &= ids != self.padding
        if self.end is not None:
            keep &= (ids == self.end).cumsum(-1) == 0
        return tidy(ids, keep if where is None else keep & where)

    def _detokenize(self, *batches: Tensor) -> list[Tensor]:
        """The same sequences as ids of the tokens of their texts, numbered as they come."""
        assert self.detokenize is not None
        numbers: dict[Hashable, int] = {}
        numbered = []
        for ids in batches:
            rows = []
            for row in ids.flatten(0, -2).tolist():
                text = self.detokenize([token for token in row if token != PADDING])
                tokens = (
                    text.split() if isinstance(text, str) and not self.splits_characters else text
                )
                rows.append(
                    torch.tensor([numbers.setdefault(token, len(numbers)) for token in tokens]).to(
                        ids
                    )
                )
            longest = max(map(len, rows), default=0)
            padded = torch.full((len(rows), longest), PADDING).to(ids)
            for row, tokens in zip(padded, rows, strict=True):
                row[: len(tokens)] = tokens
            numbered.append(padded.reshape(*ids.shape[:-1], longest))
        return numbered


def _token_ids(target: Tensor, where: Tensor | None) -> Tensor:
    """The target as int64; ValueError for what is no whole number where it counts."""
    if not target.is_floating_point():
        return target.to(torch.int64)
    target = target if where is None else target.masked_fill(~where, PADDING)
    if not (target.isfinite() & (target == target.round())).all():
        raise ValueError(
            f"target must hold token ids, whole numbers; got {target.dtype} of shape {shape(target)} with others"
        )
    return target.to(torch.int64)
