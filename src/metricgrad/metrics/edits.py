"""Edit distances of many pairs of sequences at once, along the diagonals of their tables.

With D[i, j] as the edits from the first i tokens of one sequence to the first j of another,

    D[i, j] = min(D[i - 1, j] + 1, D[i, j - 1] + 1, D[i - 1, j - 1] + [tokens i and j differ])

all entries with i + j = k depend on the two diagonals before alone. So one diagonal of all pairs is
five operations on small integers, without a loop over its entries. Pairs are sorted by the diagonal
on which they end, and those that have ended take no further part.
"""

import torch
from torch import Tensor

_SMALL = 2**15 - 1
_DROP = 8  # diagonals from one time that ended pairs are dropped to the next


def edit_distances(hypothesis: Tensor, references: Tensor) -> Tensor:
    """Levenshtein distance `[B, R]` from tidy `[B, T]` to each reference of `[B, R, S]`."""
    items, number, _ = references.shape
    left = hypothesis.unsqueeze(1).expand(-1, number, -1).flatten(0, 1)
    right = references.flatten(0, 1)
    if not left.numel() or not right.numel():
        return torch.maximum((left >= 0).sum(-1), (right >= 0).sum(-1)).reshape(items, number)
    own = (left >= 0).sum(-1)
    ends = own + (right >= 0).sum(-1)
    ends, order = ends.sort()
    left, right = _small(left[order].T, right[order].T)
    found = _at_ends(left, right.flip(0), own[order], ends)
    return torch.empty_like(found).scatter(0, order, found).reshape(items, number)


def _small(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same tokens `[T, P]` and `[S, P]` in the smallest integers that hold them, 0 or more."""
    largest = max(int(left.max()), int(right.max()))
    if largest > torch.iinfo(torch.int32).max:
        both = torch.cat([left, right]).unique(return_inverse=True)[1]
        left, right = both.split([len(left), len(right)])
        largest = both.numel()
    fits = max(largest, len(left) + len(right)) <= _SMALL
    dtype = torch.int16 if fits else torch.int32
    # What stands behind an end is never looked at, but it must not be negative.
    left, right = (part.to(dtype).contiguous().clamp_(min=0) for part in (left, right))
    return left, right


def _at_ends(left: Tensor, backwards: Tensor, own: Tensor, ends: Tensor) -> Tensor:
    """D at the ends of pairs, `[P]`: at row `own` of diagonal `ends`, which are sorted.

    Tokens are `[T, P]`, and `[S, P]` from last to first, which makes tokens i and k - i neighbours.
    """
    rows = len(left)
    columns = len(backwards)
    last = int(ends[-1])
    first = torch.searchsorted(ends, torch.arange(last + 2, device=ends.device)).tolist()
    found = torch.zeros_like(own)
    before, newer, new, spare = (left.new_zeros((rows + 1, len(ends))) for _ in range(4))
    one = torch.ones_like(left)
    done = 0
    for k in range(1, last + 1):
        if not k % _DROP and first[k] > done:
            gone = first[k] - done
            left, backwards, one = (part[:, gone:] for part in (left, backwards, one))
            before, newer, new, spare = (part[:, gone:] for part in (before, newer, new, spare))
            done = first[k]
        if k <= columns:
            new[0] = k
        if k <= rows:
            new[k] = k
        low = max(1, k - columns)
        high = min(rows, k - 1)
        if low <= high:
            shift = columns - k
            entries = new[low : high + 1]
            beside = backwards[shift + low : shift + high + 1]
            torch.bitwise_xor(left[low - 1 : high], beside, out=entries)
            torch.minimum(entries, one[low - 1 : high], out=entries)
            entries.add_(before[low - 1 : high])
            moved = spare[low : high + 1]
            torch.minimum(newer[low - 1 : high], newer[low : high + 1], out=moved)
            torch.minimum(entries, moved.add_(1), out=entries)
        ending = slice(first[k], first[k + 1])
        if ending.start < ending.stop:
            there = new[:, ending.start - done : ending.stop - done]
            found[ending] = there.gather(0, own[None, ending])[0].to(found.dtype)
        before, newer, new = newer, new, before
    return found
