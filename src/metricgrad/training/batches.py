"""Batches of training data, drawn with replacement, as Algorithm 1 does (lines 5 and 10).

Stratified batches hold every class in its share of the data, and at least once. With one positive
in a hundred, each batch of 100 then has one; plain drawing leaves a third of the batches without
any, so that most metrics have no value there. scikit-learn's splitters cut data into parts and do
not draw with replacement, so the shares are computed here.
"""

import torch
from torch import Tensor

from metricgrad.metrics.checks import shape, whole


class Batches:
    """Draws the indices of batches.

    Args:
        target: `[items, ...]`, targets of the training data.
        size: Items per batch; at least one of every class if stratified.
        stratified: Whether batches keep the shares of the classes; needs one class per item.
        balanced: Whether stratified batches give all classes the same share instead.

    Example:
        >>> batches = Batches(torch.arange(1000) % 50 == 0, size=100, stratified=True)
        >>> index = batches.draw(3, torch.Generator().manual_seed(0))
        >>> index.shape, (index % 50 == 0).sum(-1)
        (torch.Size([3, 100]), tensor([2, 2, 2]))
    """

    def __init__(self, target: Tensor, size: int, stratified: bool, balanced: bool = False) -> None:
        whole("batch", size, 1)
        if not len(target):
            raise ValueError("there is no training data: x and y are empty")
        self.size = size
        self._items = len(target)
        self._classes = _shares(target, size, balanced) if stratified else None

    def draw(self, number: int, generator: torch.Generator | None) -> Tensor:
        """Indices of so many batches: `[number, size]`."""
        if self._classes is None:
            return torch.randint(self._items, (number, self.size), generator=generator)
        return torch.cat(
            [
                members[torch.randint(len(members), (number, part), generator=generator)]
                for members, part in self._classes
            ],
            -1,
        )


def has_classes(target: Tensor, size: int) -> bool:
    """Whether items have one class each, and a batch of this size can hold two of every class."""
    return is_whole(target) and 2 * len(target.unique()) <= size


def is_whole(target: Tensor) -> bool:
    """Whether a target has one whole number per item."""
    return target.dim() == 1 and not (
        target.is_floating_point() and (target != target.round()).any()
    )


def _shares(target: Tensor, size: int, balanced: bool) -> list[tuple[Tensor, int]]:
    """The items of each class and its share of a batch: by largest remainder, at least one."""
    if not is_whole(target):
        raise ValueError(
            f"stratified batches need one class index per item; got {target.dtype} of shape "
            f"{shape(target)}. Pass stratified=False"
        )
    classes, counts = target.unique(return_counts=True)
    if len(classes) > size:
        raise ValueError(
            f"a batch of {size} cannot hold each of {len(classes)} classes; pass a larger batch, "
            "or stratified=False"
        )
    exact = counts.double() * size / len(target)
    if balanced:
        exact = torch.full_like(exact, size / len(classes))
    parts = exact.floor().clamp(min=1).long()
    for _ in range(size - int(parts.sum())):
        parts[(exact - parts).argmax()] += 1
    for _ in range(int(parts.sum()) - size):  # rare classes took more than their share
        parts[torch.where(parts > 1, parts - exact, -torch.inf).argmax()] -= 1
    return [
        ((target == each).nonzero().squeeze(-1), int(part))
        for each, part in zip(classes, parts, strict=True)
    ]
