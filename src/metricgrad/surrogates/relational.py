r"""What a loss learned by rank correlation is: a network, its objective, and its penalty.

The network turns the scores and target of a set into one number, which is ranked as it is; an
orientation of 1 or -1 turns it the right way up. The objective compares these numbers with the
metric's values (Eqn. 5 or 7), and the penalty looks at their gradients (Eqn. 8). `reloss.py` has
the options, `learning.py` the steps.
"""

from math import isinf
from typing import Literal

import torch
from torch import Tensor, nn

from metricgrad import ops
from metricgrad.metrics.base import Inputs
from metricgrad.metrics.one_score import item_scores
from metricgrad.surrogates import nets
from metricgrad.surrogates.alignment import (
    Rank,
    Smooth,
    gradient_norms,
    gradient_penalty,
    item_penalty,
    soft_spearman,
)
from metricgrad.surrogates.base import LearnedSurrogate, as_loss, counted, full_precision

ReLossObjective = Literal["correlation", "approximation"]


class Relational(LearnedSurrogate):
    """A loss that is to have the metric's order; a subclass sets its network and options."""

    orientation: Tensor
    net: nn.Module
    penalty: float
    smooth: Smooth
    rank: Rank
    objective: ReLossObjective
    slope: float

    def check(self, scores: Tensor, target: Tensor, where: Tensor | None) -> Inputs:
        """The inputs as the network takes them."""
        if not isinstance(self.net, nets.LossNet):
            return super().check(scores, target, where)
        scores = item_scores(self.metric, scores, target)
        return self.net.check(self.metric, scores, target.detach(), where)

    def losses(self, scores: Tensor, target: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's value on the metric's scale, and whether the metric has a value there."""
        inputs = self.check(scores, target, where)
        values = torch.addcmul(self.shift, self.raw(inputs), self.scale)
        live = counted(inputs.target, inputs.where).flatten(values.dim())
        return values, self.metric.has_value(inputs, live.any(-1))

    def raw(self, inputs: Inputs) -> Tensor:
        """The network's value for every set, `[...]`, as it is ranked."""
        inputs = inputs._replace(scores=inputs.scores.to(self.scale.dtype))
        with full_precision(inputs.scores.device.type):
            own = isinstance(self.net, nets.LossNet)
            return (self.net(self.metric, inputs) if own else self.net(*inputs)) * self.orientation

    @torch.no_grad()
    def truth(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The metric as a loss, `[...]`; NaN where it is undefined."""
        values = self.metric.of_sets(item_scores(self.metric, scores, target), target, where)
        return as_loss(self.metric, values).to(self.scale.dtype)

    def misfit(self, scores: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        r"""How far the losses are from the metric's order over these sets, plus the penalty.

        .. math:: 1 - \rho_S(\ell, m) + \lambda \, (\|\nabla_s \ell\| - 1)^2

        with the metric m as a loss: Eqn. 9 plus 1, for `smooth="equal"`. With
        `objective="approximation"` the first part is the mean of :math:`(\ell - m)^2` instead (Eqn.
        5), divided by that of :math:`m^2` where m has no bound. Scores are those of several sets,
        `[..., N, *]`, and get no gradient; sets on which the metric is undefined are left out.
        """
        raw, truth, penalty = self.compare(scores, target, where)
        return self.distance(raw, truth) + self.penalty * penalty

    def compare(
        self, scores: Tensor, target: Tensor, where: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Raw losses and truths of sets that have one, `[S]` each, and the gradient penalty."""
        truth = self.truth(scores, target, where).flatten()
        inputs = self.check(scores.detach(), target, where)
        scores = inputs.scores.to(self.scale.dtype).requires_grad_(self.penalty > 0)
        inputs = inputs._replace(scores=scores)
        raw = self.raw(inputs)
        penalty = raw.new_zeros(())
        if self.penalty > 0 and self.smooth == "each_item":
            penalty = item_penalty(raw, inputs.scores, inputs.where)
        elif self.penalty > 0:
            penalty = gradient_penalty(self.steepness(raw, inputs), self.smooth)
        known = truth.isfinite()
        return raw.flatten()[known], truth[known], penalty

    def steepness(self, raw: Tensor, inputs: Inputs) -> Tensor:
        """The length of the gradient of raw losses `[...]` by the inputs they came from, `[...]`.

        A network that does not see the scale of a set has gradients of 1 / scale, which are no
        steeper for that; they are measured in units of the set's spread.
        """
        lead = raw.dim()
        where = inputs.where
        counts = None
        if where is not None:
            items = where.flatten(lead + 1).any(-1) if where.dim() > lead + 1 else where
            counts = items.sum(-1)
        norms = gradient_norms(raw, inputs.scores, counts)
        if not (isinstance(self.net, nets.SetNetwork) and self.net.options["standardise"]):
            return norms
        scores = inputs.scores.detach().flatten(lead)
        if where is None or where.shape != inputs.scores.shape:
            return norms * scores.std(-1, correction=0)
        live = where.flatten(lead)
        mean = ops.masked_mean(scores, live).unsqueeze(-1)
        return norms * ops.masked_mean((scores - mean).square(), live).sqrt()

    def distance(self, raw: Tensor, truth: Tensor) -> Tensor:
        """How far raw losses are from the truths: by ranks (Eqn. 7), or by values (Eqn. 5)."""
        if self.objective == "approximation":
            apart = (raw - truth).square().mean()
            # Values without a bound may be thousands, which would drown the penalty.
            unit = truth.square().mean() if isinf(self.metric.worst) else truth.new_ones(())
            return apart / torch.where(unit > 0, unit, 1.0)
        return 1 - soft_spearman(raw, truth, rank=self.rank, slope=self.slope)
