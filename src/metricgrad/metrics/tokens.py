"""Token sequences: from scores to ids, and how alike two sequences are, for all items at once.

Scores `[..., N, T, V]` are decoded to token ids (the highest-scored token of each position, or what
the user's `decode` gives); integer scores `[..., N, T]` are ids already. Targets are ids, too, with
one reference per item or R of them. Negative ids (such as cross-entropy's -100), the `padding` id,
everything from the `end` id on, and what `where` masks are dropped from both (`where` from the
target only if it has that shape). Items of which `where` masks everything are left out of the set;
of several references, empty ones count as absent. With `detokenize`, ids become text first.

What remains is a tidy sequence: tokens on the left, -1 as padding on the right. n-gram overlap is
computed by numbering all n-grams and counting equal numbers in sorted lists; the longest
common subsequence follows its dynamic programme row by row, with a running maximum in place of the
inner loop; `edits.py` has the edit distance.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.base import Inputs, Layout, Metric
from metricgrad.metrics.checks import expand_where, real_scores, shape

PADDING = -1


def lengths(ids: Tensor) -> Tensor:
    """Number of tokens of tidy sequences: `[...]` from `[..., T]`."""
    return (ids != PADDING).sum(-1)


def ngram_matches(hypothesis: Tensor, references: Tensor, order: int, *, pool: bool) -> Tensor:
    """Clipped n-gram matches of tidy `[B, T]` and `[B, R, S]`, for n = 1 to order.

    The o-th time an n-gram occurs in the hypothesis is a match if a reference holds it at least o
    times. With `pool`, the reference that has it most often decides (BLEU), and the result is
    `[B, order]`; without, each reference has matches of its own, `[B, R, order]`.
    """
    items, refs = references.shape[:2]
    # Numbered from 0, so that products of ids cannot overflow, whatever the ids are.
    hypothesis, references, vocabulary = _renumber(hypothesis, references)
    mine = hypothesis
    theirs = references
    number = vocabulary
    rows = torch.arange(items * refs, device=hypothesis.device).reshape(items, refs, 1)
    matches = []
    for n in range(1, order + 1):
        if n > 1:
            mine = _extend(mine, hypothesis, n, vocabulary)
            theirs = _extend(theirs, references, n, vocabulary)
            mine, theirs, number = _renumber(mine, theirs)
        # One sorted list of (item, reference, n-gram) tells how often a reference holds an n-gram.
        known = torch.where(theirs < 0, -1, rows * number + theirs).flatten().sort().values
        wanted = rows * number + mine.unsqueeze(-2)
        after = torch.searchsorted(known, wanted, right=True)
        available = after - torch.searchsorted(known, wanted)
        if pool:
            available = available.amax(-2, keepdim=True)
        found = (mine >= 0).unsqueeze(-2) & (_occurrence(mine).unsqueeze(-2) <= available)
        matches.append(found.sum(-1))
    counted = torch.stack(matches, -1)
    return counted.squeeze(-2) if pool else counted


def common_subsequence(hypothesis: Tensor, references: Tensor) -> Tensor:
    """Length `[B, R]` of the longest common subsequence of tidy `[B, T]` and `[B, R, S]`."""
    row = F.pad(torch.zeros_like(references), (1, 0))
    for token in hypothesis.unbind(-1):
        equal = (references == token[:, None, None]) & (references != PADDING)
        longer = torch.maximum(row[..., 1:], row[..., :-1] + equal)
        row = torch.cat([row[..., :1], longer], -1).cummax(-1).values
    return row[..., -1]


def decode_spans(scores: Tensor) -> Tensor:
    """The positions of the best span from start and end scores, for `span_f1(decode=decode_spans)`.

    The span maximises start[i] + end[j] over i <= j. Its positions stand in for its tokens, so the
    target holds the true span's positions, padded with -1.

    Args:
        scores: `[..., T, 2]`, the start and the end score of every position.

    Returns:
        `[..., T]`, int64, positions of the span, -1 elsewhere.

    Example:
        >>> decode_spans(torch.tensor([[0.0, 6.0], [5.0, 0.0], [1.0, 2.0], [0.0, 1.0]]))
        tensor([-1,  1,  2, -1])
    """
    if scores.shape[-1] != 2:
        raise ValueError(
            f"decode_spans takes start and end scores [..., N, T, 2]; got shape {shape(scores)}"
        )
    best_start, start_at = scores[..., 0].cummax(-1)
    end = (best_start + scores[..., 1]).argmax(-1, keepdim=True)
    start = start_at.gather(-1, end)
    positions = torch.arange(scores.shape[-2], device=scores.device)
    return torch.where((positions >= start) & (positions <= end), positions, PADDING)


def _extend(codes: Tensor, ids: Tensor, n: int, vocabulary: int) -> Tensor:
    """The codes of n-grams from those of (n - 1)-grams; -1 where a token is missing."""
    places = max(ids.shape[-1] - n + 1, 0)
    first = codes[..., :places]
    follower = ids[..., n - 1 :][..., :places]
    return (first * vocabulary + follower).masked_fill((first < 0) | (follower < 0), PADDING)


def _renumber(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, int]:
    """Both code tensors with their codes numbered from 0, -1 kept, and a bound on the numbers."""
    codes, numbers = torch.cat([left.flatten(), right.flatten()]).unique(return_inverse=True)
    numbers = numbers.masked_fill(codes[numbers] < 0, PADDING)
    ours, theirs = numbers.split([left.numel(), right.numel()])
    return ours.reshape(left.shape), theirs.reshape(right.shape), len(codes) + 1


def _occurrence(codes: Tensor) -> Tensor:
    """How many times each code has occurred in its row so far, itself included: `[..., T]`."""
    ordered, order = codes.sort(dim=-1, stable=True)
    places = torch.arange(codes.shape[-1], device=codes.device) - ops.tie_starts(ordered) + 1
    return torch.empty_like(codes).scatter_(-1, order, places)


@dataclass(frozen=True, kw_only=True)
class TextMetric(Metric):
    """A metric of decoded token ids.

    Args:
        decode: From scores `[..., N, T, V]` to integer ids `[..., N, T']`; None takes the
            highest-scored token.
        detokenize: From a list of ids to a string, which is split into words (characters for
            `edit_distance`), or to a list of tokens; None compares ids.
        padding: An id that is padding, besides all negative ones.
        end: The id that ends a sequence; it and what follows are dropped.
    """

    families = ("text",)
    ties = "first"
    undefined = "0 for a set of no items"
    splits_characters = False

    decode: Callable[[Tensor], Tensor] | None = None
    detokenize: Callable[[list[int]], str | Sequence[Hashable]] | None = None
    padding: int | None = None
    end: int | None = None

    @property
    def layout(self) -> Layout:
        """Token scores, or start and end scores of a span."""
        return "spans" if self.decode is decode_spans else "tokens"

    @property
    def ordinary(self) -> str | None:
        """Cross-entropy of tokens or of both ends of a span; a user's own decoder has no custom."""
        return super().ordinary if self.decode in (None, decode_spans) else None

    @property
    def portable(self) -> bool:
        """Only without functions of the user's as `decode` and `detokenize`."""
        return self.decode in (None, decode_spans) and self.detokenize is None

    @abstractmethod
    def of_items(self, hypothesis: Tensor, references: Tensor) -> Tensor:
        """What the items contribute, float64 `[B, ...]`, from tidy ids `[B, T]` and `[B, R, S]`."""

    @abstractmethod
    def of_sums(self, sums: Tensor, items: Tensor) -> Tensor:
        """The value `[...]` from the contributions summed over a set, `[..., *]`, and its size."""

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """Tidy ids `[..., N, T]` and `[..., N, R, S]`, and which items count."""
        ids, where = self._decode(scores, where)
        several = target.dim() == ids.dim() + 1
        fits = target.shape[: ids.dim() - 1] == ids.shape[:-1]
        if not fits or target.dim() - several != ids.dim() or (several and not target.shape[-2]):
            raise ValueError(
                f"{self.name} takes target ids [..., N, T], or [..., N, R, T] with R references, "
                f"for the decoded ids [..., N, T]; got target {shape(target)} and decoded ids "
                f"{shape(ids)}"
            )
        both = where if where is not None and where.shape == target.shape else None
        references = self._tidy(token_ids(target, both), both)
        references = references if several else references.unsqueeze(-2)
        hypothesis = self._tidy(ids, where)
        if self.detokenize is not None:
            hypothesis, references = self._detokenize(hypothesis, references)
        return Inputs(hypothesis, references, None if where is None else where.any(-1))

    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """Contributions of all items at once, summed over each set."""
        lead = scores.shape[:-1]
        items = self.of_items(scores.flatten(0, -2), target.flatten(0, -3))
        items = items.reshape(*lead, items.shape[-1]).mT
        where = torch.ones(lead, dtype=torch.bool, device=scores.device) if where is None else where
        sums = ops.masked_sum(items, where.unsqueeze(-2))
        return self.of_sums(sums, where.sum(-1).to(items.dtype))

    def _decode(self, scores: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Token ids `[..., N, T]`, and the mask in their shape."""
        if not scores.is_floating_point():
            ids = scores.to(torch.int64)
            if ids.dim() < 2:
                wanted = "token ids [..., N, T]"
                raise ValueError(f"{self.name} takes {wanted}; got shape {shape(scores)}")
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
        is_tensor = isinstance(ids, Tensor)
        whole = is_tensor and not ids.is_floating_point()
        if not whole or ids.shape[:-1] != scores.shape[:-2]:
            got = f"{ids.dtype} of shape {shape(ids)}" if is_tensor else type(ids).__name__
            raise ValueError(
                f"decode must give integer ids [..., N, T] for scores {shape(scores)}; it gave "
                f"{got}"
            )
        if where is not None and where.shape != ids.shape:
            # A decoder may change the length; the mask then only tells which items count.
            where = where.any(-1, keepdim=True).expand(ids.shape)
        return ids.to(torch.int64), where

    def _tidy(self, ids: Tensor, where: Tensor | None) -> Tensor:
        """Ids on the left, without padding, masked ones, the end and what follows; -1 elsewhere."""
        keep = ids >= 0
        if self.padding is not None:
            keep &= ids != self.padding
        if self.end is not None:
            keep &= (ids == self.end).cumsum(-1) == 0
        if where is not None:
            keep &= where
        order = keep.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        return ids.masked_fill(~keep, PADDING).gather(-1, order)

    def _detokenize(self, *batches: Tensor) -> list[Tensor]:
        """The same sequences as ids of the tokens of their texts, in the order they first occur."""
        assert self.detokenize is not None
        numbers: dict[Hashable, int] = {}
        numbered = []
        for ids in batches:
            rows = []
            for row in ids.flatten(0, -2).tolist():
                text = self.detokenize([token for token in row if token != PADDING])
                split = isinstance(text, str) and not self.splits_characters
                tokens = str(text).split() if split else text
                rows.append([numbers.setdefault(token, len(numbers)) for token in tokens])
            longest = max(map(len, rows), default=0)
            padded = [row + [PADDING] * (longest - len(row)) for row in rows]
            numbered.append(torch.tensor(padded).to(ids).reshape(*ids.shape[:-1], longest))
        return numbered


def token_ids(target: Tensor, where: Tensor | None) -> Tensor:
    """The target as int64; ValueError for values that count and are not whole numbers."""
    if not target.is_floating_point():
        return target.to(torch.int64)
    target = target if where is None else target.masked_fill(~where, PADDING)
    if not (target.isfinite() & (target == target.round())).all():
        raise ValueError(
            f"target must hold token ids, whole numbers; got {target.dtype} of shape "
            f"{shape(target)} with others"
        )
    return target.to(torch.int64)
