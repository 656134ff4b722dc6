"""The indices of batches, drawn at random.

Stratified batches hold every class in its share of the data, and at least once. With one positive
in a hundred, each batch of 100 then has one; plain drawing leaves a third of the batches without
any, so that most metrics have no value there. scikit-learn's splitters cut data into parts and do
not draw with replacement, so the shares are computed here.
"""

import torch
from torch import Tensor

from metricgrad.metrics.checks import shape, whole


class Batches:
    """Draws the indices of batches, with replacement.

    Stratified ones need one class per item; balanced ones give all classes the same share.
    """

    def __init__(self, target: Tensor, size: int, stratified: bool, balanced: bool = False) -> None:
        whole("batch", size, 1)
        if not len(target):
            raise ValueError("there is no training data: x and y are empty")
        self.size = size
        self.stratified = stratified
        self._items = len(target)
        self._classes = _shares(target, size, balanced) if stratified else None

    def draw(self, number: int, generator: torch.Generator | None) -> Tensor:
        """Indices of so many batches: `[number, size]`."""
        if self._classes is None:
            return torch.randint(self._items, (number, self.size), generator=generator)
        drawn = [
            members[torch.randint(len(members), (number, part), generator=generator)]
            for members, part in self._classes
        ]
        return torch.cat(drawn, -1)


def has_classes(target: Tensor, size: int) -> bool:
    """Whether items have one class each, and a batch of this size can hold two of every class."""
    return has_one_class_each(target) and 2 * len(target.unique()) <= size


def has_one_class_each(target: Tensor) -> bool:
    """Whether a target has one whole number per item."""
    fractions = target.is_floating_point() and bool((target != target.round()).any())
    return target.dim() == 1 and not fractions


def _shares(target: Tensor, size: int, balanced: bool) -> list[tuple[Tensor, int]]:
    """The items of each class and its share of a batch: by largest remainder, at least one."""
    if not has_one_class_each(target):
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
    members = [(target == each).nonzero().squeeze(-1) for each in classes]
    return list(zip(members, parts.tolist(), strict=True))
