"""What people train on today, as surrogates: the losses that ours are measured against.

Each is written from its paper's formula, for many sets at once with `where`, and takes logits as
they leave the model. Their values are not the metric's (`readable` is False).
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from metricgrad.metrics import Metric
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.rows import SAMPLE_WEIGHT
from metricgrad.surrogates.base import Surrogate, TargetKind, counted


class Baseline(Surrogate):
    """A loss from the literature; subclasses implement `values` for many sets at once.

    Attributes:
        like: The metric whose shapes and checks it shares.
        kinds: The kinds of targets that it takes, whatever the metric.

    Example:
        >>> import metricgrad as mg
        >>> class SquaredError(mg.baselines.Baseline):
        ...     kinds = ("binary",)
        ...
        ...     def values(self, scores, target, where):
        ...         errors = (scores.sigmoid() - target.to(scores.dtype)).square()
        ...         return mg.ops.masked_mean(errors, where)
        >>> SquaredError()(torch.zeros(4), torch.tensor([0, 1, 0, 1]))
        tensor(0.2500)
    """

    like: ClassVar[str] = "accuracy"
    kinds: ClassVar[tuple[TargetKind, ...]] = ("binary", "classes", "labels")

    def __init__(self, **options: Any) -> None:
        super().__init__()
        if not options.get("slope", 1.0) > 0:  # a negative one would train backwards
            raise ValueError(f"slope must be above 0; got {options['slope']}")
        self.options = options

    @classmethod
    def fits(cls, metric: Metric, kind: TargetKind) -> bool:
        """Whether the loss takes targets of a kind, and the weights that a metric has."""
        return kind in cls.kinds and (cls.weighs or SAMPLE_WEIGHT not in metric.rows)

    @abstractmethod
    def values(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Tensor:
        """The loss of every set, `[...]`, from checked inputs."""

    def defined(self, target: Tensor, where: Tensor | None) -> Tensor:
        """Sets with anything to learn from, `[...]`: those with items."""
        return counted(target, where).any(-1)

    def shapes(self) -> Metric:
        """The metric that the loss is like."""
        return to_metric(self.like)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every set, and whether there is anything to learn from it."""
        with torch.autocast(scores.device.type, enabled=False):
            inputs = self.check(scores, target, where)
            defined = self.defined(inputs.target, inputs.where)
            return torch.where(defined, self.values(*inputs), 0.0), defined

    def config(self) -> dict[str, Any]:
        """The options."""
        return dict(self.options)

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
