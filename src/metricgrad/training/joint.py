"""A model and its learned loss, trained in turns by Algorithm 1 (`algorithm.py`).

SL-U   start="universal", refine=False    the loss is learned once from made-up sets, then frozen
SL-S   start="scratch"                    the loss is learned along with the model alone
SL-R   start="universal"                  both: the paper's recommendation, and the default

`JointTraining` is one run, with checkpoints. `StackedTraining` (`stacked.py`) is many at once.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from metricgrad.metrics.one_score import item_target
from metricgrad.processes import alone
from metricgrad.surrogates.bilevel import BilevelLoss
from metricgrad.surrogates.nets.base import Elements
from metricgrad.training.algorithm import Algorithm1, Alternation
from metricgrad.training.published import PUBLISHED, PUBLISHED_UNIVERSAL, decides_at_least
from metricgrad.training.shards import shared_scores
from metricgrad.training.stack import Flat

LossStart = Literal["universal", "scratch"]


class Round(NamedTuple):
    """Where a joint training stands; means over the iterations that `advance` made."""

    iteration: int  # made in all
    loss: float  # the surrogate's value on the model's batches
    misfit: float  # the surrogate's distance from the metric; NaN if it is not refined
    truth: float  # the metric, as a loss, on the surrogate's batches; NaN if it is not refined


class JointTraining(Algorithm1):
    r"""A model and a `BilevelLoss`, trained in turns by Algorithm 1.

    Every iteration takes :math:`K_\alpha` steps of the model's weights :math:`\alpha` and then
    :math:`K_\beta` steps of the surrogate's weights :math:`\beta`, each on a new batch (x, y):

    .. math:: \alpha \leftarrow \alpha - \eta_\alpha \nabla_\alpha \,
        \ell_\beta(y, s_\alpha(x)), \qquad
        \beta \leftarrow \beta - \eta_\beta \nabla_\beta \,
        | \ell_\beta(y, s_\alpha(x)) - \ell(y, s_\alpha(x)) |

    :math:`\ell_\beta` is the surrogate and :math:`\ell` the metric as a loss. Both steps use Adam.

    Args:
        model: Maps a batch of x to scores.
        loss: The surrogate that the model is trained on. The paper's gamma is the threshold of its
            metric.
        x: `[items, ...]`, features of the training data.
        y: `[items, ...]`, targets of the training data.
        start: `"universal"` first teaches a loss that has not learned yet from made-up sets;
            `"scratch"` does not.
        refine: Whether the loss continues to learn along with the model.
        model_steps: K_alpha, steps of the model in each iteration.
        loss_steps: K_beta, steps of the loss in each iteration.
        model_rate: Adam's learning rate for the model.
        loss_rate: Adam's learning rate for the loss.
        decay: The iteration at which both rates reach 0, along half a cosine wave; None keeps them
            constant.
        clip: The largest norm of either gradient; None does not clip.
        batch: Items per batch, both for the model's steps and for the loss's steps.
        head_start: Iterations at the start in which only the loss learns. From scratch, a loss does
            not know yet where the metric gets better; a model that follows it anyway may end where
            the metric hardly varies, and there is nothing left to learn from.
        stratified: Whether batches keep the shares of the classes; None does so where the target
            has one class per item.
        balanced: Whether every class has the same share of a batch, as in the paper.
        universal: Options of `learn_universal` for the universal start.
        generator: Source of randomness for batches, made-up sets and dropout.

    Example:
        >>> import metricgrad as mg
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
        >>> universal = {"steps": 300, "pool": 2048}
        >>> run = mg.JointTraining(model, mg.BilevelLoss("f1"), x, x[:, 0] > 1, universal=universal)
        >>> run.advance(20).iteration
        20

    Reference:
        Learning Surrogate Losses, Sec. 3.2, Algorithm 1, and Sec. 4.2.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: BilevelLoss,
        x: Tensor,
        y: Tensor,
        *,
        start: LossStart = "universal",
        refine: bool = True,
        model_steps: int = 3,
        loss_steps: int = 10,
        model_rate: float = 1e-3,
        loss_rate: float = 1e-3,
        decay: int | None = None,
        clip: float | None = 1.0,
        batch: int = 100,
        head_start: int = 0,
        stratified: bool | None = None,
        balanced: bool = False,
        universal: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = Alternation(
            refine=refine, model_steps=model_steps, loss_steps=loss_steps, model_rate=model_rate,
            loss_rate=loss_rate, decay=decay, clip=clip, batch=batch, stratified=stratified,
            balanced=balanced, head_start=head_start,
        )  # fmt: skip
        check_start(loss, x, y, start, refine)
        self.model = model
        self.loss = loss
        self._divided = False
        sides = (Flat(model, model_rate, clip), Flat(loss, loss_rate, clip))
        teaching = (universal or {}) if start == "universal" else None
        data = (x, item_target(y, loss.metric))
        super().__init__(model, [loss], sides, data, settings, teaching, generator)

    @classmethod
    def as_published(
        cls, model: nn.Module, loss: BilevelLoss, x: Tensor, y: Tensor, **options: Any
    ) -> "JointTraining":
        r"""The paper's settings (Sec. 4.1): rates and norms of 1e-5, half of a batch positive.

        The metric decides :math:`s \ge \gamma`, where :math:`\gamma` is the threshold that it has;
        `training.choose_gamma` finds one by cross-validation. SL-R starts from the paper's own
        made-up sets. The paper ran 300,000 iterations, with models of 100, 30 and 10 hidden units,
        each layer with batch normalisation and dropout 0.2. Options that you pass replace these.
        """
        check_loss(loss)
        loss.metric = decides_at_least(loss.metric)
        universal = {**PUBLISHED_UNIVERSAL, **(options.pop("universal", None) or {})}
        return cls(model, loss, x, y, **{**PUBLISHED, **options}, universal=universal)

    def advance(self, iterations: int, *, progress: bool = True) -> Round:
        """Runs iterations of Algorithm 1.

        If training fails, a TrainingError says why, and model and loss return to their last good
        state.

        Args:
            iterations: How many rounds of model and loss steps to add to those made so far.
            progress: Whether to show a progress bar, on a terminal.

        Returns:
            Means over these iterations.
        """
        means = self._advance(iterations, progress)
        return Round(self.iteration, *(each.item() for each in means))

    def divide(self) -> None:
        """Lets all processes work on this training, each on a part of every batch's items."""
        self._divided = True
        self._model_side.shared = True

    def _scores(self, index: Tensor) -> Tensor:
        """One forward pass, however many batches the index has."""
        items = index.flatten()
        if not self._divided:
            scores = self.model(self.x[items])
        else:  # dropout alone draws these random numbers, so one more of them changes nothing else
            seed = None if alone() else int(torch.randint(2**31, ()))
            scores = shared_scores(lambda part: self.model(self.x[items[part]]), len(items), seed)
        return scores.reshape(*index.shape, *scores.shape[1:])

    def _estimate(self, elements: Elements) -> Tensor:
        return self.loss.estimate(elements)

    def _look(self, scores: Tensor, target: Tensor) -> tuple[Elements, Tensor]:
        inputs = self.loss.check(scores, target, None)
        truth = self.loss.truth(inputs)
        self.loss.standardise(truth)
        return self.loss.elements(inputs), truth

    def _misfit(self, elements: Elements, truth: Tensor) -> Tensor:
        return self.loss.distances(elements, truth)


def check_loss(loss: BilevelLoss) -> None:
    """Raises for a loss that cannot learn along with a model."""
    if not isinstance(loss, BilevelLoss):
        raise TypeError(
            "loss must be a BilevelLoss, which learns along with the model; got "
            f"{type(loss).__name__}"
        )


def check_start(loss: BilevelLoss, x: Tensor, y: Tensor, start: LossStart, refine: bool) -> None:
    """Raises where a training cannot begin."""
    check_loss(loss)
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same number of items; got {len(x)} and {len(y)}")
    if start not in ("universal", "scratch"):
        raise ValueError(f"start must be 'universal' or 'scratch'; got {start!r}")
    if start == "scratch" and not refine:
        raise ValueError(
            "a loss that starts from scratch and is not refined never learns; pass refine=True"
        )
    if start == "scratch" and loss.universal:
        raise ValueError(
            "this loss has learned from made-up sets already; pass a fresh one to start from "
            "scratch"
        )
