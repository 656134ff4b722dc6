"""What a metric is: the truth, one number per set, with no useful gradient.

Shape letters, used in every docstring of the library:

    ...   sets: any number of leading dimensions, one metric value each
    N     items of a set              C     classes, or labels of a multi-label item
    H, W  height and width of a map   K     joints of a pose
    T     tokens of a sequence        V     vocabulary        R     references of an item

A metric is called with `(scores, target)`: scores are raw model output (logits), target is the
ground truth, `where` marks what counts. `check` brings the inputs into one form, so that `evaluate`
holds the formula and nothing else.

A metric also states facts about itself (`layout`, `decided_by`, ...). The rest of the library asks
for these facts, never for the class of a metric.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape, to_tensor
from metricgrad.metrics.mistakes import are_probabilities, warn_once
from metricgrad.metrics.one_score import as_items, item_scores
from metricgrad.metrics.rows import NO_ROWS, RowNames, Rows, at

TIE_RULES = {
    "negative": "a score at the threshold is a negative prediction; "
    "among equal classes the lowest index wins",
    "half": "a positive and a negative with equal scores count as half a pair in the correct order",
    "segment": "items with equal scores form one straight segment of the ROC curve",
    "together": "items with equal scores are passed together, at the precision of the last",
    "mean": "the mean over all orders of the equal scores",
    "lost": "irrelevant items are ranked before relevant ones with equal scores",
    "first": "among equal scores the lowest index (class, pixel, token) wins",
    "own": "whatever the function does",
}

Layout = Literal["binary", "labels", "grades", "maps", "heatmaps", "tokens", "spans", "any"]
DecidedBy = Literal["thresholds", "order", "anything"]
JointSize = Literal["length", "area"]

_ORDINARY = {"grades": "list_net", "heatmaps": "heatmap_mse"}  # cross-entropy for all others


class Inputs(NamedTuple):
    """What `Metric.evaluate` may rely on: checked tensors, with 0 in entries that do not count."""

    scores: Tensor  # float32 or float64 (int64 token ids for text), finite
    target: Tensor  # bool (0 and 1), int64 (class indices, token ids) or float (grades, joints)
    where: Tensor | None  # bool, in the shape of all that can be masked; None counts everything


Check = Callable[[Tensor, Tensor, Tensor | None], Inputs]


class Metric(ABC):
    """One number per set, decided by `(scores, target)`; enough for every surrogate but UniLoss.

    Subclasses are frozen dataclasses whose fields are their options. They state these facts, and,
    as properties, those that depend on the options: `layout`, `ordinary`, `has_threshold`,
    `scale_free`, `has_rivals` and `portable`.

    Example:
        >>> import metricgrad as mg
        >>> metric = mg.metric("f1")
        >>> metric.layout, metric.decided_by, metric.ordinary, metric.has_threshold
        ('binary', 'thresholds', 'cross_entropy', True)

    Attributes:
        name: The name that `mg.metric` takes for it.
        families: The rows of the shape table in `docs/metrics.md` that it takes.
        higher_is_better: Whether a larger value means a better model.
        best: The value of an ideal model, with this instance's options.
        worst: The value at the other end; infinite where there is none.
        ties: What equal scores do to the value; a key of `TIE_RULES`.
        undefined: On which sets the metric is undefined, and which value they get instead.
        reference: The independent implementation that tests compare it with.
        decided_by: `"thresholds"` if each item is decided on its own, by a threshold or by its
            highest class, so that sets may be pooled; `"order"` if only the order of the items
            within a set counts, so that a strictly increasing map of binary scores or of scores
            for grades changes nothing and sets must not be pooled; `"anything"` if neither is
            known.
        takes_classes: Whether it accepts scores `[..., N, C]` with class indices `[..., N]`.
        mean_of_items: Whether the value is the share of items that are correct (or wrong).
        is_total: Whether the value is a sum over the items, which grows with their number.
        padding: The token id that is padding, besides all negative ones; None where there is none.
        end: The token id that ends a sequence; None where there is none.
        set_dims: How many trailing dimensions of scores and target make one set, if the user of a
            function has passed it.
        published: The options with which the UniLoss paper's code measures it, where they are not
            the usual ones.
        rows: Data of the items that `with_rows` has bound.
    """

    name: str
    families: tuple[str, ...]
    higher_is_better: bool = True
    best: float = 1.0
    worst: float = 0.0
    ties: str
    undefined: str
    reference: str
    decided_by: DecidedBy = "anything"
    takes_classes: bool = False
    mean_of_items: bool = False
    is_total: bool = False
    padding: int | None = None
    end: int | None = None
    set_dims: tuple[int, int] | None = None
    published: Mapping[str, Any] = MappingProxyType({})
    rows: Rows = NO_ROWS

    @property
    def layout(self) -> Layout:
        """How scores and target are laid out; `"any"` is a user's function with unknown shapes.

        `"binary"` is one score per item; where `takes_classes` holds, shapes may ask for classes.
        """
        return "any"

    @property
    def binary_or_classes(self) -> bool:
        """Whether an item has one score or one per class, and the shapes tell which."""
        return self.layout == "binary" and self.takes_classes

    @property
    def one_score_each(self) -> bool:
        """Whether an item has one score, or one per class, so that `[..., N, 1]` is `[..., N]`."""
        unknown = self.layout == "any" and self.set_dims in (None, (1, 1))
        return unknown or self.layout in ("binary", "grades")

    @property
    def joint_size(self) -> JointSize | None:
        """What the third column of joints has besides x and y; None if there is none."""
        return None

    @property
    def ordinary(self) -> str | None:
        """The loss that people usually train on for this layout; None if there is none."""
        return _ORDINARY.get(self.layout, "cross_entropy")

    @property
    def has_threshold(self) -> bool:
        """Whether it decides binary scores or labels at a threshold that can be tuned."""
        return False

    @property
    def scale_free(self) -> bool:
        """Whether scores times a positive number are known to give the same value."""
        return False  # metrics of order rank the items of a class by softmax

    @property
    def has_rivals(self) -> bool:
        """Whether a target meets every other class, so that a surrogate may keep a few of them."""
        return False

    @property
    def least_items(self) -> int:
        """How many items a set must have before the scores can change the value."""
        return 1

    @property
    def decides_at_zero(self) -> bool:
        """Whether binary scores and labels are decided at 0, which takes them for logits."""
        return False

    @property
    def portable(self) -> bool:
        """Whether name and options rebuild the metric; a user's function cannot be stored."""
        return True

    @property
    def described(self) -> "Metric":
        """The metric that name and options rebuild: this one, unless it stands for another."""
        return self

    @property
    def class_dim(self) -> int:
        """The dimension of scores, counted from the end, that has the classes or labels."""
        return -3 if self.layout == "maps" or self.set_dims == (4, 3) else -1

    @property
    def row_names(self) -> RowNames:
        """Names of its arguments besides scores and target: none, except for a user's function."""
        return RowNames(self.name)

    def with_rows(self, rows: Mapping[str, Any]) -> Self:
        """The same metric with data of the items bound to it, in place of what was bound before.

        Args:
            rows: For each of the metric's `row_names`, a value for each item, `[..., N]`.
        """
        self.row_names.check(list(rows))
        return self

    def at_threshold(self, threshold: Tensor | None, scores: Tensor) -> "tuple[Metric, Tensor]":
        """A metric and scores whose value is this metric's with decisions made at the threshold.

        There is one threshold, one per label, or one per class: minus the offset of the class.
        """
        if threshold is None:
            return self, scores
        if threshold.dim():
            threshold = threshold.reshape(-1, *[1] * (-1 - self.class_dim))
        return self, scores - threshold

    def item_scores(self, scores: Tensor, target: Tensor) -> Tensor:
        """Scores of a model, or of many, as the metric takes them: `[..., N, 1]` as `[..., N]`."""
        return item_scores(self, scores, target)

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """Sets `[...]` with a value of their own; `otherwise` where the metric cannot tell."""
        return otherwise

    def within(self, shape: Sequence[int], joints: Tensor) -> Tensor:
        """For heatmaps of a shape: which pixels are near enough to their joint."""
        raise TypeError(f"{self.name} is not about heatmaps; its layout is {self.layout!r}")

    def confirm_direction(self, inputs: Inputs) -> bool:
        """Whether the direction is known; ValueError if these inputs show that it is wrong."""
        return True

    @torch.no_grad()
    def __call__(
        self, scores: Any, target: Any, *, where: Any = None, groups: Any = None, **rows: Any
    ) -> Tensor:
        """The metric of every set.

        Args:
            scores: Raw model output; a tensor, an array or nested lists, shaped as
                `docs/metrics.md` says.
            target: The ground truth, shaped as `docs/metrics.md` says.
            where: True for what counts; one flag per item, or per entry of an item. None counts
                everything.
            groups: `[N]`, integer ids that split one flat set into many, such as query ids; values
                are ordered by ascending id.
            **rows: Arguments of your own function besides scores and target, by name, such
                as `amount=amount`: `[..., N]`, a value for each item.

        Returns:
            `[...]`, always finite; float64 for float64 (or integer) scores, else float32.
        """
        scores = to_tensor("scores", scores)
        target = to_tensor("target", target)
        where = None if where is None else to_tensor("where", where)
        scores, target, where = as_items(self, scores, target, where)
        return self.of_sets(scores, target, where, groups, **rows)

    @torch.no_grad()
    def of_sets(
        self,
        scores: Tensor,
        target: Tensor,
        where: Tensor | None = None,
        groups: Any = None,
        **rows: Any,
    ) -> Tensor:
        """As a call, for tensors whose leading dimensions are known to be sets, even `[..., 1]`."""
        with torch.autocast(scores.device.type, enabled=False):
            metric = self.with_rows(rows) if rows else self
            if groups is None:
                inputs = metric.check(scores, target, where)
                metric._notice_probabilities(inputs)
                values = metric.evaluate(*inputs)
            else:
                ids = to_tensor("groups", groups)
                inputs = flat_inputs(metric.check, scores, target, where, ids)
                metric._notice_probabilities(inputs)
                values = metric._by_group(inputs, ids)
            return values.to(ops.float_dtype(scores))

    @abstractmethod
    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs in the form that `evaluate` relies on; TypeError or ValueError otherwise."""

    @abstractmethod
    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The metric of every set, `[...]`, from checked inputs."""

    def _notice_probabilities(self, inputs: Inputs) -> None:
        """Warns, once, if scores that are decided at 0 lie between 0 and 1."""
        scores, target, where = inputs
        if not self.decides_at_zero or scores.shape != target.shape:
            return
        every = where is None or where.shape != scores.shape
        if are_probabilities(scores if every else scores[where]):
            warn_once(
                f"all scores lie between 0 and 1, as probabilities do, and {self.name} decides at "
                "0, so every decision is positive; pass the logits, torch.logit(probabilities), or "
                "a metric with threshold=0.5",
                stacklevel=7,
            )

    def _by_group(self, inputs: Inputs, groups: Tensor) -> Tensor:
        """The metric of every group of one flat set, by ascending id."""
        scores, target, _ = inputs
        values = torch.zeros(len(groups.unique()), dtype=torch.float64, device=scores.device)
        for which, index, (grouped, truth, counted) in group_sets(inputs, groups):
            assert counted is not None
            ignored = ~counted.reshape(counted.shape + (1,) * (truth.dim() - counted.dim()))
            metric = self.with_rows(at(self.rows, index))
            found = metric.evaluate(grouped, truth.masked_fill(ignored, 0), counted)
            if found.dim() != 1:
                raise not_flat(scores, target, groups)
            values[which] = found.to(values.dtype)
        return values


