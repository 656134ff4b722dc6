"""Token sequences as padded tensors: tidied up once, then compared for all items at the same time.

A tidy sequence stands at the left, padded with -1 on the right. n-gram overlap, longest common
subsequence and edit distance are computed for whole batches: the first by numbering all n-grams and
counting equal numbers in sorted lists, the other two row by row of their dynamic programmes, where
a running maximum (or minimum) replaces the inner loop.
"""

import torch
from torch import Tensor

from metricgrad import ops

PADDING = -1


def tidy(ids: Tensor, keep: Tensor) -> Tensor:
    """Kept tokens moved to the left, -1 to their right.

    Args:
        ids: `[..., T]`, int64.
        keep: `[..., T]`, bool.

    Returns:
        `[..., T]`, int64.

    Example:
        >>> tidy(torch.tensor([5, 0, 7, 9]), torch.tensor([True, False, True, False]))
        tensor([ 5,  7, -1, -1])
    """
    order = keep.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return ids.masked_fill(~keep, PADDING).gather(-1, order)


def lengths(ids: Tensor) -> Tensor:
    """Number of tokens of tidy sequences: `[...]` from `[..., T]`."""
    return (ids != PADDING).sum(-1)


def ngram_matches(hypothesis: Tensor, references: Tensor, order: int, *, pool: bool) -> Tensor:
    """Clipped n-gram matches for n = 1 to order: an n-gram counts at most as often as it stands in the reference.

    The o-th time an n-gram occurs in the hypothesis is a match if a reference holds it at least o
    times.

    Args:
        hypothesis: `[B, T]`, tidy.
        references: `[B, R, S]`, tidy.
        order: the longest n.
        pool: True counts a match in whichever reference has the n-gram most often (BLEU), False
            each on its own.

    Returns:
        `[B, order]` int64 if pooled, else `[B, R, order]`.

    Example:
        >>> ngram_matches(torch.tensor([[1, 1, 2]]), torch.tensor([[[1, 2, 3]]]), 2, pool=True)
        tensor([[2, 1]])
    """
    items, refs = references.shape[:2]
    mine, theirs = hypothesis, references
    vocabulary = 1 + max(
        (int(ids.max()) for ids in (hypothesis, references) if ids.numel()), default=0
    )
    rows = torch.arange(items * refs, device=hypothesis.device).reshape(items, refs, 1)
    matches = []
    for n in range(1, order + 1):
        if n > 1:
            mine, theirs = (
                _extend(mine, hypothesis, n, vocabulary),
                _extend(theirs, references, n, vocabulary),
            )
        mine, theirs, number = _renumber(mine, theirs)
        # One sorted list of (item, reference, n-gram) answers how often each n-gram stands in each
        # reference.
        known = torch.where(theirs < 0, -1, rows * number + theirs).flatten().sort().values
        wanted = rows * number + mine.unsqueeze(-2)
        available = torch.searchsorted(known, wanted, right=True) - torch.searchsorted(
            known, wanted
        )
        if pool:
            available = available.amax(-2, keepdim=True)
        matches.append(
            ((mine >= 0).unsqueeze(-2) & (_occurrence(mine).unsqueeze(-2) <= available)).sum(-1)
        )
    counted = torch.stack(matches, -1)
    return counted.squeeze(-2) if pool else counted


def common_subsequence(hypothesis: Tensor, references: Tensor) -> Tensor:
    """Length of the longest common subsequence with each reference.

    Args:
        hypothesis: `[B, T]`, tidy.
        references: `[B, R, S]`, tidy.

    Returns:
        `[B, R]`, int64.

    Example:
        >>> common_subsequence(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[[1, 3, 4, 5]]]))
        tensor([[3]])
    """
    row = torch.zeros(
        *references.shape[:-1],
        references.shape[-1] + 1,
        dtype=torch.int64,
        device=references.device,
    )
    for token in hypothesis.unbind(-1):
        equal = (references == token[:, None, None]) & (references != PADDING)
        row = (
            torch.cat([row[..., :1], torch.maximum(row[..., 1:], row[..., :-1] + equal)], -1)
            .cummax(-1)
            .values
        )
    return row[..., -1]


def edit_distances(hypothesis: Tensor, references: Tensor) -> Tensor:
    """Levenshtein distance to each reference: insertions, deletions and substitutions at cost 1.

    Args:
        hypothesis: `[B, T]`, tidy.
        references: `[B, R, S]`, tidy.

    Returns:
        `[B, R]`, int64.

    Example:
        >>> edit_distances(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[[1, 3, 4, 5]]]))
        tensor([[2]])

    Reference:
        `rapidfuzz.distance.Levenshtein.distance`.
    """
    columns = torch.arange(references.shape[-1] + 1, device=references.device)
    row = columns.expand(*references.shape[:-1], -1)
    for token in hypothesis.unbind(-1):
        differs = (references != token[:, None, None]).to(torch.int64)
        step = torch.cat(
            [row[..., :1] + 1, torch.minimum(row[..., 1:] + 1, row[..., :-1] + differs)], -1
        )
        # min over k <= j of step[k] + (j - k): the insertions, without a loop over columns
        step = (step - columns).cummin(-1).values + columns
        row = torch.where((token == PADDING)[:, None, None], row, step)
    return row.gather(-1, lengths(references).unsqueeze(-1)).squeeze(-1)


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
            f"decode_spans takes start and end scores [..., N, T, 2]; got shape {list(scores.shape)}"
        )
    best_start, start_at = scores[..., 0].cummax(-1)
    end = (best_start + scores[..., 1]).argmax(-1, keepdim=True)
    start = start_at.gather(-1, end)
    positions = torch.arange(scores.shape[-2], device=scores.device)
    return torch.where((positions >= start) & (positions <= end), positions, PADDING)


def _extend(codes: Tensor, ids: Tensor, n: int, vocabulary: int) -> Tensor:
    """An (n - 1)-gram's code and the token that follows it as one number; -1 where either is missing."""
    places = max(ids.shape[-1] - n + 1, 0)
    first, follower = codes[..., :places], ids[..., n - 1 :][..., :places]
    return (first * vocabulary + follower).masked_fill((first < 0) | (follower < 0), PADDING)


def _renumber(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, int]:
    """Both code tensors with their codes numbered from 0, -1 kept, and a bound of the numbers."""
    codes, numbers = torch.cat([left.flatten(), right.flatten()]).unique(return_inverse=True)
    left_numbers, right_numbers = numbers.split([left.numel(), right.numel()])
    return (
        left_numbers.reshape(left.shape).masked_fill(left < 0, PADDING),
        right_numbers.reshape(right.shape).masked_fill(right < 0, PADDING),
        len(codes) + 1,
    )


def _occurrence(codes: Tensor) -> Tensor:
    """How many times each code has occurred in its row so far, itself included: `[..., T]`."""
    ordered, order = codes.sort(dim=-1, stable=True)
    places = torch.arange(codes.shape[-1], device=codes.device) - ops.tie_starts(ordered) + 1
    return torch.empty_like(codes).scatter_(-1, order, places)
