"""What `mg.fit` refuses before it begins: bad numbers, options without effect, unfit models."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics import Metric
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.checks import shape, whole
from metricgrad.surrogates import Surrogate
from metricgrad.surrogates.noticing import notice_example
from metricgrad.training.data import Batch, Items, Loader
from metricgrad.training.stack import modes_kept

# Steps of Adam are lost in the rounding of shorter ones.
_DTYPES = ("torch.float32", "torch.float64")
_TRIED = 64  # items that show what a model's scores and the targets look like


class FitNumbers(NamedTuple):
    """The arguments of `mg.fit` that are numbers, as the user passed them."""

    epochs: int
    batch: int
    folds: int | None
    patience: int | None
    rate: float | None
    clip: float | None
    budget: float | None
    share: float
    decay: float
    memory: int

    def check(self) -> None:
        """Refuses numbers that cannot be meant."""
        for name in ("epochs", "batch", "folds", "patience"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        whole("memory", self.memory, 0)
        for name in ("rate", "clip", "budget"):
            number = getattr(self, name)
            if number is not None and not number > 0:
                unit = " seconds" if name == "budget" else ""
                raise ValueError(f"{name} must be above 0{unit}; got {number}")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be between 0 and 1; got {self.share}")
        if not self.decay >= 0:
            raise ValueError(f"decay must be 0 or more; got {self.decay}")


def check_arguments(
    model: nn.Module,
    method: str | Surrogate,
    options: Mapping[str, Any] | None,
    numbers: FitNumbers,
) -> None:
    """Refuses what cannot be trained, and what would have no effect."""
    numbers.check()
    if options and (method == "auto" or isinstance(method, Surrogate)):
        why = "auto chooses them itself" if method == "auto" else "a surrogate has its own"
        raise ValueError(
            f"options are for a method by name, such as 'uniloss'; {why}. Got {dict(options)}"
        )
    _check_parameters(model)


def _check_parameters(model: nn.Module) -> None:
    """Refuses a model that has nothing to train, or a dtype that Adam cannot train in."""
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError(f"the model has no parameters to train; got {model!r}")
    if not any(each.requires_grad for each in parameters):
        raise ValueError(
            f"the model is frozen: none of its {len(parameters)} parameters requires a gradient. "
            "Call layer.requires_grad_() of the layers to train, or model.requires_grad_()"
        )
    kinds = sorted({str(each.dtype) for each in parameters})
    if len(kinds) > 1 or kinds[0] not in _DTYPES:
        raise ValueError(
            f"the model's parameters must be {' or '.join(f'all {each}' for each in _DTYPES)}; "
            f"got {' and '.join(kinds)}. Pass model.float()"
        )


def example_of(model: nn.Module, trained: Items | Loader, metric: Metric) -> tuple[Tensor, Batch]:
    """A few items and their scores; ValueError if the model does not take them."""
    if isinstance(trained, Items):
        batch = trained.take(torch.arange(min(len(trained), _TRIED)))
    else:
        batch = trained.first()
    try:
        with torch.no_grad(), modes_kept(model):
            model.eval()
            scores = model(batch.x.to(next(model.parameters()).device))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        hint = ". Integers are left as they are, for embeddings; pass x.float() as features"
        raise ValueError(
            f"the model fails on x {shape(batch.x)} of {batch.x.dtype}: {error}"
            + ("" if batch.x.is_floating_point() else hint)
        ) from error
    _check_scores(scores)
    scores = metric.item_scores(scores.cpu(), batch.y)
    bound = metric.with_rows(batch.rows)
    notice_example(model, bound, Inputs(scores, batch.y, batch.where))
    return scores, batch


def _check_scores(output: Any) -> None:
    """Refuses what a model returned in place of scores; TypeError says how to wrap the model."""
    if isinstance(output, Tensor):
        return
    kind = type(output).__name__
    example = ""
    if isinstance(output, Mapping) and output:
        kind += " with " + ", ".join(map(repr, output))
        name = "logits" if "logits" in output else next(iter(output))
        example = f", such as model(x)[{name!r}]"
    elif isinstance(output, tuple) and output:
        example = ", such as model(x)[0]"
    raise TypeError(
        f"mg.fit trains models that return one tensor of scores; the model returned a {kind}; wrap "
        f"it in a module whose forward returns the scores alone{example}"
    )