def flat_inputs(
    check: Check, scores: Tensor, target: Tensor, where: Tensor | None, groups: Tensor
) -> Inputs:
    """Checked inputs of one flat set with an id for every item; they always have flags."""
    inputs = check(scores, target, where)
    one_each = groups.dim() == 1 and len(groups) == len(scores) == len(target)
    if groups.is_floating_point() or not one_each:
        raise not_flat(scores, target, groups)
    if where is not None:
        return inputs
    try:
        return check(scores, target, torch.ones_like(groups, dtype=torch.bool))
    except ValueError:
        raise not_flat(scores, target, groups) from None


def group_sets(inputs: Inputs, groups: Tensor) -> Iterator[tuple[Tensor, Tensor, Inputs]]:
    """The groups of one flat set with flags, as padded sets side by side, a batch for each size.

    Yields:
        Which groups these are `[G]`, by ascending id; the positions of their items `[G, L]`; and
        their scores and target `[G, L, ...]` with flags that are False for padding.
    """
    scores, target, where = inputs
    assert where is not None
    for which, index, real in ops.group_batches(groups.to(scores.device)):
        counted = where[index] & real.reshape(real.shape + (1,) * (where.dim() - 1))
        yield which, index, Inputs(scores[index], target[index], counted)


def not_flat(scores: Tensor, target: Tensor, groups: Tensor) -> ValueError:
    """The error for groups that do not go with the scores."""
    return ValueError(
        f"groups must be one integer id per item of one flat set; got {groups.dtype} of shape "
        f"{shape(groups)} for scores {shape(scores)} and target {shape(target)}"
    )
