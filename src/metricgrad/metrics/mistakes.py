"""Mistakes that everybody makes once, and what scores and targets tell of them.

Each function only answers a question about tensors. The caller tells the user what to do about it,
once:

    probabilities in place of logits   scores in [0, 1], or rows that sum to 1
    a metric the wrong way round       ideal scores, made from the target, are worse with it than
                                       with the target turned round
    a Python loop over items           one line of a function compares scores again and again
"""

import functools
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import one_hot

_ENOUGH = 32  # scores that are not all between 0 and 1 by chance
_LOOP = 32  # times that one line compares scores, from which on it is a loop over items


@functools.cache
def warn_once(message: str, stacklevel: int = 2) -> None:
    """Warns when it is first called with a message."""
    warnings.warn(message, stacklevel=stacklevel)


def are_probabilities(scores: Tensor) -> bool:
    """Whether all scores lie above 0 and up to 1, and are enough to say so."""
    if scores.numel() < _ENOUGH:
        return False
    low, high = (value.item() for value in scores.detach().aminmax())
    return 0 < low < high <= 1


def rows_are_probabilities(scores: Tensor, dim: int) -> bool:
    """Whether the scores of each item's classes sum to 1, and are not all 0 or 1."""
    scores = scores.detach().float()
    total = scores.sum(dim)
    if total.numel() < 2 or scores.shape[dim] < 2:
        return False
    sums_to_one = ((total - 1).abs() < 1e-3).all() & (scores >= 0).all()
    return bool(sums_to_one & ((scores > 0) & (scores < 1)).any())


def are_label_maps(scores: Sequence[int], target: Sequence[int]) -> bool:
    """Whether shapes are those of label maps, `[..., N, C, H, W]` and `[..., N, H, W]`."""
    scores = list(scores)
    return len(scores) >= 4 and scores[:-3] + scores[-2:] == list(target)


def ideal_scores(scores: Tensor, target: Tensor) -> Tensor | None:
    """Scores that say what the target says; None where the shapes do not tell how."""
    if not target.numel():
        return None
    if target.shape == scores.shape:
        wanted = target.double()
        return (2 * (wanted - (wanted.amin() + wanted.amax()) / 2)).to(scores.dtype)
    maps = are_label_maps(scores.shape, target.shape)
    if not (maps or target.shape == scores.shape[:-1]) or target.is_floating_point():
        return None
    classes = scores.shape[-3 if maps else -1]
    inside = (target >= 0) & (target < classes)
    ideal = 2.0 * one_hot(torch.where(inside, target, 0).long(), classes) - 1
    return (ideal.movedim(-1, -3) if maps else ideal).to(scores.dtype)


def turned(target: Tensor) -> Tensor:
    """The target of one set with low values where high ones were, and every value as often.

    Sorted values move on by half of their number. So of two classes as many items become positive
    as become negative. What a decision costs is then the same with both targets, whatever the class
    and the amounts of an item, and does not look like a metric the wrong way round.
    """
    order = target.flatten().argsort(stable=True)
    found = torch.empty_like(target).flatten()
    found[order] = target.flatten()[order.roll(len(order) // 2)]
    return found.reshape(target.shape)


def loop_over_items(lines: Sequence[tuple[str, int, str]], items: int) -> str:
    """The line that compares scores item by item, in words; empty if there is none.

    `lines` are file, line and code of every operation that compared scores of a set.
    """
    if not lines:
        return ""
    (_, line, code), times = Counter(lines).most_common(1)[0]
    if times < max(_LOOP, items / 2):
        return ""
    return f"line {line}, `{code}`, runs {times} times for a set of {items} items"


@contextmanager
def without_undefined_warnings() -> Iterator[None]:
    """A context without scikit-learn's warnings of undefined sets, which the library handles."""
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is None:  # not loaded, so nothing can warn
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.UndefinedMetricWarning)
        yield
