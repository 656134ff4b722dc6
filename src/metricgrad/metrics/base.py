"""What a metric is: the truth, one number per set, with no useful gradient.

Shape letters, used in every docstring of the library:

    ...   sets: any number of leading dimensions, one metric value each
    N     items of a set              C     classes, or labels of a multi-label item
    H, W  height and width of a map   K     joints of a pose
    T     tokens of a sequence        V     vocabulary        R     references of an item

A metric is called with `(scores, target)`: scores are raw model output (logits), target is the
ground truth, `where` marks what counts. `check` brings the inputs into one form, so that `evaluate`
holds the formula and nothing else.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metricgrad import ops
from metricgrad.metrics.checks import shape, to_tensor

TIE_RULES = {
    "negative": "a score at the threshold is a negative decision; of equal classes the lowest index wins",
    "half": "a positive and a negative with equal scores count as half in order",
    "segment": "items with equal scores make one straight segment of the ROC curve",
    "together": "items with equal scores are passed together, at the precision of the last",
    "mean": "the mean over all orders of the equal scores",
    "lost": "irrelevant items stand before relevant ones of equal score",
    "first": "of equal scores the lowest index (class, pixel, token) wins",
    "own": "as the function has it",
}


Layout = Literal["binary", "labels", "grades", "maps", "heatmaps", "tokens", "spans", "any"]
DecidedBy = Literal["thresholds", "order", "anything"]


class Inputs(NamedTuple):
    """What `Metric.evaluate` may rely on: checked, on one footing, entries that do not count set to 0.

    Attributes:
        scores: float32 or float64 (int64 token ids for text), finite where they count.
        target: bool (0 and 1), int64 (class indices, token ids) or float (grades, joints).
        where: bool, in the shape of all that can be masked, or None where everything counts.
    """

    scores: Tensor
    target: Tensor
    where: Tensor | None


class Metric(ABC):
    """One number per set, decided by `(scores, target)`; enough for every surrogate but UniLoss.

    Subclasses are frozen dataclasses whose fields are their options, and state these facts of
    themselves:

    Attributes:
        name: what `mg.metric` calls it.
        families: the rows of the shape table in `docs/metrics.md` that it takes.
        higher_is_better: the direction.
        best: the value of an ideal model, with this instance's options.
        worst: the value at the other end; infinite where there is none.
        ties: what equal scores do to the value; a key of `TIE_RULES`.
        undefined: which sets have no value of their own, and what they get instead.
        reference: the independent implementation that tests hold it to.
        decided_by: `"thresholds"` if each item is decided on its own, by a threshold or by its highest
            class; `"order"` if only the order of the items of a set counts, so that sets are never
            pooled; `"anything"` if neither is known.
        takes_classes: whether scores `[..., N, C]` with class indices `[..., N]` are a layout of it.
        has_threshold: whether it decides binary scores at a threshold that can be tuned.
        scale_free: whether scores may be multiplied by a positive number without changing the value.
        has_rivals: whether it compares an item's target with every other class, so that a surrogate
            may keep the strongest of them.
        mean_of_items: whether the value is the share of items that are right (or wrong).
        portable: whether name and options rebuild it; a user's function cannot be written to a file.
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

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layout of scores and target of this instance.

        `"binary"` is one score per item; where `takes_classes` holds, the shapes may also say
        classes. `"any"` is a user's function, whose shapes are its own affair.
        """

    @property
    def ordinary(self) -> str | None:
        """The method that people train on for such scores; None where nothing is customary."""
        return "cross_entropy"

    @property
    def has_threshold(self) -> bool:
        """Whether a threshold can be tuned."""
        return False

    @property
    def scale_free(self) -> bool:
        """Whether scores may be multiplied by a positive number without changing the value."""
        return False

    @property
    def has_rivals(self) -> bool:
        """Whether an item's target is compared with every other class."""
        return False

    @property
    def portable(self) -> bool:
        """Whether name and options rebuild the metric."""
        return True

    def at_threshold(self, threshold: Tensor | None, scores: Tensor) -> "tuple[Metric, Tensor]":
        """A metric and scores whose value is this metric's with decisions made at the threshold."""
        return self, scores if threshold is None else scores - threshold

    def item_scores(self, scores: Tensor, target: Tensor) -> Tensor:
        """Scores as they leave the model, without the trailing dimension of a model with one output.

        Every layout but labels has fewer dimensions of target than such scores: `[..., N, 1]` and
        `[..., N]`.
        """
        if scores.dim() == target.dim() + 1 and scores.shape[-1] == 1:
            return scores.squeeze(-1)
        return scores

    def has_value(self, inputs: Inputs, otherwise: Tensor) -> Tensor:
        """Sets `[...]` with a value of their own; `otherwise` where the metric cannot tell."""
        return otherwise

    @torch.no_grad()
    def __call__(
        self, scores: Any, target: Any, *, where: Any = None, groups: Any = None
    ) -> Tensor:
        """The metric of every set.

        Args:
            scores: raw model output; tensor, array or nested lists, shaped as `docs/metrics.md`
                says.
            target: ground truth.
            where: True for what counts; one flag per item, or per entry of an item. None counts
                all.
            groups: `[N]`, integer ids that cut one flat set into many, such as query ids; scores
                and target then have no leading set dimensions, and the values come by ascending id.

        Returns:
            `[...]`, one value per set; float64 for float64 (or integer) scores, else float32.
            Always finite.
        """
        scores, target = to_tensor("scores", scores), to_tensor("target", target)
        where = None if where is None else to_tensor("where", where)
        with torch.autocast(scores.device.type, enabled=False):
            inputs = self.check(scores, target, where)
            if groups is None:
                return self.evaluate(*inputs).to(ops.float_dtype(scores))
            return self._by_group(scores, target, where, to_tensor("groups", groups)).to(
                ops.float_dtype(scores)
            )

    @abstractmethod
    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs in the form that `evaluate` relies on; TypeError or ValueError where they have none."""

    @abstractmethod
    def evaluate(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The metric of every set, `[...]`, from checked inputs."""

    def _by_group(
        self, scores: Tensor, target: Tensor, where: Tensor | None, groups: Tensor
    ) -> Tensor:
        """The metric of every group of one flat set, by ascending id."""
        refusal = ValueError(
            f"groups must be one integer id per item of one flat set; got {groups.dtype} of shape {shape(groups)} for "
            f"scores {shape(scores)} and target {shape(target)}"
        )
        if (
            groups.is_floating_point()
            or groups.dim() != 1
            or not len(groups) == len(scores) == len(target)
        ):
            raise refusal
        everything = torch.ones_like(groups, dtype=torch.bool)
        try:
            scores, target, where = self.check(
                scores, target, everything if where is None else where
            )
        except ValueError:
            raise refusal from None
        assert where is not None
        values = torch.zeros(len(groups.unique()), dtype=torch.float64, device=scores.device)
        for which, index, real in ops.group_batches(groups):
            counted = where[index] & real.reshape(real.shape + (1,) * (where.dim() - 1))
            grouped = target[index]
            grouped = grouped.masked_fill(
                ~counted.reshape(counted.shape + (1,) * (grouped.dim() - counted.dim())), 0
            )
            found = self.evaluate(scores[index], grouped, counted)
            if found.dim() != 1:
                raise refusal
            values[which] = found.to(values.dtype)
        return values


def same_shape(metric: Metric, scores: Tensor, target: Tensor) -> None:
    """Raises ValueError unless scores and target have one shape."""
    if scores.shape != target.shape:
        raise ValueError(
            f"{metric.name} takes scores [..., N] and a target of the same shape; "
            f"got scores {shape(scores)} and target {shape(target)}"
        )
